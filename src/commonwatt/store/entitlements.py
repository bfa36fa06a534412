"""Tenants a configuration names: entered when they are new; later, what somebody set by the API is not set back."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.database import Database
from commonwatt.store.texts import check_name

__all__ = ["enter_tenants"]

_APPLIED = "configured_weights"  # of the configuration, as they were last applied


def enter_tenants(database: Database, weights: Mapping[str, float], now_s: float, *, only_new: bool = False) -> None:
    """Enter tenants with their *weights*, and apply those that the configuration did not have when it was last read.

    With *only_new*, tenants that are there already are left as they are. Raises ``InputError`` on a name that cannot
    be stored, ``StoreError``.
    """
    for name in weights:
        check_name(name, "tenants.name")
    t, s = tables.tenants, tables.settings
    with database.transaction(what="tenants") as c:
        kept = c.execute(sa.select(s.c.value).where(s.c.name == _APPLIED)).first()
        applied: dict[str, float] = {} if kept is None else kept[0]
        known = set(c.execute(sa.select(t.c.name)).scalars())
        new = {name: weight for name, weight in weights.items() if name not in known}
        others = {} if only_new else {name: weight for name, weight in weights.items() if name in known}
        for name, weight in others.items():
            if applied.get(name, weight) != weight:
                c.execute(t.update().where(t.c.name == name).values(weight=weight))
        if new:
            c.execute(t.insert(), [{"name": n, "weight": weight, "created_s": now_s} for n, weight in new.items()])
        after = applied | new | others
        if kept is None:
            c.execute(s.insert().values(name=_APPLIED, value=after))
        elif after != applied:
            c.execute(s.update().where(s.c.name == _APPLIED).values(value=after))
