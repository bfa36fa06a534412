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

__all__ = ["ended_lately", "last_ended", "last_event", "new_events", "outlines"]

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
    """Return the jobs of *tenant* (``None``: of all) that ended last, the last first."""
    with database.reading(what="jobs") as c:
        return [job_row(row) for row in c.execute(last_ended(tenant, limit)).mappings()]


def last_ended(tenant: str | None, limit: int) -> sa.Select[Any]:
    """Return the query of ``ended_lately``: which they are is found in an index alone, however many have ended."""
    j = tables.jobs.c
    few = sa.select(j.id).where(j.ended_s.is_not(None)).order_by(j.ended_s.desc(), j.id.desc()).limit(limit)
    if tenant is not None:
        few = few.where(j.tenant == cleaned(tenant))
    found = few.subquery()
    return sa.select(tables.jobs).join(found, found.c.id == j.id).order_by(j.ended_s.desc(), j.id.desc())
