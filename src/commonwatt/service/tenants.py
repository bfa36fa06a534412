"""``/tenants``: entitlements and usage; ``/whoami`` and ``/login``; ``/tokens`` and ``/audit`` for operators."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from commonwatt.controlplane.identity import divides_by_weight
from commonwatt.controlplane.services import phi_in_force
from commonwatt.model.live_results import (
    AuditEntry,
    AuditPage,
    LoginOffer,
    NewToken,
    TenantOrder,
    TenantPage,
    TenantShareState,
    TenantState,
    TokenEntry,
    TokenOrder,
    TokenPage,
    WhoAmI,
)
from commonwatt.service.auth import AuditedRoute, Authenticator, Caller, Member, Operator, about
from commonwatt.service.context import PREFIX, After, Limit, ServiceContext, cache_of, context_of, json_response
from commonwatt.service.problems import ApiRefusal, refusals
from commonwatt.service.serializers import ATTRIBUTE_OF, body_of, described

__all__ = ["operators", "router"]

router = APIRouter(prefix=f"{PREFIX}/tenants", tags=["tenants"], route_class=AuditedRoute)
operators = APIRouter(prefix=PREFIX, tags=["operators"], route_class=AuditedRoute)

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
    return json_response({"tenants": own, "currency": context.config.electricity.currency, "phi": _phi(context)})


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
    parts = {key: ATTRIBUTE_OF.get(key, key) for key in TenantShareState.model_fields}
    shares = {
        share.name: TenantShareState(**{key: getattr(share, name) for key, name in parts.items()})
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


# -- tokens

TokenNumber = Annotated[int, Path(ge=1, le=2**53 - 1, description="Number of the token.")]


@operators.get("/whoami", response_model=WhoAmI)
async def whoami(caller: Member) -> WhoAmI:
    """Return who makes this request."""
    owner = caller.owner
    return WhoAmI(
        token=owner.token, label=owner.label, tenant=caller.tenant, operator=caller.operator, role=owner.role,
        via=owner.via,
    )  # fmt: skip


@operators.get("/login", response_model=LoginOffer, responses=refusals(404))
async def login(request: Request) -> LoginOffer:
    """Return where people sign in, for programs that ask them to. Needs no token."""
    spec = context_of(request).config.live.server.oidc
    if spec is None:
        raise ApiRefusal(404, "this control plane has no identity provider (live.server.oidc)")
    return LoginOffer(
        issuer=spec.issuer, client_id=spec.client_id or spec.audience, scopes=spec.scopes, token=spec.token
    )  # fmt: skip


@operators.get("/tokens", response_model=TokenPage, responses=refusals(403))
def tokens(request: Request, caller: Member) -> TokenPage:
    """List all tokens, without their secrets; a tenant's admin sees those of the tenant."""
    _check_manages(caller, caller.tenant)
    rows = context_of(request).store.tokens()
    return TokenPage(tokens=tuple(TokenEntry.model_validate(row) for row in rows if caller.sees(row["tenant"])))


@operators.post(
    "/tokens", status_code=201, response_model=NewToken, openapi_extra=described(TokenOrder),
    responses=refusals(400, 403, 404, 408, 413, 415),
)  # fmt: skip
def add_token(request: Request, caller: Member, order: Annotated[TokenOrder, Depends(body_of(TokenOrder))]) -> NewToken:
    """Create a token of a tenant or of an operator. Its secret is shown once."""
    _check_manages(caller, order.tenant)
    store, now_s = context_of(request).store, time.time()
    if order.tenant is not None and order.tenant not in store.tenants():
        raise ApiRefusal(404, f"there is no tenant {order.tenant!r}", field="tenant", value=order.tenant)
    expires_s = None if order.expires_in_s is None else now_s + order.expires_in_s
    token = store.add_token(order.tenant, order.label, now_s, role=order.role, expires_s=expires_s)
    owner = store.owner(token)
    assert owner is not None
    assert owner.token is not None
    number = owner.token
    about(request, f"token {number}", tenant=order.tenant, label=order.label)
    return NewToken(
        id=number, tenant=order.tenant, label=order.label, token=token, role=order.role, expires_s=expires_s
    )  # fmt: skip


@operators.delete("/tokens/{token}", status_code=204, responses=refusals(403, 404))
def revoke(request: Request, caller: Member, token: TokenNumber) -> Response:
    """Revoke a token."""
    _check_manages(caller, caller.tenant)
    store = context_of(request).store
    own = caller.operator or any(row["id"] == token and row["tenant"] == caller.tenant for row in store.tokens())
    if not own or not store.revoke(token, time.time()):
        raise ApiRefusal(404, f"there is no active token {token}")
    authenticator: Authenticator = request.app.state.authenticator
    authenticator.forget()
    return Response(status_code=204)


def _check_manages(caller: Caller, tenant: str | None) -> None:
    if not caller.manages_tokens_of(tenant):
        raise ApiRefusal(403, "only operators may do this")


@operators.get("/audit", response_model=AuditPage, responses=refusals(403))
def audit(request: Request, caller: Operator, after: After = 0, limit: Limit = 100) -> AuditPage:  # noqa: ARG001
    """List changes and attempted changes, with their authors."""
    rows = context_of(request).store.audit(after=after, limit=limit)
    return AuditPage(
        audit=tuple(AuditEntry.model_validate(row) for row in rows), next_after=rows[-1]["id"] if rows else after
    )
