"""What onlookers read: a few columns of many jobs, and the newest events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.database import Database

__all__ = ["last_event", "new_events", "outlines"]

_AT_ONCE = 500
_COLUMNS = ("id", "name", "tenant", "status", "held", "submit_s", "due_s", "started_s", "gpu_type")


def outlines(database: Database, jobs: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return name, tenant, status, times and number of epochs of *jobs*, by id; raises ``StoreError``."""
    t = tables.jobs.c
    columns = [t[name] for name in _COLUMNS]
    found: dict[int, dict[str, Any]] = {}
    with database.reading(what="jobs") as c:
        for k in range(0, len(jobs), _AT_ONCE):
            some = jobs[k : k + _AT_ONCE]
            for row in c.execute(sa.select(*columns, t.file).where(t.id.in_(some))).mappings():
                outline = dict(row)
                outline["epochs"] = outline.pop("file").get("epochs", 1)
                found[outline["id"]] = outline
    return found


def last_event(database: Database, *, back: int = 0) -> int:
    """Return the id after which the newest *back* events come; 0 if there are no more than these."""
    t = tables.events.c
    query = sa.select(t.id).order_by(t.id.desc()).offset(back).limit(1)
    with database.reading(what="events") as c:
        return c.execute(query).scalar() or 0


def new_events(database: Database, after: int, *, limit: int = 1000) -> list[dict[str, Any]]:
    """Return lines of the event log beyond *after*, with name and tenant of the job (null: of no job)."""
    t, j = tables.events, tables.jobs.c
    query = sa.select(t, j.name, j.tenant).select_from(t.outerjoin(tables.jobs, t.c.job == j.id)).where(
        t.c.id > after
    ).order_by(t.c.id).limit(limit)  # fmt: skip
    with database.reading(what="events") as c:
        rows: Iterable[sa.RowMapping] = c.execute(query).mappings()
        return [dict(row) for row in rows]
