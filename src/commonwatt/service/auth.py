"""Authentication: tokens, people of an identity provider, users of this machine; the rate of requests; the audit log.

The audit log says who changed what, and the outcome. It never contains tokens or environment variables.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from commonwatt.controlplane.identity import Peers
from commonwatt.model.errors import InputError, ServiceError, StoreError
from commonwatt.model.identity import Grant, chosen_grant
from commonwatt.model.names import is_loopback
from commonwatt.service.context import ServiceContext
from commonwatt.service.oidc import BusyError, Person, TokenError, TokenVerifier
from commonwatt.service.problems import ApiRefusal
from commonwatt.store.api_store import ApiStore
from commonwatt.store.records import TokenOwner

__all__ = [
    "AuditedRoute",
    "Authenticator",
    "Caller",
    "Member",
    "Operator",
    "UnknownError",
    "Watcher",
    "about",
    "actor_of",
    "from_this_machine",
    "noted",
]

_TOKEN = re.compile(r"cw_[A-Za-z0-9_-]{20,100}")
_CACHED_S = 5.0
GUESSES_PER_S = 2.0
_GUESSES = 10.0
_LONGEST_PENALTY_S = 20.0
_MOST_CACHED = 4096
_PASSED_ON = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
_bearer = HTTPBearer(
    auto_error=False, scheme_name="token",
    description="A tenant's or an operator's token, or one of the site's identity provider.",
)  # fmt: skip


@dataclass(frozen=True)
class Caller:
    """Who makes a request."""

    owner: TokenOwner

    @property
    def tenant(self) -> str | None:
        """Tenant of the caller; ``None``: an operator."""
        return self.owner.tenant

    @property
    def operator(self) -> bool:
        """Whether the caller is an operator, or (a viewer) sees what one sees."""
        return self.owner.tenant is None

    @property
    def viewer(self) -> bool:
        """Whether the caller may only read."""
        return self.owner.role == "viewer"

    def manages_tokens_of(self, tenant: str | None) -> bool:
        """Return whether the caller may create and revoke tokens of *tenant* (``None``: of operators)."""
        return self.operator or (self.owner.role == "admin" and tenant is not None and tenant == self.tenant)

    @property
    def name(self) -> str:
        """Name of the caller in logs."""
        who = "operator" if self.owner.tenant is None else f"tenant {self.owner.tenant}"
        who += f" ({self.owner.role})" if self.owner.role else ""
        return f"{who}, {self.owner.key}"

    def sees(self, tenant: str | None) -> bool:
        """Return whether the caller may see resources of *tenant*."""
        return self.operator or self.tenant == tenant


@dataclass
class _Bucket:
    """A token bucket: *rate* requests a second on average, *burst* at once."""

    rate: float
    burst: float
    left: float
    at_s: float

    def take(self, now_s: float) -> float:
        """Take one; returns 0, or the seconds until one is available."""
        self.left = min(self.burst, self.left + (now_s - self.at_s) * self.rate)
        self.at_s = now_s
        if self.left < 1:
            return (1 - self.left) / self.rate
        self.left -= 1
        return 0.0

    def owe(self, now_s: float) -> float:
        """Take one on credit; returns the seconds until it is paid off. A long debt does not grow."""
        self.left = min(self.burst, self.left + (now_s - self.at_s) * self.rate)
        self.at_s = now_s
        owed_s = max(0.0, (1 - self.left) / self.rate)
        if owed_s <= _LONGEST_PENALTY_S:
            self.left -= 1
        return owed_s


class UnknownError(Exception):
    """Nobody is known to make a request; the message says what came with it, after `got`."""


def _owner(grants: Iterable[Grant], tenant: str | None, label: str, via: Literal["oidc", "socket"]) -> TokenOwner:
    grant = chosen_grant(grants, tenant)
    role = grant.role if grant.role in ("viewer", "admin") else None
    if grant.tenant is None and grant.role not in ("viewer", "operator"):
        raise ServiceError("this role needs a tenant", 403)  # a member of none would be taken for an operator
    shown = "".join(c if c.isprintable() else "?" for c in label)
    return TokenOwner(None, shown, grant.tenant, role, via)


@dataclass
class Authenticator:
    """Says who makes a request, and counts requests. Answers are cached for a few seconds. Used by one event loop only.

    Attributes
    ----------
    verifier
        Checks tokens of the identity provider; ``None``: there is none.
    peers
        Roles of this machine's users over the Unix socket.
    """

    store: ApiStore
    requests_per_s: float
    clock: Callable[[], float] = time.monotonic
    verifier: TokenVerifier | None = None
    peers: Peers = field(default_factory=Peers)
    _owners: dict[str, tuple[float, TokenOwner]] = field(default_factory=dict)
    _people: dict[str, tuple[float, Person]] = field(default_factory=dict)
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _guesses: _Bucket = field(default_factory=lambda: _Bucket(GUESSES_PER_S, _GUESSES, _GUESSES, 0.0))

    async def identify(self, token: str | None, peer_uid: int | None, tenant: str | None) -> TokenOwner:
        """Return who makes a request with a *token*, or without one over the Unix socket, as one of a *tenant*.

        Raises ``UnknownError``, or ``ServiceError`` (403) for somebody known who has no role, or none in that tenant.
        """
        if token is None:
            if peer_uid is None:
                raise UnknownError("no token")
            if peer_uid not in self.peers.grants:
                raise UnknownError(self._no_peer(peer_uid))
            grants = self.peers.grants[peer_uid]
            return _owner(grants, tenant, self.peers.names.get(peer_uid, str(peer_uid)), "socket")
        if self.verifier is not None and not token.startswith("cw_"):
            person = await self._person(self.verifier, token)
            named = person.subject if person.name is None else f"{person.subject} ({person.name})"
            mapped = [grant for grant in self.verifier.spec.groups if grant.group in person.groups]
            return _owner(mapped, tenant, named, "oidc")
        owner = await self.owner(token)
        if owner is None:
            raise UnknownError("an unknown or revoked token")
        if tenant is not None and owner.tenant != tenant:
            raise ServiceError("the header Commonwatt-Tenant names a tenant that this token is not of", 403)
        return owner

    def _no_peer(self, uid: int) -> str:
        """Say why a user has no role."""
        if self.peers.jobs_as is not None and uid == os.geteuid():
            return f"no token over the socket, as user {self.peers.jobs_as}, who also runs the jobs of everybody"
        return "no token over the socket, as a user without a role (live.server.socket.users)"

    async def _person(self, verifier: TokenVerifier, token: str) -> Person:
        digest, now_s = hashlib.sha256(token.encode(errors="replace")).hexdigest(), self.clock()
        cached = self._people.get(digest)
        if cached is not None and now_s < cached[0]:
            return cached[1]
        self._people.pop(digest, None)
        try:
            person = await verifier.person(token)
        except TokenError as error:
            raise UnknownError(str(error)) from None
        except BusyError:
            raise ServiceError("the identity provider's keys are being fetched; try again", 503) from None
        if len(self._people) >= _MOST_CACHED:
            self._people.clear()
        self._people[digest] = (now_s + min(_CACHED_S, person.expires_s - verifier.clock()), person)
        return person

    async def owner(self, token: str) -> TokenOwner | None:
        """Return the owner of *token*; a token revoked by another process may be accepted for another 5 s."""
        if not _TOKEN.fullmatch(token):
            return None
        digest, now_s = hashlib.sha256(token.encode()).hexdigest(), self.clock()
        cached = self._owners.get(digest)
        if cached is not None and now_s < cached[0]:
            return cached[1]
        self._owners.pop(digest, None)
        owner = await run_in_threadpool(self.store.owner, token)
        if owner is not None:
            if len(self._owners) >= _MOST_CACHED:
                self._owners.clear()
            self._owners[digest] = (now_s + _CACHED_S, owner)
        return owner

    def guess_s(self) -> float:
        """Count an unknown token; returns how long its answer is to be put off, infinite if too many wait already.

        All unknown tokens share one allowance: whoever guesses may have many addresses. Known ones are not affected.
        """
        owed_s = self._guesses.owe(self.clock())
        return owed_s if owed_s <= _LONGEST_PENALTY_S else math.inf

    def forget(self) -> None:
        """Drop all cached owners, as a token was revoked."""
        self._owners.clear()
        self._people.clear()

    def wait_s(self, owner: TokenOwner) -> float:
        """Count a request; returns 0, or the seconds that its owner must wait before another."""
        now_s = self.clock()
        burst = max(1.0, 2 * self.requests_per_s)
        if len(self._buckets) >= _MOST_CACHED and owner.key not in self._buckets:
            self._buckets.clear()
        bucket = self._buckets.setdefault(owner.key, _Bucket(self.requests_per_s, burst, burst, now_s))
        return bucket.take(now_s)


def _presented(
    request: Request, credentials: HTTPAuthorizationCredentials | None
) -> tuple[str | None, int | None, str | None]:
    """Return what a request is identified by: its token, the user at the other end of a Unix socket, and a tenant.

    Credentials of another kind than a token are no token, and do not fall back on the user. Nor does a request that a
    proxy passes on: it is not the proxy's.
    """
    alone = not any(name in request.headers for name in ("authorization", *_PASSED_ON))
    uid = getattr(request.state, "peer_uid", None) if alone else None
    token = None if credentials is None else credentials.credentials
    return token, uid, request.headers.get("commonwatt-tenant")


async def _put_off(authenticator: Authenticator, *, guessed: bool) -> None:
    """Put off the answer to an unknown token; raises ``ApiRefusal`` (429) where too many wait already."""
    if not guessed:
        return
    wait_s = authenticator.guess_s()
    if math.isinf(wait_s):
        detail = "too many unknown tokens were tried; wait and try again"
        raise ApiRefusal(429, detail, headers={"Retry-After": "20"})
    await asyncio.sleep(wait_s)


async def _member(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    authenticator: Authenticator = request.app.state.authenticator
    request.state.presented = _presented(request, credentials)
    try:
        owner = await authenticator.identify(*request.state.presented)
    except UnknownError as error:
        await _put_off(authenticator, guessed=credentials is not None)
        detail = f"got {error}, expected Authorization: Bearer TOKEN"
        raise ApiRefusal(401, detail, headers={"WWW-Authenticate": 'Bearer realm="commonwatt"'}) from None
    wait_s = authenticator.wait_s(owner)
    if wait_s:
        detail = f"a token may make {authenticator.requests_per_s:g} requests a second; wait and try again"
        raise ApiRefusal(429, detail, headers={"Retry-After": str(max(1, math.ceil(wait_s)))})
    caller = Caller(owner)
    request.state.caller = caller
    if caller.viewer and request.method not in ("GET", "HEAD"):
        raise ApiRefusal(403, "this token may only read (role viewer)")
    _check_parameters(request)
    return caller


async def _operator(caller: Annotated[Caller, Depends(_member)]) -> Caller:
    if not caller.operator:
        raise ApiRefusal(403, "only operators may do this")
    return caller


Member = Annotated[Caller, Depends(_member)]
Operator = Annotated[Caller, Depends(_operator)]


def _check_parameters(request: Request) -> None:
    """Refuse a parameter that the route does not have, so that a misspelt one is not ignored."""
    if not request.query_params:
        return
    described = request.app.openapi()["paths"].get(getattr(request.scope["route"], "path", ""), {})
    operation = described.get(request.method.lower())
    if operation is None:
        return
    names = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"}
    for name in request.query_params:
        if name not in names:
            expected = f"one of the parameters {', '.join(sorted(names))}" if names else "no parameters"
            raise ApiRefusal(422, f"field '{name[:80]}': expected {expected}", field=name[:80], expected=expected)


def from_this_machine(request: Request) -> bool:
    """Return whether a request comes from this machine and names it as its host.

    The host is checked because a foreign page may point its own domain name to the loopback address.
    """
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


# -- the audit log


Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_LONGEST = 128
_READS = {"GET", "HEAD", "OPTIONS"}
_log = logging.getLogger("commonwatt.audit")


def about(request: Request, target: str, **detail: Any) -> None:  # noqa: ANN401
    """Set the target of a request for the audit log, if its path does not name it."""
    request.state.audited = (target, detail or None)


def actor_of(caller: Caller) -> str:
    """Return the name of *caller* in the audit log."""
    return caller.name[:_LONGEST]


def noted(request: Request) -> None:
    """Mark a request whose audit entry was written in the transaction of the change."""
    request.state.noted = True


class AuditedRoute(APIRoute):
    """A route that writes its changing requests to the audit log, whatever their outcome, once the caller is known."""

    def get_route_handler(self) -> Handler:
        """Return the handler, wrapped in the audit."""
        handler = super().get_route_handler()
        if set(self.methods or ()) <= _READS:
            return handler
        name = self.name.rstrip("_")

        async def audited(request: Request) -> Response:
            try:
                response = await handler(request)
            except Exception as error:
                await _note(request, name, _status(error))
                raise
            await _note(request, name, response.status_code)
            return response

        return audited


async def _note(request: Request, action: str, status: int) -> None:
    caller = getattr(request.state, "caller", None)
    if caller is None:
        return  # in the access log only
    if status < 400 and getattr(request.state, "noted", False):
        return
    context: ServiceContext = request.app.state.context
    target, detail = getattr(request.state, "audited", None) or (_target(request), None)
    outcome = "done" if status < 400 else f"refused {status}"
    actor, target = actor_of(caller), _clean(target)
    try:
        await run_in_threadpool(context.store.note, time.time(), actor, action[:32], target, outcome, detail)
    except StoreError as error:
        _log.error("not written to the audit log: %s: %s %s: %s (%s)", actor, action, target, outcome, error)


def _target(request: Request) -> str:
    return ", ".join(f"{name} {value}" for name, value in request.path_params.items())


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:_LONGEST]


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, InputError | RequestValidationError):
        return 422
    if isinstance(error, ServiceError):
        return error.status or 500
    return 503 if isinstance(error, StoreError) else 500
