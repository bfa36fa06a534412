"""Jobs that share their GPUs, two at a time: what they use of them, how fast they are, and what decides who may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commonwatt.model.arrays import Floats, Ints

__all__ = ["GpuFootprint", "PackableJobs", "Packing"]


@dataclass(frozen=True)
class GpuFootprint:
    """What a training job uses of each of its GPUs while it has them alone.

    Attributes
    ----------
    utilization
        Part of the time in which a kernel runs, 0 to 1.
    memory_utilization
        Part of the time in which memory is read or written, 0 to 1.
    memory_gib
        Memory it takes.
    """

    utilization: float
    memory_utilization: float
    memory_gib: float


@dataclass(frozen=True)
class Packing:
    """What says which jobs may share their GPUs, two at a time, and how fast they are then.

    Attributes
    ----------
    use
        By kind of job; what is missing is unknown, and such jobs share nothing.
    gpu_memory_gib
        By GPU type; what is missing is unknown, and no GPU of such a type is shared.
    speeds
        Speed of a job of the first kind beside one of the second, relative to its speed alone, where it was measured.
    slowdown
        Elsewhere the speed is ``1 / (1 + slowdown * u * v)``, u and v the utilizations of the two.
    source
        Source of the figures, as a sentence without a full stop.
    """

    use: Mapping[str, GpuFootprint]
    gpu_memory_gib: Mapping[str, float]
    speeds: Mapping[tuple[str, str], float]
    slowdown: float
    source: str

    def speed(self, kind: str, beside: str) -> float:
        """Return the speed of a job of *kind* beside one of kind *beside*, relative to its speed alone."""
        measured = self.speeds.get((kind, beside))
        if measured is not None:
            return measured
        return 1.0 / (1.0 + self.slowdown * self.use[kind].utilization * self.use[beside].utilization)


@dataclass(frozen=True)
class PackableJobs:
    """What jobs use of each of their GPUs, and who shares them now: what packing two jobs onto the same GPUs goes by.

    Attributes
    ----------
    utilization, memory_utilization, memory_gib
        As of ``GpuFootprint``, [J]; NaN: unknown.
    gpu_memory_gib
        Memory of a GPU of each class, [K]; NaN: unknown.
    beside
        The job that has the same GPUs now, [J]; -1: none.
    """

    utilization: Floats
    memory_utilization: Floats
    memory_gib: Floats
    gpu_memory_gib: Floats
    beside: Ints
