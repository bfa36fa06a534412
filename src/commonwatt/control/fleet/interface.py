"""What the decisions of a fleet pass on (demand, cuts, placings, slices), and what an engine of shared GPUs can do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from commonwatt.control.engine import Engine, NodeView
from commonwatt.model.arrays import Floats, Ints

__all__ = [
    "Cut",
    "DeviceShares",
    "FractionEnded",
    "GpuLost",
    "Host",
    "Instance",
    "Placing",
    "ReplicaDemand",
    "ServingEngine",
    "ServingState",
    "SharedChange",
    "SharingEngine",
    "TimeSlices",
    "handle_of",
]


@dataclass(frozen=True)
class ReplicaDemand:
    """Replicas a service needs for its requests: sizing hands it to layouts and placement.

    *milli* are thousandths of a GPU of each replica, by GPU type; *rate_rps* is what it was sized for.
    """

    service: int
    rate_rps: float
    replicas: int
    milli: Mapping[str, int]


@dataclass(frozen=True)
class Instance:
    """A MIG instance, ``PROFILE@SLICE``, and the service on it; -1: none."""

    word: str
    service: int
    part: float  # of the GPU's compute
    rate_rps: float  # of that service on it


@dataclass(frozen=True)
class Cut:
    """Layout of one GPU: partitioning hands it to placement. *gpu* is a shared GPU, or -1 for one more."""

    gpu: int
    gpu_type: str
    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class Placing:
    """Where a resident goes: placement hands it to the slices. A *gpu* that is shared, or else one more on *node*."""

    resident: int
    gpu: int
    node: int
    milli: int


@dataclass(frozen=True)
class TimeSlices:
    """The time of one shared GPU: parts of the quantum by resident, in order, and the phi in force."""

    parts: Floats  # [R] sums to 1 at most
    phi: float | None  # None: no policy with one

    @classmethod
    def empty(cls) -> TimeSlices:
        """Return the slices of a GPU without residents."""
        return cls(np.zeros(0), None)


@dataclass(frozen=True)
class DeviceShares:
    """Who is on a shared GPU, and by what its time is divided: slices hand it to the engine.

    *milli* are the reserved thousandths of each service there, its weight; *phi* is as of ``TimeSlices``.
    """

    milli: Mapping[int, int]
    phi: float | None


# -- the controller


class Host(Protocol):
    """What the manager asks of the controller it is a part of."""

    def charge(self) -> None:
        """Account for all readings the meters have given."""
        ...

    def node_view(self) -> NodeView:
        """Return the nodes as placement may use them."""
        ...

    def whole_gpus(self) -> Ints:
        """Return the GPUs of each node that whole jobs have. Shape [N]."""
        ...

    def power_left_w(self, node: int, now_s: float, time_s: float) -> float:
        """Return what a GPU of *node* may draw more for so long, W; infinity without a power cap."""
        ...

    def make_room(self, gpu_types: Sequence[str], shared: bool, now_s: float) -> bool:
        """Stop a training job so that a GPU of these types (*shared*: of a node that may share) is free, if it may."""
        ...


# -- engines of shared GPUs


@dataclass(frozen=True)
class FractionEnded:
    """A fractional job has done its work."""

    job: int
    at_s: float


@dataclass(frozen=True)
class GpuLost:
    """A shared GPU went down with its node, and with it what ran there."""

    gpu: int
    at_s: float
    cause: str


SharedChange = FractionEnded | GpuLost


def handle_of(gpu: int) -> int:
    """Return the handle under which a shared GPU holds a part of its node: no job's."""
    return -1 - gpu


@dataclass(frozen=True)
class ServingState:
    """What an engine that really serves has served, as of its last look.

    Attributes
    ----------
    front
        Where the front listens; ``None``: it does not.
    began_s
        When it began to count; NaN: unknown.
    counts
        By service, as the front tells them.
    ready
        Services that each device serves now, by GPU.
    device_s
        Time of each device that each service has had since its server began, by GPU: when that was read, by a
        monotonic clock, and the time by service.
    phi
        In force on each device, by GPU, as its server tells.
    trouble
        Why a model could not be loaded, by service.
    """

    front: str | None = None
    began_s: float = float("nan")
    counts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ready: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    device_s: Mapping[int, tuple[float, Mapping[str, float]]] = field(default_factory=dict)
    phi: Mapping[int, float] = field(default_factory=dict)
    trouble: Mapping[str, str] = field(default_factory=dict)


class SharingEngine(Engine, Protocol):
    """An engine on which GPUs can be shared. Shared GPUs are numbered by who opens them, and no number comes twice."""

    def open_gpu(self, gpu: int, node: int) -> float:
        """Take a free GPU of *node* for sharing; returns when it can be used, on the clock.

        Raises ``EngineError`` if none is free.
        """
        ...

    def close_gpu(self, gpu: int) -> None:
        """Give a shared GPU back; nothing may run there."""
        ...

    def share_gpu(self, gpu: int, power_w: float, speeds: Mapping[int, float], shares: DeviceShares) -> None:
        """Let a shared GPU draw *power_w*, and fractional jobs there work at *speeds* (GPU-seconds a second).

        An engine that really serves runs the services of *shares*, and divides the GPU's time by them.

        Closes the reading of its node: what was drawn until now is metered apart from what follows.
        """
        ...

    def start_fraction(self, job: int, gpu: int, work_gpu_s: float, from_s: float) -> None:
        """Put a fractional job of so much work on a shared GPU; it works from *from_s* on, once it has a speed."""
        ...

    def stop_fraction(self, job: int) -> float:
        """Take a fractional job off its GPU; returns the GPU-seconds of work that are kept."""
        ...

    def busy(self, gpu: int) -> Mapping[int, float] | None:
        """Return the part of a shared GPU's time that each service has had of late; ``None``: it is not measured."""
        ...

    def serves(self, gpu: int, service: int) -> bool:
        """Whether a service really is served on a shared GPU by now, as far as is known."""
        ...

    def resting(self) -> Collection[int]:
        """Return the nodes where what serves has failed lately, and is not started again for a while."""
        ...

    def shared_gpus(self) -> Mapping[int, tuple[int, float]]:
        """Return the node of each shared GPU, and when it could first be used: after an earlier controller, too."""
        ...

    def poll_shared(self) -> Sequence[SharedChange]:
        """What changed on shared GPUs since the last poll, in order."""
        ...


class ServingEngine(SharingEngine, Protocol):
    """An engine that really serves: its capabilities say ``measures_shared``."""

    def serving(self) -> ServingState:
        """Return what was served."""
        ...

    def has_shared_news(self) -> bool:
        """Whether ``poll_shared`` has anything to report."""
        ...
