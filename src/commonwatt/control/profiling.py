"""The job profiler: which configuration of a new job to measure next, and how to judge a measurement (ANDREAS III).

Nodes are reserved for it. A job runs there for a few epochs in each of its configurations that they offer. The others
are predicted (``scaling``), and all are corrected by the progress it reports while it runs (``EpochTimer``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from commonwatt.control.engine import Outcome
from commonwatt.model.job_file import LONGEST_EPOCH_S, MOST_GPU_W, SHORTEST_EPOCH_S, Configuration, Unprofilable

__all__ = ["EpochTimer", "Probed", "judge", "next_probe", "power_per_gpu_w"]


class EpochTimer:
    """Measures whole epochs of a job in one configuration, from reports of the epochs it has done.

    The moments at which the job completed an epoch are interpolated; an epoch lasts from one to the next, so that
    pauses at its end (validation, checkpoints) count. The time before the first includes loading and compiling,
    and does not count. The answer is the median of the last epochs: neither a pause of the machine nor a jump of the
    clock moves it. Times no epoch can take are ignored.

    Parameters
    ----------
    started_s, done_epochs
        When the job was started, and how many epochs it had done.
    last
        How many epochs the median is over.

    Attributes
    ----------
    epochs
        Whole epochs measured.
    """

    def __init__(self, started_s: float, done_epochs: float, last: int = 5) -> None:
        self._last: deque[float] = deque(maxlen=last)
        self.epochs = 0
        self._begun = (started_s, done_epochs)
        self._at_s, self._done = started_s, done_epochs
        self._first: tuple[float, float] | None = None  # report since then
        self._passed_s: float | None = None  # when it last completed an epoch

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch; ``None`` before a whole one was measured."""
        return float(median(self._last)) if self._last else None

    @property
    def rough_s(self) -> float | None:
        """The same from all there is: parts of an epoch, or the first one with the time that precedes it."""
        if self._last:
            return self.epoch_s
        since_s, since = self._begun if self._first is None or self._first == (self._at_s, self._done) else self._first
        if self._done <= since or self._at_s <= since_s:
            return None
        epoch_s = (self._at_s - since_s) / (self._done - since)
        return epoch_s if _sound(epoch_s) else None

    @property
    def done_epochs(self) -> float:
        """Epochs, and parts of one, done since it was started, or since its progress last fell back."""
        return self._done - self._begun[1]

    def observe(self, at_s: float, done_epochs: float) -> None:
        """Take in a report of epochs done; where progress or the clock falls back, measuring begins anew."""
        if not (math.isfinite(at_s) and math.isfinite(done_epochs)):
            return
        if done_epochs == self._done and at_s >= self._at_s:
            return
        if done_epochs < self._done or at_s <= self._at_s:
            self._begin(at_s, done_epochs)
            return
        if self._first is None:  # how much of the time before was work is unknown
            self._first = (at_s, done_epochs)
            self._passed_s = at_s if done_epochs == math.floor(done_epochs) else None
        else:
            self._pass(at_s, done_epochs)
        self._at_s, self._done = at_s, done_epochs

    def _pass(self, at_s: float, done_epochs: float) -> None:
        """Count the epochs completed since the last report."""
        first, end = math.floor(self._done) + 1, math.floor(done_epochs)
        if end < first:
            return
        pace_s = (at_s - self._at_s) / (done_epochs - self._done)
        if self._passed_s is not None:
            self._count(self._at_s + (first - self._done) * pace_s - self._passed_s, 1)
        self._count(pace_s, end - first)
        passed_s = self._at_s + (end - self._done) * pace_s
        self._passed_s = passed_s if math.isfinite(passed_s) else None

    def _begin(self, at_s: float, done_epochs: float) -> None:
        self._begun = (at_s, done_epochs)
        self._at_s, self._done = at_s, done_epochs
        self._first = self._passed_s = None

    def _count(self, epoch_s: float, epochs: int) -> None:
        if not _sound(epoch_s):
            return
        self.epochs += epochs
        self._last.extend([epoch_s] * min(epochs, self._last.maxlen or 0))


def _sound(epoch_s: float) -> bool:
    return SHORTEST_EPOCH_S <= epoch_s <= LONGEST_EPOCH_S


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
    scaling_types: Collection[str] = (),
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
    scaling_types
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
            return 1, there.gpu_type in scaling_types, -there.gpus
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
