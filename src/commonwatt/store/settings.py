"""Values the store keeps under a name: ``mode``, ``drained``, ``claim``, ``pruned_s``, and more."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.columns import upsert

__all__ = ["get_setting", "put_setting"]


def get_setting(c: sa.Connection, name: str, default: Any = None, *, lock: bool = False) -> Any:  # noqa: ANN401
    """Return a value, *default* if there is none; with *lock*, its row stays locked until the transaction ends."""
    t = tables.settings.c
    query = sa.select(t.value).where(t.name == name)
    row = c.execute(query.with_for_update() if lock else query).first()
    return default if row is None else row[0]


def put_setting(c: sa.Connection, name: str, value: Any) -> None:  # noqa: ANN401
    """Keep *value* under a name."""
    upsert(c, tables.settings, {"name": name}, {"name": name, "value": value})
