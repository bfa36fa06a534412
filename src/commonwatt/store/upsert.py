"""A row that is there afterwards, whether or not it was before; in the words all databases share."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from commonwatt.store import tables

__all__ = ["put_setting", "upsert"]


def upsert(c: sa.Connection, table: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Have the row of *table* with this *key* hold *values*, the key among them."""
    where = sa.and_(*(table.c[name] == value for name, value in key.items()))
    if c.execute(sa.select(sa.literal(1)).select_from(table).where(where)).first() is None:
        c.execute(table.insert().values(**values))
    else:
        c.execute(table.update().where(where).values(**values))


def put_setting(c: sa.Connection, name: str, value: Any) -> None:  # noqa: ANN401
    """Keep *value* under a name."""
    upsert(c, tables.settings, {"name": name}, {"name": name, "value": value})
