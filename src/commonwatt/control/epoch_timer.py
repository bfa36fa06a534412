"""How long an epoch of a running job takes, from the progress it reports."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from commonwatt.model.job_file import LONGEST_EPOCH_S, SHORTEST_EPOCH_S

__all__ = ["EpochTimer"]


class EpochTimer:
    """Measures whole epochs of a job in one configuration, from reports of the epochs it has done.

    The moments at which the job completed an epoch are interpolated; an epoch lasts from one to the next, so that
    pauses at its end (validation, snapshots) count. The time before the first has loading and compiling in it, and does
    not count. The answer is the median of the last epochs: a pause of the machine, or a jump of the clock, does not
    move it. Times no epoch can take are ignored.

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
