"""What readers in another process are sent: changes of snapshots, and counters of the controller.

Jobs travel, and are kept, as bytes: tens of thousands of objects cost memory, and each full garbage collection visits
them all while no request is answered. The few that a reader asks for are made then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, TypeVar

from commonwatt.control.events import EventKind
from commonwatt.controlplane.snapshot import Snapshot, SnapshotNode
from commonwatt.model.errors import EngineError, StoreError
from commonwatt.model.histogram import Histogram
from commonwatt.store.records import Packed, Part, packed, parts_of

__all__ = ["EVENT_KINDS", "Changes", "Counters", "Entries", "ErrorSource", "Replica", "TickCounts", "changes"]

ErrorSource = Literal["engine", "store", "other"]
T = TypeVar("T")

EVENT_KINDS = tuple(map(str, EventKind))
"""Kinds of events."""

_CHUNK = 500  # entries of a message: other threads of the controller get their turn after each
_SILENT_S = 15.0


@dataclass
class TickCounts:
    """A snapshot of the counters."""

    ticks: Histogram = field(default_factory=Histogram)  # durations
    errors: dict[ErrorSource, int] = field(default_factory=lambda: {"engine": 0, "store": 0, "other": 0})


class Counters:
    """Counts from several threads since the process started; outlives a controller that restarts."""

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


class Entries(NamedTuple):
    """Some of what has changed since the snapshot before."""

    kind: Literal["jobs", "rows", "nodes"]
    entries: Sequence[tuple[int, Part | SnapshotNode]]  # by job, or by node


class Changes(NamedTuple):
    """The end of what has changed; ``None``: there is no other snapshot.

    Attributes
    ----------
    rest
        The snapshot without its jobs, rows and nodes.
    jobs, rows
        Those that are gone.
    nodes
        How many there are.
    """

    rest: Snapshot | None
    jobs: list[int]
    rows: list[int]
    nodes: int
    counts: TickCounts


def changes(before: Snapshot, after: Snapshot, counts: TickCounts) -> Iterator[Entries | Changes]:
    """Yield what turns snapshot *before* into *after*, a few at a time."""
    if after is before:
        yield Changes(None, [], [], 0, counts)
        return
    yield from _packed("jobs", before.jobs, after.jobs)
    yield from _packed("rows", before.rows, after.rows)
    if after.nodes is not before.nodes:
        each = enumerate(zip_longest(before.nodes, after.nodes))
        nodes = [(n, new) for n, (old, new) in each if new is not None and old != new]
        for first in range(0, len(nodes), _CHUNK):
            yield Entries("nodes", nodes[first : first + _CHUNK])
    rest = replace(after, jobs={}, rows={}, nodes=())
    jobs, rows = (
        [i for i in old if i not in new] for old, new in ((before.jobs, after.jobs), (before.rows, after.rows))
    )
    yield Changes(rest, jobs, rows, len(after.nodes), counts)


def _packed(kind: Literal["jobs", "rows"], before: Mapping[int, T], after: Mapping[int, T]) -> Iterator[Entries]:
    old, new = parts_of(before), parts_of(after)
    others = [(i, one) for i, one in new.items() if old.get(i) is not one and old.get(i) != one]
    for first in range(0, len(others), _CHUNK):
        chunk = others[first : first + _CHUNK]
        yield Entries(kind, [(i, one if isinstance(one, bytes | tuple) else packed(one)) for i, one in chunk])


class Replica:
    """A snapshot that is put together from changes; what has not changed are the same bytes.

    Parameters
    ----------
    first
        The snapshot until there is one.
    clock
        Seconds of a clock that goes on.
    """

    def __init__(self, first: Snapshot, clock: Callable[[], float] = time.monotonic) -> None:
        self._snapshot, self._clock, self._heard_s = first, clock, clock()
        self._counts = TickCounts()
        self._parts: dict[str, dict[int, Any]] = {"jobs": {}, "rows": {}, "nodes": {}}
        self._made: dict[str, dict[int, Any]] = {"jobs": {}, "rows": {}}
        self.filled = threading.Event()  # there is one

    def apply(self, message: Entries | Changes) -> None:
        """Apply a message."""
        self._heard_s = self._clock()
        if isinstance(message, Entries):
            self._parts[message.kind].update(message.entries)
            return
        self._counts = message.counts
        if message.rest is None:
            return
        for part, gone in (("jobs", message.jobs), ("rows", message.rows)):
            for i in gone:
                self._parts[part].pop(i, None)
        nodes = self._parts["nodes"]
        jobs, rows = (Packed(self._parts[part].copy(), self._made[part]) for part in ("jobs", "rows"))
        self._snapshot = replace(
            message.rest, jobs=jobs, rows=rows, nodes=tuple(nodes[n] for n in range(message.nodes))
        )
        self.filled.set()

    def snapshot(self) -> Snapshot:
        """Return the snapshot; one that fails where nothing was heard for a while."""
        if self._snapshot.healthy and not self.alive():
            trouble = "the controller's process does not answer"
            self._snapshot = replace(self._snapshot, healthy=False, trouble=trouble)
        return self._snapshot

    def alive(self) -> bool:
        """Return whether the controller was heard of late."""
        return self._clock() - self._heard_s <= _SILENT_S

    def counts(self) -> TickCounts:
        """Return the controller's counters."""
        return self._counts
