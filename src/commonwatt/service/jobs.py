"""``/jobs``: submit, look, explain, cancel, hold, release."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from commonwatt.live.board import Board
from commonwatt.live.jobs import due_of
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import EventPage, Explanation, JobDetail, JobPage, JobState, SubmittedJob
from commonwatt.service.audit import AuditedRoute, about, actor_of, noted
from commonwatt.service.body import body_of, described
from commonwatt.service.desk import Desk
from commonwatt.service.door import look_at
from commonwatt.service.guard import Caller, Member
from commonwatt.service.parameters import (
    FEW,
    PREFIX,
    After,
    Before,
    Limit,
    NewestFirst,
    TenantName,
    desk_of,
    looked_up,
    recent_of,
)
from commonwatt.service.problems import Refusal, refusals
from commonwatt.service.shapes import event_entry, event_page, explanation, job_detail, job_state, submitted_job
from commonwatt.store.records import ACTIVE, EventRow, JobRow, JobStatus, RequestKind
from commonwatt.store.store import NOTHING
from commonwatt.store.watch import ended_lately

__all__ = ["router"]

router = APIRouter(prefix=f"{PREFIX}/jobs", tags=["jobs"], route_class=AuditedRoute)

LONGEST_HISTORY = 1000
_AGAIN: dict[int | str, dict[str, Any]] = {
    200: {"model": SubmittedJob, "description": "It had been accepted before, with the same key."}
}
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {}}, "description": "The end of it, as text."}
}
JobNumber = Annotated[int, Path(ge=1, le=2**53 - 1, description="Number of the job.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", pattern=r"^[!-~]{1,128}$",
        description="Submissions of a tenant with the same key are one: sending again is safe.",
    ),
]  # fmt: skip


@router.post(
    "", status_code=201, response_model=SubmittedJob, openapi_extra=described(JobFile),
    responses=_AGAIN | refusals(400, 403, 404, 408, 409, 413, 415),
)  # fmt: skip
def submit(
    request: Request, response: Response, caller: Member, file: Annotated[JobFile, Depends(body_of(JobFile))],
    tenant: TenantName = None, key: Key = None,
) -> SubmittedJob:  # fmt: skip
    """Submit a job. An operator names the tenant; a tenant submits for itself."""
    desk, now_s = desk_of(request), time.time()
    owner = _owner(desk, caller, tenant)
    about(request, f"job {file.name}", tenant=owner)
    due = due_of(file, now_s)
    try:
        warnings = look_at(desk, file, now_s, due)
    except InputError:
        if key is None or desk.store.submitted(owner, key) is None:
            raise
        warnings = ()  # it was accepted when all was well
    row, new = desk.store.submit(owner, file, now_s, due_s=due, key=key, actor=actor_of(caller))
    about(request, f"job {row.id}", tenant=owner, name=file.name, new=new)
    if new:
        noted(request)
        for of in {owner, caller.tenant}:
            recent_of(request).change(("jobs", of), _one_more)
        desk.wake()
    response.status_code = 201 if new else 200
    response.headers["Location"] = f"{PREFIX}/jobs/{row.id}"
    return submitted_job(row, desk.board(), warnings)


def _one_more(counts: dict[str, int]) -> dict[str, int]:
    return {**counts, JobStatus.WAITING: counts[JobStatus.WAITING] + 1}


@router.get("", response_model=JobPage, responses=refusals(403, 404))
async def jobs(
    request: Request, caller: Member, status: Annotated[list[JobStatus] | None, Query()] = None,
    tenant: TenantName = None, cursor: After = 0, limit: Limit = 100, *, newest_first: NewestFirst = False,
) -> JobPage:  # fmt: skip
    """List jobs by number, a page at a time: a tenant its own, an operator all or those of one tenant."""
    desk = desk_of(request)
    board = desk.board()

    def find() -> tuple[str | None, list[JobRow]]:
        of = _owner(desk, caller, tenant) if tenant is not None or not caller.operator else None
        return of, desk.store.page(
            _active(board),
            tenant=of,
            status=tuple(status or ()),
            after=cursor,
            limit=limit + 1,
            newest_first=newest_first,
        )

    of, rows = await looked_up(request, find, rows=limit)
    counts = await recent_of(request).get(("jobs", of), lambda: desk.store.counts(of))
    more = len(rows) > limit
    return JobPage(
        jobs=tuple(job_state(row, board) for row in rows[:limit]), next_cursor=rows[limit - 1].id if more else None,
        counts=counts,
    )  # fmt: skip


@router.get("/ended", response_model=JobPage, responses=refusals(403, 404))
async def ended(request: Request, caller: Member, tenant: TenantName = None, limit: Limit = 100) -> JobPage:
    """List the jobs that ended last, the last first: a tenant its own, an operator all or those of one tenant."""
    desk = desk_of(request)
    board = desk.board()

    def find() -> tuple[str | None, list[JobRow]]:
        of = _owner(desk, caller, tenant) if tenant is not None or not caller.operator else None
        return of, ended_lately(desk.store.database, of, limit=limit)

    of, rows = await looked_up(request, find, rows=FEW + 1)
    counts = await recent_of(request).get(("jobs", of), lambda: desk.store.counts(of))
    return JobPage(jobs=tuple(job_state(row, board) for row in rows), next_cursor=None, counts=counts)


@router.get("/{job}", response_model=JobDetail, responses=refusals(404))
async def job(request: Request, caller: Member, job: JobNumber) -> JobDetail:
    """Return everything about a job."""
    desk = desk_of(request)
    board = desk.board()

    def find() -> tuple[JobRow, dict[str, int | None]]:
        row = _found(desk, board, caller, job)
        return row, desk.store.account(job) if row.attempts else dict(NOTHING)

    row, account = await looked_up(request, find)
    return job_detail(row, board, account)


@router.get("/{job}/explain", response_model=Explanation, responses=refusals(404))
async def explain(request: Request, caller: Member, job: JobNumber) -> Explanation:
    """Say why a job runs where it does, or waits, and what is expected of it."""
    desk = desk_of(request)
    board = desk.board()

    def find(most: int) -> tuple[JobRow, list[EventRow]]:
        row = _found(desk, board, caller, job)
        return row, desk.store.events(job=job, limit=most, newest_first=True)[::-1]

    row, history = await looked_up(request, lambda: find(FEW), rows=FEW)
    if len(history) == FEW:  # there may be more, which take longer
        row, history = await looked_up(request, lambda: find(LONGEST_HISTORY), rows=LONGEST_HISTORY)
    return explanation(row, board, tuple(event_entry(e) for e in history))


@router.get("/{job}/events", response_model=EventPage, responses=refusals(404))
async def job_events(
    request: Request, caller: Member, job: JobNumber, after: After = 0, before: Before = None, limit: Limit = 100, *,
    newest_first: NewestFirst = False,
) -> EventPage:  # fmt: skip
    """List what happened to a job."""
    desk = desk_of(request)

    def find() -> list[EventRow]:
        _found(desk, desk.board(), caller, job)
        return desk.store.events(job=job, after=after, before=before, limit=limit, newest_first=newest_first)

    return event_page(await looked_up(request, find, rows=limit), after)


@router.get(
    "/{job}/log", response_class=PlainTextResponse,
    responses=_TEXT | refusals(404),
)  # fmt: skip
def log(
    request: Request, caller: Member, job: JobNumber,
    last_bytes: Annotated[int, Query(ge=1, le=1_000_000, description="Most bytes to return, from the end.")] = 65536,
) -> PlainTextResponse:  # fmt: skip
    """Return what a job printed, where the engine keeps it here."""
    desk = desk_of(request)
    row = _found(desk, desk.board(), caller, job)
    text = desk.job_log(job, row.attempts, last_bytes)
    if text is None:
        raise Refusal(404, f"nothing that job {job} printed is kept here")
    return PlainTextResponse(text.decode("utf-8", "replace"), headers={"Content-Security-Policy": "sandbox"})


@router.post("/{job}/cancel", status_code=202, response_model=JobState, responses=refusals(404, 409))
def cancel(request: Request, caller: Member, job: JobNumber) -> JobState:
    """Cancel a job, whether it waits or runs. Cancelling it again does nothing."""
    return _ask(desk_of(request), caller, job, RequestKind.CANCEL)


@router.post("/{job}/hold", status_code=202, response_model=JobState, responses=refusals(404, 409))
def hold(request: Request, caller: Member, job: JobNumber) -> JobState:
    """Keep a job from being started until it is released; if it runs, it goes on."""
    return _ask(desk_of(request), caller, job, RequestKind.HOLD)


@router.post("/{job}/release", status_code=202, response_model=JobState, responses=refusals(404, 409))
def release(request: Request, caller: Member, job: JobNumber) -> JobState:
    """Let a job that is held be started again."""
    return _ask(desk_of(request), caller, job, RequestKind.RELEASE)


def _ask(desk: Desk, caller: Caller, job: int, kind: RequestKind) -> JobState:
    board = desk.board()
    row = _found(desk, board, caller, job)
    if row.status in ACTIVE:
        desk.store.ask(kind, time.time(), job=job)
        desk.wake()
    elif not (kind is RequestKind.CANCEL and row.status is JobStatus.CANCELLED):
        raise Refusal(409, f"job {job} has ended: it is {row.status}")
    return job_state(row, board)


def _found(desk: Desk, board: Board, caller: Caller, job: int) -> JobRow:
    """Return a job that is the caller's business; others are as unknown as those that do not exist."""
    row = _active(board).get(job) or desk.store.job(job)
    if row is None or not caller.sees(row.tenant):
        raise Refusal(404, f"there is no job {job}")
    return row


def _active(board: Board) -> Mapping[int, JobRow]:
    """Return active jobs as the controller knows them; none if it is in trouble: another may be at work by now."""
    return board.rows if board.healthy else {}


def _owner(desk: Desk, caller: Caller, tenant: str | None) -> str:
    """Whose jobs are meant; a tenant can only mean its own."""
    if caller.tenant is not None:
        if tenant is not None and tenant != caller.tenant:
            raise Refusal(403, f"this token is for tenant {caller.tenant} only", field="tenant", value=tenant)
        return caller.tenant
    if tenant is None:
        expected = "the tenant the job is for, as this token is an operator's (--tenant NAME, ?tenant=NAME)"
        raise Refusal(422, f"field 'tenant': expected {expected}", field="tenant", expected=expected)
    if not desk.store.has_tenant(tenant):
        raise Refusal(404, f"there is no tenant {tenant!r}", field="tenant", value=tenant)
    return tenant
