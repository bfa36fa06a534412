"""Real time, cut short when the engine has something to report."""

from __future__ import annotations

import time

from commonwatt.engines.local.engine import LocalEngine

__all__ = ["RealClock"]


class RealClock:
    """The clock of a local engine: seconds since 1970-01-01 UTC."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    def now_s(self) -> float:
        """Current time."""
        return time.time()

    def wait_until(self, time_s: float) -> None:
        """Return at *time_s*, or as soon as a job has ended."""
        self._engine.wait(max(0.0, time_s - time.time()))
