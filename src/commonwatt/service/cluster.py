"""``/cluster``, ``/nodes``, ``/capacity``, ``/mode``, ``/events``, ``/samples``, ``/ledger``: now and before."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from commonwatt.controlplane.snapshot import Snapshot
from commonwatt.model.live_results import (
    CapacityState,
    ClusterState,
    EventPage,
    FairnessOrder,
    FairnessState,
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
from commonwatt.model.names import did_you_mean
from commonwatt.model.units import HOUR_S
from commonwatt.service.auth import AuditedRoute, Caller, Member, Operator, about
from commonwatt.service.context import (
    FEW,
    PREFIX,
    After,
    Before,
    Limit,
    NewestFirst,
    ServiceContext,
    answers_of,
    cache_of,
    context_of,
    encoded,
    json_response,
    run_query,
    unchanged,
)
from commonwatt.service.problems import ApiRefusal, refusals
from commonwatt.service.serializers import (
    body_of,
    capacity_state,
    cluster_document,
    described,
    event_page,
    node_documents,
    node_states,
    samples_page,
    service_state,
)
from commonwatt.store.records import EventRow, JobStatus, RequestKind

__all__ = ["router"]

router = APIRouter(prefix=PREFIX, tags=["cluster"], route_class=AuditedRoute)

_ADVISES = "this control plane only advises: its configuration sets read_only"
_UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "It is as `If-None-Match` has it."}}
NodeName = Annotated[str, Path(min_length=1, max_length=128, description="Name of the node.")]


@router.get("/cluster", response_model=ClusterState, responses=_UNCHANGED)
async def cluster(
    request: Request, caller: Member, nodes: Annotated[bool, Query(description="Whether to list the nodes.")] = True
) -> Response:
    """Return the cluster after the last tick of the controller."""
    context = context_of(request)
    snapshot = context.snapshot()
    tag = unchanged(request, "cluster", caller.tenant, nodes, *_version(snapshot))
    if isinstance(tag, Response):
        return tag
    listed = snapshot if nodes else replace(snapshot, nodes=())
    return await answers_of(request).response(
        tag, lambda: cluster_document(listed, caller, _visible(context, listed, caller))
    )


@router.get("/nodes", response_model=NodePage, responses=_UNCHANGED)
async def nodes(
    request: Request, caller: Member,
    after: Annotated[int, Query(ge=0, le=2**31, description="Leave out so many nodes: `next_after` of a page.")] = 0,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="Largest number of nodes; absent: all.")] = None,
) -> Response:  # fmt: skip
    """List nodes in the order of the configuration, all or a page."""
    context = context_of(request)
    snapshot = context.snapshot()
    tag = unchanged(request, "nodes", caller.tenant, after, limit, *_version(snapshot))
    if isinstance(tag, Response):
        return tag
    end = len(snapshot.nodes) if limit is None else after + limit
    page = replace(snapshot, nodes=snapshot.nodes[after:end])
    more = end if end < len(snapshot.nodes) else None

    def make() -> dict[str, Any]:
        return {"nodes": node_documents(page, _visible(context, page, caller)), "next_after": more}

    return await answers_of(request).response(tag, make)


@router.get("/capacity", response_model=CapacityState, responses=refusals(403))
async def capacity(
    request: Request, caller: Operator,  # noqa: ARG001
    hours: Annotated[float, Query(gt=0, le=24 * 31, description="Length of the period that is looked back on.")] = 24,
) -> Response:  # fmt: skip
    """Return which GPUs the capacity plan keeps on, by pool, and how much of the time that was enough."""
    context = context_of(request)

    def find() -> bytes:
        now_s = time.time()
        plan = context.config.policies[0].capacity or context.config.capacity
        samples = context.store.samples(now_s - hours * HOUR_S)
        return encoded(capacity_state(context.snapshot(), plan, samples, now_s))

    return json_response(await cache_of(request).get(("capacity", hours), find))


@router.get("/services", response_model=ServicePage)
async def services(request: Request, caller: Member) -> Response:
    """List inference services, all or a tenant's own: replicas, requests, latency, energy."""
    context = context_of(request)
    states = (service_state(s) for s in context.snapshot().services if caller.sees(s.tenant))
    return json_response(ServicePage(services=tuple(states), currency=context.config.electricity.currency))


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


@router.post(
    "/fairness", status_code=202, response_model=FairnessState, openapi_extra=described(FairnessOrder),
    responses=refusals(400, 403, 408, 409, 413, 415),
)  # fmt: skip
def fairness(
    request: Request, caller: Operator, order: Annotated[FairnessOrder, Depends(body_of(FairnessOrder))]  # noqa: ARG001
) -> FairnessState:  # fmt: skip
    """Set phi of what the policy guarantees tenants, which holds until the configuration has another one."""
    context = context_of(request)
    if context.config.policies[0].fairness is None:
        raise ApiRefusal(409, "the policy has no fairness: it guarantees tenants nothing", field="phi", value=order.phi)
    about(request, f"fairness phi {order.phi:g}")
    context.store.ask(RequestKind.FAIRNESS, time.time(), value=order.phi)
    context.wake()
    return FairnessState(phi=order.phi)


def _version(snapshot: Snapshot) -> tuple[object, ...]:
    """Return what changes whenever a snapshot does."""
    return snapshot.time_s, snapshot.ticks, snapshot.mode, snapshot.healthy, snapshot.store_errors, id(snapshot)


@router.post("/nodes/{node}/drain", status_code=202, response_model=NodeState, responses=refusals(403, 404))
def drain(request: Request, caller: Operator, node: NodeName) -> NodeState:  # noqa: ARG001
    """Drain a node: let running jobs finish, start no new ones."""
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
    """Set the mode: ``live``; ``dry-run``: decisions are only recorded; ``power``: but those on power."""
    context = context_of(request)
    if order.mode != "dry-run" and context.config.live.advises_only(context.config.engine):
        raise ApiRefusal(409, _ADVISES, field="mode", value=order.mode)
    if order.mode == "power" and (why := context.config.why_not_power_alone()) is not None:
        raise ApiRefusal(409, why, field="mode", value=order.mode)
    about(request, f"mode {order.mode}")
    context.store.ask(RequestKind.MODE, time.time(), value=order.mode)
    context.wake()
    return ModeState(mode=order.mode)


@router.get("/events", response_model=EventPage)
async def events(
    request: Request, caller: Member, after: After = 0, before: Before = None, limit: Limit = 100, *,
    newest_first: NewestFirst = False,
) -> Response:  # fmt: skip
    """List events of all jobs, or of a tenant's own."""
    store = context_of(request).store

    def find() -> list[EventRow]:
        return store.events(after=after, before=before, limit=limit, tenant=caller.tenant, newest_first=newest_first)

    few = limit if caller.operator else FEW + 1  # a tenant's are looked for among those of all
    return json_response(event_page(await run_query(request, find, rows=few), after))


@router.get("/samples", response_model=SamplePage)
async def samples(
    request: Request, caller: Member,
    since: Annotated[float, Query(ge=0, le=1e12, allow_inf_nan=False, description="Seconds since 1970.")] = 0.0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Number of samples at most, the latest.")] = 1000,
) -> Response:  # fmt: skip
    """Return the cluster over time: busy GPUs and power; for operators, also running and queued jobs."""
    store = context_of(request).store

    def find() -> bytes:
        return encoded(samples_page(store.samples(since, limit=limit), caller))

    return json_response(await run_query(request, find, rows=limit))


@router.get("/ledger", response_model=LedgerPage, responses=_UNCHANGED)
async def ledger(request: Request, caller: Member) -> Response:
    """Return energy, cost, carbon and GPU time of all jobs, or of a tenant's own."""
    context = context_of(request)
    version = await run_query(request, context.store.ledger_version)
    tag = unchanged(request, "ledger", caller.tenant, version)
    if isinstance(tag, Response):
        return tag

    def make() -> dict[str, Any]:
        own = [row for row in context.store.ledger() if caller.sees(row["tenant"])]
        return {"ledger": own, "currency": context.config.electricity.currency}

    return await answers_of(request).response(tag, make)


def _ask(context: ServiceContext, name: str, kind: RequestKind) -> NodeState:
    nodes = node_states(context.snapshot(), None)
    node = next((node for node in nodes if node.name == name), None)
    if node is None:
        meant = did_you_mean(name, (node.name for node in nodes))
        raise ApiRefusal(404, f"there is no node {name!r}{meant}", field="node", value=name)
    context.store.ask(kind, time.time(), node=name)
    context.wake()
    return node


def _visible(context: ServiceContext, snapshot: Snapshot, caller: Caller) -> Mapping[int, bool] | None:
    """Return the running jobs that *caller* may see; ``None``: all."""
    if caller.operator or not any(node.jobs for node in snapshot.nodes):
        return None
    there = {job for node in snapshot.nodes for job in node.jobs}
    if there <= snapshot.rows.keys():
        return {job: caller.sees(snapshot.rows[job].tenant) for job in there}
    own: dict[int, bool] = {}
    after = 0
    while page := context.store.jobs(tenant=caller.tenant, status=(JobStatus.RUNNING,), after=after, limit=1000):
        own |= {row.id: True for row in page}
        after = page[-1].id
    return own
