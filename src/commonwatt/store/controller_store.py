"""The store as the controller uses it: one transaction for each tick, one for its commands; and pruning.

Old rows are deleted, so that a store does not grow without bound; jobs and the ledger are kept for ever.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from commonwatt.model.errors import ClaimLostError
from commonwatt.store import tables
from commonwatt.store.api_store import job_row
from commonwatt.store.claim import Claim
from commonwatt.store.columns import LONGEST_NAME, cleaned, cleaned_column, upsert
from commonwatt.store.database import Database
from commonwatt.store.queries import count_events
from commonwatt.store.records import (
    ACTIVE,
    EndedRow,
    EventRow,
    IntentRow,
    JobRow,
    JobStatus,
    RequestKind,
    RequestRow,
    SampleRow,
)
from commonwatt.store.settings import get_setting, put_setting

__all__ = ["ControllerStore", "LedgerKey", "Tick", "prune", "trusted"]

T = TypeVar("T")
_AT_ONCE = 1000
_MOST_S = 86400.0
"""How far the time to prune by advances from one call to the next, at most."""
_OF_A_KIND = 1000
"""Measurements of jobs of a kind that are kept whatever their age."""


def prune(
    database: Database, before_s: float, page: int, go_on: Callable[[], bool], check: Callable[[sa.Connection], None]
) -> int:
    """Delete rows from before *before_s* (seconds since 1970), *page* in a transaction; returns how many.

    Rows of a job are as old as its end: all are deleted, or none. *check* is called in each transaction before anything
    is deleted. The setting ``pruned_s`` says from when on everything is kept.
    """
    t = tables

    def past(time_s: sa.Column[float], job: sa.Column[int]) -> sa.ColumnElement[bool]:
        """Old rows of no job, and of jobs that ended long ago: no row of a job is younger than its end."""
        own = t.jobs.c.id == job
        kept = sa.exists().where(own, sa.or_(t.jobs.c.status.in_(ACTIVE), t.jobs.c.ended_s >= before_s))
        return sa.and_(time_s < before_s, sa.not_(kept))

    measurements = past(t.profiles.c.measured_s, t.profiles.c.job)
    events, intents = past(t.events.c.time_s, t.events.c.job), past(t.intents.c.at_s, t.intents.c.job)
    old: list[tuple[sa.Column[object], sa.ColumnElement[bool]]] = [
        (t.samples.c.time_s, t.samples.c.time_s < before_s),
        (t.audit.c.id, t.audit.c.at_s < before_s),
        (t.requests.c.id, sa.and_(t.requests.c.done == sa.true(), t.requests.c.at_s < before_s)),
        (t.events.c.id, events),
        (t.intents.c.key, sa.and_(t.intents.c.outcome.is_not(None), intents)),
        (t.profiles.c.id, sa.and_(measurements, t.profiles.c.kind == "")),
    ]
    with database.reading(what="prune") as c:
        for kind, enough in _enough(c).items():
            old.append((t.profiles.c.id, sa.and_(measurements, t.profiles.c.kind == kind, t.profiles.c.id <= enough)))
    deleted = 0
    with database.transaction(what="prune") as c:
        check(c)
        if get_setting(c, "pruned_s", -math.inf) < before_s:
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

    So a clock that is wrong and far ahead, for however long between two calls, deletes little too early. The first time
    it is a day after the oldest sample. Kept as the setting ``trusted_s``.
    """
    with database.transaction(what="prune") as c:
        check(c)
        last_s = get_setting(c, "trusted_s")
        if last_s is None:
            last_s = c.scalar(sa.select(sa.func.min(tables.samples.c.time_s)))
        time_s = now_s if last_s is None else min(now_s, last_s + _MOST_S)
        put_setting(c, "trusted_s", time_s)
    return time_s


def _enough(c: sa.Connection) -> dict[str, int]:
    """Return, for each kind of jobs with many measurements, the last one that may be deleted."""
    t = tables.profiles.c
    many = sa.select(t.kind).where(t.kind != "").group_by(t.kind).having(sa.func.count() > _OF_A_KIND)
    last_ids = {}
    for kind in c.execute(many).scalars().all():
        own = sa.select(t.id).where(t.kind == kind).order_by(t.id.desc()).offset(_OF_A_KIND).limit(1)
        last_ids[kind] = c.execute(own).scalar_one()
    return last_ids


LedgerKey = tuple[str, int]
"""Row of the ledger, and job (0: of no job)."""

_COLUMNS = ("energy_uj", "cost_n", "carbon_ug", "gpu_us")


@dataclass
class Tick:
    """All changes of a tick. ``ledger`` has differences, null where a value has become unknown."""

    events: list[EventRow] = field(default_factory=list)  # their ids are given by the database
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)  # changed columns by job
    ledger: dict[LedgerKey, Mapping[str, int | None]] = field(default_factory=dict)
    segments: dict[int, Mapping[str, int | None] | None] = field(default_factory=dict)  # by job, as they are now
    sample: SampleRow | None = None
    requests: list[int] = field(default_factory=list)  # processed
    intents: list[IntentRow] = field(default_factory=list)  # with their outcome
    settings: dict[str, Any] = field(default_factory=dict)
    profiles: list[dict[str, Any]] = field(default_factory=list)
    token: str = field(default_factory=lambda: secrets.token_hex(8))  # identifies it when it is written again
    progress: dict[int, float] = field(default_factory=dict)  # epochs done by job; for snapshots, not written

    def charge(self, row: LedgerKey, amounts: Mapping[str, int | None]) -> None:
        """Add to a row of the ledger."""
        before = self.ledger.get(row, {})
        self.ledger[row] = {name: _plus(before.get(name, 0), amount) for name, amount in amounts.items()}

    def change(self, job: int, **columns: Any) -> None:  # noqa: ANN401
        """Change columns of a job; a sentence of its own replaces the facts of an earlier one."""
        if "sentence" in columns:
            columns.setdefault("facts", None)
        self.jobs.setdefault(job, {}).update(columns)


class ControllerStore:
    """The store as the controller uses it.

    With a *claim*, nothing is written once another controller has claimed the store: ``StoreError``. One without a
    claim may act until it has had one: then it has to have it.
    """

    def __init__(self, database: Database, claim: Claim | None = None) -> None:
        self.database, self._claim, self._led = database, claim, claim is not None

    @property
    def claim(self) -> Claim | None:
        """The claim on the store; ``None``: there is none, any more or by design."""
        return self._claim

    @claim.setter
    def claim(self, claim: Claim | None) -> None:
        """Begin another term."""
        self._claim, self._led = claim, self._led or claim is not None

    def active_jobs(self) -> list[JobRow]:
        """Every job that runs or waits, by id."""
        t = tables.jobs
        query = sa.select(t).where(t.c.status.in_(ACTIVE)).order_by(t.c.id)
        with self.database.reading(what="active jobs") as c:
            return [job_row(row) for row in c.execute(query).mappings()]

    def active_ids(self) -> list[int]:
        """Ids of the jobs that run or wait, in order."""
        t = tables.jobs.c
        with self.database.reading(what="active jobs") as c:
            return list(c.execute(sa.select(t.id).where(t.status.in_(ACTIVE)).order_by(t.id)).scalars())

    def jobs_by_id(self, jobs: Sequence[int]) -> list[JobRow]:
        """Jobs of the given ids, by id; those that do not exist are left out."""
        t = tables.jobs
        rows: list[JobRow] = []
        with self.database.reading(what="jobs") as c:
            for k in range(0, len(jobs), 500):
                query = sa.select(t).where(t.c.id.in_(jobs[k : k + 500])).order_by(t.c.id)
                rows += [job_row(row) for row in c.execute(query).mappings()]
        return rows

    def array_of(self, first: JobRow) -> list[JobRow]:
        """Return the tasks of an array, those that there are so far; *first* alone, if that is not the first of one."""
        batch = first.file.batch
        if batch is None or batch.array is None or batch.array[0]:
            return [first]
        t, tasks, last = tables.jobs, [first], first.id
        later = sa.select(t).where(t.c.tenant == first.tenant, t.c.id > sa.bindparam("last")).order_by(t.c.id)
        with self.database.reading(what="jobs") as c:
            while len(tasks) < batch.array[2]:
                rows = [job_row(row) for row in c.execute(later.limit(500), {"last": last}).mappings()]
                own = [row for row in rows if row.file.batch and (row.file.batch.array or (0,))[0] == first.id]
                if not own:  # they are submitted one after the other: it was given up
                    break
                tasks += own
                last = rows[-1].id
        return tasks

    def submit_times(self, jobs: Sequence[int]) -> dict[int, float]:
        """Return when jobs of the given ids were submitted; those that do not exist are left out."""
        t = tables.jobs.c
        times: dict[int, float] = {}
        with self.database.reading(what="jobs") as c:
            for k in range(0, len(jobs), 500):
                times |= {
                    row.id: row.submit_s
                    for row in c.execute(sa.select(t.id, t.submit_s).where(t.id.in_(jobs[k : k + 500])))
                }
        return times

    def ended_before(self, jobs: Sequence[int], time_s: float) -> list[int]:
        """Return those *jobs* that ended before *time_s*."""
        t = tables.jobs.c
        job_ids: list[int] = []
        with self.database.reading(what="jobs") as c:
            for k in range(0, len(jobs), 500):
                old = sa.and_(t.id.in_(jobs[k : k + 500]), t.status.not_in(ACTIVE), t.ended_s < time_s)
                job_ids += c.execute(sa.select(t.id).where(old).order_by(t.id)).scalars()
        return job_ids

    def ended_runs(self, since_s: float = -math.inf, limit: int = 20_000) -> list[EndedRow]:
        """Return the latest *limit* jobs that ran to their end, or to their time limit, at *since_s* or later, by it.

        How long one ran that was cancelled, or has failed, tells nothing of the next.
        """
        t, account = tables.jobs.c, tables.ledger.c
        charged = sa.and_(account.row == "job", account.job == t.id)
        query = (
            sa.select(t.id, t.tenant, t.name, t.file, t.began_s, t.ended_s, account.gpu_us)
            .select_from(tables.jobs.outerjoin(tables.ledger, charged))
            .where(sa.or_(t.status == JobStatus.COMPLETED, sa.and_(t.status.not_in(ACTIVE), t.reason == "time-limit")))
            .where(t.began_s.is_not(None), t.ended_s.is_not(None))
            .order_by(t.ended_s.desc(), t.id.desc()).limit(limit)
        )  # fmt: skip
        if math.isfinite(since_s):
            query = query.where(t.ended_s >= since_s)
        with self.database.reading(what="ended jobs") as c:
            rows = c.execute(query).mappings().all()
        return [
            EndedRow(
                r["id"], r["tenant"], r["name"], r["file"].get("kind", ""), r["file"].get("gpus", 1),
                r["file"].get("time_limit_s"), r["began_s"], r["ended_s"], r["gpu_us"],
            )
            for r in reversed(rows)
        ]  # fmt: skip

    def weights(self) -> dict[str, float]:
        """Return the weight of every tenant."""
        t = tables.tenants.c
        with self.database.reading(what="tenants") as c:
            return {row.name: row.weight for row in c.execute(sa.select(t.name, t.weight))}

    def tenant_usage(self) -> dict[str, dict[str, int | None]]:
        """Return what the jobs of each tenant were charged so far, by column of the ledger; ``None``: unknown."""
        t, j, sums = tables.ledger, tables.jobs.c, tables.totals
        running = sa.select(j.tenant, *(t.c[name] for name in _COLUMNS)).select_from(
            t.join(tables.jobs, t.c.job == j.id)
        ).where(t.c.row == "segment")  # fmt: skip
        ended = sa.select(sums.c.tenant, *(sums.c[name] for name in _COLUMNS)).where(sums.c.row == "job")
        usage: dict[str, dict[str, int | None]] = {}
        with self.database.reading(what="usage", snapshot=True) as c:
            for query in (ended, running):
                for tenant, *values in c.execute(query):
                    used = usage.setdefault(tenant, dict.fromkeys(_COLUMNS, 0))
                    for name, value in zip(_COLUMNS, values, strict=True):
                        used[name] = _plus(used[name], value)
        return usage

    def segments(self) -> dict[int, dict[str, int | None]]:
        """Return what running jobs were charged since they were started, by job."""
        t = tables.ledger
        with self.database.reading(what="ledger") as c:
            rows = c.execute(sa.select(t).where(t.c.row == "segment")).mappings()
            return {row["job"]: {name: row[name] for name in _COLUMNS} for row in rows}

    def settings(self) -> dict[str, Any]:
        """Return all settings."""
        with self.database.reading(what="settings") as c:
            return {row.name: row.value for row in c.execute(sa.select(tables.settings))}

    def requests(self) -> list[RequestRow]:
        """Return open requests, in order."""
        t = tables.requests
        query = sa.select(t).where(t.c.done == sa.false()).order_by(t.c.id)
        with self.database.reading(what="requests") as c:
            rows = c.execute(query).mappings()
            return [
                RequestRow(r["id"], RequestKind(r["kind"]), r["job"], r["node"], r["value"], r["at_s"]) for r in rows
            ]

    def open_intents(self) -> list[IntentRow]:
        """Commands whose outcome is unknown."""
        t = tables.intents
        with self.database.reading(what="intents") as c:
            rows = c.execute(sa.select(t).where(t.c.outcome.is_(None)).order_by(t.c.at_s, t.c.key)).mappings()
            return [IntentRow(**{**row, "nodes": tuple(row["nodes"])}) for row in rows]

    def check_claim(self) -> None:
        """Check that the claim is still ours; its lock is taken again if only that was lost. Raises ``StoreError``."""
        with self.database.transaction(what="claim") as c:
            self._check(c)

    def check_may_act(self) -> None:
        """Raise ``ClaimLostError`` if another controller may have claimed the store; no transaction is needed."""
        if (claim := self._claim) is not None:
            claim.check_may_act()
        elif self._led:
            raise ClaimLostError("this controller has given up its claim on the store: it gives no command")

    def term(self) -> Callable[[], None]:
        """Return ``check_may_act`` for what is begun now: it raises under another claim, too, also a later one of ours.

        What is begun in one term may end in a thread of its own, when this process stands by, or leads again.
        """
        claim = self._claim

        def check() -> None:
            if self._claim is not claim:
                raise ClaimLostError("the claim on the store under which this was begun is over")
            self.check_may_act()

        return check

    def intend(self, intents: Sequence[IntentRow]) -> None:
        """Write commands down before they are given."""
        if intents:
            with self.database.transaction(what="intents") as c:
                self._check(c)
                c.execute(tables.intents.insert(), [{**asdict(i), "nodes": list(i.nodes)} for i in intents])

    def write(self, tick: Tick) -> None:
        """Write all changes of *tick*, or none.

        After a ``StoreError`` they may have been written all the same (the answer was lost, not the transaction):
        writing the same tick again is safe, and writes nothing twice.
        """
        with self.database.transaction(what="tick") as c:
            self._check(c)
            if not _is_new(c, tick.token):
                return
            for events in _parts(tick.events):
                c.execute(tables.events.insert(), [_event(event) for event in events])
            count_events(c, tick.events)
            _change_jobs(c, tick.jobs)
            _add(c, tick.ledger)
            _replace_segments(c, tick.segments)
            if tick.sample is not None:
                upsert(c, tables.samples, {"time_s": tick.sample.time_s}, asdict(tick.sample))
            if tick.requests:
                done = tables.requests.update().where(tables.requests.c.id == sa.bindparam("request"))
                for requests in _parts(tick.requests):
                    c.execute(done.values(done=True), [{"request": request} for request in requests])
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
        """Return measurements that can still be used, by id, and whether their jobs are ``active``.

        Those of jobs of no kind are of no use once the jobs have ended.
        """
        t, jobs = tables.profiles, tables.jobs.c
        active = jobs.status.in_(ACTIVE)
        query = sa.select(t, sa.case((active, 1), else_=0).label("active")).join(tables.jobs, jobs.id == t.c.job)
        with self.database.reading(what="profiles") as c:
            rows = c.execute(query.where(sa.or_(active, t.c.kind != "")).order_by(t.c.id)).mappings()
            return [{**row, "active": bool(row["active"])} for row in rows]

    def prune(self, before_s: float, *, page: int = 2000, go_on: Callable[[], bool] = lambda: True) -> int:
        """Delete samples, events, requests, commands, measurements, and lines of the audit log from before *before_s*.

        Rows of jobs that are active, or ended later, stay, and so do open requests and commands. A transaction takes
        *page* rows at most, so that nobody waits for long; *go_on* is asked in between. Returns the rows deleted.
        """
        return prune(self.database, before_s, page, go_on, self._check)

    def trusted(self, now_s: float) -> float:
        """Return the time to prune by, which advances by a day at most from one call to the next."""
        return trusted(self.database, now_s, self._check)

    def _check(self, c: sa.Connection) -> None:
        if self.claim is not None:
            self.claim.check(c)


def _is_new(c: sa.Connection, token: str) -> bool:
    """Mark a tick as written; returns whether it was not yet. There is one writer, so the last token is enough."""
    if get_setting(c, "tick", lock=True) == token:
        return False
    put_setting(c, "tick", token)
    return True


def _event(event: EventRow) -> dict[str, Any]:
    row = {name: value for name, value in vars(event).items() if name != "id"}
    texts = {"reason": cleaned(event.reason, LONGEST_NAME), "sentence": cleaned(event.sentence)}
    return row | texts | {"nodes": list(event.nodes)}


def _change_jobs(c: sa.Connection, jobs: Mapping[int, Mapping[str, Any]]) -> None:
    """Update rows of jobs, with one statement for each set of columns."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for job, columns in jobs.items():
        if columns:
            alike.setdefault(tuple(sorted(columns)), []).append(job)
    t = tables.jobs
    for names, own in alike.items():
        values = {name: sa.bindparam(f"new_{name}", type_=t.c[name].type) if name in t.c else None for name in names}
        update = t.update().where(t.c.id == sa.bindparam("own")).values(values)
        for some in _parts(own):
            c.execute(
                update,
                [{"own": j} | {f"new_{n}": cleaned_column(n, value) for n, value in jobs[j].items()} for j in some],
            )


def _parts(those: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return *those* in parts, so that what is made of them for the database never exists all at once."""
    return (those[k : k + _AT_ONCE] for k in range(0, len(those), _AT_ONCE))


def _add(c: sa.Connection, changes: Mapping[LedgerKey, Mapping[str, int | None]]) -> None:
    """Add *changes* to rows of the ledger; unknown plus anything is unknown.

    Added here, and not by the database, whose integers may be too small; there is one writer at a time.
    """
    t = tables.ledger
    there: dict[LedgerKey, sa.RowMapping] = {}
    jobs = sorted({job for _, job in changes})
    for k in range(0, len(jobs), 500):
        rows = c.execute(sa.select(t).where(t.c.job.in_(jobs[k : k + 500]))).mappings()
        there.update({(row["row"], row["job"]): row for row in rows})
    _add_totals(c, changes)
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


def _add_totals(c: sa.Connection, changes: Mapping[LedgerKey, Mapping[str, int | None]]) -> None:
    """Add *changes* to the sums by row and tenant."""
    t, j = tables.totals, tables.jobs.c
    jobs = sorted({job for _, job in changes if job})
    tenants: dict[int, str] = {}
    for k in range(0, len(jobs), 500):
        owners = c.execute(sa.select(j.id, j.tenant).where(j.id.in_(jobs[k : k + 500])))
        tenants |= {row.id: row.tenant for row in owners}
    sums: dict[tuple[str, str], dict[str, int | None]] = {}
    for (row, job), change in changes.items():
        if row == "segment":  # which are replaced, not added to
            continue
        sum_ = sums.setdefault((row, tenants.get(job, "")), dict.fromkeys(_COLUMNS, 0))
        for name in _COLUMNS:
            sum_[name] = _plus(sum_[name], change[name])
    there = {(row["row"], row["tenant"]): row for row in c.execute(sa.select(t)).mappings()} if sums else {}
    for (row, tenant), sum_ in sums.items():
        key = {"row": row, "tenant": tenant}
        if (before := there.get((row, tenant))) is None:
            c.execute(t.insert().values(**key, **sum_))
        else:
            own = sa.and_(t.c.row == row, t.c.tenant == tenant)
            c.execute(t.update().where(own).values({name: _plus(before[name], sum_[name]) for name in _COLUMNS}))


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
