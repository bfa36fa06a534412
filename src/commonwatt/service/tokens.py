"""``/whoami``; ``/tokens`` and ``/audit`` for operators."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from commonwatt.model.live_results import AuditEntry, AuditPage, NewToken, TokenEntry, TokenOrder, TokenPage, WhoAmI
from commonwatt.service.audit import AuditedRoute, about
from commonwatt.service.auth import Authenticator, Member, Operator
from commonwatt.service.body import body_of, described
from commonwatt.service.context import PREFIX, After, Limit, context_of
from commonwatt.service.problems import ApiRefusal, refusals

__all__ = ["router"]

router = APIRouter(prefix=PREFIX, tags=["operators"], route_class=AuditedRoute)

TokenNumber = Annotated[int, Path(ge=1, le=2**53 - 1, description="Number of the token.")]


@router.get("/whoami", response_model=WhoAmI)
async def whoami(caller: Member) -> WhoAmI:
    """Return the owner of this token."""
    return WhoAmI(token=caller.owner.token, label=caller.owner.label, tenant=caller.tenant, operator=caller.operator)


@router.get("/tokens", response_model=TokenPage, responses=refusals(403))
def tokens(request: Request, caller: Operator) -> TokenPage:  # noqa: ARG001
    """List all tokens, without their secrets."""
    rows = context_of(request).store.tokens()
    return TokenPage(tokens=tuple(TokenEntry.model_validate(row) for row in rows))


@router.post(
    "/tokens", status_code=201, response_model=NewToken, openapi_extra=described(TokenOrder),
    responses=refusals(400, 403, 404, 408, 413, 415),
)  # fmt: skip
def add_token(
    request: Request, caller: Operator, order: Annotated[TokenOrder, Depends(body_of(TokenOrder))]  # noqa: ARG001
) -> NewToken:  # fmt: skip
    """Create a token of a tenant or of an operator. Its secret is shown once."""
    store = context_of(request).store
    if order.tenant is not None and order.tenant not in store.tenants():
        raise ApiRefusal(404, f"there is no tenant {order.tenant!r}", field="tenant", value=order.tenant)
    token = store.add_token(order.tenant, order.label, time.time())
    owner = store.owner(token)
    assert owner is not None
    about(request, f"token {owner.token}", tenant=order.tenant, label=order.label)
    return NewToken(id=owner.token, tenant=owner.tenant, label=owner.label, token=token)


@router.delete("/tokens/{token}", status_code=204, responses=refusals(403, 404))
def revoke(request: Request, caller: Operator, token: TokenNumber) -> Response:  # noqa: ARG001
    """Revoke a token."""
    if not context_of(request).store.revoke(token, time.time()):
        raise ApiRefusal(404, f"there is no active token {token}")
    authenticator: Authenticator = request.app.state.authenticator
    authenticator.forget()
    return Response(status_code=204)


@router.get("/audit", response_model=AuditPage, responses=refusals(403))
def audit(request: Request, caller: Operator, after: After = 0, limit: Limit = 100) -> AuditPage:  # noqa: ARG001
    """List changes and attempted changes, with their authors."""
    rows = context_of(request).store.audit(after=after, limit=limit)
    return AuditPage(
        audit=tuple(AuditEntry.model_validate(row) for row in rows), next_after=rows[-1]["id"] if rows else after
    )
