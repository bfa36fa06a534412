"""Signing in to the dashboard at the identity provider: authorization code with PKCE (RFC 7636), exchanged here.

The browser has a cookie that no script can read, and the page asks with it for the token that it sends to the API.
Refresh tokens stay in this process: after a restart people sign in again, mostly without being asked by the provider.
Nothing is kept here of somebody who is still at the provider: the browser has that, too, in a signed cookie.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from commonwatt.controlplane.notifications import secret_of
from commonwatt.model.identity import OidcSpec, is_secure
from commonwatt.service.oidc import (
    BusyError,
    Person,
    TokenError,
    TokenVerifier,
    configuration,
    document,
    provider_client,
)
from commonwatt.service.problems import ApiRefusal

__all__ = ["SignIns", "router"]

router = APIRouter(prefix="/sign-in", include_in_schema=False)

_log = logging.getLogger("commonwatt.service")
_PENDING, _SESSION = "commonwatt-sign-in-", "commonwatt-session"
_PENDING_S, _SESSION_S = 600.0, 12 * 3600.0
_MOST_SESSIONS = 5000
_MOST_ASKING = 20  # requests that wait for the provider at a time: they must not take the places of others
_RENEW_S, _AGAIN_S = 60.0, 5.0
_KEPT_S = 3600.0
_ANSWER_S = 20.0
_NO_STORE = {"Cache-Control": "no-store"}
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>commonwatt</title>'
    '<p>You are not signed in: {why}.</p><p><a href="/">Back to the dashboard</a></p></html>'
)


class SignInError(Exception):
    """Somebody cannot be signed in; the message says why, in words for the person."""


class SignInRefusedError(SignInError):
    """The provider refuses, for good."""


@dataclass
class _Session:
    """Somebody who has signed in."""

    token: str
    person: Person
    refresh_token: str | None
    until_s: float
    expires_s: float
    renew_s: float
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ends_s(self) -> float:
        """When the token is no use any more."""
        return min(self.expires_s, self.until_s)


@dataclass
class SignIns:
    """Who is at the provider, and who has come back. Used by one event loop."""

    spec: OidcSpec
    folder: Path
    verifier: TokenVerifier
    public_url: str | None = None
    clock: Callable[[], float] = time.time
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _sessions: OrderedDict[str, _Session] = field(default_factory=OrderedDict)
    _endpoints: tuple[float, Mapping[str, str]] = (0.0, {})
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _client: Any = None
    _asking: int = 0

    async def begin(self, base: str) -> tuple[str, str, str]:
        """Return where a person of a dashboard at *base* signs in, and name and value of a cookie for the way back.

        Raises ``SignInError``.
        """
        address = (await self._addresses())["authorization_endpoint"]
        state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
        redirect_uri = f"{(self.public_url or base).rstrip('/')}/sign-in/back"
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code", "client_id": self._client_id, "redirect_uri": redirect_uri, "state": state,
            "scope": " ".join(self.spec.scopes), "code_challenge": challenge, "code_challenge_method": "S256",
        }  # fmt: skip
        where = f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}"
        return where, _pending_name(state), self._signed([state, verifier, redirect_uri, self.clock() + _PENDING_S])

    async def back(self, cookie: str, given: Mapping[str, str]) -> str:
        """Let in a person who comes back with a *cookie* and what the provider has *given*; returns another cookie.

        Raises ``SignInError``.
        """
        state, verifier, redirect_uri, until_s = self._read(cookie) or ("", "", "", 0.0)
        if until_s < self.clock():
            raise SignInError("it took too long, or was begun in another browser; try again")
        if not secrets.compare_digest(given.get("state", "").encode(errors="replace"), state.encode()):
            raise SignInError("the answer is not of this sign-in; try again")
        if "code" not in given:
            raise SignInError(f"the identity provider refuses ({(given.get('error') or 'no code')[:200]})")
        grant = await self._fetched(
            grant_type="authorization_code", code=given["code"], code_verifier=verifier, redirect_uri=redirect_uri
        )
        session = await self._session(grant, None, self.clock() + _SESSION_S)
        _log.info("somebody has signed in to the dashboard", extra={"caller": _shown(session.person)})
        made = secrets.token_urlsafe(32)
        self._sessions[made] = session
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return made

    async def token(self, cookie: str) -> tuple[str, float] | None:
        """Return the token of whoever has a *cookie*, renewed in time, and when it ends; ``None``: nobody signed in."""
        session = self._sessions.get(cookie)
        if session is None:
            return None
        async with session.busy:
            if self.clock() >= session.renew_s and session.refresh_token is not None:
                await self._renew(cookie, session)
            if self._sessions.get(cookie) is not session:  # signed out meanwhile
                return None
            if session.ends_s <= self.clock():
                self._sessions.pop(cookie)
                return None
            return session.token, session.ends_s

    async def leave(self, cookie: str) -> None:
        """Forget whoever has a *cookie*, and let the provider forget the refresh token."""
        session = self._sessions.pop(cookie, None)
        if session is not None:
            await self._revoke(session.refresh_token)

    # -- the provider

    @property
    def _client_id(self) -> str:
        return self.spec.client_id or self.spec.audience

    async def _renew(self, cookie: str, session: _Session) -> None:
        """Renew a session's token, or find out that it cannot be; tried again where the provider is only away."""
        try:
            grant = await self._fetched(grant_type="refresh_token", refresh_token=session.refresh_token or "")
            new = await self._session(grant, session.refresh_token, session.until_s)
            _check_same(new.person, session.person)
        except SignInRefusedError as error:
            _log.info("a sign-in has ended: %s", error, extra={"caller": _shown(session.person)})
            session.refresh_token = None
        except SignInError:
            session.renew_s = self.clock() + _AGAIN_S
        else:
            session.token, session.person, session.refresh_token = new.token, new.person, new.refresh_token
            session.expires_s, session.renew_s = new.expires_s, new.renew_s
            if self._sessions.get(cookie) is not session:
                await self._revoke(session.refresh_token)

    async def _revoke(self, refresh_token: str | None) -> None:
        if refresh_token is None:
            return
        try:
            address = (await self._addresses()).get("revocation_endpoint")
            if address is not None:
                await self._ask(address, {"token": refresh_token, "token_type_hint": "refresh_token"})
        except SignInError as error:  # they are signed out here, whatever the provider does
            _log.warning("a refresh token could not be revoked: %s", error)

    async def _addresses(self) -> Mapping[str, str]:
        """Return the provider's endpoints, which need https unless it is on this machine; raises ``SignInError``."""
        if self.clock() >= self._endpoints[0]:
            with self._place():
                async with self._looking:  # once for all who wait
                    if self.clock() >= self._endpoints[0]:
                        self._endpoints = self.clock() + _KEPT_S, await self._look()
        return self._endpoints[1]

    async def _look(self) -> Mapping[str, str]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                facts = await configuration(self._http(), self.spec)
            return _endpoints_in(facts, self.spec.issuer)
        except Exception as error:  # whatever a provider answers, the service goes on
            raise _away(error) from None

    async def _fetched(self, **asked: str) -> Mapping[str, Any]:
        """Return what the provider gives for a code or a refresh token; raises ``SignInError``."""
        grant = await self._ask((await self._addresses())["token_endpoint"], asked)
        if not isinstance(grant, dict):
            raise _away(TypeError("its token endpoint answers with something else"))
        if "error" in grant:
            why = str(grant.get("error_description") or grant["error"])[:200]
            raise SignInRefusedError(f"the identity provider refuses ({why})")
        return grant

    async def _ask(self, address: str, form: Mapping[str, str]) -> Any:  # noqa: ANN401
        """Return the provider's answer to a *form*; raises ``SignInError`` where it gives none, or too many wait."""
        secret = secret_of(self.spec.secret_variable, "live.server.oidc.secret_variable")
        more: dict[str, Any] = {}
        if secret is None:
            form = {**form, "client_id": self._client_id}
        else:
            more["auth"] = (quote(self._client_id, safe=""), quote(secret, safe=""))
        with self._place():
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return await document(self._http(), address, form, **more)
            except Exception as error:  # whatever a provider answers, the service goes on
                raise _away(error) from None

    def _http(self) -> Any:  # noqa: ANN401
        """Return a client that is kept: to make one takes longer than to ask."""
        if self._client is None:
            self._client = provider_client(self.spec, self.folder)
        return self._client

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Take one of the places of requests that wait for the provider; raises ``SignInError`` if there is none."""
        if self._asking >= _MOST_ASKING:
            raise SignInError("the identity provider is slow, and many sign in; try again")
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    async def _session(self, grant: Mapping[str, Any], refresh_token: str | None, until_s: float) -> _Session:
        """Return who is signed in by what the provider has given; raises ``SignInError`` if that is not valid here."""
        token = grant.get(f"{self.spec.token}_token")
        if not isinstance(token, str):
            raise SignInError(f"the identity provider gave no {self.spec.token} token")
        try:
            person = await self.verifier.person(token)
        except TokenError as error:
            raise SignInError(f"the identity provider gave {error}") from None
        except BusyError:
            raise SignInError("the identity provider's keys are being fetched; try again") from None
        fresh = grant.get("refresh_token")
        kept = fresh if isinstance(fresh, str) and fresh else refresh_token
        now_s, expires_s = self.clock(), person.expires_s - self.spec.skew_s
        return _Session(token, person, kept, until_s, expires_s, expires_s - min(_RENEW_S, (expires_s - now_s) / 2))

    # -- what a browser has of somebody who is at the provider

    def _signed(self, what: list[Any]) -> str:
        body = base64.urlsafe_b64encode(json.dumps(what).encode())
        return f"{body.decode()}.{hmac.new(self._key, body, hashlib.sha256).hexdigest()}"

    def _read(self, cookie: str) -> list[Any] | None:
        body, _, mark = cookie.encode(errors="replace").partition(b".")
        if not secrets.compare_digest(hmac.new(self._key, body, hashlib.sha256).hexdigest().encode(), mark):
            return None
        what: list[Any] = json.loads(base64.urlsafe_b64decode(body))
        return what


def _away(error: Exception) -> SignInError:
    cause = ascii(" ".join(str(error).split())[:300] or type(error).__name__)[1:-1]
    _log.warning("the identity provider cannot be asked about a sign-in to the dashboard", extra={"cause": cause})
    return SignInError("the identity provider does not answer as it should; try again later")


def _endpoints_in(facts: Mapping[str, Any], issuer: str) -> Mapping[str, str]:
    """Return a provider's endpoints; raises ``ValueError`` if one is missing, or has no https where it must."""
    wanted = {name: facts.get(name, "") for name in ("authorization_endpoint", "token_endpoint")}
    wanted |= {name: facts[name] for name in ("revocation_endpoint",) if name in facts}
    for name, address in wanted.items():
        if not is_secure(address, issuer):
            raise ValueError(f"its {name} has no https")
    return wanted


def _check_same(new: Person, old: Person) -> None:
    if new.subject != old.subject:
        raise SignInRefusedError("the identity provider gave a token of somebody else")


def _shown(person: Person) -> str:
    return person.subject if person.name is None else f"{person.subject} ({person.name})"


def _pending_name(state: str) -> str:
    """Name of a cookie: each tab that begins has its own."""
    return _PENDING + hashlib.sha256(state.encode(errors="replace")).hexdigest()[:12]


# -- what browsers ask for


def _sign_ins(request: Request) -> SignIns:
    sign_ins: SignIns | None = request.app.state.sign_ins
    if sign_ins is None:
        raise ApiRefusal(404, "this control plane has no identity provider (live.server.oidc)")
    return sign_ins


def _is_encrypted(request: Request) -> bool:
    public = _sign_ins(request).public_url or ""
    return request.url.scheme == "https" or public.startswith("https:")


def _session_name(request: Request) -> str:
    """Name of the session's cookie: over https, one that no other site or port can set."""
    return f"__Host-{_SESSION}" if _is_encrypted(request) else _SESSION


def _own_page_only(request: Request) -> None:
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise ApiRefusal(403, "only the dashboard may ask this")


@router.get("")
async def begin(request: Request) -> Response:
    """Send a person to the provider."""
    try:
        where, name, cookie = await _sign_ins(request).begin(str(request.base_url))
    except SignInError as error:
        return HTMLResponse(_PAGE.format(why=escape(str(error))), 503, _NO_STORE)
    answer = RedirectResponse(where, 303, _NO_STORE)
    answer.set_cookie(
        name, cookie, int(_PENDING_S), path="/sign-in", secure=_is_encrypted(request), httponly=True, samesite="lax"
    )
    return answer


@router.get("/back")
async def back(request: Request) -> Response:
    """Let in a person who comes back from the provider."""
    sign_ins, name = _sign_ins(request), _pending_name(request.query_params.get("state", ""))
    try:
        cookie = await sign_ins.back(request.cookies.get(name, ""), request.query_params)
    except SignInError as error:
        return HTMLResponse(_PAGE.format(why=escape(str(error))), 403, _NO_STORE)
    await sign_ins.leave(request.cookies.get(_session_name(request), ""))  # whoever was signed in here before
    answer = RedirectResponse("/", 303, _NO_STORE)
    answer.delete_cookie(name, path="/sign-in")
    answer.set_cookie(
        _session_name(request), cookie, path="/", secure=_is_encrypted(request), httponly=True, samesite="strict"
    )
    return answer


@router.post("/token")
async def token(request: Request) -> Response:
    """Give the dashboard the token of the person who has signed in, and say where people sign in: null if nowhere."""
    _own_page_only(request)
    sign_ins: SignIns | None = request.app.state.sign_ins
    pair = None if sign_ins is None else await sign_ins.token(request.cookies.get(_session_name(request), ""))
    value, expires_s = pair or (None, None)
    issuer = None if sign_ins is None else sign_ins.spec.issuer
    body = json.dumps({"issuer": issuer, "token": value, "expires_s": expires_s})
    return Response(body, headers=_NO_STORE, media_type="application/json")


@router.post("/out")
async def out(request: Request) -> Response:
    """Sign out."""
    _own_page_only(request)
    await _sign_ins(request).leave(request.cookies.get(_session_name(request), ""))
    answer = Response(status_code=204, headers=_NO_STORE)
    answer.delete_cookie(_session_name(request), path="/", secure=_is_encrypted(request))
    return answer
