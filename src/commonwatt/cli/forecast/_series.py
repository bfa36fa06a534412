"""What the subcommands share: a SERIES that may be a file of demand, a job log or a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonwatt.cli.forecast._numbers import NumberRange

if TYPE_CHECKING:
    from commonwatt.data.series_files import SeriesFile
    from commonwatt.model.arrays import Ints

__all__ = [
    "MOST_GPUS",
    "Loaded",
    "load_series",
    "pairs",
    "series_digest",
    "series_options",
    "window_options",
]

MOST_GPUS, _MOST_HORIZON, _MOST_LOOK_BACK = 10**9, 10**5, 10**6

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Loaded:
    """A series, and the jobs behind it where it came from a job log."""

    file: SeriesFile
    starts: Ints | None = None  # [J] index of the first value that counts each job
    sizes: Ints | None = None  # [J] its GPUs


def series_options(command: F) -> F:
    """Add the options that say what of SERIES is the demand."""
    for option in (
        click.option("--max-gap", type=NumberRange(0, infinite=True), default=86400.0, show_default=True, metavar="S",
                     help="Longest hole between two rows that becomes unknown values, seconds."),
        click.option("--where", "where", multiple=True, metavar="COLUMN=VALUE",
                     help="Only the rows with this value: one tenant or virtual cluster of several; repeatable."),
        click.option("--time", "time_column", metavar="NAME",
                     help="The time column.  [default: time, t_s, time_s, ds or timestamp]"),
        click.option("--column", default="gpus", show_default=True, metavar="NAME",
                     help="The column with the demand; of a job log gpus (running) or wanted_gpus."),
    ):  # fmt: skip
        command = option(command)
    return command


def window_options(command: F) -> F:
    """Add the options that say how much a predictor sees, and how far."""
    for option in (
        click.option("--horizon", type=click.IntRange(1, _MOST_HORIZON), metavar="M",
                     help="Steps forecast.  [default: 5]"),
        click.option("--look-back", type=click.IntRange(1, _MOST_LOOK_BACK), metavar="N",
                     help="Values seen before a forecast.  [default: 120]"),
    ):  # fmt: skip
        command = option(command)
    return command


def pairs(given: tuple[str, ...], field: str) -> dict[str, str]:
    """Read ``A=B`` options; raises ``InputError``."""
    from commonwatt.model.errors import InputError

    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not (equals and name) or name in found:
            raise InputError("a pair such as virtual_cluster=vc1, each column once", field=field, value=pair)
        found[name] = value
    return found


def load_series(path: Path, column: str, time_column: str | None, where: tuple[str, ...], max_gap: float) -> Loaded:
    """Read SERIES: a demand file or, told by its columns, a job log. Raises ``InputError``."""
    from commonwatt.data.series_files import read_series

    log = _job_log(path, where) if time_column is None and path.suffix.lower() != ".parquet" else None
    if log is None:
        return Loaded(read_series(path, column, time_column, pairs(where, "--where"), max_gap))
    from commonwatt.data.demand import demand_of
    from commonwatt.data.series_files import SeriesFile
    from commonwatt.model.errors import InputError

    found = demand_of(log)
    both = {"gpus": found.running, "wanted_gpus": found.wanted}
    if column not in both:
        raise InputError("gpus or wanted_gpus, as this is a job log", field="--column", value=column)
    return Loaded(SeriesFile(both[column], found.dated, 0), found.starts, found.sizes)


def _job_log(path: Path, where: tuple[str, ...]) -> Any:  # noqa: ANN401
    """Return the job log *path* is, or ``None`` if it is none."""
    from commonwatt.data.check import locate_input
    from commonwatt.data.guess import guess_format
    from commonwatt.data.readers import READERS, read_log
    from commonwatt.model.errors import InputError

    found, source = locate_input(str(path))
    if source is None:
        try:
            source = guess_format(found)
        except InputError as error:
            if error.field != "--format":
                raise
            return None
    if source not in READERS:
        return None
    if where:
        raise InputError("no --where, as this is a job log: see forecast demand --tenant", field="--where")
    return read_log(source, found)


def series_digest(file: SeriesFile) -> str:
    """SHA-256 of the series as read."""
    import hashlib

    series = file.series
    head = f"{series.start_s!r} {series.step_s!r} ".encode()
    return hashlib.sha256(head + series.gpus.tobytes()).hexdigest()
