"""Sums over the store for metrics: how long the queue is, what is late, how often things happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.database import Database
from commonwatt.store.records import ACTIVE, EventRow, JobStatus
from commonwatt.store.upsert import put_setting

__all__ = ["Lateness", "Queue", "count_events", "event_counts", "lateness", "queue"]

_COUNTS = "event_counts"


@dataclass(frozen=True)
class Queue:
    """Jobs that wait, and requests the controller has not dealt with."""

    oldest_submit_s: float | None  # of those that wait and are not held; None: nobody waits
    held: int
    requests: int
    intents: int  # commands of which it is not known whether they were carried out


@dataclass(frozen=True)
class Lateness:
    """Active jobs beyond their due dates."""

    late: int
    cost: float  # tardiness so far, by the jobs' weights, in currency


def queue(database: Database) -> Queue:
    """Return how the queue stands."""
    j, r, i = tables.jobs.c, tables.requests.c, tables.intents.c
    waiting = j.status == JobStatus.WAITING
    with database.reading(what="queue") as c:
        oldest = c.scalar(sa.select(sa.func.min(j.submit_s)).where(waiting, j.held == sa.false()))
        held = c.scalar(sa.select(sa.func.count()).where(waiting, j.held == sa.true()))
        requests = c.scalar(sa.select(sa.func.count()).where(r.done == sa.false()))
        intents = c.scalar(sa.select(sa.func.count()).where(i.outcome.is_(None)))
    return Queue(oldest, int(held or 0), int(requests or 0), int(intents or 0))


def lateness(database: Database, now_s: float) -> Lateness:
    """Return which active jobs are late, and what that costs so far."""
    j = tables.jobs.c
    active = j.status.in_(ACTIVE)
    with database.reading(what="late jobs") as c:
        rows = c.execute(sa.select(j.due_s, j.file).where(active, j.due_s < now_s)).all()
    cost = sum((now_s - due_s) * float(file.get("tardiness_weight", 0.0)) for due_s, file in rows)
    return Lateness(len(rows), cost)


def event_counts(database: Database) -> dict[str, int]:
    """How often each kind of event ever happened, whether or not it is still in the log."""
    with database.reading(what="event counts") as c:
        return _read(c)


def count_events(c: sa.Connection, events: Sequence[EventRow]) -> None:
    """Count *events*, in the transaction that writes them."""
    if not events:
        return
    put_setting(c, _COUNTS, dict(Counter(_read(c)) + Counter(event.kind for event in events)))


def _read(c: sa.Connection) -> dict[str, int]:
    t = tables.settings.c
    row = c.execute(sa.select(t.value).where(t.name == _COUNTS)).first()
    return {} if row is None else {str(kind): int(count) for kind, count in row[0].items()}
