"""How long requests take: a middleware, and what it measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from commonwatt.model.histogram import Histogram

__all__ = ["HttpTimes", "TimingMiddleware"]

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class HttpTimes:
    """Durations of requests by method, route and status."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str, str], Histogram] = {}
        self._lock = threading.Lock()

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count a request."""
        labels = (method if method in _METHODS else "other", route, str(status))
        with self._lock:
            self._times.setdefault(labels, Histogram()).observe(duration_s)

    def snapshot(self) -> dict[tuple[str, str, str], Histogram]:
        """Return what was counted so far, by ``(method, route, status)``."""
        with self._lock:
            return {labels: times.copy() for labels, times in sorted(self._times.items())}


class TimingMiddleware:
    """Measures every request of the application it wraps.

    A request counts for the template of its route (``/jobs/{id}``, not ``/jobs/17``); one that matches none for
    ``other``, so that nobody can make up routes. Streams, which last until their reader leaves, are not counted.
    """

    def __init__(self, app: App, times: HttpTimes, skip: tuple[str, ...] = ()) -> None:
        self._app, self._times, self._skip = app, times, skip

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 500, time.perf_counter()

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            if route not in self._skip:
                self._times.observe(scope["method"], route, status, time.perf_counter() - began)
