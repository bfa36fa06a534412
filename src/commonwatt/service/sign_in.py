"""Signing in to the dashboard at the identity provider: authorization code with PKCE (RFC 7636), exchanged here.

The browser has a cookie that no script can read, and the page asks with it for the token that it sends to the API.
Refresh tokens stay in this process: after a restart people sign in again, mostly without being asked by the provider.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from commonwatt.model.identity import OidcSpec
from commonwatt.model.names import is_loopback
from commonwatt.service.oidc import BusyError, TokenError, TokenVerifier, configuration, provider_client, trusted
from commonwatt.service.problems import ApiRefusal

__all__ = ["SignIns", "router"]

router = APIRouter(prefix="/sign-in", include_in_schema=False)

_log = logging.getLogger("commonwatt.service")
_PENDING, _SESSION = "commonwatt-sign-in", "commonwatt-session"
_PENDING_S, _SESSION_S = 600.0, 12 * 3600.0
_MOST_PENDING, _MOST_SESSIONS = 1000, 5000
_RENEW_S = 60.0
_KEPT_S = 3600.0
_ANSWER_S = 20.0
_NO_STORE = {"Cache-Control": "no-store"}
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>commonwatt</title>'
    '<p>You are not signed in: {why}.</p><p><a href="/">Back to the dashboard</a></p></html>'
)

T = TypeVar("T")


class SignInError(Exception):
    """Somebody cannot be signed in; the message says why, in words for the person."""


@dataclass(frozen=True)
class _Pending:
    """Somebody who is at the provider."""

    state: str
    verifier: str
    redirect_uri: str
    until_s: float


@dataclass
class _Session:
    """Somebody who has signed in."""

    token: str
    expires_s: float
    refresh_token: str | None
    renew_s: float
    name: str
    until_s: float
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class SignIns:
    """Who is at the provider, and who has come back. Used by one event loop."""

    spec: OidcSpec
    folder: Path
    verifier: TokenVerifier
    public_url: str | None = None
    clock: Callable[[], float] = time.time
    _pending: OrderedDict[str, _Pending] = field(default_factory=OrderedDict)
    _sessions: OrderedDict[str, _Session] = field(default_factory=OrderedDict)
    _endpoints: tuple[float, Mapping[str, str]] = (0.0, {})

    async def begin(self, base: str) -> tuple[str, str]:
        """Return where a person of a dashboard at *base* signs in, and the cookie that tells who comes back.

        Raises ``SignInError``.
        """
        address = (await self._addresses())["authorization_endpoint"]
        redirect_uri = f"{(self.public_url or base).rstrip('/')}/sign-in/back"
        until_s = self.clock() + _PENDING_S
        made = _Pending(secrets.token_urlsafe(24), secrets.token_urlsafe(48), redirect_uri, until_s)
        async with self._client() as client:
            client.redirect_uri = made.redirect_uri
            client.scope = " ".join(self.spec.scopes)
            where, _ = client.create_authorization_url(address, state=made.state, code_verifier=made.verifier)
        return where, self._kept(self._pending, made, _MOST_PENDING)

    async def back(self, cookie: str, given: Mapping[str, str]) -> str:
        """Let in a person who comes back with a *cookie* and what the provider has *given*; returns a cookie.

        Raises ``SignInError``.
        """
        pending = self._pending.pop(cookie, None)
        if pending is None or pending.until_s < self.clock():
            raise SignInError("it took too long, or was begun in another browser; try again")
        if not secrets.compare_digest(given.get("state", "").encode(), pending.state.encode()):
            raise SignInError("the answer is not of this sign-in; try again")
        if "code" not in given:
            raise SignInError(f"the identity provider refuses ({(given.get('error') or 'no code')[:200]})")
        found = await self._fetched(
            grant_type="authorization_code", code=given["code"], code_verifier=pending.verifier,
            redirect_uri=pending.redirect_uri,
        )  # fmt: skip
        session = await self._session(found, None, self.clock() + _SESSION_S)
        _log.info("somebody has signed in to the dashboard", extra={"caller": session.name})
        return self._kept(self._sessions, session, _MOST_SESSIONS)

    async def token(self, cookie: str) -> tuple[str, float] | None:
        """Return the token of whoever has a *cookie*, renewed in time, and when it ends; ``None``: nobody signed in."""
        session = self._sessions.get(cookie)
        if session is None:
            return None
        async with session.busy:
            if self.clock() >= session.renew_s and session.refresh_token is not None:
                try:
                    found = await self._fetched(grant_type="refresh_token", refresh_token=session.refresh_token)
                    new = await self._session(found, session.refresh_token, session.until_s)
                except SignInError as error:
                    _log.info("a sign-in has ended: %s", error, extra={"caller": session.name})
                    session.refresh_token = None
                else:
                    new.busy, self._sessions[cookie] = session.busy, new
                    session = new
            if min(session.expires_s, session.until_s) <= self.clock():
                self._sessions.pop(cookie, None)
                return None
            return session.token, session.expires_s

    async def leave(self, cookie: str) -> None:
        """Forget whoever has a *cookie*, and let the provider forget the refresh token."""
        session = self._sessions.pop(cookie, None)
        if session is None or session.refresh_token is None:
            return
        try:
            address = (await self._addresses()).get("revocation_endpoint")
            if address is not None:
                async with self._client() as client:
                    await client.revoke_token(address, token=session.refresh_token)
        except Exception as error:  # they are signed out here, whatever the provider does
            _log.warning("a refresh token could not be revoked", extra={"cause": _cause(error)})

    # -- the provider

    async def _addresses(self) -> Mapping[str, str]:
        """Return the provider's endpoints, which need https unless it is on this machine; raises ``SignInError``."""
        until_s, known = self._endpoints
        if self.clock() < until_s:
            return known
        try:
            async with asyncio.timeout(_ANSWER_S), provider_client(self.spec, self.folder) as client:
                found = await configuration(client, self.spec)
        except Exception as error:  # whatever a provider answers, the service goes on
            raise self._away(error) from None
        known = {name: value for name, value in found.items() if name.endswith("_endpoint") and isinstance(value, str)}
        local = is_loopback(urlsplit(self.spec.issuer).hostname)
        for name in ("authorization_endpoint", "token_endpoint", "revocation_endpoint"):
            parts = urlsplit(known.get(name, "https:"))
            if not (parts.scheme == "https" or (parts.scheme == "http" and local and is_loopback(parts.hostname))):
                raise self._away(ValueError(f"its {name} has no https"))
        if not {"authorization_endpoint", "token_endpoint"} <= known.keys():
            raise self._away(ValueError("its configuration lacks an endpoint"))
        self._endpoints = self.clock() + _KEPT_S, known
        return known

    async def _fetched(self, **asked: str) -> Mapping[str, Any]:
        """Return what the provider gives for a code or a refresh token; raises ``SignInError``."""
        from authlib.integrations.httpx_client import OAuthError

        address = (await self._addresses())["token_endpoint"]
        try:
            async with asyncio.timeout(_ANSWER_S), self._client() as client:
                found: Mapping[str, Any] = await client.fetch_token(address, client_id=client.client_id, **asked)
        except OAuthError as error:
            raise SignInError(
                f"the identity provider refuses ({str(error.description or error.error)[:200]})"
            ) from None
        except Exception as error:  # whatever a provider answers, the service goes on
            raise self._away(error) from None
        return found

    async def _session(self, found: Mapping[str, Any], refresh_token: str | None, until_s: float) -> _Session:
        """Return who is signed in by what the provider has given; raises ``SignInError`` if that is not valid here."""
        token = found.get(f"{self.spec.token}_token")
        if not isinstance(token, str):
            raise SignInError(f"the identity provider gave no {self.spec.token} token")
        try:
            person = await self.verifier.person(token)
        except TokenError as error:
            raise SignInError(f"the identity provider gave {error}") from None
        except BusyError:
            raise SignInError("the identity provider's keys are being fetched; try again") from None
        fresh = found.get("refresh_token")
        kept = fresh if isinstance(fresh, str) and fresh else refresh_token
        now_s, expires_s = self.clock(), person.expires_s - self.spec.skew_s
        renew_s = expires_s - min(_RENEW_S, (expires_s - now_s) / 2)
        return _Session(token, expires_s, kept, renew_s, f"{person.subject} ({person.name})", until_s)

    def _away(self, error: Exception) -> SignInError:
        _log.warning("nobody can sign in to the dashboard", extra={"cause": _cause(error)})
        return SignInError("the identity provider does not answer as it should; try again later")

    def _client(self) -> Any:  # noqa: ANN401
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        secret = None if self.spec.secret_variable is None else os.environ.get(self.spec.secret_variable)
        return AsyncOAuth2Client(
            self.spec.client_id or self.spec.audience, secret, code_challenge_method="S256", timeout=_ANSWER_S,
            token_endpoint_auth_method="none" if secret is None else "client_secret_basic",
            verify=trusted(self.spec, self.folder), follow_redirects=False,
            trust_env=not is_loopback(urlsplit(self.spec.issuer).hostname),
        )  # fmt: skip

    @staticmethod
    def _kept(among: OrderedDict[str, T], one: T, most: int) -> str:
        """Keep *one* under a new cookie, the oldest makes room; returns the cookie."""
        cookie = secrets.token_urlsafe(32)
        among[cookie] = one
        if len(among) > most:
            among.popitem(last=False)
        return cookie


def _cause(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


# -- what browsers ask for


def _sign_ins(request: Request) -> SignIns:
    found: SignIns | None = request.app.state.sign_ins
    if found is None:
        raise ApiRefusal(404, "this control plane has no identity provider (live.server.oidc)")
    return found


def _with_cookie(response: Response, name: str, value: str, request: Request, *, strict: bool) -> Response:
    sign_ins, how = _sign_ins(request), "strict" if strict else "lax"
    secure = request.url.scheme == "https" or (sign_ins.public_url or "").startswith("https:")
    age_s = None if strict else int(_PENDING_S)  # of a session: until the browser is closed
    response.set_cookie(name, value, age_s, path="/sign-in", secure=secure, httponly=True, samesite=how)  # type: ignore[arg-type]
    return response


def _own_page_only(request: Request) -> None:
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise ApiRefusal(403, "only the dashboard may ask this")


@router.get("")
async def begin(request: Request) -> Response:
    """Send a person to the provider."""
    try:
        where, cookie = await _sign_ins(request).begin(str(request.base_url))
    except SignInError as error:
        return HTMLResponse(_PAGE.format(why=escape(str(error))), 503, _NO_STORE)
    return _with_cookie(RedirectResponse(where, 303, _NO_STORE), _PENDING, cookie, request, strict=False)


@router.get("/back")
async def back(request: Request) -> Response:
    """Let in a person who comes back from the provider."""
    try:
        cookie = await _sign_ins(request).back(request.cookies.get(_PENDING, ""), request.query_params)
    except SignInError as error:
        return HTMLResponse(_PAGE.format(why=escape(str(error))), 403, _NO_STORE)
    answer = RedirectResponse("/", 303, _NO_STORE)
    answer.delete_cookie(_PENDING, path="/sign-in")
    return _with_cookie(answer, _SESSION, cookie, request, strict=True)


@router.post("/token")
async def token(request: Request) -> Response:
    """Give the dashboard the token of the person who has signed in, and say where people sign in: null if nowhere."""
    _own_page_only(request)
    sign_ins: SignIns | None = request.app.state.sign_ins
    found = None if sign_ins is None else await sign_ins.token(request.cookies.get(_SESSION, ""))
    value, expires_s = found or (None, None)
    issuer = None if sign_ins is None else sign_ins.spec.issuer
    body = json.dumps({"issuer": issuer, "token": value, "expires_s": expires_s})
    return Response(body, headers=_NO_STORE, media_type="application/json")


@router.post("/out")
async def out(request: Request) -> Response:
    """Sign out."""
    _own_page_only(request)
    await _sign_ins(request).leave(request.cookies.get(_SESSION, ""))
    answer = Response(status_code=204, headers=_NO_STORE)
    answer.delete_cookie(_SESSION, path="/sign-in")
    return answer
