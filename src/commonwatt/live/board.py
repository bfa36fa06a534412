"""What the controller knew after its last look, for those who only look: API, dashboard, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from commonwatt.control.events import EventKind
from commonwatt.store.records import JobRow

__all__ = ["EVENT_KINDS", "Board", "BoardJob", "BoardNode", "is_late", "why_of"]

EVENT_KINDS = tuple(map(str, EventKind))
"""What can happen to jobs."""


@dataclass(frozen=True, slots=True)
class BoardNode:
    """A node now."""

    name: str
    gpu_type: str
    gpus: int
    usable_gpus: int
    held_gpus: int
    state: str  # on, waking, asleep, down
    drained: bool
    jobs: tuple[int, ...]
    power_w: float | None  # by what the configuration declares; of what runs there


@dataclass(frozen=True, slots=True)
class BoardJob:
    """An active job now."""

    id: int
    status: str
    held: bool
    nodes: tuple[str, ...]
    gpus: int
    done_epochs: float
    kept_epochs: float
    reason: str | None
    sentence: str | None
    expected_start_s: float | None
    expected_end_s: float | None


def why_of(job: BoardJob | JobRow) -> tuple[str | None, str | None]:
    """Return the reason and the sentence of a job: of one that is held and waits, that, whatever came before."""
    if job.held and job.status == "waiting":
        return "held", "it is held until somebody releases it"
    return job.reason, job.sentence


def is_late(due_s: float | None, now_s: float, expected_end_s: float | None) -> bool:
    """Whether an active job is late, or will be as things stand."""
    return due_s is not None and (now_s > due_s or (expected_end_s is not None and expected_end_s > due_s))


@dataclass(frozen=True)
class Board:
    """The cluster and its jobs at one moment. Times are seconds since 1970.

    ``rows`` are active jobs as they are in the store since the last tick: reading them here takes less time than there.
    """

    time_s: float
    mode: str  # live, dry-run
    engine: str
    healthy: bool = False
    trouble: str | None = None
    nodes: tuple[BoardNode, ...] = ()
    jobs: Mapping[int, BoardJob] = field(default_factory=dict)
    rows: Mapping[int, JobRow] = field(default_factory=dict)
    power_w: float | None = None
    busy_gpus: int = 0
    total_gpus: int = 0
    running: int = 0
    waiting: int = 0
    tick_s: float = 0.0
    ticks: int = 0
    decided_s: float | None = None
    engine_errors: int = 0
    store_errors: int = 0
    saved: Mapping[str, float | str | None] | None = None
