"""``commonwatt forecast predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.forecast._series import series_options
from commonwatt.cli.output import json_option, plot_option, print_json, say

if TYPE_CHECKING:
    from commonwatt.data.series_files import SeriesFile
    from commonwatt.model.forecast_network_results import ForecastPredictResult

__all__ = ["predict"]

_SHOWN = (0.1, 0.5, 0.9, 0.95, 0.98, 0.99)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("series", type=click.Path(path_type=Path))
@click.option("--at", metavar="TIME", help="Last instant seen: ISO 8601, or seconds.  [default: the last of SERIES]")
@plot_option("the values seen last, the forecast as a fan, and what came true")
@series_options
@json_option
def predict(
    model: Path, series: Path, *, at: str | None, plot: Path | None, column: str, time_column: str | None,
    where: tuple[str, ...], max_gap: float, as_json: bool,
) -> None:  # fmt: skip
    """Forecast the next values of SERIES by MODEL, a file of ``forecast fit``.

    \b
    Examples:
      commonwatt forecast predict gru.safetensors demand.csv
      commonwatt forecast predict gru.safetensors demand.csv --at 2024-01-13T12:00Z --plot fan.png
    """
    import time

    import numpy as np

    from commonwatt import __version__
    from commonwatt.cli.forecast._series import load_series, series_digest
    from commonwatt.cli.output import blamed_on
    from commonwatt.data.forecast_model import read_model
    from commonwatt.forecasting.forecast import LEVELS
    from commonwatt.model.forecast_network_results import ForecastPredictResult, ForecastStep

    predictor, header = read_model(model)
    file = load_series(series, column, time_column, where, max_gap).file
    origin = _origin(file, at, predictor.look_back)
    with blamed_on(series):
        predictor.predict_many(file.series, np.array([origin]))
        began = time.perf_counter()
        found = predictor.predict_many(file.series, np.array([origin]))[0]
        took_ms = 1000 * (time.perf_counter() - began)
    last = float(file.series.gpus[origin])
    result = ForecastPredictResult(
        version=__version__,
        seed=header.seed,
        input_digest=series_digest(file),
        model=predictor.name,
        n=predictor.look_back,
        m=predictor.horizon,
        step_s=file.series.step_s,
        seen_until=file.moment(origin),
        last_gpus=None if np.isnan(last) else last,
        levels=tuple(LEVELS.tolist()),
        steps=tuple(
            ForecastStep(at=file.moment(origin + 1 + h), gpus=tuple(row)) for h, row in enumerate(found.tolist())
        ),
        predict_ms=took_ms,
    )
    if plot is not None:
        from commonwatt.report.fan_plot import save_fan

        gpus = file.series.gpus
        save_fan(result, gpus[max(0, origin - 59) : origin + 1], gpus[origin + 1 : origin + 1 + len(found)], plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _origin(file: SeriesFile, at: str | None, look_back: int) -> int:
    from commonwatt.data.series_files import read_moment
    from commonwatt.model.errors import InputError

    origin = len(file.series) - 1 if at is None else read_moment(at, file, "--at")
    if origin < look_back - 1:
        raise InputError(f"at least {look_back} values up to then", field="--at" if at else "series", value=origin + 1)
    if origin < file.series.first_known:
        raise InputError("a moment with a known value up to then", field="--at", value=at)
    return origin


def _tell(result: ForecastPredictResult) -> None:
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
