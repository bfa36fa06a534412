"""What the controller does to the store: one transaction for each tick, one for the commands of a tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.database import Database
from commonwatt.store.records import ACTIVE, EventRow, IntentRow, JobRow, RequestKind, RequestRow, SampleRow
from commonwatt.store.store import job_row

__all__ = ["LedgerKey", "Tick", "TickStore"]

LedgerKey = tuple[str, int]
"""Row of the ledger, and job (0: of no job)."""

_COLUMNS = ("energy_uj", "cost_n", "carbon_ug", "gpu_us")


@dataclass
class Tick:
    """All that changed in a tick. ``ledger`` holds differences, null for what has become unknown."""

    events: list[EventRow] = field(default_factory=list)  # their ids are given by the database
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)  # changed columns by job
    ledger: dict[LedgerKey, Mapping[str, int | None]] = field(default_factory=dict)
    segments: dict[int, Mapping[str, int | None] | None] = field(default_factory=dict)  # by job, as they are now
    sample: SampleRow | None = None
    requests: list[int] = field(default_factory=list)  # dealt with
    intents: list[IntentRow] = field(default_factory=list)  # with their outcome
    settings: dict[str, Any] = field(default_factory=dict)
    profiles: list[dict[str, Any]] = field(default_factory=list)

    def change(self, job: int, **columns: Any) -> None:  # noqa: ANN401
        """Change columns of a job."""
        self.jobs.setdefault(job, {}).update(columns)


class TickStore:
    """The store as the controller uses it."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def active_jobs(self) -> list[JobRow]:
        """Every job that runs or waits, by id."""
        t = tables.jobs
        query = sa.select(t).where(t.c.status.in_(ACTIVE)).order_by(t.c.id)
        with self.database.reading(what="active jobs") as c:
            return [job_row(row) for row in c.execute(query).mappings()]

    def jobs_by_id(self, jobs: Sequence[int]) -> list[JobRow]:
        """Jobs of the given ids, by id; those that do not exist are left out."""
        t = tables.jobs
        found: list[JobRow] = []
        with self.database.reading(what="jobs") as c:
            for k in range(0, len(jobs), 500):
                query = sa.select(t).where(t.c.id.in_(jobs[k : k + 500])).order_by(t.c.id)
                found += [job_row(row) for row in c.execute(query).mappings()]
        return found

    def segments(self) -> dict[int, dict[str, int | None]]:
        """Return what jobs are charged for since they last began, by job."""
        t = tables.ledger
        with self.database.reading(what="ledger") as c:
            rows = c.execute(sa.select(t).where(t.c.row == "segment")).mappings()
            return {row["job"]: {name: row[name] for name in _COLUMNS} for row in rows}

    def settings(self) -> dict[str, Any]:
        """Return all that is kept under a name."""
        with self.database.reading(what="settings") as c:
            return dict(c.execute(sa.select(tables.settings)).tuples().all())

    def requests(self) -> list[RequestRow]:
        """Return what was asked for and is not dealt with yet, in order."""
        t = tables.requests
        query = sa.select(t).where(t.c.done == sa.false()).order_by(t.c.id)
        with self.database.reading(what="requests") as c:
            rows = c.execute(query).mappings()
            return [
                RequestRow(r["id"], RequestKind(r["kind"]), r["job"], r["node"], r["value"], r["at_s"]) for r in rows
            ]

    def open_intents(self) -> list[IntentRow]:
        """Commands of which it is not known whether they were carried out."""
        t = tables.intents
        with self.database.reading(what="intents") as c:
            rows = c.execute(sa.select(t).where(t.c.outcome.is_(None)).order_by(t.c.at_s)).mappings()
            return [IntentRow(**{**row, "nodes": tuple(row["nodes"])}) for row in rows]

    def intend(self, intents: Sequence[IntentRow]) -> None:
        """Write commands down before they are given."""
        if intents:
            with self.database.transaction(what="intents") as c:
                c.execute(tables.intents.insert(), [{**asdict(i), "nodes": list(i.nodes)} for i in intents])

    def write(self, tick: Tick) -> None:
        """Write down all that changed in *tick*, or nothing."""
        with self.database.transaction(what="tick") as c:
            if tick.events:
                rows = [
                    {k: v for k, v in asdict(e).items() if k != "id"} | {"nodes": list(e.nodes)} for e in tick.events
                ]
                c.execute(tables.events.insert(), rows)
            for job, columns in tick.jobs.items():
                c.execute(tables.jobs.update().where(tables.jobs.c.id == job).values(**columns))
            for key, change in tick.ledger.items():
                _add(c, key, change)
            for job, segment in tick.segments.items():
                own = sa.and_(tables.ledger.c.row == "segment", tables.ledger.c.job == job)
                c.execute(tables.ledger.delete().where(own))
                if segment is not None:
                    c.execute(tables.ledger.insert().values(row="segment", job=job, **segment))
            if tick.sample is not None:
                _upsert(c, tables.samples, {"time_s": tick.sample.time_s}, asdict(tick.sample))
            if tick.requests:
                done = tables.requests.update().where(tables.requests.c.id == sa.bindparam("request"))
                c.execute(done.values(done=True), [{"request": request} for request in tick.requests])
            for intent in tick.intents:
                own = tables.intents.c.key == intent.key
                c.execute(tables.intents.update().where(own).values(outcome=intent.outcome, cause=intent.cause))
            for name, value in tick.settings.items():
                _upsert(c, tables.settings, {"name": name}, {"name": name, "value": value})
            if tick.profiles:
                c.execute(tables.profiles.insert(), tick.profiles)

    def profiles(self) -> list[dict[str, Any]]:
        """Every measurement of the profiler."""
        with self.database.reading(what="profiles") as c:
            return [
                dict(row) for row in c.execute(sa.select(tables.profiles).order_by(tables.profiles.c.id)).mappings()
            ]


def _upsert(c: sa.Connection, table: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    where = sa.and_(*(table.c[name] == value for name, value in key.items()))
    if c.execute(sa.select(sa.literal(1)).select_from(table).where(where)).first() is None:
        c.execute(table.insert().values(**values))
    else:
        c.execute(table.update().where(where).values(**values))


def _add(c: sa.Connection, key: LedgerKey, change: Mapping[str, int | None]) -> None:
    """Add *change* to a row of the ledger; unknown plus anything is unknown."""
    t = tables.ledger
    own = sa.and_(t.c.row == key[0], t.c.job == key[1])
    values = {name: sa.null() if change[name] is None else t.c[name] + change[name] for name in _COLUMNS}
    if c.execute(t.update().where(own).values(values)).rowcount == 0:
        c.execute(t.insert().values(row=key[0], job=key[1], **change))
