"""Counters of the controller since the process started: ticks, their durations, errors by source."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

from commonwatt.model.errors import EngineError, StoreError
from commonwatt.model.histogram import Histogram

__all__ = ["Counters", "ErrorSource", "TickCounts"]

ErrorSource = Literal["engine", "store", "other"]


@dataclass
class TickCounts:
    """A snapshot of the counters."""

    ticks: Histogram = field(default_factory=Histogram)  # durations
    errors: dict[ErrorSource, int] = field(default_factory=lambda: {"engine": 0, "store": 0, "other": 0})


class Counters:
    """Counts from several threads; outlives a controller that restarts."""

    def __init__(self) -> None:
        self._counts = TickCounts()
        self._lock = threading.Lock()

    def tick(self, duration_s: float) -> None:
        """Count a tick of this duration."""
        with self._lock:
            self._counts.ticks.observe(duration_s)

    def error(self, error: BaseException) -> None:
        """Count an error by its type."""
        source: ErrorSource = (
            "engine" if isinstance(error, EngineError) else "store" if isinstance(error, StoreError) else "other"
        )
        with self._lock:
            self._counts.errors[source] += 1

    def counts(self) -> TickCounts:
        """Return the counts so far; later counts do not change them."""
        with self._lock:
            return TickCounts(self._counts.ticks.copy(), dict(self._counts.errors))
