"""A promise about waiting: jobs find enough GPUs powered on at submission, or wait little.

Each past job shows by how much the median forecast, made a wake-up time before, fell short of the demand it
met. In units of the scale ``sqrt(GPUs that came lately)`` these shortfalls are the scores of the job; GPUs are kept on
at *median + margin x scale*. The margin is the smallest one that would have cost no more than was allowed over the last
days, where "allowed" is the promised rate plus what an account of outcomes holds: jobs allowed to wait, less jobs that
waited. With a surplus the margin falls, in debt it rises (adaptive conformal inference: Gibbs and Candes, NeurIPS 2021;
for losses other than misses, conformal risk control: Angelopoulos, Bates, Fisch, Lei and Schuster, ICLR 2024).

Arrivals come in bursts, and bursts in campaigns: a short memory forgets a campaign that has ended, a long one knows its
bursts. The margin is the mean of both. A burst larger than any before is a debt that no margin would have avoided, and
a margin for it, kept for days, costs more than it serves: a debt raises the margin by a quarter at most, and is
repaid for longer.

Symbols: m steps ahead, J jobs, s = (demand met - median) / scale.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from commonwatt.capacity._promise import (
    MARGIN,
    WINDOW,
    Calibrator,
    Followed,
    OnlineCalibrator,
    PromiseState,
    follow,
)
from commonwatt.capacity.scores import kept_on
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.capacity import Target, WaitingTarget
from commonwatt.model.demand import HORIZON, Arrivals, quantile_at
from commonwatt.model.errors import InputError
from commonwatt.model.units import DAY_S, plural

__all__ = ["WaitingCalibrator", "make_calibrator"]

MEMORY_DAYS = (0.5, 3.0)
"""Days of jobs from which a margin is learned; the mean of these margins is kept."""

SPENT_DAYS, REPAID_DAYS = 1.0, 3.0
"""Days in which a surplus of the account is spent, and a debt is repaid."""

RAISED = 0.25
"""Part of the margin for the promised rate by which a debt raises it, at most."""

HALF_LIFE_DAYS = 2.0
"""Age at which an outcome counts half in the account."""

BURST_S = 1200.0
"""Half-life of "GPUs that came lately"."""

QUIET = 0.1
"""Part of the mean GPUs that come in a step which is added to those that came lately: a burst may begin any time."""

LEAST_JOBS, EVERY = 20, 10
"""Jobs needed for a margin; steps between two margins."""


@dataclass(frozen=True)
class _Issued:
    """What a forecast said: medians, the scale, and GPUs kept on but for the fallback. Shapes [m], [], [m]."""

    median: Floats
    scale: float
    planned: Ints


class _Scores:
    """Scores of jobs by age: rows of time, weight and a score for each step ahead."""

    def __init__(self, steps: int) -> None:
        self._times, self._weights = np.empty(256, dtype=np.int64), np.empty(256)
        self._rows = np.empty((256, steps))
        self._begin = self._end = 0

    def push(self, time: int, weights: Floats, rows: Floats) -> None:
        """Add *rows* [J, m] of *weights* [J]."""
        count = len(rows)
        if self._end + count > len(self._times):
            kept = slice(self._begin, self._end)
            size = 2 * (self._end - self._begin + count) + 256
            for name in ("_times", "_weights", "_rows"):
                old = getattr(self, name)
                new = np.empty((size, *old.shape[1:]), dtype=old.dtype)
                new[: self._end - self._begin] = old[kept]
                setattr(self, name, new)
            self._begin, self._end = 0, self._end - self._begin
        place = slice(self._end, self._end + count)
        self._times[place], self._weights[place], self._rows[place] = time, weights, rows
        self._end += count

    def forget(self, before: int, least: int) -> None:
        """Drop rows from before a time, but keep the last *least*."""
        first = self._begin + int(np.searchsorted(self._times[self._begin : self._end], before))
        self._begin = max(self._begin, min(first, self._end - least))

    def since(self, time: int, least: int) -> tuple[int, Floats, Floats]:
        """Return the time of the first row, and weights [J] and scores [J, m], from *time* on; *least* rows or more."""
        first = self._begin + int(np.searchsorted(self._times[self._begin : self._end], time))
        first = max(self._begin, min(first, self._end - least))
        own = slice(first, self._end)
        return min(time, int(self._times[first])), self._weights[own], self._rows[own]

    def __len__(self) -> int:
        return self._end - self._begin


class WaitingCalibrator:
    """GPUs to keep on, such that jobs wait no longer, or no more often, than promised.

    Call ``observe`` with each value and the jobs that came with it, and ``keep_on_rows`` with each forecast. Until a
    window of instants and enough jobs for the target have been seen, and after a window that is mostly unknown,
    everything stays on. In debt beyond all that was allowed in three days the promise is reported as not kept.

    Parameters
    ----------
    target
        What is promised.
    step_s
        Seconds between values.
    whole_gpus
        All GPUs; ``None``: the most ever observed or forecast.
    steps
        Steps forecast (m): the time a node takes to wake. Each has a margin and an account of its own.

    Raises
    ------
    InputError
        For jobs that may wait longer than a node takes to wake: waking on demand keeps that without a plan.
    """

    def __init__(
        self, target: WaitingTarget, *, step_s: float, whole_gpus: int | None = None, steps: int = HORIZON
    ) -> None:
        self.target, self.whole_gpus, self._step_s = target, whole_gpus, step_s
        self._all = math.inf if whole_gpus is None else float(whole_gpus)
        self._patience = math.floor(target.patience_s / step_s + 1e-9)
        if self._patience >= steps:
            expected = f"a delay below {steps * step_s:g} s, in which any node wakes; a longer one needs no plan"
            raise InputError(expected, field="target", value=target.label)
        day = max(1, round(DAY_S / step_s))
        self._day = day
        self._by_share = target.delayed_gpu_h is None
        # A job, or a step. Of jobs exactly the promised share: more served is paid for, and a debt is repaid anyway.
        self._allowed = 1.0 - target.share if self._by_share else (1.0 - MARGIN) * target.budget_gpu_s / day
        self._keeps = 0.5 ** (1.0 / (HALF_LIFE_DAYS * day))
        self._burst = 1.0 - 0.5 ** (step_s / BURST_S)
        self._lately = self._mean = self._most = 0.0
        self._now = 0
        self._account: Floats = np.zeros(steps)
        self._margin: Floats = np.zeros(steps)
        self._scores = _Scores(steps)
        self._issued: deque[_Issued] = deque(maxlen=steps)
        # of jobs of the last instants: demand met [J], GPUs [J], least score so far [J, m], whether served yet [J, m]
        self._pending: deque[tuple[Floats, Floats, Floats, np.ndarray]] = deque()
        self._recent: deque[bool] = deque(maxlen=WINDOW)  # whether each value is known
        self._jobs = self._served = 0
        self._began: int | None = None  # when the first job was judged

    @property
    def shift_gpus(self) -> None:
        """Nothing: margins of jobs are no shifts of the quantiles of demand."""
        return

    @property
    def state(self) -> PromiseState:
        """Whether the promise can be kept now, and why not."""
        wrong = self._obstacle()
        return PromiseState(
            kept=wrong is None,
            sentence=wrong or f"calibrated on {plural(self._jobs, 'job')}",
            achieved=self._served / self._jobs if self._jobs else None,
        )

    def _obstacle(self) -> str | None:
        if blind := self._blind():
            return blind
        if self._account[-1] <= -self._repayable():
            return (
                f"lately jobs waited more than promised ({self._jobs - self._served} of {self._jobs} so far); a larger "
                "margin is kept until that is repaid"
            )
        return None

    def _blind(self) -> str | None:
        """Return why nothing can be promised yet; everything stays on then."""
        if self.target.share >= 1.0:
            return "a target of 100% keeps everything on"
        if len(self._recent) < WINDOW:
            return f"only {len(self._recent)} of the {WINDOW} outcomes needed have been seen"
        if (unknown := self._recent.count(False)) * 2 > WINDOW:
            return f"demand is unknown at {unknown} of the last {WINDOW} instants"
        if self._jobs < (need := self._needed()):
            return f"only {self._jobs} of the {need} jobs needed have come"
        return None

    def _needed(self) -> int:
        """Jobs of which at least one may wait."""
        return max(LEAST_JOBS, math.ceil(1.0 / (1.0 - self.target.share) - 1e-9)) if self._by_share else LEAST_JOBS

    def _repayable(self) -> float:
        """Debt as large as all that was allowed in the days remembered, in units of the account."""
        if not self._by_share:
            return self._allowed * min(MEMORY_DAYS[-1] * self._day, self._now)
        return max(1.0, self._allowed * len(self._scores))

    @property
    def everything_gpus(self) -> int:
        """All GPUs; the most ever observed or forecast where that is unknown."""
        return math.ceil(self._most) if self.whole_gpus is None else self.whole_gpus

    def keep_on_rows(self, levels: Floats, quantiles: Floats) -> Ints:
        """Return the GPUs to keep on at each step for quantiles at *levels*, shape [m, Q]. Shape [m]."""
        median = quantile_at(levels, quantiles, 0.5)
        self._most = max(self._most, float(quantiles.max()))
        scale = math.sqrt(self._lately + QUIET * self._mean + 1e-3)
        planned = kept_on(median + self._margin * scale, self._all).astype(np.int64)
        self._issued.appendleft(_Issued(median, scale, planned))
        if self._blind() is None:
            return planned
        return np.full(len(median), self.everything_gpus, dtype=np.int64)

    def observe(self, gpus: float, arrivals: Arrivals | None = None) -> None:
        """Observe one more value, GPUs (NaN if unknown), and the jobs that came since the value before it."""
        has_value, arrivals = not math.isnan(gpus), arrivals or Arrivals.none()
        self._recent.append(has_value)
        self._now += 1
        self._account *= self._keeps
        self._lately += self._burst * (float(arrivals.gpus.sum()) - self._lately)
        seen = min(self._now, round(MEMORY_DAYS[-1] * self._day))
        self._mean += (float(arrivals.gpus.sum()) - self._mean) / seen
        if has_value:
            self._most = max(self._most, gpus)
        steps = len(self._margin)
        if len(self._issued) == steps:
            self._judge(arrivals, has_value=has_value)
        if not self._by_share:
            self._account += self._allowed
        if self._now % EVERY == 0 and len(self._scores) >= LEAST_JOBS:
            self._scores.forget(self._now - round(MEMORY_DAYS[-1] * self._day), LEAST_JOBS)
            self._set_margins()

    def _judge(self, arrivals: Arrivals, *, has_value: bool) -> None:
        """Score the jobs that came now, and those still waiting, against what was forecast for now."""
        steps = np.arange(len(self._margin))
        median = np.array([self._issued[h].median[h] for h in steps])
        scale = np.array([self._issued[h].scale for h in steps])
        planned = np.array([self._issued[h].planned[h] for h in steps])
        count = len(arrivals.gpus) if has_value else 0
        met = np.minimum(arrivals.met_gpus[:count], self._all)
        fresh = np.full((count, len(steps)), np.inf), np.zeros((count, len(steps)), dtype=bool)
        self._pending.appendleft((met, arrivals.gpus[:count], *fresh))
        last = self._patience if self._by_share else len(steps) - 1
        for age, (demand, gpus, least, served) in enumerate(self._pending):
            if not len(demand):
                continue
            np.minimum(least, (demand[:, None] - median) / scale, out=least)
            served |= planned >= demand[:, None]
            if not self._by_share:
                self._charge(gpus * self._step_s, least, served)
            elif age == last:
                self._charge(np.ones(len(demand)), least, served)
                self._account += self._allowed * len(demand)
            if age == last:
                self._jobs += len(demand)
                self._served += int(served[:, -1].sum())
        if len(self._pending) > last:
            self._pending.pop()

    def _charge(self, weights: Floats, scores: Floats, served: np.ndarray) -> None:
        self._account -= weights @ ~served
        self._began = self._now if self._began is None else self._began
        self._scores.push(self._now, weights, scores)

    def _set_margins(self) -> None:
        """Set the margin of each step to the mean of those learned from a short and from a long memory."""
        began = 0 if self._began is None else self._began
        margins = np.empty((len(MEMORY_DAYS), len(self._margin)))
        for k, days in enumerate(MEMORY_DAYS):
            first, weights, rows = self._scores.since(max(began, self._now - round(days * self._day)), LEAST_JOBS)
            span = max(1, self._now - first + 1)
            rate = self._allowed * (len(rows) if self._by_share else span)
            for h, balance in enumerate(self._account):
                within = (SPENT_DAYS if balance >= 0 else REPAID_DAYS) * self._day
                plain, wanted = _least_margins(rows[:, h], weights, np.array([rate, rate + balance * span / within]))
                margins[k, h] = min(wanted, plain + RAISED * abs(plain))
        self._margin = margins.mean(axis=0)

    def follow(
        self, gpus: Floats, origins: Ints, levels: Floats, quantiles: Floats, arrivals: Arrivals | None = None
    ) -> Followed:
        """Run along a series as ``Calibrator.follow`` does; *arrivals* are all jobs of the series."""
        return follow(self, gpus, origins, levels, quantiles, arrivals)


def make_calibrator(target: Target, *, step_s: float, whole_gpus: int | None, steps: int) -> OnlineCalibrator:
    """Return the calibrator of a *target*: a share of instants, or a promise about waiting.

    Raises
    ------
    InputError
        As ``Calibrator`` and ``WaitingCalibrator``.
    """
    if isinstance(target, WaitingTarget):
        return WaitingCalibrator(target, step_s=step_s, whole_gpus=whole_gpus, steps=steps)
    return Calibrator(target, whole_gpus=whole_gpus, steps=steps)


def _least_margins(scores: Floats, weights: Floats, allowed: Floats) -> Floats:
    """Return for each of *allowed* the least score such that the *weights* of those above it are at most that.

    The largest if nothing is allowed, the smallest if everything is. Shapes [J], [J], [A]; result [A].
    """
    order = np.argsort(-scores, kind="stable")
    above = np.cumsum(weights[order])
    index = np.searchsorted(above, np.maximum(0.0, allowed) + 1e-9, side="right")
    margins: Floats = scores[order[np.minimum(index, len(scores) - 1)]]
    return margins
