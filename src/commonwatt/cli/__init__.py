"""The ``commonwatt`` command: one file per verb, each imported only when it is called."""

from commonwatt.cli.root import main

__all__ = ["main"]
