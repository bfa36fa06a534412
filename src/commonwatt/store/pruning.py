"""Deleting what is old, so that a store does not grow without bound. Jobs and the ledger are kept for ever."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.database import Database
from commonwatt.store.records import ACTIVE
from commonwatt.store.upsert import put_setting

__all__ = ["prune", "trusted"]

_MOST_S = 86400.0
"""How far the time by which is pruned goes on from one time to the next."""
_OF_A_KIND = 1000
"""Measurements of jobs of a kind that are kept however old they are."""


def prune(
    database: Database, before_s: float, page: int, go_on: Callable[[], bool], check: Callable[[sa.Connection], None]
) -> int:
    """Delete rows from before *before_s* (seconds since 1970), *page* in a transaction; returns how many.

    What belongs to a job is as old as its end: all of it goes, or nothing. *check* is called within each transaction
    before anything is deleted. The setting ``pruned_s`` says from when on everything is there.
    """
    t = tables

    def past(time_s: sa.Column[float], job: sa.Column[int]) -> sa.ColumnElement[bool]:
        """Rows of no job, and of those that ended long ago: nothing of a job is younger than its end."""
        own = t.jobs.c.id == job
        kept = sa.exists().where(own, sa.or_(t.jobs.c.status.in_(ACTIVE), t.jobs.c.ended_s >= before_s))
        return sa.and_(time_s < before_s, sa.not_(kept))

    told = past(t.profiles.c.measured_s, t.profiles.c.job)
    events, intents = past(t.events.c.time_s, t.events.c.job), past(t.intents.c.at_s, t.intents.c.job)
    old: list[tuple[sa.Column[object], sa.ColumnElement[bool]]] = [
        (t.samples.c.time_s, t.samples.c.time_s < before_s),
        (t.audit.c.id, t.audit.c.at_s < before_s),
        (t.requests.c.id, sa.and_(t.requests.c.done == sa.true(), t.requests.c.at_s < before_s)),
        (t.events.c.id, events),
        (t.intents.c.key, sa.and_(t.intents.c.outcome.is_not(None), intents)),
        (t.profiles.c.id, sa.and_(told, t.profiles.c.kind == "")),
    ]
    with database.reading(what="prune") as c:
        for kind, enough in _enough(c).items():
            old.append((t.profiles.c.id, sa.and_(told, t.profiles.c.kind == kind, t.profiles.c.id <= enough)))
    deleted = 0
    with database.transaction(what="prune") as c:
        check(c)
        row = c.execute(sa.select(t.settings.c.value).where(t.settings.c.name == "pruned_s")).first()
        if row is None or row[0] < before_s:
            put_setting(c, "pruned_s", before_s)
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


def trusted(database: Database, now_s: float, check: Callable[[sa.Connection], None]) -> float:
    """Return the time to prune by: *now_s*, but at most a day after that of the last time.

    A clock that is wrongly far ahead, for however long between two calls, thus has little deleted too early. The first
    time, it is a day after the oldest sample. Kept as the setting ``trusted_s``.
    """
    t = tables.settings
    with database.transaction(what="prune") as c:
        check(c)
        row = c.execute(sa.select(t.c.value).where(t.c.name == "trusted_s")).first()
        last_s = c.scalar(sa.select(sa.func.min(tables.samples.c.time_s))) if row is None else float(row[0])
        time_s = now_s if last_s is None else min(now_s, last_s + _MOST_S)
        put_setting(c, "trusted_s", time_s)
    return time_s


def _enough(c: sa.Connection) -> dict[str, int]:
    """Return the last measurement of each kind of jobs after which there are enough others of it."""
    t = tables.profiles.c
    many = sa.select(t.kind).where(t.kind != "").group_by(t.kind).having(sa.func.count() > _OF_A_KIND)
    found = {}
    for kind in c.execute(many).scalars().all():
        own = sa.select(t.id).where(t.kind == kind).order_by(t.id.desc()).offset(_OF_A_KIND).limit(1)
        found[kind] = c.execute(own).scalar_one()
    return found
