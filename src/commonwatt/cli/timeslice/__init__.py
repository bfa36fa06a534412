"""``commonwatt timeslice``: a quantum or a load in ``run``, real models in ``serve``."""

from __future__ import annotations

import click

from commonwatt.cli.root import VerbGroup
from commonwatt.cli.timeslice.run import plan, run
from commonwatt.cli.timeslice.serve import profile, serve

__all__ = ["command"]


@click.group(cls=VerbGroup)
def command() -> None:
    """Share one device among tenants by energy-time fairness (ETF), with one knob phi.

    \b
    Examples:
      commonwatt timeslice plan examples/quantum.yaml --phi 0.7
      commonwatt timeslice run examples/edge.yaml
    """


for _sub in (plan, run, profile, serve):
    command.add_command(_sub)
