"""``/tenants``: entitlements and usage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from commonwatt.controlplane.preflight_engines import divides_by_weight
from commonwatt.controlplane.services import phi_in_force
from commonwatt.model.live_results import TenantOrder, TenantPage, TenantShareState, TenantState
from commonwatt.service.auth import AuditedRoute, Member, Operator, about
from commonwatt.service.context import PREFIX, ServiceContext, answer, cache_of, context_of
from commonwatt.service.problems import ApiRefusal, refusals
from commonwatt.service.serializers import body_of, described

__all__ = ["router"]

router = APIRouter(prefix=f"{PREFIX}/tenants", tags=["tenants"], route_class=AuditedRoute)

_NOT_DOTS = r"^([^\x00-\x1f\x7f/.]|\.[^\x00-\x1f\x7f/.]|\.\.[^\x00-\x1f\x7f/])[^\x00-\x1f\x7f/]*$"
"""Neither `.` nor `..`, which cannot be a segment of a path (``check_in_address``)."""
Name = Annotated[str, Path(min_length=1, max_length=128, pattern=_NOT_DOTS, description="Name of the tenant.")]
_COLUMNS = ("energy_uj", "cost_n", "carbon_ug", "gpu_us")


@router.get("", response_model=TenantPage)
async def tenants(request: Request, caller: Member) -> Response:
    """List tenants with their entitlement, energy and GPU time; a tenant sees only itself."""
    context = context_of(request)
    states = await cache_of(request).get("tenants", lambda: [s.model_dump(mode="json") for s in _states(context)])
    own = [state for state in states if caller.sees(state["name"])]
    return answer({"tenants": own, "currency": context.config.electricity.currency, "phi": _phi(context)})


@router.get("/{tenant}", response_model=TenantState, responses=refusals(404))
def tenant(request: Request, caller: Member, tenant: Name) -> TenantState:
    """Return one tenant."""
    state = next((state for state in _states(context_of(request)) if state.name == tenant), None)
    if state is None or not caller.sees(tenant):
        raise ApiRefusal(404, f"there is no tenant {tenant!r}", field="tenant", value=tenant)
    return state


@router.put(
    "/{tenant}", response_model=TenantState, openapi_extra=described(TenantOrder),
    responses=refusals(400, 403, 408, 413, 415),
)  # fmt: skip
def set_tenant(
    request: Request, caller: Operator, tenant: Name,  # noqa: ARG001
    order: Annotated[TenantOrder, Depends(body_of(TenantOrder))],
) -> TenantState:  # fmt: skip
    """Add a tenant, or change its weight."""
    context = context_of(request)
    about(request, f"tenant {tenant}", weight=order.weight)
    context.store.add_tenant(tenant, order.weight, time.time())
    context.wake()
    cache_of(request).forget()
    return next(state for state in _states(context) if state.name == tenant)


def _states(context: ServiceContext) -> list[TenantState]:
    weights = context.store.tenants()
    accounts: dict[str, dict[str, int | None]] = {name: dict.fromkeys(_COLUMNS, 0) for name in weights}
    for row in context.store.ledger():
        if row["tenant"] in accounts:
            _add(accounts[row["tenant"]], row)
    everything: dict[str, int | None] = dict.fromkeys(_COLUMNS, 0)
    for account in accounts.values():
        _add(everything, account)
    total, counts = sum(weights.values()), context.store.counts_by_tenant()
    promised = divides_by_weight(context.config)
    shares = {
        share.name: TenantShareState(**{name: getattr(share, name) for name in TenantShareState.model_fields})
        for share in context.snapshot().shares
    }
    return [
        TenantState(
            name=name, weight=weight, entitlement=weight / total if promised else None, jobs=counts[name],
            energy_j=_scaled(account["energy_uj"], 1e-6), cost=_scaled(account["cost_n"], 1e-9),
            carbon_g=_scaled(account["carbon_ug"], 1e-6), gpu_s=(account["gpu_us"] or 0) * 1e-6,
            energy_share=_part(account["energy_uj"], everything["energy_uj"]),
            gpu_share=_part(account["gpu_us"], everything["gpu_us"]),
            fairness=shares.get(name),
        )
        for (name, weight), account in zip(weights.items(), accounts.values(), strict=True)
    ]  # fmt: skip


def _phi(context: ServiceContext) -> float | None:
    fairness = context.config.policies[0].fairness
    return None if fairness is None else phi_in_force(fairness.phi, context.store.setting("fairness"))


def _add(account: dict[str, int | None], row: Mapping[str, Any]) -> None:
    for name in _COLUMNS:
        one, other = account[name], row[name]
        account[name] = None if one is None or other is None else one + other


def _scaled(value: int | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _part(value: int | None, total: int | None) -> float | None:
    return value / total if value is not None and total else None
