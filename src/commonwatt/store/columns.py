"""Columns that are the same in all three databases: exact whole numbers, storable text, and upserts.

Whole numbers have up to 38 digits: 64 bits of microjoules are a month of a large cluster. The servers have such a type.
SQLite has none, and beyond 64 bits its integers silently become floats: there the digits are kept as text, and added up
in halves that do not overflow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from commonwatt.model.errors import InputError, StoreError

__all__ = [
    "LONGEST_NAME",
    "Whole",
    "check_name",
    "check_number",
    "cleaned",
    "cleaned_column",
    "cleaned_document",
    "row_number",
    "total",
    "upsert",
]

_DIGITS = 38
_SHORT = 18  # digits, a sign included, that SQLite reads as an integer
_HALF = 10**9


class Whole(TypeDecorator[int]):
    """A whole number of up to 38 digits; null stays null. Raises ``OverflowError`` for longer numbers."""

    impl = sa.Numeric
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the database."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.String(_DIGITS + 2))
        return dialect.type_descriptor(sa.Numeric(_DIGITS, 0))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:  # noqa: ANN401
        """Return *value* as the driver takes it."""
        if value is None:
            return None
        if abs(value) >= 10**_DIGITS:
            msg = f"a number of more than {_DIGITS} digits"
            raise OverflowError(msg)
        return str(int(value)) if dialect.name == "sqlite" else int(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:  # noqa: ANN401, ARG002
        """Return what the driver gave as an integer."""
        return None if value is None else _read(value)


class _Total(Whole):
    """Result of ``total``: on SQLite a sum of high halves, one of low halves, and numbers too long for either."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:  # noqa: ANN401, ARG002
        """Return the sum."""
        if not isinstance(value, str):
            return None if value is None else _read(value)
        high, *others = map(_read, value.split(","))
        return high * _HALF + sum(others)


def total(column: sa.ColumnElement[int], backend: str) -> sa.ColumnElement[int]:
    """Return the sum of a column of ``Whole`` as *backend* computes it; unknown (null) as soon as one entry is."""
    sum_: sa.ColumnElement[Any] = sa.func.sum(column)
    if backend == "sqlite":
        digits = sa.type_coerce(column, sa.Text)
        number, half = sa.cast(digits, sa.BigInteger), sa.literal_column(str(_HALF), sa.BigInteger)
        short = sa.func.length(digits) <= _SHORT
        high = sa.func.coalesce(sa.func.sum(number.op("/")(half)).filter(short), 0)
        low = sa.func.coalesce(sa.func.sum(number.op("%")(half)).filter(short), 0)
        long = sa.func.coalesce(sa.literal(",").concat(sa.func.group_concat(digits).filter(sa.not_(short))), "")
        sum_ = sa.cast(high, sa.Text).concat(",").concat(sa.cast(low, sa.Text)).concat(long)
    return sa.type_coerce(sa.case((sa.func.count(column) < sa.func.count(), None), else_=sum_), _Total())


def _read(value: Any) -> int:  # noqa: ANN401
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise StoreError(f"the ledger has a value that is no whole number: {value!r}") from None


LONGEST_NAME = 128
_LARGEST = 2**63 - 1


def check_name(text: str, field: str, *, longest: int = LONGEST_NAME) -> str:
    """Return *text*; raises ``InputError`` naming *field* if it is empty, too long or cannot be stored."""
    if not text:
        raise InputError("a text that is not empty", field=field)
    if len(text) > longest:
        raise InputError(f"{longest} characters at most", field=field, value=text)
    if cleaned(text) != text:
        raise InputError("text without NUL characters and halves of surrogate pairs", field=field, value=ascii(text))
    return text


def check_number(number: float, field: str) -> float:
    """Return *number*; raises ``InputError`` naming *field* if it is not finite."""
    if not math.isfinite(number):
        raise InputError("a finite number", field=field, value=number)
    return number


def cleaned(text: str, longest: int | None = None) -> str:
    """Return *text* with characters that cannot be stored replaced, cut to *longest* characters."""
    if text.isascii() and "\0" not in text:  # nearly all texts
        stored = str(text)  # of an enumeration, its value
    else:
        stored = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return stored if longest is None or len(stored) <= longest else stored[: longest - 3] + "..."


def cleaned_document(value: Any) -> Any:  # noqa: ANN401
    """Return a JSON value with all its texts ``cleaned``."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return cleaned(value)
    if isinstance(value, list | tuple):
        return [cleaned_document(part) for part in value]
    if isinstance(value, dict | Mapping):
        return {cleaned(str(name)): cleaned_document(part) for name, part in value.items()}
    return value


def row_number(number: int) -> int:
    """Return *number* clipped to the range of the databases' integers."""
    return max(-_LARGEST, min(number, _LARGEST))


def cleaned_column(name: str, value: Any) -> Any:  # noqa: ANN401
    """Return the value of a job's column *name* as it can be stored."""
    if isinstance(value, str) and name in ("reason", "sentence"):
        return cleaned(value, LONGEST_NAME if name == "reason" else None)
    if name == "facts":
        return cleaned_document(value)
    return list(value) if isinstance(value, tuple) or (name == "times" and value is not None) else value


def upsert(c: sa.Connection, table: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Insert or update the row of *table* with this *key*; *values* include the key."""
    where = sa.and_(*(table.c[name] == value for name, value in key.items()))
    if c.execute(sa.select(sa.literal(1)).select_from(table).where(where)).first() is None:
        c.execute(table.insert().values(**values))
    else:
        c.execute(table.update().where(where).values(**values))
