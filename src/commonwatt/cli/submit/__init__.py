"""``commonwatt submit``: ``flags.py`` understands Slurm's words."""

from commonwatt.cli.submit.submit import command

__all__ = ["command"]
