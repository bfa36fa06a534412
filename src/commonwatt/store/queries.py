"""Read-only queries: for dashboards (columns of many jobs, new events), for metrics (sums), and of how jobs ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from commonwatt.model.units import MICRO
from commonwatt.store import tables
from commonwatt.store.api_store import job_row
from commonwatt.store.columns import cleaned
from commonwatt.store.database import Database
from commonwatt.store.records import ACTIVE, EventRow, JobRow, JobStatus
from commonwatt.store.settings import get_setting, put_setting

__all__ = [
    "Lateness",
    "Queue",
    "count_events",
    "ended_lately",
    "event_counts",
    "events_of",
    "last_ended",
    "last_event",
    "lateness",
    "new_events",
    "queue",
    "worked_gpu_s",
]

_AT_ONCE = 500


def last_event(database: Database, *, back: int = 0) -> int:
    """Return the id after which the newest *back* events come; 0 if there are no others."""
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
        # SQLAlchemy's own strings as keys make JSON slow.
        return [{str(name): value for name, value in row.items()} for row in rows]


def ended_lately(database: Database, tenant: str | None, *, limit: int) -> list[JobRow]:
    """Return the jobs of *tenant* (``None``: of all) that ended last, the last first."""
    with database.reading(what="jobs") as c:
        return [job_row(row) for row in c.execute(last_ended(tenant, limit)).mappings()]


def last_ended(tenant: str | None, limit: int) -> sa.Select[Any]:
    """Return the query of ``ended_lately``, which an index answers however many jobs have ended."""
    j = tables.jobs.c
    few = sa.select(j.id).where(j.ended_s.is_not(None)).order_by(j.ended_s.desc(), j.id.desc()).limit(limit)
    if tenant is not None:
        few = few.where(j.tenant == cleaned(tenant))
    latest = few.subquery()
    return sa.select(tables.jobs).join(latest, latest.c.id == j.id).order_by(j.ended_s.desc(), j.id.desc())


_COUNTS = "event_counts"


@dataclass(frozen=True)
class Queue:
    """Waiting jobs, and requests the controller has not processed."""

    oldest_submit_s: float | None  # of waiting jobs that are not held; None: there are none
    held: int
    requests: int
    intents: int  # commands whose outcome is unknown


@dataclass(frozen=True)
class Lateness:
    """Active jobs beyond their due dates."""

    late: int
    cost: float  # tardiness so far, by the jobs' weights, in currency


def queue(database: Database) -> Queue:
    """Return the state of the queue."""
    j, r, i = tables.jobs.c, tables.requests.c, tables.intents.c
    waiting = j.status == JobStatus.WAITING
    with database.reading(what="queue") as c:
        oldest = c.scalar(sa.select(sa.func.min(j.submit_s)).where(waiting, j.held == sa.false()))
        held = c.scalar(sa.select(sa.func.count()).where(waiting, j.held == sa.true()))
        requests = c.scalar(sa.select(sa.func.count()).where(r.done == sa.false()))
        intents = c.scalar(sa.select(sa.func.count()).where(i.outcome.is_(None)))
    return Queue(oldest, int(held or 0), int(requests or 0), int(intents or 0))


def lateness(database: Database, now_s: float) -> Lateness:
    """Return how many active jobs are late, and what that costs so far."""
    j = tables.jobs.c
    active = j.status.in_(ACTIVE)
    with database.reading(what="late jobs") as c:
        rows = c.execute(sa.select(j.due_s, j.file).where(active, j.due_s < now_s)).all()
    cost = sum((now_s - due_s) * float(file.get("tardiness_weight", 0.0)) for due_s, file in rows)
    return Lateness(len(rows), cost)


def event_counts(database: Database) -> dict[str, int]:
    """Return how often each kind of event happened, also those that were pruned."""
    with database.reading(what="event counts") as c:
        return _read(c)


def count_events(c: sa.Connection, events: Sequence[EventRow]) -> None:
    """Count *events*, in the transaction that writes them."""
    if not events:
        return
    put_setting(c, _COUNTS, dict(Counter(_read(c)) + Counter(event.kind for event in events)))


def _read(c: sa.Connection) -> dict[str, int]:
    return {str(kind): int(count) for kind, count in get_setting(c, _COUNTS, {}).items()}


def events_of(database: Database, jobs: Sequence[int], kinds: Sequence[str]) -> Iterator[EventRow]:
    """Return events of certain *kinds* of many *jobs*, those of each job in order, without their sentences."""
    t = tables.events.c
    for some in _parts(jobs):
        query = sa.select(t.id, t.time_s, t.kind, t.job, t.nodes, t.gpus, t.reason, t.lost_s)
        with database.reading(what="events") as c:
            rows = c.execute(query.where(t.job.in_(some), t.kind.in_(kinds)).order_by(t.job, t.id)).all()
        for number, time_s, kind, job, nodes, gpus, reason, lost_s in rows:
            yield EventRow(number, time_s, kind, job, tuple(nodes), gpus, reason, "", lost_s)


def worked_gpu_s(database: Database, jobs: Sequence[int]) -> dict[int, float]:
    """Return the GPU seconds each of *jobs* worked, without starting and lost work; only jobs that did."""
    t, by_job = tables.ledger.c, dict[int, float]()
    for some in _parts(jobs):
        own = sa.and_(t.job.in_(some), t.row.in_(("job", "segment")))
        with database.reading(what="accounts") as c:
            for job, gpu_us in c.execute(sa.select(t.job, t.gpu_us).where(own)):
                by_job[job] = by_job.get(job, 0.0) + int(gpu_us) / MICRO
    return by_job


def _parts(jobs: Sequence[int]) -> Iterator[Sequence[int]]:
    """Return *jobs* in parts small enough for a query."""
    return (jobs[k : k + _AT_ONCE] for k in range(0, len(jobs), _AT_ONCE))
