"""Rows of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from commonwatt.model.job_file import JobFile
from commonwatt.model.units import MICRO

__all__ = [
    "ACTIVE", "EndedRow", "EventRow", "IntentRow", "JobRow", "JobStatus", "RequestKind", "RequestRow", "SampleRow",
    "TokenOwner",
]  # fmt: skip


class JobStatus(StrEnum):
    """Status of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = (JobStatus.WAITING, JobStatus.RUNNING)


class RequestKind(StrEnum):
    """Kinds of requests to the controller."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    MODE = "mode"
    PHI = "phi"
    FAIRNESS = "fairness"


@dataclass(frozen=True)
class JobRow:
    """A job. Fields as in the table ``jobs``; times are seconds since 1970."""

    id: int
    name: str
    tenant: str
    file: JobFile
    status: JobStatus
    held: bool
    submit_s: float
    due_s: float | None
    attempts: int
    settled: int
    failures: int
    began_s: float | None
    started_s: float | None
    ended_s: float | None
    nodes: tuple[str, ...]
    gpu_type: str | None
    gpus_per_node: int
    done_epochs: float
    kept_epochs: float
    times: list[dict[str, Any]] | None
    reason: str | None
    sentence: str | None  # where there are no facts to make one of
    facts: dict[str, Any] | None  # of the reason: a ``PlacementExplanation``, and ``lost_s``
    expected_start_s: float | None
    expected_end_s: float | None

    @property
    def gpus(self) -> int:
        """GPUs it has now."""
        return len(self.nodes) * self.gpus_per_node


@dataclass(frozen=True)
class EndedRow:
    """A job that ran and has ended; *gpu_us* is what it was charged for, ``None``: not written down."""

    id: int
    tenant: str
    name: str
    kind: str
    gpus: int  # that it asked for
    time_limit_s: float | None
    began_s: float
    ended_s: float
    gpu_us: int | None

    @property
    def run_time_s(self) -> float:
        """Time it ran, with the GPUs it asked for; without the time it waited after preemptions."""
        if self.gpu_us:
            return self.gpu_us / MICRO / self.gpus
        return max(0.0, self.ended_s - self.began_s)


@dataclass(frozen=True)
class RequestRow:
    """A request to the controller."""

    id: int
    kind: RequestKind
    job: int | None
    node: str | None
    value: Any
    at_s: float

    @property
    def by(self) -> str | None:
        """Who asked: ``tenant`` or ``operator``; ``None``: not recorded."""
        by = self.value.get("by") if isinstance(self.value, dict) else None
        return by if by in ("tenant", "operator") else None


@dataclass(frozen=True)
class IntentRow:
    """A command to the engine, written down before it was given."""

    key: str
    kind: str
    job: int
    attempt: int
    nodes: tuple[str, ...]
    gpus_per_node: int
    at_s: float
    outcome: str | None = None
    cause: str | None = None


@dataclass(frozen=True)
class EventRow:
    """A line of the event log; ``lost_s`` and ``requester`` as in ``control.events.Event``."""

    id: int
    time_s: float
    kind: str
    job: int | None
    nodes: tuple[str, ...]
    gpus: int
    reason: str
    sentence: str
    lost_s: float | None = None
    requester: str | None = None


@dataclass(frozen=True)
class SampleRow:
    """The cluster right after a tick."""

    time_s: float
    busy_gpus: int
    power_w: float | None
    running: int
    waiting: int
    on_gpus: int
    wanted_gpus: int
    tick_s: float
    wanted_by_pool: Mapping[str, int] | None = None  # by pool of the capacity plan; None: one pool, or not recorded


@dataclass(frozen=True)
class TokenOwner:
    """Who makes a request: the owner of a token, or whom an identity provider or the kernel vouches for."""

    token: int | None  # None: no token of the control plane
    label: str
    tenant: str | None  # None: an operator
    role: str | None = None  # viewer, admin; None: an ordinary member, or an operator
    via: Literal["token", "oidc", "socket"] = "token"

    @property
    def key(self) -> str:
        """What its requests are counted by."""
        return f"token {self.token}" if self.token is not None else f"{self.via} {self.label}"
