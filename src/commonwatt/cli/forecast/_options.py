"""What the subcommands share: options of SERIES and of numbers, and errors that name options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from commonwatt.model.electricity import Tariff
    from commonwatt.planning.series import LoadedSeries

__all__ = [
    "MOST_GPUS", "NumberRange", "check_price", "features_option", "load", "measured", "names", "naming_options",
    "pairs", "plan_price_options", "power_option", "price_options", "promised", "read_tariff", "series_options",
    "target_option", "window_options",
]  # fmt: skip

MOST_GPUS, _MOST_HORIZON, _MOST_LOOK_BACK = 10**9, 10**5, 10**6
_OPTIONS = {
    "at", "begin", "column", "delay_price", "end", "epochs", "features", "held_out", "horizon", "known_share",
    "look_back", "members", "model", "pool_gpus", "pools", "power_kw", "raw_levels", "refit_every", "score_steps",
    "share", "target", "tenant", "test_from", "where",
}  # fmt: skip

_OF_COMMAND = {"model", "score_steps", "target"}

F = TypeVar("F", bound=Callable[..., Any])


class NumberRange(click.FloatRange):
    """A number within bounds, never NaN, and infinite only if allowed."""

    def __init__(
        self, least: float | None = None, most: float | None = None, *, min_open: bool = False, max_open: bool = False,
        infinite: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(least, most, min_open=min_open, max_open=max_open)
        self._infinite = infinite

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Return the number; fails as click's own does."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number) or (math.isinf(number) and not self._infinite):
            self.fail(f"{value} is not a {'number' if self._infinite else 'finite number'}.", param, ctx)
        return number


class _Target(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A promise: of instants, of jobs, or about delays."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the share or the ``WaitingTarget``; fails as click's own types do."""
        from commonwatt.model.capacity import parse_target
        from commonwatt.model.errors import InputError

        try:
            return parse_target(value) if isinstance(value, str | float) else value
        except InputError as error:
            self.fail(f"{value!r} is not {error.expected}.", param, ctx)


def target_option(command: F) -> F:
    """Add the option for what is promised."""
    return click.option(
        "--target", type=_Target(), default="0.98", show_default=True, metavar="TARGET",
        help="Share of instants with enough GPUs on (1 keeps everything on). For a job log also jobs:0.98, the share "
        "of jobs that find enough GPUs on; delay_s:p99:60, a percentile of delays; delayed_gpu_h:2, GPU hours of "
        "waiting a day.",
    )(command)  # fmt: skip


def promised(of: str, target: float, label: str) -> str:
    """Return what is promised in words."""
    if of == "delayed_gpu_h":
        return f"at most {target:g} GPU h of waiting a day"
    if of == "delay_s":
        return f"{100 * target:g}% of jobs wait for at most {label.rpartition(':')[2]} s:"
    return f"{100 * target:g}% of {of}"


def measured(of: str, value: float | None) -> str:
    """Return what was achieved in words."""
    if value is None:
        return "unknown"
    if of == "delayed_gpu_h":
        return f"{value:.2f} GPU h of waiting a day"
    return f"{100 * value:.2f}% of {'instants' if of == 'instants' else 'jobs'}"


def power_option(command: F) -> F:
    """Add the option for the power of a GPU."""
    return click.option(
        "--gpu-w", type=NumberRange(0, 1e6), metavar="W", help="Power of a GPU that is on, to show energy."
    )(command)


def price_options(command: F) -> F:
    """Add the options for what a GPU that is on costs."""
    price = click.option(
        "--price-per-kwh", type=NumberRange(0, 1e6), metavar="MONEY", help="Price of a kWh; needs --gpu-w."
    )
    currency = click.option("--currency", default="EUR", show_default=True, metavar="NAME", help="Currency of prices.")
    return power_option(price(currency(command)))


def plan_price_options(command: F) -> F:
    """Add the options for prices over time, a limit of power, and a price of delay."""
    for option in (
        click.option("--delay-price", type=NumberRange(0, 1e9), metavar="MONEY",
                     help="Price of a GPU hour of waiting: in place of --target, the promise to jobs of least cost."),
        click.option("--power-kw", type=NumberRange(0, 1e9, min_open=True), metavar="KW",
                     help="Most that the GPUs that are on may draw together; needs --gpu-w."),
        click.option("--electricity", type=click.Path(path_type=Path), metavar="FILE",
                     help="Price, carbon intensity and limit of power over time, on the clock of SERIES (seconds since "
                     "1970 where it has dates): a CSV with from_s, price_per_kwh, carbon_g_per_kwh and power_cap_w, or "
                     "the `electricity` of a scenario."),
    ):  # fmt: skip
        command = option(command)
    return command


def read_tariff(path: Path | None) -> Tariff | None:
    """Read ``--electricity``; raises ``InputError``."""
    from commonwatt.data.files import load_yaml, read_series
    from commonwatt.model.electricity import Electricity

    if path is None:
        return None
    if path.suffix.lower() == ".csv":
        return read_series(Electricity(series_file=path.name), path.parent).tariff()
    electricity = load_yaml(path, Electricity)
    if electricity.series_file is not None:
        electricity = read_series(electricity, path.parent)
    return electricity.tariff()


def check_price(gpu_w: float | None, price_per_kwh: float | None) -> None:
    """Raise ``InputError`` on a price without a power, which would be ignored."""
    from commonwatt.model.errors import InputError

    if price_per_kwh is not None and gpu_w is None:
        raise InputError("--gpu-w beside it, as money is for energy", field="--price-per-kwh", value=price_per_kwh)


def series_options(command: F) -> F:
    """Add the options that select the demand in SERIES."""
    for option in (
        click.option("--max-gap", type=NumberRange(0, infinite=True), default=86400.0, show_default=True, metavar="S",
                     help="Longest gap between rows to fill with unknown values, seconds."),
        click.option("--where", "where", multiple=True, metavar="COLUMN=VALUE",
                     help="Keep only rows with this value, such as one tenant's; repeatable."),
        click.option("--time", "time_column", metavar="NAME",
                     help="Time column.  [default: time, t_s, time_s, ds or timestamp]"),
        click.option("--column", default="gpus", show_default=True, metavar="NAME",
                     help="Demand column; for a job log, gpus (running) or wanted_gpus (waiting too)."),
    ):  # fmt: skip
        command = option(command)
    return command


def features_option(command: F) -> F:
    """Add the option for what is learned from beside demand."""
    return click.option(
        "--features", metavar="NAME,NAME",
        help="For lightgbm: columns of SERIES to learn from beside demand, such as pending_gpus,pending_jobs; a model "
        "file keeps its own.",
    )(command)  # fmt: skip


def names(text: str | None) -> tuple[str, ...]:
    """Read ``--features``."""
    return () if text is None else tuple(name.strip() for name in text.split(","))


def window_options(command: F) -> F:
    """Add the options for the look-back and the horizon of a predictor."""
    for option in (
        click.option("--horizon", type=click.IntRange(1, _MOST_HORIZON), metavar="M",
                     help="Steps to forecast.  [default: 5]"),
        click.option("--look-back", type=click.IntRange(1, _MOST_LOOK_BACK), metavar="N",
                     help="Past values to forecast from.  [default: 120]"),
    ):  # fmt: skip
        command = option(command)
    return command


@contextmanager
def naming_options(path: Path | None = None) -> Iterator[None]:
    """Let an ``InputError`` raised inside name options as they are typed and, if it names no file, *path*."""
    from commonwatt.model.errors import InputError

    try:
        yield
    except InputError as error:
        of_file = error.file is not None and error.field not in {"features", "test_from"}
        if error.field in _OPTIONS and not of_file:
            field = f"--{error.field.replace('_', '-')}"
            value = error.value
            if error.field == "test_from":  # an index, where the user gave a moment, or nothing
                given = click.get_current_context().params.get("test_from")
                value = "the last seventh" if given is None else given
            if error.field in _OF_COMMAND:  # whatever the series is
                path = None
            error = InputError(error.expected, file=error.file, field=field, value=value)
        raise (error if path is None else error.within(path)) from None


def pairs(given: tuple[str, ...], field: str) -> dict[str, str]:
    """Read ``A=B`` options; raises ``InputError``."""
    from commonwatt.model.errors import InputError

    read: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not (equals and name) or name in read:
            raise InputError("a pair such as virtual_cluster=vc1, each column once", field=field, value=pair)
        read[name] = value
    return read


def load(
    path: Path, column: str, time_column: str | None, where: tuple[str, ...], max_gap: float,
    features: tuple[str, ...] = (),
) -> LoadedSeries:  # fmt: skip
    """Read SERIES by its options, with the columns *features*; raises ``InputError``."""
    from commonwatt.planning.series import load_series

    with naming_options():
        return load_series(path, column, time_column, pairs(where, "--where"), max_gap, features)
