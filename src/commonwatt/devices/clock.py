"""Time as an object that is passed in: the loop cannot tell virtual time from real time."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "RealClock", "VirtualClock"]


class Clock(Protocol):
    """Nanoseconds since some moment."""

    def now_ns(self) -> int:
        """Return the time."""
        ...

    def wait_until(self, time_ns: int) -> None:
        """Let time pass until *time_ns*."""
        ...


class VirtualClock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        """Return the time."""
        return self._now_ns

    def wait_until(self, time_ns: int) -> None:
        """Jump to *time_ns*, if that is later."""
        self._now_ns = max(self._now_ns, time_ns)

    def advance(self, time_ns: int) -> None:
        """Let *time_ns* pass."""
        self._now_ns += time_ns


class RealClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        """Return the time."""
        return time.perf_counter_ns()

    def wait_until(self, time_ns: int) -> None:
        """Sleep until *time_ns*."""
        left_ns = time_ns - time.perf_counter_ns()
        if left_ns > 0:
            time.sleep(left_ns * 1e-9)
