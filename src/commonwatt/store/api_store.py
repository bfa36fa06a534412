"""The store as the API and the command line use it: jobs, requests to the controller, tokens, quotas."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from commonwatt.model.errors import InputError, QuotaError, ServiceError, StoreError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live import AccountLimits, TenantLimits
from commonwatt.store import tables
from commonwatt.store.columns import (
    LONGEST_NAME,
    check_name,
    check_number,
    cleaned,
    cleaned_document,
    row_number,
    total,
)
from commonwatt.store.database import Database
from commonwatt.store.records import ACTIVE, EventRow, JobRow, JobStatus, RequestKind, SampleRow, TokenOwner
from commonwatt.store.settings import get_setting, put_setting

__all__ = ["NOTHING", "ApiStore", "check_quotas", "job_row"]

NOTHING: Mapping[str, int | None] = {"energy_uj": 0, "cost_n": 0, "carbon_ug": 0, "gpu_us": 0}
"""Account of a job that never began."""

_MOST_FILES = 2000  # some kilobytes each
_JOB_COLUMNS = tuple(field.name for field in fields(JobRow))
_LONGEST_PAGE = 10_000_000
_LIGHT = [
    sa.type_coerce(column, sa.Text).label("file") if column.name == "file" else column for column in tables.jobs.c
]
"""Columns of a job, its file unparsed: parsing takes longer than all the rest, and is often not needed."""


class ApiStore:
    """The store as the API and the command line use it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._files: dict[int, JobFile] = {}

    # -- tenants and tokens

    def add_tenant(self, name: str, weight: float, now_s: float) -> None:
        """Add a tenant, or change its weight. Raises ``InputError`` on a name that cannot be stored."""
        check_name(name, "tenant")
        if not check_number(weight, "weight") > 0:
            raise InputError("a number above 0", field="weight", value=weight)
        with self.database.transaction(what=f"tenant {name}") as c:
            row = c.execute(sa.select(tables.tenants.c.name).where(tables.tenants.c.name == name)).first()
            if row is None:
                c.execute(tables.tenants.insert().values(name=name, weight=weight, created_s=now_s))
            else:
                c.execute(tables.tenants.update().where(tables.tenants.c.name == name).values(weight=weight))

    def tenants(self) -> dict[str, float]:
        """Weight of every tenant, by name."""
        with self.database.reading(what="tenants") as c:
            rows = c.execute(sa.select(tables.tenants.c.name, tables.tenants.c.weight).order_by(tables.tenants.c.name))
            return {row.name: row.weight for row in rows}

    def has_tenant(self, name: str) -> bool:
        """Whether there is a tenant of that *name*."""
        with self.database.reading(what="tenants") as c:
            return _has_tenant(c, name)

    def add_token(
        self, tenant: str | None, label: str, now_s: float, *, role: str | None = None, expires_s: float | None = None
    ) -> str:
        """Make a token for a tenant, or (``None``) for an operator; only its digest is stored."""
        check_name(label, "label")
        token = f"cw_{secrets.token_urlsafe(32)}"
        with self.database.transaction(what="new token") as c:
            if tenant is not None:
                _check_tenant(c, tenant)
            values = {"tenant": tenant, "label": label, "created_s": now_s, "role": role, "expires_s": expires_s}
            c.execute(tables.tokens.insert().values(digest=_digest(token), **values))
        return token

    def owner(self, token: str) -> TokenOwner | None:
        """Return the owner of *token*; ``None`` if it is unknown, revoked or expired."""
        t = tables.tokens.c
        digest = _digest(token)
        with self.database.reading(what="token") as c:
            row = c.execute(
                sa.select(t.id, t.digest, t.label, t.tenant, t.role, t.expires_s).where(
                    t.digest == digest, t.revoked_s.is_(None)
                )
            ).first()
        if row is None or not hmac.compare_digest(row.digest, digest):
            return None
        if row.expires_s is not None and row.expires_s <= time.time():
            return None
        return TokenOwner(row.id, row.label, row.tenant, row.role)

    def tokens(self) -> list[dict[str, Any]]:
        """Return every token, without its digest."""
        t = tables.tokens.c
        with self.database.reading(what="tokens") as c:
            rows = c.execute(
                sa.select(t.id, t.tenant, t.label, t.created_s, t.revoked_s, t.role, t.expires_s).order_by(t.id)
            )
            return [dict(row) for row in rows.mappings()]

    def revoke(self, token: int, now_s: float) -> bool:
        """Revoke a token; returns whether it was valid."""
        token = row_number(token)
        t = tables.tokens
        with self.database.transaction(what="revoke") as c:
            done = c.execute(t.update().where(t.c.id == token, t.c.revoked_s.is_(None)).values(revoked_s=now_s))
            return done.rowcount == 1

    # -- jobs

    def submit(
        self, tenant: str, file: JobFile, now_s: float, *, due_s: float | None = None, key: str | None = None,
        actor: str | None = None, limits: TenantLimits | None = None,
        accounts: Mapping[str, AccountLimits] | None = None,
    ) -> tuple[JobRow, bool]:  # fmt: skip
        """Accept a job: once this returns, it is on disk. With the same *key*, it is accepted once.

        Returns the job and whether it is new; a new job gets a line in the audit log if an *actor* is named. Raises
        ``InputError`` if there is no such tenant or *key* cannot be stored, ``ServiceError`` (409) if it was used for
        another job, ``QuotaError`` if the *limits* of its tenant, or of its *accounts*, leave no room for another one.
        """
        if key is not None:
            check_name(key, "idempotency key")
        document = file.model_dump(mode="json")
        values: dict[str, Any] = {
            "name": file.name, "tenant": tenant, "idempotency_key": key, "file": document, "status": JobStatus.WAITING,
            "submit_s": now_s, "due_s": due_s, "nodes": [],
        }  # fmt: skip
        try:
            with self.database.transaction(what=f"submit {file.name}") as c:
                _check_tenant(c, tenant)
                earlier = self._submitted(c, tenant, key)
                if earlier is None:
                    check_quotas(c, tenant, file, limits or TenantLimits(), accounts or {})
                    record = c.execute(tables.jobs.insert().values(**values).returning(tables.jobs)).mappings().one()
                    row = job_row(record)
                    _ask(c, RequestKind.SUBMIT, now_s, job=row.id)
                    if actor is not None:
                        detail = {"tenant": tenant, "name": file.name, "new": True}
                        _note(c, now_s, actor, "submit", f"job {row.id}", "done", detail)
                    return row, True
        except StoreError as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
            with self.database.reading(what=f"submit {file.name}") as c:  # another request with the same key was faster
                earlier = self._submitted(c, tenant, key)
            if earlier is None:
                raise
        if json.loads(json.dumps(earlier.file.model_dump(mode="json"))) != json.loads(json.dumps(document)):
            msg = f"idempotency key {key!r} was used for job {earlier.id} with another content"
            raise ServiceError(msg, 409)
        return earlier, False

    def submitted(self, tenant: str, key: str) -> JobRow | None:
        """Return the job *tenant* submitted with *key*, if any."""
        with self.database.reading(what="jobs") as c:
            return self._submitted(c, tenant, key)

    def _submitted(self, c: sa.Connection, tenant: str, key: str | None) -> JobRow | None:
        if key is None:
            return None
        t = tables.jobs
        row = c.execute(sa.select(t).where(t.c.tenant == tenant, t.c.idempotency_key == key)).mappings().first()
        return None if row is None else job_row(row, self._files)

    def job(self, job: int) -> JobRow | None:
        """Return a job; ``None`` if there is none."""
        job = row_number(job)
        with self.database.reading(what=f"job {job}") as c:
            row = c.execute(sa.select(*_LIGHT).where(tables.jobs.c.id == job)).mappings().first()
        return None if row is None else job_row(row, self._files)

    def jobs(
        self, *, tenant: str | None = None, status: Sequence[JobStatus] = (), after: int = 0, limit: int = 100,
        newest_first: bool = False,
    ) -> list[JobRow]:  # fmt: skip
        """Return a page of jobs by id: those beyond (or, newest first, before) *after*; 0 begins at the end."""
        t, there = tables.jobs.c, _page_of(tenant, status, after, limit, newest_first=newest_first)
        query = sa.select(*_LIGHT).join(there, there.c.id == t.id).order_by(t.id.desc() if newest_first else t.id)
        with self.database.reading(what="jobs") as c:
            return [job_row(row, self._files) for row in c.execute(query).mappings()]

    def page(
        self, latest: Mapping[int, JobRow], *, tenant: str | None = None, status: Sequence[JobStatus] = (),
        find: str | None = None, held: bool | None = None, after: int = 0, limit: int = 100, newest_first: bool = False,
    ) -> list[JobRow]:  # fmt: skip
        """Return what :meth:`jobs` does, taking rows from *latest* (by id) where their status still matches.

        With *find*, those whose name contains it (small letters match capitals), or whose number it is; with *held*,
        those that are held, or are not.
        """
        t = tables.jobs.c
        query = _ids_of(tenant, tuple(status), find, after, limit, held=held, newest_first=newest_first)
        own = sa.true() if tenant is None else t.tenant == cleaned(tenant)
        with self.database.reading(what="jobs", snapshot=bool(status)) as c:
            id_list: str | None = c.scalar(query)
            ids = sorted(map(int, id_list.split(",")), reverse=newest_first) if id_list else []
            known = [latest[job] for job in ids if job in latest]
            rows = {row.id: row for row in known if not status or row.status in status}
            others = [job for job in ids if job not in rows]
            for k in range(0, len(others), 500):
                records = c.execute(sa.select(*_LIGHT).where(t.id.in_(others[k : k + 500]), own)).mappings()
                rows |= {row["id"]: job_row(row, self._files) for row in records}
        return [rows[job] for job in ids if job in rows]

    def counts(self, tenant: str | None = None) -> dict[str, int]:
        """Jobs by status."""
        t = tables.jobs.c
        query = sa.select(t.status, sa.func.count()).group_by(t.status)
        with self.database.reading(what="jobs") as c:
            rows = c.execute(query if tenant is None else query.where(t.tenant == cleaned(tenant)))
            by_status: dict[str, int] = {row[0]: row[1] for row in rows}
        return {status.value: int(by_status.get(status, 0)) for status in JobStatus}

    def counts_by_tenant(self) -> dict[str, dict[str, int]]:
        """Jobs by status, of every tenant."""
        t = tables.jobs.c
        query = sa.select(t.tenant, t.status, sa.func.count()).group_by(t.tenant, t.status)
        counts = {name: {status.value: 0 for status in JobStatus} for name in self.tenants()}
        with self.database.reading(what="jobs") as c:
            for tenant, status, number in c.execute(query):
                counts.setdefault(tenant, {state.value: 0 for state in JobStatus})[status] = int(number)
        return counts

    # -- requests to the controller

    def ask(
        self, kind: RequestKind, now_s: float, *, job: int | None = None, node: str | None = None, value: Any = None,  # noqa: ANN401
    ) -> int:  # fmt: skip
        """Store a request; returns its number. Raises ``InputError`` on a node name that cannot be stored."""
        if node is not None:
            check_name(node, "node")
        with self.database.transaction(what=kind) as c:
            return _ask(c, kind, now_s, job=job, node=node, value=value)

    def setting(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return a setting: ``mode``, ``drained``, ..."""
        with self.database.reading(what=f"setting {name}") as c:
            return get_setting(c, name, default)

    def keep_setting(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Store a setting that is not the controller's own."""
        with self.database.transaction(what=f"setting {name}") as c:
            put_setting(c, name, value)

    # -- history

    def events(
        self, *, job: int | None = None, tenant: str | None = None, after: int = 0, before: int | None = None,
        limit: int = 1000, newest_first: bool = False,
    ) -> list[EventRow]:  # fmt: skip
        """Return events after *after* and before *before*, if given: of one job, of a tenant's jobs, or all.

        The first *limit* of them in the requested order.
        """
        t = tables.events.c
        query = sa.select(tables.events).where(t.id > row_number(after)).limit(_page(limit))
        query = query.order_by(t.id.desc() if newest_first else t.id)
        if before is not None:
            query = query.where(t.id < row_number(before))
        if job is not None:
            query = query.where(t.job == row_number(job))
        if tenant is not None:
            query = query.join(tables.jobs, t.job == tables.jobs.c.id).where(tables.jobs.c.tenant == cleaned(tenant))
        with self.database.reading(what="events") as c:
            rows = c.execute(query).mappings()
            return [EventRow(**{**row, "nodes": tuple(row["nodes"])}) for row in rows]

    def samples(self, since_s: float, *, limit: int = 10_000) -> list[SampleRow]:
        """Return the samples since *since_s*; the last *limit* of them, in order."""
        t = tables.samples
        query = sa.select(t).where(t.c.time_s > since_s).order_by(t.c.time_s.desc()).limit(_page(limit))
        with self.database.reading(what="samples") as c:
            return [SampleRow(**row) for row in c.execute(query).mappings()][::-1]

    def ledger(self) -> list[dict[str, Any]]:
        """Return rows of the ledger by tenant: ``row``, ``tenant`` (null: of no job), and the sums of its columns.

        A column is unknown (null) as soon as one entry of it is. Rows of ended jobs are not read: their sums are kept.
        """
        t, j = tables.ledger.c, tables.jobs.c
        sums = [total(t[name], self.database.backend).label(name) for name in NOTHING]
        running = sa.select(t.row, j.tenant, *sums).select_from(
            tables.ledger.outerjoin(tables.jobs, t.job == j.id)
        ).where(t.row == "segment").group_by(t.row, j.tenant)  # fmt: skip
        with self.database.reading(what="ledger", snapshot=True) as c:
            rows = [dict(row) for row in c.execute(running).mappings()]
            for row in c.execute(sa.select(tables.totals)).mappings():
                rows.append({**row, "tenant": row["tenant"] or None})
        return sorted(rows, key=lambda row: (row["row"], row["tenant"] is not None, row["tenant"] or ""))

    def ledger_version(self) -> str:
        """Return a text that changes whenever the ledger does."""
        with self.database.reading(what="ledger") as c:
            return str(get_setting(c, "tick", ""))

    def account(self, job: int) -> dict[str, int | None]:
        """Return the account of a job so far, without lost work."""
        t = tables.ledger
        with self.database.reading(what=f"account of job {job}") as c:
            own = sa.and_(t.c.job == row_number(job), t.c.row.in_(("job", "segment")))
            rows = c.execute(sa.select(t).where(own)).mappings().all()
        total: dict[str, int | None] = {}
        for name in NOTHING:
            values = [row[name] for row in rows]
            total[name] = None if any(value is None for value in values) else sum(values)
        return total

    def note(
        self, at_s: float, actor: str, action: str, target: str, outcome: str, detail: dict[str, Any] | None = None
    ) -> None:
        """Add a line to the audit log; text that cannot be stored is replaced or cut, the line is never refused."""
        with self.database.transaction(what="audit") as c:
            _note(c, at_s, actor, action, target, outcome, detail)

    def audit(self, *, after: int = 0, limit: int = 100) -> list[dict[str, Any]]:
        """Return lines of the audit log after *after*."""
        t = tables.audit
        with self.database.reading(what="audit") as c:
            rows = c.execute(
                sa.select(t).where(t.c.id > row_number(after)).order_by(t.c.id).limit(_page(limit))
            ).mappings()
            return [dict(row) for row in rows]


def job_row(row: sa.RowMapping, files: dict[int, JobFile] | None = None) -> JobRow:
    """Return a row of the table ``jobs``; *files* caches job files, which never change, by job."""
    values = {name: row[name] for name in _JOB_COLUMNS}
    files = {} if files is None else files
    try:
        file = files.get(row["id"]) or _parsed(row["file"])
        values |= {"file": file, "status": JobStatus(row["status"])}
    except ValueError as error:
        raise StoreError(f"job {row['id']} cannot be read by this version of commonwatt: {error}") from None
    if len(files) >= _MOST_FILES:
        files.clear()
    files[row["id"]] = file
    return JobRow(**values | {"nodes": tuple(row["nodes"]), "tenant": sys.intern(row["tenant"])})


def _page_of(
    tenant: str | None, status: Sequence[JobStatus], after: int, limit: int, *, find: str | None = None,
    held: bool | None = None, newest_first: bool,
) -> sa.Subquery:  # fmt: skip
    """Return the ids of a page. Several statuses are queried one by one: no index has them in one order."""
    t, limit = tables.jobs.c, _page(limit)
    every: sa.Select[Any] = sa.select(t.id).order_by(t.id.desc() if newest_first else t.id).limit(limit)
    if after:
        every = every.where(t.id < row_number(after) if newest_first else t.id > row_number(after))
    if tenant is not None:
        every = every.where(t.tenant == cleaned(tenant))  # a name that cannot be stored matches nobody
    if find is not None:
        every = every.where(_matches(find))
    if held is not None:
        every = every.where(t.held.is_(held))
    wanted = tuple(dict.fromkeys(status))
    if not wanted or len(wanted) == len(JobStatus):
        return every.subquery()
    each = [every.where(t.status == one).subquery() for one in wanted]
    if len(each) == 1:
        return each[0]
    merged = sa.union_all(*(sa.select(one.c.id) for one in each)).subquery()
    return sa.select(merged.c.id).order_by(merged.c.id.desc() if newest_first else merged.c.id).limit(limit).subquery()


def _matches(find: str) -> sa.ColumnElement[bool]:
    """Return whether a job's name contains *find*, or it is its number."""
    t = tables.jobs.c
    same, any_case = (
        name.contains(text, autoescape=True) for name, text in ((t.name, find), (sa.func.lower(t.name), find.lower()))
    )
    number = t.id == row_number(int(find)) if find.isascii() and find.isdigit() else sa.false()
    return sa.or_(same, any_case, number)


@lru_cache(maxsize=256)
def _ids_of(
    tenant: str | None, status: tuple[JobStatus, ...], find: str | None, after: int, limit: int, *,
    held: bool | None, newest_first: bool,
) -> sa.Select[Any]:  # fmt: skip
    """Return the query of a page's ids; dashboards ask for the same again, and making it takes as long as asking it.

    They come in one row: SQLite's driver lets another thread run before each.
    """
    there = _page_of(tenant, status, after, limit, find=find, held=held, newest_first=newest_first)
    return sa.select(sa.func.aggregate_strings(sa.cast(there.c.id, sa.String(20)), ","))


_given: dict[frozenset[str], set[str]] = {}
"""Names of the fields that files of jobs give, once for all files that give the same: half of a file's memory."""


def _parsed(document: Any) -> JobFile:  # noqa: ANN401
    file = JobFile.model_validate(json.loads(document) if isinstance(document, str) else document)
    given = file.model_fields_set
    object.__setattr__(file, "__pydantic_fields_set__", _given.setdefault(frozenset(given), given))
    return file


def _check_tenant(c: sa.Connection, tenant: str) -> None:
    if not _has_tenant(c, tenant):
        raise InputError("an existing tenant", field="tenant", value=ascii(tenant) if "\0" in tenant else tenant)


def _note(
    c: sa.Connection, at_s: float, actor: str, action: str, target: str, outcome: str, detail: dict[str, Any] | None
) -> None:
    c.execute(
        tables.audit.insert().values(
            at_s=at_s, actor=cleaned(actor, LONGEST_NAME), action=cleaned(action, 32),
            target=cleaned(target, LONGEST_NAME), outcome=cleaned(outcome, 32), detail=cleaned_document(detail),
        )
    )  # fmt: skip


def _has_tenant(c: sa.Connection, name: str) -> bool:
    if cleaned(name) != name:
        return False
    return c.execute(sa.select(tables.tenants.c.name).where(tables.tenants.c.name == name)).first() is not None


def _page(limit: int) -> int:
    if not 1 <= limit <= _LONGEST_PAGE:
        raise InputError(f"a whole number from 1 to {_LONGEST_PAGE:,}", field="limit", value=limit)
    return limit


def _ask(
    c: sa.Connection, kind: RequestKind, now_s: float, *, job: int | None = None, node: str | None = None,
    value: Any = None,  # noqa: ANN401
) -> int:  # fmt: skip
    done = c.execute(tables.requests.insert().values(kind=kind, job=job, node=node, value=value, at_s=now_s))
    return int(done.inserted_primary_key[0])  # type: ignore[index]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


# -- quotas


_ROUNDING = 1e-9  # relative: a sum of floats may be a little more than the budget it was made to fill
_ANY_ENDS = "one of its queued or running jobs ends, or is cancelled"


def check_quotas(
    c: sa.Connection, tenant: str, file: JobFile, limits: TenantLimits, accounts: Mapping[str, AccountLimits]
) -> None:  # fmt: skip
    """Raise ``QuotaError`` if the *limits* of a tenant, or of its *accounts*, leave no room for another job.

    Submissions under one limit are checked one at a time, so that two at once cannot exceed it together.
    """
    limited = [of for of in accounts.values() if of.queued_jobs is not None]
    if limits.queued_jobs is None and limits.tardiness_budget is None and not limited:
        return
    t, j = tables.tenants.c, tables.jobs.c
    names = sorted({tenant, *(name for of in limited for name in of.tenants)})  # all at once: nobody waits in a circle
    c.execute(sa.select(t.name).where(t.name.in_(names)).order_by(t.name).with_for_update())
    counted: list[tuple[str, tuple[str, ...], int | None]] = [(f"tenant {tenant}", (tenant,), limits.queued_jobs)]
    counted += [(f"account {name}", of.tenants, of.queued_jobs) for name, of in accounts.items()]
    for whose, tenants, most in counted:
        if most is None:
            continue
        own = sa.and_(j.tenant.in_(tenants), j.status == JobStatus.WAITING)
        queued = int(c.scalar(sa.select(sa.func.count()).where(own)) or 0)
        if queued >= most:
            raise QuotaError(
                f"{whose} has {queued} queued jobs and may have {most}",
                reason="quota", field="queued_jobs", value=queued + 1,
                frees="one of them starts, or is cancelled",
            )  # fmt: skip
    if limits.tardiness_budget is not None and file.tardiness_weight > 0:
        own = sa.and_(j.tenant == tenant, j.status.in_(ACTIVE))
        weight = j.file["tardiness_weight"].as_float()
        used = float(c.scalar(sa.select(sa.func.sum(weight)).where(own)) or 0.0)
        if used + file.tardiness_weight > limits.tardiness_budget * (1 + _ROUNDING):
            raise QuotaError(
                f"the queued and running jobs of tenant {tenant} have tardiness weights of {used:g} in all and may "
                f"have {limits.tardiness_budget:g} per second, so this job may have "
                f"{max(0.0, limits.tardiness_budget - used):g}, not {file.tardiness_weight:g}",
                reason="budget", field="tardiness_budget", value=used + file.tardiness_weight, frees=_ANY_ENDS,
            )  # fmt: skip
