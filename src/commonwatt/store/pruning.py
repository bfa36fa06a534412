"""Deleting what is old, so that a store does not grow without bound. Jobs and the ledger are kept for ever."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.database import Database
from commonwatt.store.records import ACTIVE

__all__ = ["prune"]

_OF_A_KIND = 1000
"""Measurements of jobs of a kind that are kept however old they are."""


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

    told = sa.and_(t.profiles.c.measured_s < before_s, of_others(t.profiles.c.job))
    old: list[tuple[sa.Column[object], sa.ColumnElement[bool]]] = [
        (t.samples.c.time_s, t.samples.c.time_s < before_s),
        (t.audit.c.id, t.audit.c.at_s < before_s),
        (t.requests.c.id, sa.and_(t.requests.c.done == sa.true(), t.requests.c.at_s < before_s)),
        (t.events.c.id, sa.and_(t.events.c.time_s < before_s, of_others(t.events.c.job))),
        (
            t.intents.c.key,
            sa.and_(t.intents.c.outcome.is_not(None), t.intents.c.at_s < before_s, of_others(t.intents.c.job)),
        ),
        (t.profiles.c.id, sa.and_(told, t.profiles.c.kind == "")),
    ]  # fmt: skip
    with database.reading(what="prune") as c:
        for kind, enough in _enough(c).items():
            old.append((t.profiles.c.id, sa.and_(told, t.profiles.c.kind == kind, t.profiles.c.id <= enough)))
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


def _enough(c: sa.Connection) -> dict[str, int]:
    """Return the last measurement of each kind of jobs after which there are enough others of it."""
    t = tables.profiles.c
    many = sa.select(t.kind).where(t.kind != "").group_by(t.kind).having(sa.func.count() > _OF_A_KIND)
    found = {}
    for kind in c.execute(many).scalars().all():
        own = sa.select(t.id).where(t.kind == kind).order_by(t.id.desc()).offset(_OF_A_KIND).limit(1)
        found[kind] = c.execute(own).scalar_one()
    return found
