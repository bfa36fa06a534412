"""Tables with a header line, as text; cells become numbers with errors that name file, line and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np

from commonwatt.data.text import read_text
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.names import did_you_mean
from commonwatt.model.units import plural

__all__ = ["TextTable", "moment_s", "names_in", "no_column", "read_table"]


MOST_GPUS = 1e9  # larger counts are taken for mistakes
MOMENT = "a moment (ISO 8601), such as 2017-10-16T08:00:00Z"


@dataclass(frozen=True)
class TextTable:
    """Columns of text, and the line number of each row in the file."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def text(self, name: str) -> list[str]:
        """Return the stripped cells of a column; raises ``InputError`` if there is no such column."""
        if name not in self.columns:
            raise no_column(self.path, name, self.columns)
        return self.columns[name]

    def error(self, row: int, name: str, expected: str) -> InputError:
        """Return the error for one cell."""
        return _at(self.path, self.lines[row], expected, name, self.columns[name][row] or "nothing")

    def parse(self, name: str, read: Callable[[str], float], expected: str, blank: float | None = None) -> Floats:
        """Read a column with *read*, which raises ``ValueError`` on what is not *expected*.

        Blank cells become *blank*; without it they are an error.
        """
        cells = self.text(name)
        values = np.empty(len(cells))
        for row, cell in enumerate(cells):
            if blank is not None and not cell:
                values[row] = blank
                continue
            try:
                values[row] = read(cell)
            except ValueError:
                raise self.error(row, name, expected) from None
        return values

    def seconds(self, name: str, blank: float | None = None) -> Floats:
        """Return durations in seconds, 0 or more."""
        return self.parse(name, _not_negative, "a number of seconds, 0 or more", blank)

    def numbers(self, name: str, blank: float | None = None) -> Floats:
        """Return finite numbers."""
        return self.parse(name, _finite, "a finite number", blank)

    def counts(self, name: str, blank: int | None = None) -> Ints:
        """Return whole numbers, 0 or more."""
        return self.parse(name, _count, "a whole number, 0 or more", blank).astype(np.int64)

    def moments(self, name: str, blank: float | None = None) -> Floats:
        """Return times as seconds since 1970; UTC without a time zone."""
        return self.parse(name, moment_s, MOMENT, blank)


def read_table(path: str | Path, keep: Collection[str] | None = None, text: str | None = None) -> TextTable:
    """Read a table with a header line, separated by the most frequent in it of commas, semicolons, tabs and bars.

    Only the columns in *keep* are kept, if it is given; *text* is the content, where it has been read already.
    Raises ``InputError`` on a header with a name twice, a row of another length and a table without rows.
    """
    path = Path(path)
    content = read_text(path) if text is None else text
    from commonwatt.data.file_kinds import is_document, other_kind

    if is_document(content):
        table = "a table with a header line"
        error = other_kind(path, content, table)
        if error is not None or content.lstrip().startswith("{"):
            raise error or InputError(table, file=path, value="a JSON document")
    delimiter = _delimiter(content)
    rows = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, quoting=_quoting(delimiter))
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(row for row in rows if row)]
        _check_header(path, header)
        wanted = [i for i, name in enumerate(header) if keep is None or name in keep]
        cells: list[list[str]] = [[] for _ in wanted]
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                row_width = plural(len(row), "cell")
                raise _at(path, rows.line_num, f"{plural(len(header), 'cell')}, as in the header", None, row_width)
            lines.append(rows.line_num)
            for column, i in zip(cells, wanted, strict=True):
                column.append(row[i].strip())
    except csv.Error as error:
        raise _at(path, rows.line_num, "a readable table", None, error) from None
    if not lines:
        raise InputError("at least one row below the header", file=path, value="none")
    return TextTable(path, {header[i]: column for i, column in zip(wanted, cells, strict=True)}, lines)


def names_in(text: str) -> list[str]:
    """Return the names of the columns of a table in *text*."""
    header = text.strip().split("\n", 1)[0]
    return [name.strip() for name in header.split(_delimiter(text))]


def no_column(path: Path, name: str, there: Collection[str]) -> InputError:
    """Return the error for a table that has the columns *there* and not *name*."""
    expected = f"a column of this name; the file has {', '.join(there)}{did_you_mean(name, there)}"
    return InputError(expected, file=path, field=name)


def _check_header(path: Path, header: Sequence[str]) -> None:
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise InputError("distinct column names", file=path, field=twice[0])


def _delimiter(text: str) -> str:
    header = text.lstrip().split("\n", 1)[0]
    return max((",", ";", "\t", "|"), key=header.count)


def _quoting(delimiter: str) -> Literal[0, 3]:
    return csv.QUOTE_NONE if delimiter == "|" else csv.QUOTE_MINIMAL  # sacct does not quote


def _at(path: Path, line: int, expected: str, field: str | None, value: object) -> InputError:
    return InputError(expected, file=f"{path}, line {line}", field=field, value=value)


def _finite(cell: str) -> float:
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError
    return value


def _not_negative(cell: str) -> float:
    value = _finite(cell)
    if value < 0:
        raise ValueError
    return value


def _count(cell: str) -> float:
    value = _not_negative(cell)
    if value != int(value) or value > MOST_GPUS:
        raise ValueError
    return value


def moment_s(text: str) -> float:
    """Return an ISO 8601 moment as seconds since 1970, read as UTC if it has no zone; raises ``ValueError``."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
