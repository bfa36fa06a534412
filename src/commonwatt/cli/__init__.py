"""The ``commonwatt`` command: verbs are imported only when they are called."""

from commonwatt.cli.root import main

__all__ = ["main"]
