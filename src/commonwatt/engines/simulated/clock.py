"""Virtual time: waiting costs nothing."""

from __future__ import annotations

from commonwatt.engines.simulated.engine import SimulatedEngine

__all__ = ["VirtualClock"]


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
