"""``/cluster``, ``/nodes``, ``/mode``, ``/events``, ``/samples``, ``/ledger``: the cluster and its history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

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
    PhiOrder,
    PhiState,
    SamplePage,
    ServicePage,
)
from commonwatt.service.auth import AuditedRoute, Caller, Member, Operator, about
from commonwatt.service.context import PREFIX, After, Before, Limit, NewestFirst, ServiceContext, context_of, unchanged
from commonwatt.service.problems import ApiRefusal, refusals
from commonwatt.service.serializers import (
    body_of,
    cluster_state,
    described,
    event_page,
    node_states,
    sample,
    service_state,
)
from commonwatt.store.records import JobStatus, RequestKind

__all__ = ["router"]

router = APIRouter(prefix=PREFIX, tags=["cluster"], route_class=AuditedRoute)

_ADVISES = "this control plane only advises: its configuration sets read_only"
_UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "It is as `If-None-Match` has it."}}
NodeName = Annotated[str, Path(min_length=1, max_length=128, description="Name of the node.")]


@router.get("/cluster", response_model=ClusterState, responses=_UNCHANGED)
def cluster(
    request: Request, response: Response, caller: Member,
    nodes: Annotated[bool, Query(description="Whether to list the nodes.")] = True,
) -> ClusterState | Response:  # fmt: skip
    """Return the cluster after the last tick of the controller."""
    context = context_of(request)
    snapshot = context.snapshot()
    tag = unchanged(request, "cluster", caller.tenant, nodes, *_version(snapshot))
    if isinstance(tag, Response):
        return tag
    response.headers["ETag"] = tag
    listed = snapshot if nodes else replace(snapshot, nodes=())
    return cluster_state(listed, caller, _visible(context, listed, caller))


@router.get("/nodes", response_model=NodePage, responses=_UNCHANGED)
def nodes(
    request: Request, response: Response, caller: Member,
    after: Annotated[int, Query(ge=0, le=2**31, description="Leave out so many nodes: `next_after` of a page.")] = 0,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="Largest number of nodes; absent: all.")] = None,
) -> NodePage | Response:  # fmt: skip
    """List nodes in the order of the configuration, all or a page."""
    context = context_of(request)
    snapshot = context.snapshot()
    tag = unchanged(request, "nodes", caller.tenant, after, limit, *_version(snapshot))
    if isinstance(tag, Response):
        return tag
    response.headers["ETag"] = tag
    end = len(snapshot.nodes) if limit is None else after + limit
    page = replace(snapshot, nodes=snapshot.nodes[after:end])
    more = end if end < len(snapshot.nodes) else None
    return NodePage(nodes=node_states(page, _visible(context, page, caller)), next_after=more)


@router.get("/services", response_model=ServicePage)
def services(request: Request, caller: Member) -> ServicePage:
    """List inference services, all or a tenant's own: replicas, requests, latency, energy."""
    context = context_of(request)
    found = (service_state(s) for s in context.snapshot().services if caller.sees(s.tenant))
    return ServicePage(services=tuple(found), currency=context.config.electricity.currency)


@router.post(
    "/phi", status_code=202, response_model=PhiState, openapi_extra=described(PhiOrder),
    responses=refusals(400, 403, 408, 409, 413, 415),
)  # fmt: skip
def phi(
    request: Request, caller: Operator, order: Annotated[PhiOrder, Depends(body_of(PhiOrder))]  # noqa: ARG001
) -> PhiState:  # fmt: skip
    """Set phi of all shared GPUs, which holds until the configuration has another one."""
    context = context_of(request)
    if not context.config.services:
        raise ApiRefusal(
            409, "the configuration has no services, so that no GPU is shared", field="phi", value=order.phi
        )
    about(request, f"phi {order.phi:g}")
    context.store.ask(RequestKind.PHI, time.time(), value=order.phi)
    context.wake()
    return PhiState(phi=order.phi)


def _version(snapshot: Snapshot) -> tuple[object, ...]:
    """Return what changes whenever a snapshot does."""
    return snapshot.time_s, snapshot.ticks, snapshot.mode, snapshot.healthy, snapshot.store_errors, id(snapshot)


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
    responses=refusals(400, 403, 408, 409, 413, 415),
)  # fmt: skip
def mode(
    request: Request, caller: Operator, order: Annotated[ModeOrder, Depends(body_of(ModeOrder))]  # noqa: ARG001
) -> ModeState:  # fmt: skip
    """Set the mode: ``live``, or ``dry-run``, in which decisions are recorded and not carried out."""
    context = context_of(request)
    if order.mode == "live" and context.config.live.advises_only(context.config.engine):
        raise ApiRefusal(409, _ADVISES, field="mode", value=order.mode)
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


@router.get("/ledger", response_model=LedgerPage, responses=_UNCHANGED)
def ledger(request: Request, response: Response, caller: Member) -> LedgerPage | Response:
    """Return energy, cost, carbon and GPU time of all jobs, or of a tenant's own."""
    context = context_of(request)
    tag = unchanged(request, "ledger", caller.tenant, context.store.ledger_version())
    if isinstance(tag, Response):
        return tag
    response.headers["ETag"] = tag
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
