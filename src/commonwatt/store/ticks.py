"""What the controller does to the store: one transaction for each tick, one for the commands of a tick."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from commonwatt.store import tables
from commonwatt.store.claim import Claim
from commonwatt.store.database import Database
from commonwatt.store.pruning import prune, trusted
from commonwatt.store.records import ACTIVE, EventRow, IntentRow, JobRow, RequestKind, RequestRow, SampleRow
from commonwatt.store.store import job_row
from commonwatt.store.texts import LONGEST_NAME, cleaned, cleaned_column
from commonwatt.store.totals import count_events
from commonwatt.store.upsert import put_setting, upsert

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
    token: str = field(default_factory=lambda: secrets.token_hex(8))  # by which it is known again
    progress: dict[int, float] = field(default_factory=dict)  # epochs done by job; not written, for those who look

    def charge(self, row: LedgerKey, amounts: Mapping[str, int | None]) -> None:
        """Add to a row of the ledger."""
        before = self.ledger.get(row, {})
        self.ledger[row] = {name: _plus(before.get(name, 0), amount) for name, amount in amounts.items()}

    def change(self, job: int, **columns: Any) -> None:  # noqa: ANN401
        """Change columns of a job."""
        self.jobs.setdefault(job, {}).update(columns)


class TickStore:
    """The store as the controller uses it.

    With a *claim*, nothing is written once another controller has claimed the store: ``StoreError``.
    """

    def __init__(self, database: Database, claim: Claim | None = None) -> None:
        self.database, self.claim = database, claim

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

    def submit_times(self, jobs: Sequence[int]) -> dict[int, float]:
        """Return when jobs of the given ids were submitted; those that do not exist are left out."""
        t = tables.jobs.c
        found: dict[int, float] = {}
        with self.database.reading(what="jobs") as c:
            for k in range(0, len(jobs), 500):
                found |= {
                    row.id: row.submit_s
                    for row in c.execute(sa.select(t.id, t.submit_s).where(t.id.in_(jobs[k : k + 500])))
                }
        return found

    def ended_before(self, jobs: Sequence[int], time_s: float) -> list[int]:
        """Return those of *jobs* that ended before *time_s*."""
        t = tables.jobs.c
        found: list[int] = []
        with self.database.reading(what="jobs") as c:
            for k in range(0, len(jobs), 500):
                old = sa.and_(t.id.in_(jobs[k : k + 500]), t.status.not_in(ACTIVE), t.ended_s < time_s)
                found += c.execute(sa.select(t.id).where(old).order_by(t.id)).scalars()
        return found

    def weights(self) -> dict[str, float]:
        """Return the weight of every tenant."""
        t = tables.tenants.c
        with self.database.reading(what="tenants") as c:
            return {row.name: row.weight for row in c.execute(sa.select(t.name, t.weight))}

    def segments(self) -> dict[int, dict[str, int | None]]:
        """Return what jobs are charged for since they last began, by job."""
        t = tables.ledger
        with self.database.reading(what="ledger") as c:
            rows = c.execute(sa.select(t).where(t.c.row == "segment")).mappings()
            return {row["job"]: {name: row[name] for name in _COLUMNS} for row in rows}

    def settings(self) -> dict[str, Any]:
        """Return all that is kept under a name."""
        with self.database.reading(what="settings") as c:
            return {row.name: row.value for row in c.execute(sa.select(tables.settings))}

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
            rows = c.execute(sa.select(t).where(t.c.outcome.is_(None)).order_by(t.c.at_s, t.c.key)).mappings()
            return [IntentRow(**{**row, "nodes": tuple(row["nodes"])}) for row in rows]

    def intend(self, intents: Sequence[IntentRow]) -> None:
        """Write commands down before they are given."""
        if intents:
            with self.database.transaction(what="intents") as c:
                self._check(c)
                c.execute(tables.intents.insert(), [{**asdict(i), "nodes": list(i.nodes)} for i in intents])

    def write(self, tick: Tick) -> None:
        """Write down all that changed in *tick*, or nothing.

        After a ``StoreError`` it may have been written all the same (the answer was lost, not the transaction): writing
        the same tick again does what is left to do, and never anything twice.
        """
        with self.database.transaction(what="tick") as c:
            self._check(c)
            if not _is_new(c, tick.token):
                return
            if tick.events:
                c.execute(tables.events.insert(), [_event(event) for event in tick.events])
                count_events(c, tick.events)
            _change_jobs(c, tick.jobs)
            _add(c, tick.ledger)
            _replace_segments(c, tick.segments)
            if tick.sample is not None:
                upsert(c, tables.samples, {"time_s": tick.sample.time_s}, asdict(tick.sample))
            if tick.requests:
                done = tables.requests.update().where(tables.requests.c.id == sa.bindparam("request"))
                c.execute(done.values(done=True), [{"request": request} for request in tick.requests])
            if tick.intents:
                own = tables.intents.update().where(tables.intents.c.key == sa.bindparam("own"))
                outcomes = [
                    {"own": i.key, "new_outcome": i.outcome, "new_cause": None if i.cause is None else cleaned(i.cause)}
                    for i in tick.intents
                ]
                c.execute(own.values(outcome=sa.bindparam("new_outcome"), cause=sa.bindparam("new_cause")), outcomes)
            for name, value in tick.settings.items():
                put_setting(c, name, value)
            if tick.profiles:
                c.execute(tables.profiles.insert(), tick.profiles)

    def profiles(self) -> list[dict[str, Any]]:
        """Measurements of the profiler that can still be of use, by id, and whether their jobs are ``active``.

        Those of jobs of no kind tell nothing once these have ended.
        """
        t, jobs = tables.profiles, tables.jobs.c
        active = jobs.status.in_(ACTIVE)
        query = sa.select(t, sa.case((active, 1), else_=0).label("active")).join(tables.jobs, jobs.id == t.c.job)
        with self.database.reading(what="profiles") as c:
            rows = c.execute(query.where(sa.or_(active, t.c.kind != "")).order_by(t.c.id)).mappings()
            return [{**row, "active": bool(row["active"])} for row in rows]

    def prune(self, before_s: float, *, page: int = 2000, go_on: Callable[[], bool] = lambda: True) -> int:
        """Delete samples, events, requests, commands, measurements, and lines of the audit log from before *before_s*.

        What belongs to a job that runs or waits, or ended since, stays, and so does what is still to be dealt with. A
        transaction takes *page* rows at most, so that nobody waits for long; *go_on* is asked between them. Returns the
        rows deleted.
        """
        return prune(self.database, before_s, page, go_on, self._check)

    def trusted(self, now_s: float) -> float:
        """Return the time to prune by, which goes on by a day at most from one call to the next."""
        return trusted(self.database, now_s, self._check)

    def _check(self, c: sa.Connection) -> None:
        if self.claim is not None:
            self.claim.check(c)


def _is_new(c: sa.Connection, token: str) -> bool:
    """Note a tick as written; whether it was not yet. There is one writer, so the last one is enough to know."""
    t = tables.settings
    last = c.execute(sa.select(t.c.value).where(t.c.name == "tick").with_for_update()).first()
    if last is None:
        c.execute(t.insert().values(name="tick", value=token))
        return True
    if last[0] == token:
        return False
    c.execute(t.update().where(t.c.name == "tick").values(value=token))
    return True


def _event(event: EventRow) -> dict[str, Any]:
    row = {name: value for name, value in vars(event).items() if name != "id"}
    texts = {"reason": cleaned(event.reason, LONGEST_NAME), "sentence": cleaned(event.sentence)}
    return row | texts | {"nodes": list(event.nodes)}


def _change_jobs(c: sa.Connection, jobs: Mapping[int, Mapping[str, Any]]) -> None:
    """Update rows of jobs, those with the same columns together."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for job, columns in jobs.items():
        if columns:
            row = {f"new_{name}": cleaned_column(name, value) for name, value in columns.items()}
            alike.setdefault(tuple(sorted(columns)), []).append(row | {"own": job})
    t = tables.jobs
    for names, rows in alike.items():
        values = {name: sa.bindparam(f"new_{name}", type_=t.c[name].type) if name in t.c else None for name in names}
        c.execute(t.update().where(t.c.id == sa.bindparam("own")).values(values), rows)


def _add(c: sa.Connection, changes: Mapping[LedgerKey, Mapping[str, int | None]]) -> None:
    """Add *changes* to rows of the ledger; unknown plus anything is unknown.

    Here, and not by the database, whose integers may be too small; there is one writer at a time.
    """
    t = tables.ledger
    there: dict[LedgerKey, sa.RowMapping] = {}
    jobs = sorted({job for _, job in changes})
    for k in range(0, len(jobs), 500):
        found = c.execute(sa.select(t).where(t.c.job.in_(jobs[k : k + 500]))).mappings()
        there.update({(row["row"], row["job"]): row for row in found})
    new: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []
    for (row, job), change in changes.items():
        if (row, job) in there:
            before = there[row, job]
            after = {f"new_{name}": _plus(before[name], change[name]) for name in _COLUMNS}
            changed.append(after | {"own_row": row, "own_job": job})
        else:
            new.append({"row": row, "job": job, **{name: change[name] for name in _COLUMNS}})
    if new:
        c.execute(t.insert(), new)
    if changed:
        values = {name: sa.bindparam(f"new_{name}", type_=t.c[name].type) for name in _COLUMNS}
        own = sa.and_(t.c.row == sa.bindparam("own_row"), t.c.job == sa.bindparam("own_job"))
        c.execute(t.update().where(own).values(values), changed)


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _replace_segments(c: sa.Connection, segments: Mapping[int, Mapping[str, int | None] | None]) -> None:
    t = tables.ledger
    jobs = sorted(segments)
    for k in range(0, len(jobs), 500):
        c.execute(t.delete().where(t.c.row == "segment", t.c.job.in_(jobs[k : k + 500])))
    new = [{"row": "segment", "job": job, **segment} for job, segment in segments.items() if segment is not None]
    if new:
        c.execute(t.insert(), new)
