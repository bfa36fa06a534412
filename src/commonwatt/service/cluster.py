"""``/cluster``, ``/nodes``, ``/mode``, ``/events``, ``/samples``, ``/ledger``: the cluster and its history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from commonwatt.controlplane.snapshot import Snapshot
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
from commonwatt.service.auth import Caller, Member, Operator
from commonwatt.service.body import body_of, described
from commonwatt.service.context import PREFIX, After, Before, Limit, NewestFirst, ServiceContext, context_of
from commonwatt.service.problems import ApiRefusal, refusals
from commonwatt.service.serializers import cluster_state, event_page, node_states, sample
from commonwatt.store.records import JobStatus, RequestKind

__all__ = ["router"]

router = APIRouter(prefix=PREFIX, tags=["cluster"], route_class=AuditedRoute)

NodeName = Annotated[str, Path(min_length=1, max_length=128, description="Name of the node.")]


@router.get("/cluster", response_model=ClusterState)
def cluster(request: Request, caller: Member) -> ClusterState:
    """Return the cluster after the last tick of the controller."""
    context = context_of(request)
    snapshot = context.snapshot()
    return cluster_state(snapshot, caller, _visible(context, snapshot, caller))


@router.get("/nodes", response_model=NodePage)
def nodes(request: Request, caller: Member) -> NodePage:
    """List all nodes."""
    context = context_of(request)
    snapshot = context.snapshot()
    return NodePage(nodes=node_states(snapshot, _visible(context, snapshot, caller)))


@router.post("/nodes/{node}/drain", status_code=202, response_model=NodeState, responses=refusals(403, 404))
def drain(request: Request, caller: Operator, node: NodeName) -> NodeState:  # noqa: ARG001
    """Start no further jobs on a node; running jobs stay."""
    return _ask(context_of(request), node, RequestKind.DRAIN)


@router.post("/nodes/{node}/undrain", status_code=202, response_model=NodeState, responses=refusals(403, 404))
def undrain(request: Request, caller: Operator, node: NodeName) -> NodeState:  # noqa: ARG001
    """Allow jobs on a drained node again."""
    return _ask(context_of(request), node, RequestKind.UNDRAIN)


@router.post(
    "/mode", status_code=202, response_model=ModeState, openapi_extra=described(ModeOrder),
    responses=refusals(400, 403, 408, 413, 415),
)  # fmt: skip
def mode(
    request: Request, caller: Operator, order: Annotated[ModeOrder, Depends(body_of(ModeOrder))]  # noqa: ARG001
) -> ModeState:  # fmt: skip
    """Set the mode: ``live``, or ``dry-run``, in which decisions are recorded and not carried out."""
    context = context_of(request)
    about(request, f"mode {order.mode}")
    context.store.ask(RequestKind.MODE, time.time(), value=order.mode)
    context.wake()
    return ModeState(mode=order.mode)


@router.get("/events", response_model=EventPage)
def events(
    request: Request, caller: Member, after: After = 0, before: Before = None, limit: Limit = 100, *,
    newest_first: NewestFirst = False,
) -> EventPage:  # fmt: skip
    """List events of all jobs, or of a tenant's own."""
    rows = context_of(request).store.events(
        after=after, before=before, limit=limit, tenant=caller.tenant, newest_first=newest_first
    )
    return event_page(rows, after)


@router.get("/samples", response_model=SamplePage)
def samples(
    request: Request, caller: Member,
    since: Annotated[float, Query(ge=0, le=1e12, allow_inf_nan=False, description="Seconds since 1970.")] = 0.0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Number of samples at most, the latest.")] = 1000,
) -> SamplePage:  # fmt: skip
    """Return the cluster over time: busy GPUs and power; for operators, also running and queued jobs."""
    rows = context_of(request).store.samples(since, limit=limit)
    return SamplePage(samples=tuple(sample(row, caller) for row in rows))


@router.get("/ledger", response_model=LedgerPage)
def ledger(request: Request, caller: Member) -> LedgerPage:
    """Return energy, cost, carbon and GPU time of all jobs, or of a tenant's own."""
    context = context_of(request)
    rows = (LedgerEntry.model_validate(row) for row in context.store.ledger())
    return LedgerPage(
        ledger=tuple(row for row in rows if caller.sees(row.tenant)), currency=context.config.electricity.currency
    )


def _ask(context: ServiceContext, name: str, kind: RequestKind) -> NodeState:
    node = next((node for node in node_states(context.snapshot(), None) if node.name == name), None)
    if node is None:
        raise ApiRefusal(404, f"there is no node {name!r}", field="node", value=name)
    context.store.ask(kind, time.time(), node=name)
    context.wake()
    return node


def _visible(context: ServiceContext, snapshot: Snapshot, caller: Caller) -> Mapping[int, bool] | None:
    """Return the running jobs that *caller* may see; ``None``: all."""
    if caller.operator or not any(node.jobs for node in snapshot.nodes):
        return None
    own: dict[int, bool] = {}
    after = 0
    while page := context.store.jobs(tenant=caller.tenant, status=(JobStatus.RUNNING,), after=after, limit=1000):
        own |= {row.id: True for row in page}
        after = page[-1].id
    return own
