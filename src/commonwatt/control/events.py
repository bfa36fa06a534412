"""The append-only event log: what happened, what was decided, and why; and samples of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome
from commonwatt.model.explanation import PlacementExplanation

__all__ = [
    "Event",
    "EventKind",
    "EventLog",
    "Requester",
    "Sample",
    "cancelled_by",
    "completed",
    "lost_work",
    "report_of",
]


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster right after a tick."""

    time_s: float
    busy_gpus: int
    power_w: float | None
    running: int
    waiting: int
    on_gpus: int  # of nodes that are on or waking
    wanted_gpus: int  # allocated, or asked for by waiting jobs that may start as soon as there is room
    wanted_by_pool: Mapping[str, int] | None = None  # the same by pool of the capacity plan; None: one pool


class Requester(StrEnum):
    """Who asked for something to be done to a job."""

    TENANT = "tenant"
    OPERATOR = "operator"


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
    WOULD_DRAIN = "would-drain"
    DRAINED = "drained"
    GPU_FAULT = "gpu-fault"
    NOT_DRAINED = "not-drained"
    NOT_POWERED = "not-powered"
    ASLEEP = "put-to-sleep"
    WOKEN = "woken"
    GPU_SHARED = "gpu-shared"
    GPU_CUT = "gpu-cut"
    GPU_RETURNED = "gpu-returned"
    GPU_LOST = "gpu-lost"
    REPLICA_STARTED = "replica-started"
    REPLICA_STOPPED = "replica-stopped"
    FRACTION_STARTED = "fraction-started"
    FRACTION_STOPPED = "fraction-stopped"
    FRACTION_ENDED = "fraction-ended"
    OVER_CAP = "over-cap"
    WITHIN_CAP = "within-cap"
    SOLVER_FAILED = "solver-failed"
    SOLVER_WORKS = "solver-works"


_ONLY_PLANNED = {EventKind.WOULD_START, EventKind.WOULD_MOVE, EventKind.WOULD_PREEMPT}


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log.

    Attributes
    ----------
    handle
        -1 for an event of no job.
    text
        What there is to say beside the kind, unless *why* says it.
    lost_s
        Seconds of work since the last checkpoint that this event cost the job; ``None``: unknown, or none can be lost.
    requester
        Who asked for it; ``None``: nobody, or unknown.
    why
        Why placement decided so.
    again
        Whether nothing has happened but that the reason is another one now.
    """

    time_s: float
    kind: EventKind
    handle: int
    nodes: tuple[int, ...] = ()
    gpus: int = 0
    reason: str = ""
    text: str = ""
    lost_s: float | None = None
    requester: Requester | None = None
    why: PlacementExplanation | None = None
    again: bool = False

    @property
    def sentence(self) -> str:
        """What happened and why, as it was known then."""
        if self.why is None:
            return self.text
        if self.kind in _ONLY_PLANNED:
            return self.why.planned_sentence
        if self.kind is not EventKind.PREEMPTED:
            return self.why.sentence
        return f"{self.why.sentence}; {'it is terminating' if self.lost_s is None else lost_work(self.lost_s)}"


def cancelled_by(requester: Requester | None) -> tuple[str, str]:
    """Return the reason and the sentence of a cancellation; ``None``: who asked for it was not recorded."""
    if requester is Requester.OPERATOR:
        return "cancelled-by-operator", "cancelled by an operator"
    return "cancelled", "cancelled" if requester is None else "cancelled by its owner"


def lost_work(lost_s: float) -> str:
    """Return how much work a job lost, in words."""
    return f"{lost_s:.0f} s of work since the last checkpoint are lost"


def completed(name: str, change: JobEnded) -> str:
    """Describe a completion, with its anomaly if there is any."""
    return f"{name} completed: {change.cause}" if change.reason else f"{name} completed"


def report_of(change: JobEnded | JobInterrupted, name: str, nodes: tuple[int, ...], gpus: int) -> Event:
    """Return the event of a change that an engine reports of the job *name*, which was on *nodes*."""
    if isinstance(change, JobEnded):
        kind = EventKind[change.outcome.name]
        if change.outcome is Outcome.CANCELLED:
            return Event(change.at_s, kind, change.handle, nodes, gpus, change.reason, f"{name}: {change.cause}")
        if change.outcome is Outcome.COMPLETED and change.reason:
            return Event(change.at_s, kind, change.handle, nodes, gpus, change.reason, completed(name, change))
        return Event(change.at_s, kind, change.handle, nodes, gpus, change.reason)
    kind = EventKind.INTERRUPTED if change.begun else EventKind.NOT_STARTED
    sentence = f"{name} {'was interrupted' if change.begun else 'did not start'}: {change.cause}"
    if change.begun and round(change.lost_s) > 0:
        sentence += f"; {lost_work(change.lost_s)}"
    lost_s = change.lost_s if change.begun else None
    return Event(change.at_s, kind, change.handle, nodes, gpus, str(kind), sentence, lost_s)


@dataclass
class EventLog:
    """Events in the order in which they happened; none is ever changed.

    Attributes
    ----------
    follows_reasons
        Whether somebody shows why jobs wait now, so that another reason is logged too.
    """

    follows_reasons: bool = False
    _events: list[Event] = field(default_factory=list)

    def append(self, event: Event) -> None:
        """Add *event* at the end."""
        self._events.append(event)

    def __len__(self) -> int:
        return len(self._events)

    def take(self) -> list[Event]:
        """Return all events and drop them: for a caller that keeps them elsewhere."""
        events, self._events = self._events, []
        return events

    def since(self, position: int) -> list[Event]:
        """Events from *position* on."""
        return self._events[position:]
