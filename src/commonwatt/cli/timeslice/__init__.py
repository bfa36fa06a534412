"""``commonwatt timeslice``: one file per subcommand."""

from __future__ import annotations

import click

from commonwatt.cli.timeslice.plan import plan
from commonwatt.cli.timeslice.profile import profile
from commonwatt.cli.timeslice.run import run
from commonwatt.cli.timeslice.serve import serve

__all__ = ["command"]


@click.group()
def command() -> None:
    """Share one device among tenants by energy-time fairness (ETF), with one knob phi.

    \b
    Examples:
      commonwatt timeslice plan examples/quantum.yaml --phi 0.7
      commonwatt timeslice run examples/edge.yaml
    """


for _sub in (plan, run, profile, serve):
    command.add_command(_sub)
