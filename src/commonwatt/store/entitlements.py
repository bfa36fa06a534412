"""Tenants of a configuration: added when they are new; weights that were set by the API later are kept."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.columns import check_name
from commonwatt.store.database import Database
from commonwatt.store.settings import get_setting, put_setting

__all__ = ["enter_tenants"]

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
        known = set(c.execute(sa.select(t.c.name)).scalars())
        new = {name: weight for name, weight in weights.items() if name not in known}
        others = {} if only_new else {name: weight for name, weight in weights.items() if name in known}
        for name, weight in others.items():
            if applied.get(name, weight) != weight:
                c.execute(t.update().where(t.c.name == name).values(weight=weight))
        if new:
            c.execute(t.insert(), [{"name": n, "weight": weight, "created_s": now_s} for n, weight in new.items()])
        after = applied | new | others
        if after != applied:
            put_setting(c, _APPLIED, after)
