"""The append-only event log: what happened, what was decided, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome

__all__ = ["Event", "EventKind", "EventLog", "lost_s_of", "told"]

_LOST = "s of work since the last snapshot are lost"  # as a preemption says it, too


class EventKind(StrEnum):
    """Kinds of events."""

    SUBMITTED = "submitted"
    WAITS = "waits"
    STARTED = "started"
    RESUMED = "resumed"
    RESIZED = "resized"
    MIGRATED = "migrated"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"
    NOT_STARTED = "not-started"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WOULD_START = "would-start"
    WOULD_MOVE = "would-move"
    WOULD_PREEMPT = "would-preempt"
    WOULD_SLEEP = "would-sleep"
    WOULD_WAKE = "would-wake"
    NOT_DRAINED = "not-drained"
    NOT_POWERED = "not-powered"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log. ``reason`` is typed, ``sentence`` says the same to a person.

    ``handle`` is -1 where it is about no job.
    """

    time_s: float
    kind: EventKind
    handle: int
    nodes: tuple[int, ...] = ()
    gpus: int = 0
    reason: str = ""
    sentence: str = ""


def told(change: JobEnded | JobInterrupted, name: str, nodes: tuple[int, ...], gpus: int) -> Event:
    """Return the event of what an engine reports of a job that was on *nodes*."""
    if isinstance(change, JobEnded):
        kind = EventKind.COMPLETED if change.outcome is Outcome.COMPLETED else EventKind.FAILED
        return Event(change.at_s, kind, change.handle, nodes, gpus, change.reason)
    kind = EventKind.INTERRUPTED if change.begun else EventKind.NOT_STARTED
    sentence = f"{name} {'was interrupted' if change.begun else 'did not start'}: {change.cause}"
    if change.begun and round(change.lost_s) > 0:
        sentence += f"; {change.lost_s:.0f} {_LOST}"
    return Event(change.at_s, kind, change.handle, nodes, gpus, str(kind), sentence)


def lost_s_of(sentence: str) -> float | None:
    """Return how many seconds of work were lost by what an event says at its end; ``None`` if it says nothing of it."""
    found = re.search(rf"(?:^|; )(\d+) {_LOST}$", sentence)
    return None if found is None else float(found[1])


@dataclass
class EventLog:
    """Events in the order in which they happened; nothing is ever changed or removed."""

    _events: list[Event] = field(default_factory=list)

    def append(self, event: Event) -> None:
        """Add *event* at the end."""
        self._events.append(event)

    def __len__(self) -> int:
        return len(self._events)

    def take(self) -> list[Event]:
        """Return all events and forget them: for one who keeps them elsewhere."""
        events, self._events = self._events, []
        return events

    def since(self, position: int) -> list[Event]:
        """Events from *position* on."""
        return self._events[position:]
