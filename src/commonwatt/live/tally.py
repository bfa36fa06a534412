"""What the controller counts about itself since the process started: ticks, how long they took, errors by source."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

from commonwatt.model.errors import EngineError, StoreError
from commonwatt.model.histogram import Histogram

__all__ = ["Counts", "ErrorSource", "Tally"]

ErrorSource = Literal["engine", "store", "other"]


@dataclass
class Counts:
    """A snapshot of a tally."""

    ticks: Histogram = field(default_factory=Histogram)  # durations
    errors: dict[ErrorSource, int] = field(default_factory=lambda: {"engine": 0, "store": 0, "other": 0})


class Tally:
    """Counts from several threads; outlives a controller that is rebuilt."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._lock = threading.Lock()

    def tick(self, duration_s: float) -> None:
        """Count a tick that took so long."""
        with self._lock:
            self._counts.ticks.observe(duration_s)

    def error(self, error: BaseException) -> None:
        """Count an error by its type."""
        source: ErrorSource = (
            "engine" if isinstance(error, EngineError) else "store" if isinstance(error, StoreError) else "other"
        )
        with self._lock:
            self._counts.errors[source] += 1

    def counts(self) -> Counts:
        """Return what was counted so far; later counts do not change it."""
        with self._lock:
            return Counts(self._counts.ticks.copy(), dict(self._counts.errors))
