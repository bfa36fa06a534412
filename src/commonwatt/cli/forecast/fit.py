"""``commonwatt forecast fit``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from commonwatt.cli.forecast._numbers import NumberRange
from commonwatt.cli.forecast._series import series_options, window_options
from commonwatt.cli.output import json_option, print_json, say, seed_option

if TYPE_CHECKING:
    from commonwatt.forecasting.blend import NetworkAndTrees
    from commonwatt.forecasting.lightgbm_quantile import LightGbmQuantile
    from commonwatt.forecasting.networks import NetworkPredictor

__all__ = ["fit"]


@click.command()
@click.argument("series", type=click.Path(path_type=Path))
@click.option(
    "--model",
    "name",
    default="gru",
    show_default=True,
    metavar="NAME",
    help="gru, bilstm, cnn, one of them with -point: trained on squared error; lightgbm; or gru+lightgbm.",
)
@click.option(
    "--train-until", metavar="TIME", help="First instant not learnt from: ISO 8601, or seconds.  [default: all]"
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="MODEL", help="File to write.")
@click.option("--members", type=click.IntRange(1), metavar="N", help="Networks whose forecasts are averaged.")
@click.option("--epochs", type=click.IntRange(1), metavar="N", help="Epochs of each.")
@click.option(
    "--held-out",
    type=NumberRange(0, 0.5, max_open=True),
    metavar="SHARE",
    help="Part of SERIES, below 0.5, that judges each epoch: the best is kept, and training ends after four without a "
    "better one.  [default: 0, the last is kept]",
)
@click.option("--raw-levels", is_flag=True, help="Work on levels, not changes: to see what drift does to that.")
@window_options
@series_options
@seed_option
@json_option
def fit(
    series: Path, *, name: str, train_until: str | None, out: Path, members: int | None, epochs: int | None,
    held_out: float | None, raw_levels: bool, look_back: int | None, horizon: int | None, column: str,
    time_column: str | None, where: tuple[str, ...], max_gap: float, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Train a network, LightGBM, or both on SERIES and write what was learnt to MODEL.

    SERIES is CSV or Parquet with a time column and one of GPUs, or a job log. Ctrl-C ends the training of a network,
    keeping what it has learnt, and a second one ends the command.

    \b
    Examples:
      commonwatt forecast fit demand.csv --train-until 2024-01-13 --out gru.safetensors
      commonwatt forecast fit demand.csv --model cnn-point --members 1 --out cnn.safetensors --json
      commonwatt forecast fit demand.csv --model lightgbm --out trees.safetensors
    """
    import time

    import numpy as np

    from commonwatt import __version__
    from commonwatt.cli.forecast._series import load_series, series_digest
    from commonwatt.cli.output import blamed_on, progress_bar
    from commonwatt.data.forecast_model import write_model
    from commonwatt.data.series_files import read_moment
    from commonwatt.forecasting.blend import NetworkAndTrees
    from commonwatt.forecasting.lightgbm_quantile import LightGbmQuantile
    from commonwatt.model.forecast_network_results import ForecastFitResult

    predictor = _made(name, members, epochs, held_out, raw_levels, look_back, horizon)
    _check_out(out)
    file = load_series(series, column, time_column, where, max_gap).file
    until = len(file.series) if train_until is None else read_moment(train_until, file, "--train-until")
    began = time.perf_counter()
    learnt, rng, stopped = file.series.between(0, until), np.random.default_rng(seed), False
    with blamed_on(series), progress_bar(f"training {name}", 1, 1.0) as bar:
        if isinstance(predictor, LightGbmQuantile):
            say(f"training {name} on {until:,} values")
            predictor.fit(learnt, rng, progress=lambda part: bar.at(name, part))
        else:
            with _interruptible() as interrupted:
                networks = "the network" if isinstance(predictor, NetworkAndTrees) else "it"
                say(f"training {name} on {until:,} values; Ctrl-C keeps what {networks} has learnt by then")
                predictor.fit(learnt, rng, go_on=lambda: not interrupted(), progress=lambda part: bar.at(name, part))
                stopped = interrupted()
    size = write_model(predictor, out, seed)
    result = ForecastFitResult(
        version=__version__,
        seed=seed,
        input_digest=series_digest(file),
        model=predictor.name,
        out=str(out),
        file_bytes=size,
        n=predictor.look_back,
        m=predictor.horizon,
        step_s=file.series.step_s,
        first=file.moment(0),
        last=file.moment(until - 1),
        values=until,
        members=predictor.members,
        interrupted=stopped,
        fit_s=time.perf_counter() - began,
    )
    if stopped:
        say("interrupted: what it had learnt by then is kept")
    if as_json:
        print_json(result)
    else:
        say(f"{result.model}: {result.members} trained on {until:,} values up to {result.last} in {result.fit_s:.1f} s")
        say(f"written: {out} ({size / 1000:,.0f} kB)")


def _made(
    name: str, members: int | None, epochs: int | None, held_out: float | None, raw: bool, look_back: int | None,
    horizon: int | None,
) -> NetworkPredictor | LightGbmQuantile | NetworkAndTrees:  # fmt: skip
    from dataclasses import replace

    from commonwatt.forecasting.blend import NetworkAndTrees
    from commonwatt.forecasting.forecast import HORIZON, LOOK_BACK
    from commonwatt.forecasting.lightgbm_quantile import LightGbmQuantile
    from commonwatt.forecasting.networks import NetworkPredictor, NetworkSettings
    from commonwatt.forecasting.predictors import PREDICTORS, make_predictor
    from commonwatt.model.errors import InputError

    kept = [known for known, entry in PREDICTORS.items() if {*entry.packages} & {"torch", "lightgbm"}]
    if name not in kept:
        expected = f"one of {', '.join(kept)}; others are fitted where they are used, by their name"
        raise InputError(expected, field="--model", value=name)
    n, m = look_back or LOOK_BACK, horizon or HORIZON
    if name == LightGbmQuantile.name:
        options = {"--members": members, "--epochs": epochs, "--held-out": held_out, "--raw-levels": raw or None}
        for field, given in options.items():
            if given is not None:
                raise InputError("a network to go with it", field=field, value=name)
        made = make_predictor(name, n, m)
    else:
        settings = NetworkSettings(raw=raw, held_out=held_out or 0.0)
        recipe = settings.recipe if epochs is None else replace(settings.recipe, epochs=epochs)
        settings = replace(settings, recipe=recipe, members=members or settings.members)
        made = make_predictor(name, n, m, settings=settings)
    assert isinstance(made, NetworkPredictor | LightGbmQuantile | NetworkAndTrees)
    return made


def _check_out(out: Path) -> None:
    """Refuse, before anything is trained, what could not be written to."""
    from commonwatt.model.errors import InputError

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError("a file in a folder that exists", field="--out", value=str(out))


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether Ctrl-C was pressed; pressed again, it interrupts."""
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
