"""Rows of the store."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import reduce
from operator import itemgetter
from typing import Any, Literal, TypeVar

from commonwatt.model.job_file import JobFile
from commonwatt.model.units import MICRO

__all__ = [
    "ACTIVE", "EndedRow", "EventRow", "IntentRow", "JobRow", "JobStatus", "Packed", "Part", "RequestKind", "RequestRow",
    "SampleRow", "TokenOwner", "is_late", "packed", "parts_of", "unpacked", "with_changes",
]  # fmt: skip


T = TypeVar("T")
Part = bytes | tuple[bytes, ...]
"""What is ``packed``: an object, or a row followed by changes of it."""

_MOST_CHANGES = 4
_MOST_MADE = 1000  # some kilobytes each


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

    def changed(self, columns: Mapping[str, Any]) -> JobRow:
        """Return it with these values of columns; those that are none of a row are ignored."""
        changed = {name: columns[name] for name in _COLUMNS if name in columns}
        if "nodes" in changed:
            changed["nodes"] = tuple(changed["nodes"])
        if not changed:
            return self
        new = object.__new__(JobRow)  # ``replace`` takes several times as long, for each of many jobs
        vars(new).update(vars(self), **changed)
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle values only: names, and the class of each enumeration, would be most of the bytes."""
        return _job_row, (str(self.status), *_values(vars(self)))


_COLUMNS = tuple(column.name for column in fields(JobRow))
_VALUES = tuple(name for name in _COLUMNS if name != "status")
_values = itemgetter(*_VALUES)


def _job_row(status: str, *values: Any) -> JobRow:  # noqa: ANN401
    row = object.__new__(JobRow)
    vars(row).update(zip(_VALUES, values, strict=True), status=JobStatus(status))
    return row


def packed(one: object) -> bytes:
    """Return *one*, a job's row or what else pickles into few bytes, as ``Packed`` keeps it."""
    return pickle.dumps(one, pickle.HIGHEST_PROTOCOL)


def with_changes(part: Part, columns: Mapping[str, Any]) -> Part:
    """Return *part* of a row of which *columns* have changed: that is added to it, and the row made when asked for."""
    parts = part if isinstance(part, tuple) else (part,)
    return (*parts, packed(columns)) if len(parts) <= _MOST_CHANGES else packed(unpacked(part).changed(columns))


def unpacked(one: Any) -> Any:  # noqa: ANN401
    """Return what was ``packed``, with its changes; anything else as it is."""
    if isinstance(one, tuple):
        row, *changes = map(pickle.loads, one)
        return reduce(JobRow.changed, changes, row)
    return pickle.loads(one) if isinstance(one, bytes) else one  # noqa: S301


class Packed(Mapping[int, T]):
    """Objects by number, made of their bytes (*parts*) when they are asked for; *made* keeps the last of them.

    Tens of thousands of objects take many times the memory, and each full garbage collection visits them all while no
    request is answered.
    """

    def __init__(self, parts: Mapping[int, Part], made: dict[int, tuple[Part, T]]) -> None:
        self.parts, self._made = parts, made

    def __getitem__(self, number: int) -> T:
        part = self.parts[number]
        kept = self._made.get(number)
        if kept is not None and kept[0] is part:
            return kept[1]
        made: T = unpacked(part)
        if len(self._made) >= _MOST_MADE:
            self._made.clear()
        self._made[number] = part, made
        return made

    def __contains__(self, number: object) -> bool:
        return number in self.parts

    def __iter__(self) -> Iterator[int]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


def parts_of(by_number: Mapping[int, T]) -> Mapping[int, T | Part]:
    """Return what tells objects apart without making them: their bytes, or they themselves."""
    return by_number.parts if isinstance(by_number, Packed) else by_number


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


def is_late(due_s: float | None, now_s: float, expected_end_s: float | None) -> bool:
    """Whether an active job is late, or is expected to be."""
    return due_s is not None and (now_s > due_s or (expected_end_s is not None and expected_end_s > due_s))
