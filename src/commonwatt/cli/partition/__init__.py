"""``commonwatt partition``: a problem and ``characterize`` in ``divide``, GPUs to cut up in ``mig``."""

from __future__ import annotations

import click

from commonwatt.cli.partition.divide import characterize, divide
from commonwatt.cli.partition.mig import mig
from commonwatt.cli.root import ProblemGroup

__all__ = ["command"]


@click.group(cls=ProblemGroup)
def command() -> None:
    """Choose a configuration of core clusters for tenants, and divide it among them by a Fisher market.

    \b
    Examples:
      commonwatt partition examples/partition.yaml --explain
      commonwatt partition examples/partition.yaml --welfare egalitarian --json
      commonwatt partition examples/partition.yaml --sweep-weight user2=0.1:10:9 --plot weight.png
      commonwatt partition mig examples/mig.yaml --plot layouts.png
      commonwatt partition characterize --threads 1,2 -- ./my-program
    """


assert isinstance(command, ProblemGroup)
command.add_default(divide)
command.add_command(mig)
command.add_command(characterize)
