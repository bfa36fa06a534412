"""Who may do what: tokens, roles, and how often."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from commonwatt.service.problems import Refusal
from commonwatt.store.records import TokenOwner
from commonwatt.store.store import Store

__all__ = ["Caller", "Guard", "Member", "Operator", "Watcher", "from_this_machine", "is_loopback"]

_TOKEN = re.compile(r"cw_[A-Za-z0-9_-]{20,100}")
_REMEMBERED_S = 5.0
_MOST_REMEMBERED = 4096
_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="A token of a tenant or of an operator.")


@dataclass(frozen=True)
class Caller:
    """Who makes a request."""

    owner: TokenOwner

    @property
    def tenant(self) -> str | None:
        """Its tenant; ``None``: an operator."""
        return self.owner.tenant

    @property
    def operator(self) -> bool:
        """Whether it may see and do everything."""
        return self.owner.tenant is None

    @property
    def name(self) -> str:
        """What logs call it."""
        who = "operator" if self.owner.tenant is None else f"tenant {self.owner.tenant}"
        return f"{who}, token {self.owner.token}"

    def sees(self, tenant: str | None) -> bool:
        """Whether what belongs to *tenant* is its business."""
        return self.operator or self.tenant == tenant


@dataclass
class _Bucket:
    """A token bucket: *rate* a second on average, *burst* at once."""

    rate: float
    burst: float
    left: float
    at_s: float

    def take(self, now_s: float) -> float:
        """Take one; returns 0, or how long to wait before there is one."""
        self.left = min(self.burst, self.left + (now_s - self.at_s) * self.rate)
        self.at_s = now_s
        if self.left < 1:
            return (1 - self.left) / self.rate
        self.left -= 1
        return 0.0


@dataclass
class Guard:
    """Knows tokens for a few seconds, and counts requests. Used by one event loop only."""

    store: Store
    requests_per_s: float
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, TokenOwner]] = field(default_factory=dict)
    _buckets: dict[int, _Bucket] = field(default_factory=dict)

    async def owner(self, token: str) -> TokenOwner | None:
        """Whose *token* it is; a token that was revoked elsewhere may still be taken for 5 s."""
        if not _TOKEN.fullmatch(token):
            return None
        digest, now_s = hashlib.sha256(token.encode()).hexdigest(), self.clock()
        known = self._known.get(digest)
        if known is not None and now_s < known[0]:
            return known[1]
        self._known.pop(digest, None)
        owner = await run_in_threadpool(self.store.owner, token)
        if owner is not None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[digest] = (now_s + _REMEMBERED_S, owner)
        return owner

    def forget(self) -> None:
        """Look all tokens up anew, as one was revoked."""
        self._known.clear()

    def wait_s(self, owner: TokenOwner) -> float:
        """Count a request; returns 0, or how long its owner must wait before it may make one."""
        now_s = self.clock()
        burst = max(1.0, 2 * self.requests_per_s)
        bucket = self._buckets.setdefault(owner.token, _Bucket(self.requests_per_s, burst, burst, now_s))
        return bucket.take(now_s)


async def _member(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    guard: Guard = request.app.state.guard
    owner = None if credentials is None else await guard.owner(credentials.credentials)
    if owner is None:
        got = "no token" if credentials is None else "a token that is unknown or revoked"
        detail = f"got {got}, expected Authorization: Bearer TOKEN"
        raise Refusal(401, detail, headers={"WWW-Authenticate": 'Bearer realm="commonwatt"'})
    wait_s = guard.wait_s(owner)
    if wait_s:
        detail = f"more requests than the {guard.requests_per_s:g} a second a token may make; wait and try again"
        raise Refusal(429, detail, headers={"Retry-After": str(max(1, math.ceil(wait_s)))})
    caller = Caller(owner)
    request.state.caller = caller
    _only_known_parameters(request)
    return caller


async def _operator(caller: Annotated[Caller, Depends(_member)]) -> Caller:
    if not caller.operator:
        raise Refusal(403, "only operators may do this")
    return caller


Member = Annotated[Caller, Depends(_member)]
Operator = Annotated[Caller, Depends(_operator)]


def _only_known_parameters(request: Request) -> None:
    """Refuse a parameter the route does not have, rather than ignore a misspelt one."""
    if not request.query_params:
        return
    described = request.app.openapi()["paths"].get(getattr(request.scope["route"], "path", ""), {})
    operation = described.get(request.method.lower())
    if operation is None:
        return
    known = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"}
    for name in request.query_params:
        if name not in known:
            expected = f"one of the parameters {', '.join(sorted(known))}" if known else "no parameters"
            raise Refusal(422, f"field '{name[:80]}': expected {expected}", field=name[:80], expected=expected)


def is_loopback(host: str) -> bool:
    """Whether *host* can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def from_this_machine(request: Request) -> bool:
    """Whether a request comes from this machine, and was meant for it (a page elsewhere may point a name of its own
    here).
    """  # noqa: D205
    client = "" if request.client is None else request.client.host
    return is_loopback(client) and is_loopback(request.url.hostname or "") and "forwarded" not in request.headers and (
        "x-forwarded-for" not in request.headers
    )  # fmt: skip


async def _watcher(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    if credentials is not None or not from_this_machine(request):
        await _operator(await _member(request, credentials))


Watcher = Depends(_watcher)
