"""How jobs ran: where they held GPUs and when, by the event log, and for how long they worked, by the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from commonwatt.model.units import MICRO
from commonwatt.store import tables
from commonwatt.store.database import Database
from commonwatt.store.records import EventRow

__all__ = ["events_of", "worked_gpu_s"]

_AT_ONCE = 500


def events_of(
    database: Database, jobs: Sequence[int], kinds: Sequence[str], spoken: Sequence[str] = ()
) -> Iterator[EventRow]:
    """Return events of certain *kinds* of many *jobs*, those of each in order; with sentences only those *spoken*."""
    t = tables.events.c
    sentence = sa.case((t.kind.in_(spoken), t.sentence), else_="")
    for some in _parts(jobs):
        query = sa.select(t.id, t.time_s, t.kind, t.job, t.nodes, t.gpus, t.reason, sentence)
        with database.reading(what="events") as c:
            rows = c.execute(query.where(t.job.in_(some), t.kind.in_(kinds)).order_by(t.job, t.id)).all()
        for number, time_s, kind, job, nodes, gpus, reason, said in rows:
            yield EventRow(number, time_s, kind, job, tuple(nodes), gpus, reason, said)


def worked_gpu_s(database: Database, jobs: Sequence[int]) -> dict[int, float]:
    """Return the GPU seconds each of *jobs* worked, without starting and work that was lost, as far as it did."""
    t, found = tables.ledger.c, dict[int, float]()
    for some in _parts(jobs):
        own = sa.and_(t.job.in_(some), t.row.in_(("job", "segment")))
        with database.reading(what="accounts") as c:
            for job, gpu_us in c.execute(sa.select(t.job, t.gpu_us).where(own)):
                found[job] = found.get(job, 0.0) + int(gpu_us) / MICRO
    return found


def _parts(jobs: Sequence[int]) -> Iterator[Sequence[int]]:
    """Return *jobs* in parts a query can name."""
    return (jobs[k : k + _AT_ONCE] for k in range(0, len(jobs), _AT_ONCE))
