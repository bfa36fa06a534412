"""``commonwatt map``: a problem in ``solve``, what it is made of in ``layers``; what is no subcommand is a problem."""

from __future__ import annotations

import click

from commonwatt.cli.map.layers import batch, layers, table
from commonwatt.cli.map.solve import evaluate, solve
from commonwatt.cli.root import ProblemGroup

__all__ = ["command"]


@click.group(cls=ProblemGroup)
def command() -> None:
    """Map the jobs of PROBLEM (YAML or JSON) onto its sub-accelerators, and order them on each.

    \b
    Examples:
      commonwatt map examples/map.yaml --plot map.png
      commonwatt map examples/map.yaml --algorithm gsharp --budget 2000 --json
      commonwatt map evaluate examples/map.yaml mapping.json
      commonwatt map layers model.onnx --dim batch=1 --out layers.csv
      commonwatt map batch --class mix --jobs 100 --seed 0 --out batch.csv
      commonwatt map table examples/map_layers.yaml
    """


assert isinstance(command, ProblemGroup)
command.add_default(solve)
command.add_command(evaluate)
command.add_command(layers)
command.add_command(batch)
command.add_command(table)
