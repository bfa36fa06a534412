"""What the service needs of the process it runs in, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from commonwatt.model.job_file import JobFile
from commonwatt.model.scenario import Scenario
from commonwatt.store.store import Store

__all__ = ["Board", "BoardJob", "BoardNode", "Desk"]


class BoardNode(Protocol):
    """A node after the last tick; fields as in ``NodeState``."""

    @property
    def name(self) -> str:
        """Name."""
        ...

    @property
    def gpu_type(self) -> str:
        """Type of its GPUs."""
        ...

    @property
    def gpus(self) -> int:
        """Its GPUs."""
        ...

    @property
    def usable_gpus(self) -> int:
        """GPUs our jobs may have."""
        ...

    @property
    def held_gpus(self) -> int:
        """GPUs our jobs hold."""
        ...

    @property
    def state(self) -> str:
        """On, waking, asleep or down."""
        ...

    @property
    def drained(self) -> bool:
        """Whether it gets no further jobs."""
        ...

    @property
    def jobs(self) -> tuple[int, ...]:
        """Jobs on it."""
        ...

    @property
    def power_w(self) -> float | None:
        """Power it draws, W; ``None``: unknown."""
        ...


class BoardJob(Protocol):
    """An active job after the last tick."""

    @property
    def done_epochs(self) -> float:
        """Epochs it has done."""
        ...

    @property
    def kept_epochs(self) -> float:
        """Epochs that are safe in a snapshot."""
        ...

    @property
    def reason(self) -> str | None:
        """Typed reason."""
        ...

    @property
    def sentence(self) -> str | None:
        """The same in one sentence."""
        ...

    @property
    def expected_start_s(self) -> float | None:
        """When it is expected to start, seconds since 1970."""
        ...

    @property
    def expected_end_s(self) -> float | None:
        """When it is expected to end, seconds since 1970."""
        ...


class Board(Protocol):
    """The cluster after the last tick of the controller; never changes once made."""

    @property
    def time_s(self) -> float:
        """When that was, seconds since 1970."""
        ...

    @property
    def mode(self) -> str:
        """``live`` or ``dry-run``."""
        ...

    @property
    def engine(self) -> str:
        """Name of the engine."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether the controller works."""
        ...

    @property
    def trouble(self) -> str | None:
        """What is wrong."""
        ...

    @property
    def nodes(self) -> Sequence[BoardNode]:
        """All nodes."""
        ...

    @property
    def jobs(self) -> Mapping[int, BoardJob]:
        """Active jobs by number."""
        ...

    @property
    def power_w(self) -> float | None:
        """Power of all nodes, W; ``None``: unknown."""
        ...

    @property
    def busy_gpus(self) -> int:
        """GPUs jobs hold."""
        ...

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes."""
        ...

    @property
    def running(self) -> int:
        """Jobs that run."""
        ...

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        ...

    @property
    def tick_s(self) -> float | None:
        """How long the last tick took, s."""
        ...

    @property
    def ticks(self) -> int:
        """Ticks since the controller started."""
        ...

    @property
    def saved(self) -> Mapping[str, float | None] | None:
        """Estimated savings against the baseline policy: ``energy_kwh``, ``cost``."""
        ...


class Desk(Protocol):
    """Where the service finds the store and the controller. Safe to use from several threads."""

    @property
    def config(self) -> Scenario:
        """The file that was served."""
        ...

    @property
    def store(self) -> Store:
        """The store."""
        ...

    def board(self) -> Board:
        """Return the cluster after the last tick."""
        ...

    def wake(self) -> None:
        """Let the controller look at once for what was asked of it."""
        ...

    def job_times(self, file: JobFile, tenant: str) -> list[dict[str, Any]]:
        """Return the configurations a job may get, with run times.

        Raises ``InputError`` if the file is wrong for this cluster, ``JobNeverFitsError`` if no node can ever run it.
        """
        ...

    def job_log(self, job: int, last_bytes: int) -> bytes | None:
        """Return the end of what a job printed; ``None`` if there is nothing, or the engine keeps it elsewhere."""
        ...
