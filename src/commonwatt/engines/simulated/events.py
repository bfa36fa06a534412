"""The event queue of a simulated cluster, and which GPUs of a node each job has.

Events have a total order, so ties do not depend on hashes or the identity of objects. Individual GPUs matter only where
those of a node are on several hosts.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

__all__ = ["EventQueue", "HostGpus", "Priority", "Scheduled"]


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


# -- GPUs of hosts


class HostGpus:
    """The GPUs of one node, numbered host by host.

    The rule of Gavel's scheduler (D. Narayanan et al., OSDI 2020): larger jobs first, and among those of one size
    first the ones whose GPUs are still free; all others get the first free GPUs, on as many hosts as that takes.
    """

    def __init__(self, hosts: Sequence[int]) -> None:
        self._host = [host for host, gpus in enumerate(hosts) for _ in range(gpus)]
        self._gpus_of: dict[int, tuple[int, ...]] = {}  # by handle

    def counts(self, handle: int) -> tuple[int, ...]:
        """GPUs of a job on each of its hosts, in their order."""
        return tuple(len(list(same)) for _, same in groupby(self._host[gpu] for gpu in self._gpus_of[handle]))

    def leave(self, handle: int) -> None:
        """Take note that a job is off its GPUs."""
        del self._gpus_of[handle]

    def enter(self, starting: Mapping[int, int]) -> list[int]:
        """Give GPUs to *starting* jobs, so many to each handle; returns those whose GPUs per host change for it."""
        wanted = {handle: len(gpus) for handle, gpus in self._gpus_of.items()} | dict(starting)
        before = {handle: self.counts(handle) for handle in self._gpus_of}
        old, self._gpus_of, taken = self._gpus_of, {}, set[int]()
        for size in sorted(set(wanted.values()), reverse=True):
            alike = [handle for handle, gpus in wanted.items() if gpus == size]
            for handle in alike:
                if handle in old and taken.isdisjoint(old[handle]):
                    self._gpus_of[handle] = old[handle]
                    taken.update(old[handle])
            for handle in alike:
                if handle not in self._gpus_of:
                    free = [gpu for gpu in range(len(self._host)) if gpu not in taken]
                    self._gpus_of[handle] = tuple(free[:size])
                    taken.update(free[:size])
        return [handle for handle, counts in before.items() if self.counts(handle) != counts]
