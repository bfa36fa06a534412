"""Consistency checks of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from commonwatt.model.errors import StoreError
from commonwatt.model.units import MICRO, plural
from commonwatt.store import tables
from commonwatt.store.api_store import job_row
from commonwatt.store.claim import claimed
from commonwatt.store.columns import total
from commonwatt.store.database import Database
from commonwatt.store.migrate import head
from commonwatt.store.records import ACTIVE, JobRow, JobStatus
from commonwatt.store.settings import get_setting

__all__ = ["Accounts", "CheckedStore", "Defect", "accounts_beside", "check"]

_SUMS = ("energy_uj", "cost_n", "carbon_ug", "gpu_us")
_LAST = {JobStatus.COMPLETED: "completed", JobStatus.FAILED: "failed", JobStatus.CANCELLED: "cancelled"}
_PAGE = 1000


@dataclass(frozen=True)
class Defect:
    """An inconsistency."""

    table: str
    job: int | None
    problem: str


@dataclass(frozen=True)
class CheckedStore:
    """Result of a check of a whole store."""

    revision: str
    controller: bool
    rows: dict[str, int]
    jobs: dict[str, int]
    ledger_exact: bool
    open_intents: int
    problems: tuple[Defect, ...]


def check(database: Database) -> CheckedStore:
    """Check all of *database*, which must be prepared, in one snapshot; raises ``StoreError``."""
    controller = claimed(database)
    with database.reading(what="check", snapshot=True) as c:
        rows = {
            t.name: int(c.scalar(sa.select(sa.func.count()).select_from(t)) or 0) for t in tables.metadata.sorted_tables
        }
        by_status = sa.select(tables.jobs.c.status, sa.func.count()).group_by(tables.jobs.c.status)
        counts = {row[0]: int(row[1]) for row in c.execute(by_status)}
        unknown = tables.intents.c.outcome.is_(None)
        open_intents = int(c.scalar(sa.select(sa.func.count()).where(unknown)) or 0)
        ledger = list(_ledger(c))
        problems = [*_engine(c), *ledger, *_jobs(c), *_events(c), *_strays(c)]
        if open_intents and not controller:
            said = f"{open_intents} commands have no known outcome and no controller runs; `serve` settles them"
            problems.append(Defect("intents", None, said))
    jobs = {status.value: counts.get(status, 0) for status in JobStatus}
    return CheckedStore(head(), controller, rows, jobs, not ledger, open_intents, tuple(problems))


@dataclass(frozen=True)
class Accounts:
    """The ledger beside the accounts of another scheduler, over jobs that both have.

    Attributes
    ----------
    jobs
        How many these are.
    gpu_s
        GPU seconds by tenant: in the ledger, and there.
    problems
        Jobs that differ, or that only the ledger has.
    """

    jobs: int
    gpu_s: dict[str, tuple[float, float]]
    problems: tuple[Defect, ...]


def accounts_beside(
    database: Database, sums: Mapping[str, tuple[int, float]], since_s: float, within_s: float
) -> Accounts:
    """Compare what ended jobs were charged with what another scheduler has of them.

    Parameters
    ----------
    sums
        Runs and GPU seconds there, by the name jobs have there: NUMBER-NAME.
    since_s
        Jobs that began earlier, by more than *within_s*, are left out.
    within_s
        Largest difference for each run and GPU.
    """
    t, gpu_s = tables.jobs.c, dict[str, tuple[float, float]]()
    charged = sa.select(tables.ledger.c.job, total(tables.ledger.c.gpu_us, database.backend).label("gpu_us")).where(
        tables.ledger.c.job != 0
    ).group_by(tables.ledger.c.job).subquery()  # fmt: skip
    query = (
        sa.select(t.id, t.name, t.tenant, t.file, t.attempts, charged.c.gpu_us)
        .select_from(tables.jobs.join(charged, charged.c.job == t.id))
        .where(t.status.not_in(ACTIVE), t.began_s >= since_s - within_s).order_by(t.id)
    )  # fmt: skip
    with database.reading(what="accounts") as c:
        rows = c.execute(query).all()
    jobs, problems = 0, []
    for number, name, tenant, file, attempts, gpu_us in rows:
        own_s, account = int(gpu_us) / MICRO, sums.get(f"{number}-{name}"[:_LONGEST_NAME])
        slack_s = within_s * max(attempts, 1 if account is None else account[0]) * file.get("gpus", 1)
        if account is None:
            if own_s > slack_s:
                said = f"{own_s:,.0f} GPU s are charged, and no run of it is accounted"
                problems.append(Defect("ledger", number, said))
            continue
        jobs += 1
        before = gpu_s.get(tenant, (0.0, 0.0))
        gpu_s[tenant] = before[0] + own_s, before[1] + account[1]
        if abs(own_s - account[1]) > slack_s:
            runs = plural(account[0], "run")
            said = f"{own_s:,.0f} GPU s are charged, {account[1]:,.0f} are accounted in {runs}"
            problems.append(Defect("ledger", number, said))
    return Accounts(jobs, gpu_s, tuple(problems))


_LONGEST_NAME = 100
"""Longest job name that is passed to Slurm, characters."""


def _engine(c: sa.Connection) -> Iterator[Defect]:
    """SQLite's own checks of its file."""
    if c.dialect.name != "sqlite":
        return
    for row in c.exec_driver_sql("PRAGMA integrity_check(20)"):
        if row[0] != "ok":
            yield Defect("database", None, str(row[0]))
    for row in c.exec_driver_sql("PRAGMA foreign_key_check"):
        yield Defect(str(row[0]), None, f"row {row[1]} names a row of {row[2]} that does not exist")


def _ledger(c: sa.Connection) -> Iterator[Defect]:
    """All rows add up to the meter; if one of them is unknown, so is the meter."""
    t = tables.ledger.c
    for name in _SUMS:
        sums: dict[bool, int | None] = {True: 0, False: 0}  # the meter; everything else
        for row, added in c.execute(sa.select(t.row, total(t[name], c.dialect.name)).group_by(t.row)):
            before = sums[row == "meter"]
            sums[row == "meter"] = None if before is None or added is None else before + added
        if sums[True] != sums[False]:
            yield Defect("ledger", None, f"{name}: the meter says {_said(sums[True])}, its rows {_said(sums[False])}")
        yield from _totals(c, name)


def _totals(c: sa.Connection, name: str) -> Iterator[Defect]:
    """Check that the sums that are kept are those of the rows."""
    t, j, kept = tables.ledger.c, tables.jobs.c, tables.totals.c
    query = sa.select(t.row, j.tenant, total(t[name], c.dialect.name)).select_from(
        tables.ledger.outerjoin(tables.jobs, t.job == j.id)
    ).where(t.row != "segment").group_by(t.row, j.tenant)  # fmt: skip
    there = {(row, tenant or ""): added for row, tenant, added in c.execute(query)}
    said = {(row, tenant): value for row, tenant, value in c.execute(sa.select(kept.row, kept.tenant, kept[name]))}
    for key in sorted(there.keys() | said.keys()):
        if there.get(key, 0) != said.get(key, 0):
            whose = f" of tenant {key[1]}" if key[1] else ""
            sums = f"the sum kept is {_said(said.get(key, 0))}, that of the rows {_said(there.get(key, 0))}"
            yield Defect("totals", None, f"{name} of row {key[0]!r}{whose}: {sums}")


def _said(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _jobs(c: sa.Connection) -> Iterator[Defect]:
    t, last, i = tables.jobs, 0, tables.intents.c
    ordered = set(c.execute(sa.select(i.job).where(i.kind == "start", i.outcome.is_(None))).scalars())
    while True:
        rows = c.execute(sa.select(t).where(t.c.id > last).order_by(t.c.id).limit(_PAGE)).mappings().all()
        for row in rows:
            try:
                problems = list(_of_job(job_row(row), ordered=row["id"] in ordered))
            except StoreError as error:
                problems = [str(error)]
            yield from (Defect("jobs", row["id"], problem) for problem in problems)
        if len(rows) < _PAGE:
            return
        last = rows[-1]["id"]


def _of_job(job: JobRow, *, ordered: bool) -> Iterator[str]:
    """Check a job; whether one that is *ordered* to start did so is unknown: its place may still be in use."""
    running = job.status is JobStatus.RUNNING
    if running != bool(job.nodes):
        yield f"it is {job.status} and has {plural(len(job.nodes), 'node')}"
    elif running and not ((job.attempts or ordered) and job.started_s is not None and job.gpus):
        yield "it runs, but was never started or has no GPUs"
    if (job.status in ACTIVE) != (job.ended_s is None):
        yield f"it is {job.status}, and has {'no' if job.ended_s is None else 'an'} end time"
    if job.settled > job.attempts:
        yield f"{job.settled} of its runs are accounted for, but it was started {plural(job.attempts, 'time')}"
    if not 0 <= job.kept_epochs <= max(job.done_epochs, job.file.epochs):
        yield f"{job.kept_epochs:g} epochs of it are kept, {job.done_epochs:g} done"


def _events(c: sa.Connection) -> Iterator[Defect]:
    """A job ends once, with the event of its status, and has no later event."""
    e, j = tables.events.c, tables.jobs.c
    ends = sa.case((e.kind.in_(tuple(_LAST.values())), 1), else_=0)
    each = (
        sa.select(
            e.job, sa.func.sum(ends).label("ends"), sa.func.max(e.id).label("last"),
            sa.func.max(sa.case((ends == 1, e.id))).label("end"),
        ).where(e.job.is_not(None)).group_by(e.job).subquery()
    )  # fmt: skip
    pruned = get_setting(c, "pruned_s")
    query = sa.select(j.id, j.status, j.ended_s, each.c.ends, each.c.last, each.c.end, e.kind).select_from(
        tables.jobs.outerjoin(each, each.c.job == j.id).outerjoin(tables.events, e.id == each.c.end)
    ).order_by(j.id)  # fmt: skip
    for row in c.execute(query):
        number, status, ended_s, ends_seen, last, end, kind = row
        if status in ACTIVE:
            if ends_seen:
                yield Defect("events", number, f"it is {status}, but an event says it has {kind}")
        elif not ends_seen:
            if pruned is None or (ended_s or 0.0) >= float(pruned):
                yield Defect("events", number, f"it is {status}, but no event says so")
        elif ends_seen > 1:
            yield Defect("events", number, f"it ended {plural(int(ends_seen), 'time')}")
        elif kind != _LAST.get(JobStatus(status)):
            yield Defect("events", number, f"it is {status}, but an event says it is {kind}")
        elif last != end:
            yield Defect("events", number, "it has an event after its end")


def _strays(c: sa.Connection) -> Iterator[Defect]:
    """Rows of jobs that do not exist."""
    for table in (tables.events, tables.intents, tables.ledger, tables.requests):
        t, j = table.c, tables.jobs.c
        query = sa.select(t.job).distinct().select_from(table.outerjoin(tables.jobs, t.job == j.id)).where(
            j.id.is_(None), t.job.is_not(None), t.job != 0
        ).limit(20)  # fmt: skip
        for (job,) in c.execute(query):
            yield Defect(table.name, job, "there is no such job")
