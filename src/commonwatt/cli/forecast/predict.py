"""``commonwatt forecast predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.compiling import compiling
from commonwatt.cli.forecast._options import load, naming_options, series_options
from commonwatt.cli.output import json_option, plot_option, print_json, say

if TYPE_CHECKING:
    from commonwatt.model.forecast_results import ForecastPredictResult

__all__ = ["predict"]

_SHOWN = (0.1, 0.5, 0.9, 0.95, 0.98, 0.99)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("series", type=click.Path(path_type=Path))
@click.option("--at", metavar="TIME", help="Last instant used: ISO 8601, or seconds.  [default: the last of SERIES]")
@plot_option("the last values, the forecast as a fan, and actual demand")
@series_options
@json_option
def predict(
    model: Path, series: Path, *, at: str | None, plot: Path | None, column: str, time_column: str | None,
    where: tuple[str, ...], max_gap: float, as_json: bool,
) -> None:  # fmt: skip
    """Forecast the next values of SERIES by MODEL, a file written by ``forecast fit``.

    \b
    Examples:
      commonwatt forecast predict gru.safetensors demand.csv
      commonwatt forecast predict gru.safetensors demand.csv --at 2024-01-13T12:00Z --plot fan.png
    """
    from commonwatt.data.series_files import read_moment
    from commonwatt.planning.predictors import predict_series

    file = load(series, column, time_column, where, max_gap).file
    origin = None if at is None else read_moment(at, file, "--at")
    with naming_options(series), compiling("the forecaster"):
        result = predict_series(model, file, origin)
    if plot is not None:
        from commonwatt.report.forecast_plots import save_fan

        save_fan(result, file.series, len(file.series) - 1 if origin is None else origin, plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _show(result)


def _show(result: ForecastPredictResult) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = [i for i, level in enumerate(result.levels) if level in _SHOWN]
    table = Table(title=f"{result.model}, seen until {result.seen_until}: GPUs", title_justify="left")
    table.add_column("at")
    for i in shown:
        table.add_column(f"q {result.levels[i]:g}", justify="right")
    for step in result.steps:
        table.add_row(step.at, *(f"{step.gpus[i]:g}" for i in shown))
    Console().print(table)
