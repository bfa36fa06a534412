"""``commonwatt forecast fit`` and ``predict``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from commonwatt.cli.forecast._options import (
    NumberRange,
    features_option,
    load,
    names,
    naming_options,
    series_options,
    window_options,
)
from commonwatt.cli.output import (
    compiling,
    json_option,
    plot_option,
    print_json,
    print_message,
    progress_bar,
    seed_option,
)
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from commonwatt.model.forecast_results import ForecastPredictResult

__all__ = ["fit", "predict"]


@click.command(short_help="Train a model on a demand series and save it.")
@click.argument("series", type=click.Path(path_type=Path))
@click.option(
    "--model",
    "name",
    default="gru",
    show_default=True,
    metavar="NAME",
    help="gru, bilstm or cnn; with -point, trained on squared error; lightgbm; or gru+lightgbm.",
)
@click.option(
    "--train-until", metavar="TIME", help="Train on values before TIME: ISO 8601, or seconds.  [default: all]"
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="MODEL", help="File to write.")
@click.option("--members", type=click.IntRange(1), metavar="N", help="Networks to train and average.")
@click.option("--epochs", type=click.IntRange(1), metavar="N", help="Epochs of each network.")
@click.option(
    "--held-out",
    type=NumberRange(0, 0.5, max_open=True),
    metavar="SHARE",
    help="Share of SERIES, below 0.5, to validate on: keeps the best epoch, and stops after four without a better "
    "one.  [default: 0, keeps the last epoch]",
)
@click.option("--raw-levels", is_flag=True, help="Train on levels instead of changes, to show the effect of drift.")
@features_option
@window_options
@series_options
@seed_option
@json_option
def fit(
    series: Path, *, name: str, train_until: str | None, out: Path, members: int | None, epochs: int | None,
    held_out: float | None, raw_levels: bool, features: str | None, look_back: int | None, horizon: int | None,
    column: str, time_column: str | None, where: tuple[str, ...], max_gap: float, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Train a network, LightGBM or both on SERIES, and write the model to MODEL.

    SERIES is a CSV or Parquet file with a time column and a column of GPUs, or a job log. Ctrl-C stops training and
    keeps the weights; a second Ctrl-C ends the command.

    \b
    Examples:
      commonwatt forecast fit demand.csv --train-until 2024-01-13 --out gru.safetensors
      commonwatt forecast fit demand.csv --model cnn-point --members 1 --out cnn.safetensors --json
      commonwatt forecast fit demand.csv --model lightgbm --out trees.safetensors
      commonwatt forecast fit demand.csv --model lightgbm --features pending_gpus,pending_jobs --out queue.safetensors
    """
    from commonwatt.data.series_files import read_moment
    from commonwatt.forecasting import PREDICTORS
    from commonwatt.model.errors import InputError
    from commonwatt.planning.predictors import features_of, fit_series, make_savable

    with naming_options():
        predictor = make_savable(
            name, look_back, horizon, members=members, epochs=epochs, held_out=held_out, raw_levels=raw_levels,
            features=names(features),
        )  # fmt: skip
    _check_out(out)
    file = load(series, column, time_column, where, max_gap, features_of(predictor)).file
    until = len(file.series) if train_until is None else read_moment(train_until, file, "--train-until")
    least = predictor.look_back + predictor.horizon
    if train_until is not None and until < least:
        expected = f"a moment after at least {least} values, not {until}"
        raise InputError(expected, field="--train-until", value=train_until)
    hint = ""
    interruptible: AbstractContextManager[Callable[[], bool]] = nullcontext(lambda: False)
    if PREDICTORS[name].trains_network:
        hint = f"; Ctrl-C keeps what {'the network' if '+' in name else 'it'} has learned by then"
        interruptible = _interruptible()
    with (
        naming_options(series), compiling(f"forecaster {name}") as watch,
        progress_bar(f"training {name}", 1, 1.0) as bar, interruptible as interrupted,
    ):  # fmt: skip
        print_message(f"training {name} on {until:,} values{hint}")
        result = fit_series(
            file, predictor, out, until=until, seed=seed, go_on=lambda: not interrupted(),
            progress=lambda part: bar.at(predictor.name, part), clock=lambda: watch.elapsed_s,
        )  # fmt: skip
    if result.interrupted:
        print_message("interrupted: what it had learned by then is kept")
    if as_json:
        print_json(result)
    else:
        models, values = plural(result.members, "model"), plural(until, "value")
        print_message(f"{result.model}: {models} trained on {values} up to {result.last} in {result.fit_s:.1f} s")
        print_message(f"written: {out} ({result.file_bytes / 1000:,.0f} kB)")


def _check_out(out: Path) -> None:
    """Refuse, before training, a file that cannot be written."""
    from commonwatt.model.errors import InputError

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError("a file in an existing folder", field="--out", value=str(out))


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Return whether Ctrl-C was pressed, as a function; a second one interrupts."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before: Any = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


_SHOWN = (0.1, 0.5, 0.9, 0.95, 0.98, 0.99)


@click.command(short_help="Forecast the next values of a series by a model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("series", type=click.Path(path_type=Path))
@click.option(
    "--at", metavar="TIME", help="Forecast from this instant: ISO 8601, or seconds.  [default: the last of SERIES]"
)
@plot_option("the last values, the forecast as a fan, and actual demand")
@series_options
@json_option
def predict(
    model: Path, series: Path, *, at: str | None, plot: Path | None, column: str, time_column: str | None,
    where: tuple[str, ...], max_gap: float, as_json: bool,
) -> None:  # fmt: skip
    """Forecast the next values of SERIES by MODEL, a file that `forecast fit` wrote.

    \b
    Examples:
      commonwatt forecast predict gru.safetensors demand.csv
      commonwatt forecast predict gru.safetensors demand.csv --at 2024-01-13T12:00Z --plot fan.png
    """
    from commonwatt.data.series_files import read_moment
    from commonwatt.planning.predictors import model_features, predict_series

    file = load(series, column, time_column, where, max_gap, model_features(model)).file
    origin = None if at is None else read_moment(at, file, "--at")
    with naming_options(series), compiling("the forecaster"):
        result = predict_series(model, file, origin)
    if plot is not None:
        from commonwatt.report.forecast_plots import save_fan

        save_fan(result, file.series, len(file.series) - 1 if origin is None else origin, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _show(result)


def _show(result: ForecastPredictResult) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = [i for i, level in enumerate(result.levels) if level in _SHOWN]
    table = Table(title=f"{result.model} forecast from {result.seen_until}, GPUs", title_justify="left")
    table.add_column("at")
    for i in shown:
        table.add_column(f"q {result.levels[i]:g}", justify="right")
    for step in result.steps:
        table.add_row(step.at, *(f"{step.gpus[i]:g}" for i in shown))
    Console().print(table)
