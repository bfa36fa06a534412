"""What a promise comes to in hindsight: who waited, what the GPUs kept on cost, and what other ways would have cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commonwatt.capacity.scores import job_delays_s, percentile, shift_for, slots_served
from commonwatt.model.arrays import Floats
from commonwatt.model.capacity import Target, WaitingTarget, target_label, target_number
from commonwatt.model.demand import Arrivals
from commonwatt.model.electricity import NO_CAP_W, Tariff
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_results import ForecastWaiting, ForecastWorth
from commonwatt.model.units import DAY_S, HOUR_S

__all__ = ["Hindsight", "Price", "check_target"]


@dataclass(frozen=True)
class Price:
    """What a GPU that is on costs.

    Parameters
    ----------
    gpu_w
        Power of a GPU that is on, W; ``None``: no energies.
    per_kwh
        Money for a kWh; ``None``: no costs, or those of *tariff*.
    tariff
        Price, carbon intensity and limit of power over time, on the clock of the series.
    limit_w
        Most that the GPUs that are on may draw together, W; ``None``: no limit but that of *tariff*.
    delay_per_gpu_h
        Money that a GPU hour of waiting costs; ``None``: unknown.
    currency
        Of the prices.
    """

    gpu_w: float | None = None
    per_kwh: float | None = None
    tariff: Tariff | None = None
    limit_w: float | None = None
    delay_per_gpu_h: float | None = None
    currency: str = "EUR"

    @property
    def is_priced(self) -> bool:
        """Whether energy has a price."""
        return self.per_kwh is not None or self.tariff is not None

    @property
    def limits(self) -> bool:
        """Whether there is a limit of power."""
        return self.limit_w is not None or (self.tariff is not None and self.tariff.cap_w is not None)

    def limit_at(self, times_s: Floats) -> Floats:
        """Return the limit of power at each of *times_s*, W; infinity where there is none."""
        limit_w = np.full(len(times_s), np.inf if self.limit_w is None else self.limit_w)
        if self.tariff is not None and self.tariff.cap_w is not None:
            own_w = self.tariff.cap_w.at(times_s)
            limit_w = np.minimum(limit_w, np.where(own_w >= NO_CAP_W, np.inf, own_w))
        return limit_w

    def cost(self, kwh: Floats, times_s: Floats) -> float | None:
        """Return what *kwh* used at *times_s* cost; ``None`` without a price."""
        if self.tariff is not None:
            return float(kwh @ self.tariff.price.at(times_s))
        return None if self.per_kwh is None else float(kwh.sum()) * self.per_kwh

    def carbon_kg(self, kwh: Floats, times_s: Floats) -> float | None:
        """Return the emissions of *kwh* used at *times_s*, kg; ``None`` where the intensity is unknown."""
        if self.tariff is None or self.tariff.carbon is None:
            return None
        return float(kwh @ self.tariff.carbon.at(times_s)) / 1000


def check_target(target: Target, arrivals: Arrivals | None) -> None:
    """Raise ``InputError`` for a promise about jobs where nothing says when jobs came."""
    if isinstance(target, WaitingTarget) and (arrivals is None or not len(arrivals)):
        expected = "a job log for a promise about jobs (a series does not say when jobs come), or a share such as 0.98"
        raise InputError(expected, field="target", value=target_label(target))


@dataclass(frozen=True)
class Hindsight:
    """A part of a series that has passed, by which ways of keeping GPUs on are scored.

    Parameters
    ----------
    actual
        Demand, GPUs, NaN where unknown. Shape [T].
    arrivals
        The jobs that came, by index into *actual*; ``None`` if unknown.
    step_s, steps
        Seconds between values, and values a node takes to wake.
    start_s
        Time of the first value, for prices that change.
    """

    actual: Floats
    arrivals: Arrivals | None
    step_s: float
    steps: int
    price: Price
    start_s: float = 0.0

    @classmethod
    def of(
        cls, gpus: Floats, begin: int, arrivals: Arrivals | None, step_s: float, steps: int, price: Price,
        start_s: float = 0.0,
    ) -> Hindsight:  # fmt: skip
        """Return the part of a series from index *begin* on, with its jobs."""
        own = None
        if arrivals is not None:
            late = arrivals.between(begin, len(gpus))
            own = Arrivals(late.index - begin, late.gpus, late.met_gpus)  # known earlier or not: who waits is the same
        return cls(gpus[begin:], own, step_s, steps, price, start_s)

    def waiting(self, on: Floats) -> ForecastWaiting | None:
        """Return who would have waited with *on* GPUs on; ``None`` without jobs."""
        jobs = self.arrivals
        if jobs is None or not len(jobs):
            return None
        delays_s = job_delays_s(on, jobs.index, jobs.met_gpus, self.step_s, self.steps)
        finite = ~np.isnan(delays_s)
        if not finite.any():
            return None
        delays_s, gpus = delays_s[finite], jobs.gpus[finite]
        days = len(self.actual) * self.step_s / DAY_S
        return ForecastWaiting(
            jobs=len(delays_s),
            jobs_served=float((delays_s == 0).mean()),
            delayed_jobs=int((delays_s > 0).sum()),
            mean_delay_s=float(delays_s.mean()),
            mean_delay_of_delayed_s=float(delays_s[delays_s > 0].mean()) if (delays_s > 0).any() else None,
            p95_delay_s=percentile(delays_s, 0.95),
            p99_delay_s=percentile(delays_s, 0.99),
            delayed_gpu_h_per_day=float(gpus @ delays_s) / HOUR_S / days,
        )

    def achieved(self, target: Target, on: Floats) -> float | None:
        """Return what was achieved of *target*: a share of instants or of jobs, or GPU hours of waiting a day."""
        if not isinstance(target, WaitingTarget):
            return _or_none(slots_served(on, self.actual))
        waiting = self.waiting(on)
        if waiting is None or self.arrivals is None:
            return None
        if target.of == "jobs":
            return waiting.jobs_served
        if target.of == "delayed_gpu_h":
            return waiting.delayed_gpu_h_per_day
        delays_s = job_delays_s(on, self.arrivals.index, self.arrivals.met_gpus, self.step_s, self.steps)
        return float((delays_s[~np.isnan(delays_s)] <= target.patience_s + 1e-9).mean())

    def shift(self, target: Target, on: Floats) -> float:
        """Return the fewest whole GPUs that, added to *on*, would have kept *target*; it knows the outcome."""
        if not isinstance(target, WaitingTarget):
            return shift_for(target, on, self.actual)
        jobs = self.arrivals
        assert jobs is not None
        if target.of == "jobs":
            return shift_for(target.share, on[jobs.index], jobs.met_gpus)
        low, high = -math.ceil(float(on.max())) - 1, math.ceil(float(np.nanmax(self.actual))) + 1
        while high - low > 1:  # waiting falls as the shift grows
            middle = (low + high) // 2
            low, high = (low, middle) if self._kept(target, np.maximum(on + middle, 0.0)) else (middle, high)
        return float(high)

    def factor(self, target: Target, on: Floats) -> float:
        """Return the least part of *on* that, added to it, would have kept *target*, which is of instants or jobs.

        Where none would have, as nothing was on when GPUs were wanted: the one that comes nearest to it.
        """
        share, index, met = target_number(target), np.arange(len(on)), self.actual
        if isinstance(target, WaitingTarget) and self.arrivals is not None:
            index, met = self.arrivals.index, self.arrivals.met_gpus
        finite = ~np.isnan(met)
        kept = on[index][finite]
        # a part of nothing serves nothing: where no GPUs were on, no factor would have helped unless none were wanted
        parts = np.divide(met[finite], kept, out=np.where(met[finite] > 0, np.inf, 0.0), where=kept > 0)
        factor = percentile(parts, share) - 1.0
        return factor if math.isfinite(factor) else float(parts[np.isfinite(parts)].max(initial=1.0)) - 1.0

    def _kept(self, target: WaitingTarget, on: Floats) -> bool:
        achieved = self.achieved(target, on)
        if achieved is None:
            return True
        return achieved <= (target.delayed_gpu_h or 0.0) if target.of == "delayed_gpu_h" else achieved >= target.share

    def like(self, on: Floats) -> Target:
        """Return the target that *on* has kept exactly: of jobs where jobs are known, else of instants."""
        waiting = self.waiting(on)
        if waiting is not None and waiting.jobs_served > 0:
            return WaitingTarget(jobs=waiting.jobs_served)
        return max(slots_served(on, self.actual), 1e-9)

    def worth(self, name: str, on: Floats) -> ForecastWorth:
        """Return what a way of keeping GPUs on costs, and whom it lets wait."""
        finite = ~np.isnan(self.actual)
        hours = float(on[finite].sum()) * self.step_s / HOUR_S
        kwh = None if self.price.gpu_w is None else on[finite] * (self.step_s / HOUR_S * self.price.gpu_w / 1000)
        times_s: Floats = self.start_s + self.step_s * np.flatnonzero(finite).astype(np.float64)
        return ForecastWorth(
            name=name,
            performance=_or_none(slots_served(on, self.actual)),
            gpu_hours=hours,
            energy_kwh=None if self.price.gpu_w is None else hours * self.price.gpu_w / 1000,
            cost=None if kwh is None else self.price.cost(kwh, times_s),
            carbon_kg=None if kwh is None else self.price.carbon_kg(kwh, times_s),
            waiting=self.waiting(on),
        )


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
