"""``/jobs``: submit, list, explain, cancel, hold and release jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from commonwatt.controlplane.jobs import due_of
from commonwatt.controlplane.snapshot import Snapshot
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import EventPage, JobDetail, JobExplanation, JobPage, JobState, SubmittedJob
from commonwatt.model.names import did_you_mean
from commonwatt.model.units import plural
from commonwatt.service.admission import admit
from commonwatt.service.auth import AuditedRoute, Caller, Member, about, actor_of, noted
from commonwatt.service.context import (
    FEW,
    PREFIX,
    After,
    Before,
    Limit,
    NewestFirst,
    ServiceContext,
    TenantName,
    cache_of,
    context_of,
    json_response,
    run_query,
)
from commonwatt.service.problems import ApiRefusal, refusals
from commonwatt.service.serializers import (
    body_of,
    described,
    event_page,
    explanation,
    job_detail,
    job_document,
    job_state,
    submitted_job,
)
from commonwatt.store.api_store import NOTHING
from commonwatt.store.queries import ended_lately
from commonwatt.store.records import ACTIVE, EventRow, JobRow, JobStatus, RequestKind

__all__ = ["router"]

router = APIRouter(prefix=f"{PREFIX}/jobs", tags=["jobs"], route_class=AuditedRoute)

LONGEST_HISTORY = 1000
_AGAIN: dict[int | str, dict[str, Any]] = {
    200: {"model": SubmittedJob, "description": "The job was accepted before, with the same key."}
}
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {}}, "description": "The end of the output, as text."}
}
JobNumber = Annotated[int, Path(ge=1, le=2**53 - 1, description="Number of the job.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", pattern=r"^[!-~]{1,128}$",
        description="Submissions of a tenant with the same key create one job, so that a request can be repeated.",
    ),
]  # fmt: skip


Text = Annotated[
    str | None,
    Query(
        min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$",
        description="Only jobs whose name contains this, in capitals or not, or whose number it is.",
    ),
]  # fmt: skip

Held = Annotated[bool | None, Query(description="Only jobs that are held, or only others.")]


@router.post(
    "", status_code=201, response_model=SubmittedJob, openapi_extra=described(JobFile),
    responses=_AGAIN | refusals(400, 403, 404, 408, 409, 413, 415),
)  # fmt: skip
def submit(
    request: Request, response: Response, caller: Member, file: Annotated[JobFile, Depends(body_of(JobFile))],
    tenant: TenantName = None, key: Key = None,
) -> SubmittedJob:  # fmt: skip
    """Submit a job. An operator names the tenant; a tenant submits for itself."""
    context, now_s = context_of(request), time.time()
    if context.config.live.advises_only(context.config.engine):
        where = "Slurm" if context.config.engine == "slurm" else "Kubernetes"
        raise ApiRefusal(409, f"this control plane only advises (read_only): submit the job to {where}")
    owner = _owner(context, caller, tenant)
    about(request, f"job {file.name}", tenant=owner)
    due = due_of(file, now_s)
    try:
        warnings = admit(context, file, owner, now_s, due, trusted=caller.operator)
    except InputError:
        if key is None or context.store.submitted(owner, key) is None:
            raise
        warnings = ()  # it was valid when it was accepted
    live = context.config.live
    row, new = context.store.submit(
        owner, file, now_s, due_s=due, key=key, actor=actor_of(caller), limits=live.limits_of(owner),
        accounts=live.accounts_of(owner),
    )  # fmt: skip
    about(request, f"job {row.id}", tenant=owner, name=file.name, new=new)
    if new:
        noted(request)
        for of in {owner, caller.tenant}:
            cache_of(request).change(("jobs", of), _one_more)
        context.wake()
    response.status_code = 201 if new else 200
    response.headers["Location"] = f"{PREFIX}/jobs/{row.id}"
    return submitted_job(row, context.snapshot(), warnings)


def _one_more(counts: dict[str, int]) -> dict[str, int]:
    return {**counts, JobStatus.WAITING: counts[JobStatus.WAITING] + 1}


@router.get("", response_model=JobPage, responses=refusals(403, 404))
async def jobs(
    request: Request, caller: Member, status: Annotated[list[JobStatus] | None, Query()] = None,
    tenant: TenantName = None, find: Text = None, held: Held = None, cursor: After = 0, limit: Limit = 100, *,
    newest_first: NewestFirst = False,
) -> Response:  # fmt: skip
    """List jobs by number, a page at a time: a tenant's own; for operators all, or those of one tenant."""
    context = context_of(request)
    snapshot = context.snapshot()

    def read() -> tuple[str | None, list[JobRow]]:
        of = _owner(context, caller, tenant) if tenant is not None or not caller.operator else None
        return of, context.store.page(
            _active(snapshot),
            tenant=of,
            status=tuple(status or ()),
            find=find,
            held=held,
            after=cursor,
            limit=limit + 1,
            newest_first=newest_first,
        )

    of, rows = await run_query(request, read, rows=limit if find is None and held is None else FEW + 1)
    counts = await cache_of(request).get(("jobs", of), lambda: context.store.counts(of))
    more = len(rows) > limit
    return json_response(_page(rows[:limit], snapshot, rows[limit - 1].id if more else None, counts))


def _page(rows: Sequence[JobRow], snapshot: Snapshot, cursor: int | None, counts: dict[str, int]) -> dict[str, Any]:
    """Return the document of a ``JobPage``."""
    return {"jobs": [job_document(row, snapshot) for row in rows], "next_cursor": cursor, "counts": counts}


@router.get("/ended", response_model=JobPage, responses=refusals(403, 404))
async def ended(request: Request, caller: Member, tenant: TenantName = None, limit: Limit = 100) -> Response:
    """List ended jobs, the latest first: a tenant's own; for operators all, or those of one tenant."""
    context = context_of(request)
    snapshot = context.snapshot()

    def find() -> tuple[str | None, list[JobRow]]:
        of = _owner(context, caller, tenant) if tenant is not None or not caller.operator else None
        return of, ended_lately(context.store.database, of, limit=limit)

    of, rows = await run_query(request, find, rows=FEW + 1)
    counts = await cache_of(request).get(("jobs", of), lambda: context.store.counts(of))
    return json_response(_page(rows, snapshot, None, counts))


@router.get("/{job}", response_model=JobDetail, responses=refusals(404))
async def job(request: Request, caller: Member, job: JobNumber) -> Response:
    """Return everything about a job."""
    context = context_of(request)
    snapshot = context.snapshot()

    def find() -> tuple[JobRow, dict[str, int | None]]:
        row = _visible_job(context, snapshot, caller, job)
        return row, context.store.account(job) if row.attempts else dict(NOTHING)

    row, account = await run_query(request, find)
    return json_response(job_detail(row, snapshot, account))


@router.get("/{job}/explain", response_model=JobExplanation, responses=refusals(404))
async def explain(request: Request, caller: Member, job: JobNumber) -> Response:
    """Explain why a job runs where it does, or waits, and when it is expected to start and end."""
    context = context_of(request)
    snapshot = context.snapshot()

    def find(most: int) -> tuple[JobRow, list[EventRow]]:
        row = _visible_job(context, snapshot, caller, job)
        return row, context.store.events(job=job, limit=most, newest_first=True)[::-1]

    row, history = await run_query(request, lambda: find(FEW), rows=FEW)
    if len(history) == FEW:  # there may be more
        row, history = await run_query(request, lambda: find(LONGEST_HISTORY), rows=LONGEST_HISTORY)
    return json_response(explanation(row, snapshot, history))


@router.get("/{job}/events", response_model=EventPage, responses=refusals(404))
async def job_events(
    request: Request, caller: Member, job: JobNumber, after: After = 0, before: Before = None, limit: Limit = 100, *,
    newest_first: NewestFirst = False,
) -> Response:  # fmt: skip
    """List a job's events."""
    context = context_of(request)

    def find() -> list[EventRow]:
        _visible_job(context, context.snapshot(), caller, job)
        return context.store.events(job=job, after=after, before=before, limit=limit, newest_first=newest_first)

    return json_response(event_page(await run_query(request, find, rows=limit), after))


@router.get(
    "/{job}/log", response_class=PlainTextResponse,
    responses=_TEXT | refusals(404),
)  # fmt: skip
def log(
    request: Request, caller: Member, job: JobNumber,
    last_bytes: Annotated[int, Query(ge=1, le=1_000_000, description="Most bytes to return, from the end.")] = 65536,
    attempt: Annotated[
        int | None, Query(ge=1, le=2**31 - 1, description="Number of the run, from 1; absent: the current or last one.")
    ] = None,
    after: Annotated[
        int | None,
        Query(ge=0, le=2**53 - 1, description="Begin at this byte: the header `Commonwatt-Next` of the last answer."),
    ] = None,
) -> PlainTextResponse:  # fmt: skip
    """Return the end of the output of a job's run, or what follows a byte, if the engine keeps it on this machine.

    The headers `Commonwatt-Attempt` and, with `after`, `Commonwatt-Next` say which run it is, and where to go on.
    """
    context = context_of(request)
    row = _visible_job(context, context.snapshot(), caller, job)
    number = row.attempts if attempt is None else attempt
    headers = {"Content-Security-Policy": "sandbox", "Commonwatt-Attempt": str(number)}
    text: bytes | None = None
    if number <= row.attempts and after is None:
        text = context.job_log(job, number, last_bytes)
    elif number <= row.attempts and (part := context.job_log_after(job, number, after or 0, last_bytes)) is not None:
        text, headers["Commonwatt-Next"] = part[0], str(part[1])
    if text is None:
        detail = f"the output of job {job} is not on this machine"
        if attempt is not None:
            started = plural(row.attempts, "time")
            detail = f"the output of run {attempt} of job {job} is not on this machine; it was started {started}"
        if (of := row.file.workload) is not None:
            detail = f"Kubernetes has the output of job {job}: kubectl --namespace {of.namespace} logs {of.pods_of}"
        raise ApiRefusal(404, detail)
    return PlainTextResponse(text.decode("utf-8", "replace"), headers=headers)


@router.post("/{job}/cancel", status_code=202, response_model=JobState, responses=refusals(404, 409))
def cancel(request: Request, caller: Member, job: JobNumber) -> JobState:
    """Cancel a queued or running job. Cancelling it again has no effect."""
    return _ask(context_of(request), caller, job, RequestKind.CANCEL)


@router.post("/{job}/hold", status_code=202, response_model=JobState, responses=refusals(404, 409))
def hold(request: Request, caller: Member, job: JobNumber) -> JobState:
    """Do not start a job until it is released; a running job continues."""
    return _ask(context_of(request), caller, job, RequestKind.HOLD)


@router.post("/{job}/release", status_code=202, response_model=JobState, responses=refusals(404, 409))
def release(request: Request, caller: Member, job: JobNumber) -> JobState:
    """Allow a held job to start again."""
    return _ask(context_of(request), caller, job, RequestKind.RELEASE)


def _ask(context: ServiceContext, caller: Caller, job: int, kind: RequestKind) -> JobState:
    snapshot = context.snapshot()
    row = _visible_job(context, snapshot, caller, job)
    if row.status in ACTIVE:
        by = {"by": "operator" if caller.operator else "tenant"} if kind is RequestKind.CANCEL else None
        context.store.ask(kind, time.time(), job=job, value=by)
        context.wake()
    elif not (kind is RequestKind.CANCEL and row.status is JobStatus.CANCELLED):
        raise ApiRefusal(409, f"job {job} has ended: it is {row.status}")
    return job_state(row, snapshot)


def _visible_job(context: ServiceContext, snapshot: Snapshot, caller: Caller, job: int) -> JobRow:
    """Return a job that *caller* may see; any other is refused with 404, whether it exists or not."""
    row = _active(snapshot).get(job) or context.store.job(job)
    if row is None or not caller.sees(row.tenant):
        raise ApiRefusal(404, f"there is no job {job}")
    return row


def _active(snapshot: Snapshot) -> Mapping[int, JobRow]:
    """Return the controller's active jobs; none while it is unhealthy, as another one may have taken over."""
    return snapshot.rows if snapshot.healthy else {}


def _owner(context: ServiceContext, caller: Caller, tenant: str | None) -> str:
    """Return the tenant whose jobs are requested; a tenant may request only its own."""
    if caller.tenant is not None:
        if tenant is not None and tenant != caller.tenant:
            raise ApiRefusal(403, f"this token is for tenant {caller.tenant} only", field="tenant", value=tenant)
        return caller.tenant
    if tenant is None:
        expected = "the job's tenant, as this is an operator's token (--tenant NAME, ?tenant=NAME)"
        raise ApiRefusal(422, f"field 'tenant': expected {expected}", field="tenant", expected=expected)
    if not context.store.has_tenant(tenant):
        meant = did_you_mean(tenant, context.store.tenants())
        raise ApiRefusal(404, f"there is no tenant {tenant!r}{meant}", field="tenant", value=tenant)
    return tenant
