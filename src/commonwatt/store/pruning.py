"""Deleting what is old, so that a store does not grow without bound. Jobs and the ledger are kept for ever."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.database import Database
from commonwatt.store.records import ACTIVE

__all__ = ["prune"]


def prune(
    database: Database, before_s: float, page: int, go_on: Callable[[], bool], check: Callable[[sa.Connection], None]
) -> int:
    """Delete rows from before *before_s* (seconds since 1970), *page* in a transaction; returns how many.

    *check* is called within each transaction before anything is deleted. The setting ``pruned_s`` says from when on
    everything is there.
    """
    t = tables
    active = sa.select(t.jobs.c.id).where(t.jobs.c.status.in_(ACTIVE))

    def of_others(job: sa.Column[int]) -> sa.ColumnElement[bool]:
        return sa.or_(job.is_(None), job.not_in(active))

    old: list[tuple[sa.Column[object], sa.ColumnElement[bool]]] = [
        (t.samples.c.time_s, t.samples.c.time_s < before_s),
        (t.audit.c.id, t.audit.c.at_s < before_s),
        (t.requests.c.id, sa.and_(t.requests.c.done == sa.true(), t.requests.c.at_s < before_s)),
        (t.events.c.id, sa.and_(t.events.c.time_s < before_s, of_others(t.events.c.job))),
        (
            t.intents.c.key,
            sa.and_(t.intents.c.outcome.is_not(None), t.intents.c.at_s < before_s, of_others(t.intents.c.job)),
        ),
    ]  # fmt: skip
    deleted = 0
    with database.transaction(what="prune") as c:
        check(c)
        own = t.settings.c.name == "pruned_s"
        row = c.execute(sa.select(t.settings.c.value).where(own)).first()
        if row is None:
            c.execute(t.settings.insert().values(name="pruned_s", value=before_s))
        elif row[0] < before_s:
            c.execute(t.settings.update().where(own).values(value=before_s))
    for key, which in old:
        while go_on():
            with database.transaction(what="prune") as c:
                check(c)
                keys = c.execute(sa.select(key).where(which).order_by(key).limit(page)).scalars().all()
                if keys:
                    c.execute(key.table.delete().where(key.in_(keys)))
            deleted += len(keys)
            if len(keys) < page:
                break
    return deleted
