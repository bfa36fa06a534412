"""``/cluster``, ``/nodes``, ``/mode``, ``/events``, ``/samples``, ``/ledger``: the cluster, and what happened."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from commonwatt.live.board import Board
from commonwatt.model.live_results import (
    ClusterState,
    EventPage,
    LedgerEntry,
    LedgerPage,
    ModeOrder,
    ModeState,
    NodePage,
    NodeState,
    SamplePage,
)
from commonwatt.service.audit import AuditedRoute, about
from commonwatt.service.body import body_of, described
from commonwatt.service.desk import Desk
from commonwatt.service.guard import Caller, Member, Operator
from commonwatt.service.parameters import PREFIX, After, Before, Limit, NewestFirst, desk_of
from commonwatt.service.problems import Refusal, refusals
from commonwatt.service.shapes import cluster_state, event_page, node_states, sample
from commonwatt.store.records import JobStatus, RequestKind

__all__ = ["router"]

router = APIRouter(prefix=PREFIX, tags=["cluster"], route_class=AuditedRoute)

NodeName = Annotated[str, Path(min_length=1, max_length=128, description="Name of the node.")]


@router.get("/cluster", response_model=ClusterState)
def cluster(request: Request, caller: Member) -> ClusterState:
    """Return the cluster after the last tick of the controller."""
    desk = desk_of(request)
    board = desk.board()
    return cluster_state(board, caller, _visible(desk, board, caller))


@router.get("/nodes", response_model=NodePage)
def nodes(request: Request, caller: Member) -> NodePage:
    """List all nodes."""
    desk = desk_of(request)
    board = desk.board()
    return NodePage(nodes=node_states(board, _visible(desk, board, caller)))


@router.post("/nodes/{node}/drain", status_code=202, response_model=NodeState, responses=refusals(403, 404))
def drain(request: Request, caller: Operator, node: NodeName) -> NodeState:  # noqa: ARG001
    """Give a node no further jobs; those on it may stay."""
    return _ask(desk_of(request), node, RequestKind.DRAIN)


@router.post("/nodes/{node}/undrain", status_code=202, response_model=NodeState, responses=refusals(403, 404))
def undrain(request: Request, caller: Operator, node: NodeName) -> NodeState:  # noqa: ARG001
    """Let a drained node have jobs again."""
    return _ask(desk_of(request), node, RequestKind.UNDRAIN)


@router.post(
    "/mode", status_code=202, response_model=ModeState, openapi_extra=described(ModeOrder),
    responses=refusals(400, 403, 408, 413, 415),
)  # fmt: skip
def mode(
    request: Request, caller: Operator, order: Annotated[ModeOrder, Depends(body_of(ModeOrder))]  # noqa: ARG001
) -> ModeState:  # fmt: skip
    """Go live, or only write decisions down (dry-run)."""
    desk = desk_of(request)
    about(request, f"mode {order.mode}")
    desk.store.ask(RequestKind.MODE, time.time(), value=order.mode)
    desk.wake()
    return ModeState(mode=order.mode)


@router.get("/events", response_model=EventPage)
def events(
    request: Request, caller: Member, after: After = 0, before: Before = None, limit: Limit = 100, *,
    newest_first: NewestFirst = False,
) -> EventPage:  # fmt: skip
    """List what happened: to all jobs, or to one's own."""
    rows = desk_of(request).store.events(
        after=after, before=before, limit=limit, tenant=caller.tenant, newest_first=newest_first
    )
    return event_page(rows, after)


@router.get("/samples", response_model=SamplePage)
def samples(
    request: Request, caller: Member,
    since: Annotated[float, Query(ge=0, le=1e12, allow_inf_nan=False, description="Seconds since 1970.")] = 0.0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Most samples; the last ones count.")] = 1000,
) -> SamplePage:  # fmt: skip
    """Return the cluster over time: busy GPUs, power; for operators, jobs that ran and waited."""
    rows = desk_of(request).store.samples(since, limit=limit)
    return SamplePage(samples=tuple(sample(row, caller) for row in rows))


@router.get("/ledger", response_model=LedgerPage)
def ledger(request: Request, caller: Member) -> LedgerPage:
    """Return energy, cost, carbon and GPU time: of all, or of one's own jobs."""
    desk = desk_of(request)
    rows = (LedgerEntry.model_validate(row) for row in desk.store.ledger())
    return LedgerPage(
        ledger=tuple(row for row in rows if caller.sees(row.tenant)), currency=desk.config.electricity.currency
    )


def _ask(desk: Desk, name: str, kind: RequestKind) -> NodeState:
    found = next((node for node in node_states(desk.board(), None) if node.name == name), None)
    if found is None:
        raise Refusal(404, f"there is no node {name!r}", field="node", value=name)
    desk.store.ask(kind, time.time(), node=name)
    desk.wake()
    return found


def _visible(desk: Desk, board: Board, caller: Caller) -> Mapping[int, bool] | None:
    """Return the running jobs whose numbers *caller* may see; ``None``: all."""
    if caller.operator or not any(node.jobs for node in board.nodes):
        return None
    own: dict[int, bool] = {}
    after = 0
    while page := desk.store.jobs(tenant=caller.tenant, status=(JobStatus.RUNNING,), after=after, limit=1000):
        own |= {row.id: True for row in page}
        after = page[-1].id
    return own
