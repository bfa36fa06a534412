"""What the decisions of a fleet hand on: demand, cuts, placings, slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats

__all__ = ["Cut", "Instance", "Placing", "ReplicaDemand", "TimeSlices"]


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
