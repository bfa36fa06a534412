"""Around every request: limits of size, security headers, access log, durations, and errors without internals."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from commonwatt.model.histogram import Histogram
from commonwatt.service.problems import ApiRefusal, problem

__all__ = ["LARGEST_BODY", "MOST_AT_ONCE", "HttpTimes", "Middleware", "Observer"]

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_STREAMS = ("/stream",)
_UNCOUNTED = (*_STREAMS, "/healthz", "/livez", "/readyz", "/metrics")
MOST_AT_ONCE = 200
"""Requests that are answered at a time, over all tokens; those that watch the service are not counted."""


class HttpTimes:
    """Durations of requests by method, route and status. Safe to use from several threads."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str, str], Histogram] = {}
        self._lock = threading.Lock()

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count a request by the template of its route, except for streams, which last until the client leaves."""
        if route.endswith(_STREAMS):
            return
        labels = (method if method in _METHODS else "other", route, str(status))
        with self._lock:
            self._times.setdefault(labels, Histogram()).observe(duration_s)

    def snapshot(self) -> dict[tuple[str, str, str], Histogram]:
        """Return the durations so far by ``(method, route, status)``."""
        with self._lock:
            return {labels: times.copy() for labels, times in sorted(self._times.items())}


LARGEST_BODY = 1_000_000  # bytes
_LONGEST_ADDRESS = 4096

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Observer = Callable[[str, str, int, float], None]
"""Called with method, route, status and duration (s) of every request."""

_SECURITY = (
    (
        b"content-security-policy",
        (
            b"default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
            b"connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_SECRET = re.compile(r"cw_[A-Za-z0-9_-]{8,}")
_access = logging.getLogger("commonwatt.access")
_log = logging.getLogger("commonwatt.service")


class Middleware:
    """An ASGI application around another one."""

    def __init__(self, app: App, observe: Observer | None = None, most: int = MOST_AT_ONCE) -> None:
        self._app, self._observe, self._most, self._now = app, observe, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _with_security(scope, message.get("headers", ()))
            await send(message)

        counted = not scope["path"].endswith(_UNCOUNTED)
        self._now += counted
        try:
            refused = _too_large(scope)
            if refused is None and counted and self._now > self._most:
                detail = f"{self._most} requests are being answered; try again"
                refused = problem(503, detail, headers={"Retry-After": "1"})
            app: App = self._app if refused is None else refused
            await app(scope, _counted(receive), sending)
        except Exception:
            _log.exception("%s %s failed", scope["method"], _shown(scope))
            if status:
                raise  # the response has begun and must not look complete
            status = 500
            await problem(500, "the server failed on this request; its log says why")(scope, receive, sending)
        finally:
            self._now -= counted
            self._record(scope, status, time.perf_counter() - began)

    def _record(self, scope: Scope, status: int, duration_s: float) -> None:
        caller = scope.get("state", {}).get("caller")
        client = scope.get("client")
        _access.info(
            "request",
            extra={
                "event": "request", "method": scope["method"], "path": _shown(scope), "status": status,
                "duration_s": round(duration_s, 6), "caller": None if caller is None else caller.name,
                "client": None if client is None else client[0],
            },
        )  # fmt: skip
        if self._observe is not None:
            self._observe(scope["method"], getattr(scope.get("route"), "path", "unknown"), status, duration_s)


def _with_security(scope: Scope, headers: Any) -> list[tuple[bytes, bytes]]:  # noqa: ANN401
    given = list(headers)
    names = {name.lower() for name, _ in given}
    wanted = [*_SECURITY, (b"cache-control", b"no-store")] if scope["path"].startswith("/api/") else list(_SECURITY)
    return given + [(name, value) for name, value in wanted if name not in names]


def _too_large(scope: Scope) -> App | None:
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _LONGEST_ADDRESS:
        return problem(414, f"the address is longer than {_LONGEST_ADDRESS} bytes")
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or len(value) > 18 or int(value) > LARGEST_BODY):
            return problem(413, f"the body is larger than {LARGEST_BODY} bytes", headers={"Connection": "close"})
    return None


def _counted(receive: Receive) -> Receive:
    """Limit the size of a body without a declared length."""
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > LARGEST_BODY:
            raise ApiRefusal(413, f"the body is larger than {LARGEST_BODY} bytes", headers={"Connection": "close"})
        return message

    return receiving


def _shown(scope: Scope) -> str:
    """Return the path for the log, without the query and anything that looks like a token.

    Anyone can send a path, so blanks and control characters are percent-encoded.
    """
    path = _SECRET.sub("cw_***", str(scope["path"]))[:500]
    if path.isprintable() and " " not in path:
        return path
    return "".join(c if c.isprintable() and c != " " else quote(c, errors="replace") for c in path)
