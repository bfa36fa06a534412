"""Demand series as files: CSV (gzipped or not) or Parquet, with a time column and one of GPUs.

The time is ISO 8601 (UTC where no zone is given) or seconds; the first cell decides. The step is the most frequent
distance of two rows. Defects:

- a blank cell, ``nan`` or ``null`` is unknown demand (NaN), and so are missing rows, up to a given length;
- a longer gap, a time that repeats, goes backwards or lies between steps, and negative or infinite demand are refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commonwatt.data.files import write_atomic
from commonwatt.data.table import MOMENT, TextTable, moment_s, names_in, no_column, read_table
from commonwatt.model.arrays import Floats
from commonwatt.model.demand import MOST_DEMAND, TIME_COLUMNS, DemandSeries
from commonwatt.model.errors import InputError
from commonwatt.model.units import DAY_S

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "FIRST_DATE_S",
    "LONGEST_GAP_S",
    "SeriesFile",
    "iso_moment",
    "read_moment",
    "read_series",
    "read_series_by",
    "step_of",
    "write_series",
]

LONGEST_GAP_S = DAY_S
"""Longest gap that is filled with unknown values."""

FIRST_DATE_S = 1e8
"""Seconds above this are dates (1973 on), below it they count from an unknown origin."""

_UNKNOWN = {"", "nan", "null", "none", "na"}
_OFF_GRID = 0.01  # of a step


@dataclass(frozen=True)
class SeriesFile:
    """A series, and how its file writes times.

    Parameters
    ----------
    dated
        Whether times are dates; else they are seconds from an unknown origin.
    holes
        Missing rows, now unknown values.
    """

    series: DemandSeries
    dated: bool
    holes: int

    def moment(self, index: int) -> str:
        """Return the instant of value *index* as the file writes it."""
        time_s = self.series.time_s(index)
        return iso_moment(time_s) if self.dated else f"{time_s:.15g}"

    @property
    def digest(self) -> str:
        """SHA-256 of the series as read."""
        sha = hashlib.sha256(f"{self.series.start_s!r} {self.series.step_s!r} ".encode() + self.series.gpus.tobytes())
        for name, values in sorted(self.series.features.items()):
            sha.update(name.encode() + values.tobytes())
        return sha.hexdigest()


def iso_moment(time_s: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat().replace("+00:00", "Z")


def read_moment(text: str, file: SeriesFile, field: str) -> int:
    """Return the index of the first value at or after the moment *text*: ISO 8601, or seconds as in the file.

    Raises ``InputError`` naming *field* if it cannot be parsed or lies outside the series.
    """
    try:
        time_s = float(text)
    except ValueError:
        try:
            time_s = moment_s(text) if file.dated else math.nan
        except ValueError:
            time_s = math.nan
    series = file.series
    first, last = file.moment(0), file.moment(len(series) - 1)
    expected = f"a moment from {first} to {last}"
    if not math.isfinite(time_s):
        raise InputError(expected, field=field, value=text)
    index = series.index_of(time_s)
    if not 0 <= index < len(series):
        raise InputError(expected, field=field, value=text)
    return index


def read_series(
    path: str | Path, column: str = "gpus", time: str | None = None, where: Mapping[str, str] | None = None,
    longest_gap_s: float = LONGEST_GAP_S, features: Sequence[str] = (),
) -> SeriesFile:  # fmt: skip
    """Read the demand in *column* of a CSV or Parquet file.

    Parameters
    ----------
    time
        The time column; the first of ``TIME_COLUMNS`` in the file if ``None``.
    where
        Only rows with these texts in these columns: one tenant or virtual cluster of several.
    longest_gap_s
        Longest gap between two rows that is filled with unknown values, s.
    features
        Columns of counts read beside the demand.

    Raises
    ------
    InputError
        For the defects above, naming file, line and column.
    """
    where = where or {}
    table = _table(Path(path), column, time, {*where, *features})
    return _series(_rows_where(table, where), column, _time_column(table, time), where, longest_gap_s, features)


def read_series_by(
    path: str | Path, by: str, column: str = "gpus", time: str | None = None, where: Mapping[str, str] | None = None,
    longest_gap_s: float = LONGEST_GAP_S, features: Sequence[str] = (),
) -> dict[str, SeriesFile]:  # fmt: skip
    """Read one series for each value of the column *by*, in the order of their names; otherwise as ``read_series``."""
    where = where or {}
    table = _rows_where(_table(Path(path), column, time, {*where, by, *features}), where)
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(table.text(by)):
        if not value:
            raise table.error(row, by, "a name")
        rows.setdefault(value, []).append(row)
    name = _time_column(table, time)
    return {
        value: _series(_rows(table, own), column, name, {**where, by: value}, longest_gap_s, features)
        for value, own in sorted(rows.items())
    }


def _series(
    table: TextTable, column: str, name: str, where: Mapping[str, str], longest_gap_s: float, features: Sequence[str]
) -> SeriesFile:  # fmt: skip
    """Return the series in *column* of *table*, whose rows are those of *where*, by its time column *name*."""
    path = table.path
    times_s, dated = _times(table, name)
    expected = f"a demand: a finite number of GPUs, 0 or more, at most {MOST_DEMAND:,.0f}; blank if unknown"
    gpus = table.parse(column, _demand, expected)
    if len(times_s) < 2:
        raise InputError("two rows or more, so that the step is known", file=path, value=len(times_s))
    _refuse_backwards(table, name, times_s, where)
    step_s = step_of(times_s)
    index = _indices(table, name, times_s, step_s, longest_gap_s)
    expected = f"a count: a finite number, 0 or more, at most {MOST_DEMAND:,.0f}; blank if unknown"
    cells = [gpus, *(table.parse(feature, _demand, expected) for feature in features)]
    values = np.full((len(cells), int(index[-1]) + 1), np.nan)
    values[:, index] = cells
    if np.isnan(values[0]).all():
        raise InputError("at least one known demand", file=path, field=column, value="none")
    series = DemandSeries(float(times_s[0]), step_s, values[0], dict(zip(features, values[1:], strict=True)))
    return SeriesFile(series, dated, len(series) - len(index))


def write_series(
    path: str | Path, start_s: float, step_s: float, columns: Mapping[str, Floats], *, dated: bool
) -> None:
    """Write *columns* with a time column, as CSV or, by the name, Parquet; unknown values stay blank.

    The file is written whole or not at all. Raises ``InputError`` if it cannot be written.
    """
    import io

    import polars as pl

    path = Path(path)
    length = len(next(iter(columns.values())))
    times_s = start_s + step_s * np.arange(length)
    name = "time" if dated else "t_s"
    times: list[Any] = [iso_moment(t) for t in times_s.tolist()] if dated else times_s.tolist()
    frame = pl.DataFrame({name: times}).with_columns(pl.Series(key, _tidy(own)) for key, own in columns.items())
    if not dated and (times_s == np.rint(times_s)).all():
        frame = frame.with_columns(pl.col(name).cast(pl.Int64))
    if path.suffix.lower() == ".parquet":
        content = io.BytesIO()
        frame.write_parquet(content)
        write_atomic(path, content.getvalue())
    else:
        write_atomic(path, frame.write_csv())


def _tidy(values: Floats) -> pl.Series:
    """Whole numbers without a point; unknown as null."""
    import polars as pl

    column = pl.Series(values).fill_nan(None)
    numbers = values[~np.isnan(values)]
    return column.cast(pl.Int64) if (numbers == np.rint(numbers)).all() else column


def _table(path: Path, column: str, time: str | None, others: Collection[str]) -> TextTable:
    wanted = {column, *others, *([time] if time else TIME_COLUMNS)}
    table = _parquet(path, wanted) if path.suffix.lower() == ".parquet" else _csv(path, wanted)
    table.text(column)
    return table


def _csv(path: Path, wanted: Collection[str]) -> TextTable:
    from commonwatt.data.text import read_text

    text = read_text(path)
    table = read_table(path, keep=wanted, text=text)
    missing = [name for name in wanted if name not in table and name not in TIME_COLUMNS]
    if missing:
        raise no_column(path, missing[0], names_in(text))
    return table


def _parquet(path: Path, wanted: Collection[str]) -> TextTable:
    import polars as pl

    if not path.is_file():
        raise InputError("an existing file", file=path)
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError("a readable Parquet file", file=path, value=str(error).split("\n")[0]) from None
    missing = [name for name in wanted if name not in frame.columns and name not in TIME_COLUMNS]
    if missing:
        raise no_column(path, missing[0], frame.columns)
    if not len(frame):
        raise InputError("at least one row", file=path, value="none")
    columns = {name: _texts(frame[name]) for name in frame.columns if name in wanted}
    return TextTable(path, columns, list(range(1, len(frame) + 1)))


def _texts(column: pl.Series) -> list[str]:
    import polars as pl

    if isinstance(column.dtype, pl.Datetime):
        column = column.dt.convert_time_zone("UTC") if column.dtype.time_zone else column
        return column.dt.to_string("%Y-%m-%dT%H:%M:%S%.f").fill_null("").to_list()
    return column.cast(pl.String).fill_null("").to_list()


def _time_column(table: TextTable, time: str | None) -> str:
    if time is not None:
        return time
    column = next((name for name in TIME_COLUMNS if name in table), None)
    if column is None:
        expected = f"a time column called {', '.join(TIME_COLUMNS[:-1])} or {TIME_COLUMNS[-1]}, or its name with --time"
        raise InputError(expected, file=table.path)
    return column


def _rows_where(table: TextTable, where: Mapping[str, str]) -> TextTable:
    rows = [
        row for row in range(len(table)) if all(table.text(name)[row] == value for name, value in where.items())
    ] if where else list(range(len(table)))  # fmt: skip
    if not rows:
        wanted = ", ".join(f"{name}={value}" for name, value in where.items())
        raise InputError("a value that occurs in the file", file=table.path, field="where", value=wanted)
    if len(rows) == len(table):
        return table
    return _rows(table, rows)


def _rows(table: TextTable, rows: Sequence[int]) -> TextTable:
    columns = {name: [cells[row] for row in rows] for name, cells in table.columns.items()}
    return TextTable(table.path, columns, [table.lines[row] for row in rows])


def _times(table: TextTable, name: str) -> tuple[Floats, bool]:
    """Return seconds, and whether they are dates: by their format, or by their size."""
    read: Callable[[str], float] = float
    expected = "a number of seconds, as in the first row"
    try:
        float(table.text(name)[0])
    except ValueError:
        read, expected = moment_s, MOMENT
    times_s = table.parse(name, _finite(read), expected)
    return times_s, read is moment_s or bool(times_s[0] > FIRST_DATE_S)


def _finite(read: Callable[[str], float]) -> Callable[[str], float]:
    def checked(cell: str) -> float:
        value = read(cell)
        if not math.isfinite(value):
            raise ValueError
        return value

    return checked


def _demand(cell: str) -> float:
    if cell.casefold() in _UNKNOWN:
        return math.nan
    value = float(cell)
    if not 0 <= value <= MOST_DEMAND:
        raise ValueError
    return value


def _refuse_backwards(table: TextTable, name: str, times_s: Floats, where: Mapping[str, str]) -> None:
    wrong = np.flatnonzero(np.diff(times_s) <= 0)
    if not len(wrong):
        return
    row = int(wrong[0]) + 1
    twice = times_s[row] == times_s[row - 1] or times_s[row] in times_s[:row]
    several = "" if where else "; if the file holds several series, choose one with --where COLUMN=VALUE"
    expected = f"each time once{several}" if twice else f"times that rise from row to row{several}"
    raise table.error(row, name, expected)


def step_of(times_s: Floats) -> float:
    """Return the most frequent distance of two rows, the smallest of several."""
    distances, counts = np.unique(np.round(np.diff(times_s), 6), return_counts=True)
    return float(distances[int(np.argmax(counts))])


def _indices(table: TextTable, name: str, times_s: Floats, step_s: float, longest_gap_s: float) -> np.ndarray:
    steps = (times_s - times_s[0]) / step_s
    index = np.rint(steps).astype(np.int64)
    off = np.flatnonzero((np.abs(steps - index) > _OFF_GRID) | (np.diff(index, prepend=-1) == 0))
    if len(off):
        raise table.error(int(off[0]), name, f"a time on the grid of {step_s:g} s from the first row on")
    missing_s = (np.diff(index) - 1) * step_s
    long = np.flatnonzero(missing_s > longest_gap_s)
    if len(long):
        row = int(long[0]) + 1
        hole = missing_s[long[0]] / 3600
        expected = f"a row at most {longest_gap_s / 3600:g} h after the one before, not a hole of {hole:.3g} h"
        raise table.error(row, name, f"{expected}; give --max-gap or the part on one side of it")
    return index
