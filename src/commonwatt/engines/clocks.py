"""Clocks of engines: virtual time, and real time that an engine cuts short when it has something to report."""

from __future__ import annotations

import time
from typing import Protocol

from commonwatt.engines.simulated.engine import SimulatedEngine

__all__ = ["CanWait", "RealClock", "VirtualClock"]


class VirtualClock:
    """The clock of a simulated engine."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    def now_s(self) -> float:
        """Current virtual time."""
        return self._engine.now_s

    def wait_until(self, time_s: float) -> None:
        """Jump to *time_s*, or to the first change before it."""
        self._engine.advance(time_s)


class CanWait(Protocol):
    """An engine that knows when it has something to report."""

    def wait(self, seconds: float) -> None:
        """Return after so long, or as soon as there is something to report."""
        ...


class RealClock:
    """The clock of an engine in real time: seconds since 1970-01-01 UTC."""

    def __init__(self, engine: CanWait) -> None:
        self._engine = engine

    def now_s(self) -> float:
        """Current time."""
        return time.time()

    def wait_until(self, time_s: float) -> None:
        """Return at *time_s*, or as soon as a job has ended."""
        self._engine.wait(max(0.0, time_s - time.time()))
