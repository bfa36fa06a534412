"""The time of the control plane: seconds since 1970 that never go back."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["SteadyClock"]


class SteadyClock:
    """The wall clock when it was made, continued by a monotonic clock.

    When the wall clock is set forward, this one follows (late jobs are late); when it is set back, this one goes on,
    and is ahead until the wall clock has caught up. ``departed_s`` is the difference.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._offset_s = wall() - steady()

    def __call__(self) -> float:
        """Return the current time."""
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
