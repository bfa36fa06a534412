"""An event queue with a total order, so that ties never fall to hash or identity."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

__all__ = ["EventQueue", "Priority", "Scheduled"]


class Priority(IntEnum):
    """Order of events at the same time."""

    NODE_UP = 0
    JOB_END = 1
    NODE_DOWN = 2
    POWER = 3


class Scheduled(NamedTuple):
    """A future event, which sorts by time, priority and its unique *sequence*.

    *subject* is the number of a job or node, *version* identifies stale events.
    """

    time_s: float
    priority: Priority
    sequence: int
    subject: int
    version: int = 0


@dataclass
class EventQueue:
    """Future events, by (time, priority, sequence)."""

    _heap: list[Scheduled] = field(default_factory=list)
    _sequence: int = 0

    def push(self, time_s: float, priority: Priority, subject: int, version: int = 0) -> None:
        """Schedule an event."""
        heapq.heappush(self._heap, Scheduled(time_s, priority, self._sequence, subject, version))
        self._sequence += 1

    def next_s(self) -> float | None:
        """Time of the next event, ``None`` if there is none."""
        return self._heap[0].time_s if self._heap else None

    def pop(self) -> Scheduled:
        """Take out the next event."""
        return heapq.heappop(self._heap)
