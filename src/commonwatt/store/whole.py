"""Whole numbers of up to 38 digits, exact in every database: 64 bits of microjoules are a month of a large cluster.

The servers have such a type. SQLite has none: beyond 64 bits its integers become floats without a word, so there the
digits are kept as a text, and added up in halves that do not overflow.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from commonwatt.model.errors import StoreError

__all__ = ["Whole", "total"]

_DIGITS = 38
_SHORT = 18  # digits, a sign included, that SQLite reads as an integer
_HALF = 10**9


class Whole(TypeDecorator[int]):
    """A whole number of up to 38 digits; null stays null. Raises ``OverflowError`` for one that has more."""

    impl = sa.Numeric
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return what the database has for it."""
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
    """What ``total`` selects: on SQLite a sum of high halves, one of low halves, and what is too long for both."""

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
        raise StoreError(f"the ledger holds what is no whole number: {value!r}") from None
