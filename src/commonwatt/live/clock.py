"""The time of the control plane: seconds since 1970 that never go back and do not jump."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["SteadyClock"]


class SteadyClock:
    """The wall clock as it was at the beginning, carried on by a clock nobody sets.

    A wall clock set forward is followed (late jobs are late); one set back is waited for: meanwhile time stands on the
    steady clock. ``departed_s`` tells how far the wall clock is away.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._offset_s = wall() - steady()

    def __call__(self) -> float:
        """Return the time now."""
        return self._steady() + self._offset_s

    @property
    def departed_s(self) -> float:
        """How far the wall clock is ahead of this one; negative if behind."""
        return self._wall() - self()

    def follow(self, tolerance_s: float = 1.0) -> float:
        """Catch up with a wall clock that is ahead by more than *tolerance_s*; returns by how much it was."""
        ahead_s = self.departed_s
        if ahead_s > tolerance_s:
            self._offset_s += ahead_s
            return ahead_s
        return 0.0
