"""``commonwatt forecast``: one file per subcommand."""

from __future__ import annotations

import click

from commonwatt.cli.forecast.compare import compare
from commonwatt.cli.forecast.demand import demand
from commonwatt.cli.forecast.evaluate import evaluate
from commonwatt.cli.forecast.fit import fit, predict
from commonwatt.cli.forecast.plan import plan
from commonwatt.cli.root import VerbGroup

__all__ = ["command"]


@click.group(cls=VerbGroup)
def command() -> None:
    """Forecast GPU demand in quantiles, and plan how many GPUs stay on to keep a promise.

    \b
    Examples:
      commonwatt forecast demand generated --days 14 --out demand.csv
      commonwatt forecast evaluate demand.csv --model last-value --test-from 2024-01-13 --total-gpus 1000
      commonwatt forecast fit demand.csv --train-until 2024-01-13 --out gru.safetensors
      commonwatt forecast predict gru.safetensors demand.csv --plot fan.png
      commonwatt forecast plan demand.csv --target 0.98 --total-gpus 1000 --plot plan.png
      commonwatt forecast compare jobs.csv --plot ways.png
    """


command.add_command(compare)
command.add_command(demand)
command.add_command(evaluate)
command.add_command(fit)
command.add_command(predict)
command.add_command(plan)
