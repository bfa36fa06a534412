"""``commonwatt map``: one file per subcommand; what is no subcommand is a problem to solve."""

from __future__ import annotations

import click

from commonwatt.cli.groups import ProblemGroup
from commonwatt.cli.map.evaluate import evaluate
from commonwatt.cli.map.solve import solve
from commonwatt.cli.map.table import table

__all__ = ["command"]


@click.group(cls=ProblemGroup)
def command() -> None:
    """Map the jobs of PROBLEM (YAML or JSON) onto its sub-accelerators: which one, and in what order.

    \b
    Examples:
      commonwatt map examples/map.yaml --plot map.png
      commonwatt map examples/map.yaml --algorithm gsharp --budget 2000 --json
      commonwatt map evaluate examples/map.yaml mapping.json
      commonwatt map table examples/map_layers.yaml
    """


assert isinstance(command, ProblemGroup)
command.add_default(solve)
command.add_command(evaluate)
command.add_command(table)
