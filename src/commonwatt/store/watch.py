"""What onlookers read: a few columns of many jobs, the newest events, and the jobs that ended last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.database import Database
from commonwatt.store.records import JobRow
from commonwatt.store.store import job_row
from commonwatt.store.texts import cleaned

__all__ = ["ENDS", "ended_lately", "last_event", "new_events", "outlines"]

ENDS = ("completed", "failed", "cancelled")
"""Kinds of events that end a job."""

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


def ended_lately(database: Database, tenant: str | None, *, limit: int) -> list[JobRow]:
    """Return the jobs of *tenant* (``None``: of all) that ended last, the last first, as far as events are kept."""
    t, j = tables.events.c, tables.jobs
    query = sa.select(j).join(tables.events, t.job == j.c.id).where(t.kind.in_(ENDS), j.c.status.in_(ENDS))
    query = query.order_by(t.id.desc()).limit(limit)
    if tenant is not None:
        query = query.where(j.c.tenant == cleaned(tenant))
    with database.reading(what="jobs") as c:
        rows = [job_row(row) for row in c.execute(query).mappings()]
    return list({row.id: row for row in rows}.values())
