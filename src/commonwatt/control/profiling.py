"""The job profiler: which configuration of a new job to measure next, and how to judge a measurement (ANDREAS III).

Nodes are reserved for it. A job runs there for a few epochs in each of its configurations that they offer. The others
are predicted (``scaling``), and all are corrected by the progress it reports while it runs (``epoch_timer``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from commonwatt.control.engine import Outcome
from commonwatt.control.epoch_timer import EpochTimer
from commonwatt.model.job_file import MOST_GPU_W, Configuration, Unprofilable

__all__ = ["Probed", "judge", "next_probe", "power_per_gpu_w"]

_CRASHES = 2
"""A job may not fit on the fewest GPUs; one that failed in so many configurations is not tried in others."""


@dataclass(frozen=True)
class Probed:
    """Result of a measurement: seconds of an epoch, and over how many epochs."""

    epoch_s: float
    epochs: float


def next_probe(
    configurations: Sequence[Configuration],
    measured: Collection[Configuration],
    failed: Mapping[Configuration, Unprofilable],
    capacity: Mapping[str, int],
    known_types: Collection[str] = (),
) -> Configuration | Unprofilable | None:
    """Return what to measure next, ``None`` if nothing is left, or why the job cannot be measured.

    First each type at its smallest count, the smallest of all first: that compares the types. Then each type at its
    largest count, which shows best how it scales, types first whose scaling is not known from other jobs. Then the
    count farthest from those that were tried, as a ratio.

    Parameters
    ----------
    configurations
        Those of the job.
    measured, failed
        Configurations that were measured, and those that could not be, with the reason.
    capacity
        GPUs of the largest profiling node by type.
    known_types
        Types for which the scaling of its kind of jobs is known.
    """
    within = [there for there in configurations if there.gpus <= capacity.get(there.gpu_type, 0)]
    if not within:
        return Unprofilable.NO_NODE
    left = [there for there in within if there not in measured and there not in failed]
    if not any(there in measured for there in configurations):
        if Unprofilable.NO_PROGRESS in failed.values():
            return Unprofilable.NO_PROGRESS
        if failed and (len(failed) >= _CRASHES or not left):
            return Unprofilable.CRASHED
    tried: dict[str, list[int]] = {}
    for there in within:
        if there not in left:
            tried.setdefault(there.gpu_type, []).append(there.gpus)

    def worth(there: Configuration) -> tuple[float, ...]:
        counts = tried.get(there.gpu_type, [])
        if not counts:
            return 0, there.gpus
        if len(counts) == 1:
            return 1, there.gpu_type in known_types, -there.gpus
        return 2, -min(abs(math.log(there.gpus / count)) for count in counts), there.gpus

    return min(left, key=lambda there: (worth(there), configurations.index(there)), default=None)


def judge(
    timer: EpochTimer, elapsed_s: float, *, epochs: int, limit_s: float, ended: Outcome | None = None
) -> Probed | Unprofilable | None:
    """Return the result of a measurement, why it has none, or ``None`` while it goes on.

    Parameters
    ----------
    timer
        Progress of the job since it was started for this.
    elapsed_s
        Time since then.
    epochs
        Epochs to measure; where there are more than one, the first is left out, as it has loading in it.
    limit_s
        Longest time it may take. After that, or if the job ends, parts of an epoch suffice.
    ended
        How the job ended, if it did.
    """
    if ended is Outcome.FAILED:
        return Unprofilable.CRASHED
    if timer.done_epochs < epochs and ended is None and elapsed_s < limit_s:
        return None
    if timer.rough_s is None:
        return Unprofilable.NO_PROGRESS
    return Probed(timer.rough_s, timer.epochs or timer.done_epochs)


def power_per_gpu_w(energy_j: float | None, seconds: float, idle_w: float, gpus: int) -> float | None:
    """Return the power each of *gpus* added on a node with no other job, ``None`` if it was not metered.

    Parameters
    ----------
    energy_j
        Of the node over so many *seconds*.
    idle_w
        Power of the idle node, watts.
    """
    if energy_j is None or seconds <= 0:
        return None
    return min(MOST_GPU_W, max(0.0, energy_j / seconds - idle_w) / gpus)
