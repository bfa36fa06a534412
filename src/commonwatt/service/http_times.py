"""How long requests take."""

from __future__ import annotations

import threading

from commonwatt.model.histogram import Histogram

__all__ = ["HttpTimes"]

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_STREAMS = ("/stream",)


class HttpTimes:
    """Durations of requests by method, route and status. Safe to use from several threads."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str, str], Histogram] = {}
        self._lock = threading.Lock()

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count a request by the template of its route; streams, which last until their reader leaves, are left out."""
        if route.endswith(_STREAMS):
            return
        labels = (method if method in _METHODS else "other", route, str(status))
        with self._lock:
            self._times.setdefault(labels, Histogram()).observe(duration_s)

    def snapshot(self) -> dict[tuple[str, str, str], Histogram]:
        """Return what was counted so far, by ``(method, route, status)``."""
        with self._lock:
            return {labels: times.copy() for labels, times in sorted(self._times.items())}
