"""``/whoami`` and ``/login``; ``/tokens`` and ``/audit`` for operators."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from commonwatt.model.live_results import (
    AuditEntry,
    AuditPage,
    LoginOffer,
    NewToken,
    TokenEntry,
    TokenOrder,
    TokenPage,
    WhoAmI,
)
from commonwatt.service.auth import AuditedRoute, Authenticator, Caller, Member, Operator, about
from commonwatt.service.context import PREFIX, After, Limit, context_of
from commonwatt.service.problems import ApiRefusal, refusals
from commonwatt.service.serializers import body_of, described

__all__ = ["router"]

router = APIRouter(prefix=PREFIX, tags=["operators"], route_class=AuditedRoute)

TokenNumber = Annotated[int, Path(ge=1, le=2**53 - 1, description="Number of the token.")]


@router.get("/whoami", response_model=WhoAmI)
async def whoami(caller: Member) -> WhoAmI:
    """Return who makes this request."""
    owner = caller.owner
    return WhoAmI(
        token=owner.token, label=owner.label, tenant=caller.tenant, operator=caller.operator, role=owner.role,
        via=owner.via,
    )  # fmt: skip


@router.get("/login", response_model=LoginOffer, responses=refusals(404))
async def login(request: Request) -> LoginOffer:
    """Return where people sign in, for programs that ask them to. Needs no token."""
    spec = context_of(request).config.live.server.oidc
    if spec is None:
        raise ApiRefusal(404, "this control plane has no identity provider (live.server.oidc)")
    return LoginOffer(
        issuer=spec.issuer, client_id=spec.client_id or spec.audience, scopes=spec.scopes, token=spec.token
    )  # fmt: skip


@router.get("/tokens", response_model=TokenPage, responses=refusals(403))
def tokens(request: Request, caller: Member) -> TokenPage:
    """List all tokens, without their secrets; a tenant's admin sees those of the tenant."""
    _check_manages(caller, caller.tenant)
    rows = context_of(request).store.tokens()
    return TokenPage(tokens=tuple(TokenEntry.model_validate(row) for row in rows if caller.sees(row["tenant"])))


@router.post(
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


@router.delete("/tokens/{token}", status_code=204, responses=refusals(403, 404))
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


@router.get("/audit", response_model=AuditPage, responses=refusals(403))
def audit(request: Request, caller: Operator, after: After = 0, limit: Limit = 100) -> AuditPage:  # noqa: ARG001
    """List changes and attempted changes, with their authors."""
    rows = context_of(request).store.audit(after=after, limit=limit)
    return AuditPage(
        audit=tuple(AuditEntry.model_validate(row) for row in rows), next_after=rows[-1]["id"] if rows else after
    )
