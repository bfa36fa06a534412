"""Values the store keeps under a name (``mode``, ``drained``, ``claim``, ...), and the tenants of a configuration.

A weight that was set by the API stays until the configuration's changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.columns import check_name, upsert
from commonwatt.store.database import Database

__all__ = ["enter_tenants", "get_setting", "put_setting"]


def get_setting(c: sa.Connection, name: str, default: Any = None, *, lock: bool = False) -> Any:  # noqa: ANN401
    """Return a value, *default* if there is none; with *lock*, its row stays locked until the transaction ends."""
    t = tables.settings.c
    query = sa.select(t.value).where(t.name == name)
    row = c.execute(query.with_for_update() if lock else query).first()
    return default if row is None else row[0]


def put_setting(c: sa.Connection, name: str, value: Any) -> None:  # noqa: ANN401
    """Keep *value* under a name."""
    upsert(c, tables.settings, {"name": name}, {"name": name, "value": value})


_APPLIED = "configured_weights"  # of the configuration, as they were last applied


def enter_tenants(database: Database, weights: Mapping[str, float], now_s: float, *, only_new: bool = False) -> None:
    """Add tenants with their *weights*, and apply weights that have changed in the configuration.

    With *only_new*, existing tenants stay as they are. Raises ``InputError`` on a name that cannot
    be stored, ``StoreError``.
    """
    for name in weights:
        check_name(name, "tenants.name")
    t = tables.tenants
    with database.transaction(what="tenants") as c:
        applied: dict[str, float] = get_setting(c, _APPLIED, {})
        names = set(c.execute(sa.select(t.c.name)).scalars())
        new = {name: weight for name, weight in weights.items() if name not in names}
        others = {} if only_new else {name: weight for name, weight in weights.items() if name in names}
        for name, weight in others.items():
            if applied.get(name, weight) != weight:
                c.execute(t.update().where(t.c.name == name).values(weight=weight))
        if new:
            c.execute(t.insert(), [{"name": n, "weight": weight, "created_s": now_s} for n, weight in new.items()])
        after = applied | new | others
        if after != applied:
            put_setting(c, _APPLIED, after)
