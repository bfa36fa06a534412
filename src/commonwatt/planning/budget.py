"""What limits and prices a plan: electricity over time, a budget of power, and a price of delay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.capacity import make_calibrator
from commonwatt.capacity.scores import job_delays_s
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.capacity import Target, WaitingTarget, target_label
from commonwatt.model.demand import LEVELS
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_results import ForecastBudget, ForecastPricedTarget
from commonwatt.model.units import HOUR_S, plural
from commonwatt.planning.waiting import Hindsight, Price

if TYPE_CHECKING:
    from commonwatt.planning.series import LoadedSeries

__all__ = ["CANDIDATES", "PowerBudget", "cheapest_target", "within_budget"]

CANDIDATES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""Shares of jobs among which a price of delay chooses."""


@dataclass(frozen=True)
class PowerBudget:
    """GPUs that a limit of power allows.

    Parameters
    ----------
    limit_w
        The limit at each value of the series, and at the steps after it, W; infinity for none. Shape [T + m].
    gpu_w
        Power of a GPU that is on, W.
    """

    limit_w: Floats
    gpu_w: float

    @property
    def gpus(self) -> Floats:
        """Most GPUs that may be on, infinity for no limit. Shape [T + m]."""
        return np.floor(self.limit_w / self.gpu_w + 1e-9) if self.gpu_w > 0 else np.full(len(self.limit_w), np.inf)

    @classmethod
    def of(cls, loaded: LoadedSeries, steps: int, price: Price) -> PowerBudget | None:
        """Return the budget of *price* along a series and *steps* after it; ``None`` if there is none.

        Raises
        ------
        InputError
            For a limit without the power of a GPU, and one below what runs at the end of the series.
        """
        if not price.limits:
            return None
        series = loaded.file.series
        if price.gpu_w is None:
            raise InputError("the power of a GPU that is on, for a limit of power", field="gpu_w", value="none")
        times_s: Floats = series.start_s + series.step_s * np.arange(len(series) + steps, dtype=np.float64)
        budget = cls(price.limit_at(times_s), price.gpu_w)
        running, allowed = float(series.filled()[-1]), float(budget.gpus[len(series)])
        if running > allowed:
            least_kw = np.ceil(running) * price.gpu_w / 1000
            expected = f"{least_kw:g} kW or more, as {plural(round(running), 'GPU')} run at the end of the series"
            raise InputError(expected, field="power_kw", value=f"{budget.limit_w[len(series)] / 1000:g}")
        return budget


def within_budget(budget: PowerBudget, outcome: Hindsight, begin: int, wanted: Floats) -> ForecastBudget:
    """Say when *budget* binds over a replay from index *begin* on, and who waits because of it.

    *wanted* are the GPUs that the plan would keep on without it. Shape [T].
    """
    allowed = budget.gpus[begin : begin + len(wanted)]
    finite = ~np.isnan(outcome.actual)
    jobs = outcome.arrivals
    more, delayed_s = None, np.zeros(0)
    if jobs is not None and len(jobs):
        with_it, without = (
            job_delays_s(on, jobs.index, jobs.met_gpus, outcome.step_s, outcome.steps)
            for on in (np.minimum(wanted, allowed), wanted)
        )
        later = with_it > without
        more, delayed_s = int(later.sum()), (with_it - without)[later]
    binding = finite & (wanted > allowed)
    beyond = int((finite & (outcome.actual > allowed)).sum())
    return ForecastBudget(
        least_kw=float(budget.limit_w[begin:].min()) / 1000,
        binding=int(binding.sum()),
        beyond=beyond,
        jobs_delayed=more,
        mean_delay_s=float(delayed_s.mean()) if len(delayed_s) else None,
        sentence=_sentence(int(binding.sum()), int(finite.sum()), beyond, more),
    )


def _sentence(binding: int, instants: int, beyond: int, jobs: int | None) -> str:
    if not binding:
        return "the power budget allowed all GPUs that the promise needed"
    waited = (
        ""
        if jobs is None
        else f"; {plural(jobs, 'job')} waited, or waited longer, for power, not because of a forecast"
    )
    return (
        f"the power budget allowed fewer GPUs than the promise needed at {binding:,} of {instants:,} instants, fewer "
        f"than were wanted at {beyond:,}{waited}"
    )


def cheapest_target(
    loaded: LoadedSeries, origins: Ints, quantiles: Floats, price: Price, *, total_gpus: int | None, begin: int
) -> tuple[Target, tuple[ForecastPricedTarget, ...]]:
    """Return the promise to jobs of least cost, energy and delay together, over the values up to index *begin*.

    Parameters
    ----------
    origins, quantiles
        Forecasts: index of the last value each uses, one apart, and GPUs. Shapes [N] and [N, m, Q].

    Raises
    ------
    InputError
        For a series without jobs, or without any before index *begin*, and for no price of energy or power of a GPU.
    """
    jobs, m, series = loaded.arrivals, quantiles.shape[1], loaded.file.series
    if jobs is None or not len(jobs):
        said = "a job log with jobs; a series has no waiting times"
        raise InputError(said, field="delay_price", value=price.delay_per_gpu_h)
    if price.gpu_w is None or not price.is_priced:
        expected = "the power of a GPU and a price of energy, which delay is weighed against"
        raise InputError(expected, field="delay_price", value=price.delay_per_gpu_h)
    first = int(origins[0]) + m
    used = origins < begin - m
    outcome = Hindsight.of(series.gpus[:begin], first, jobs, series.step_s, m, price, series.time_s(first))
    if outcome.waiting(np.zeros(len(outcome.actual))) is None:
        expected = "jobs in the week before the replay, whose waiting is priced"
        raise InputError(expected, field="delay_price", value=price.delay_per_gpu_h)
    rows = []
    for share in CANDIDATES:
        target = WaitingTarget(jobs=share)
        calibrator = make_calibrator(target, step_s=series.step_s, whole_gpus=total_gpus, steps=m)
        kept = calibrator.follow(series.gpus, origins[used], LEVELS, quantiles[used], jobs)
        row = _priced(target, outcome, kept.gpus[:, -1].astype(float), price)
        rows.append(row)
    best = min(rows, key=lambda row: (row.energy_cost + row.delay_cost, row.energy_cost))
    return WaitingTarget(jobs=CANDIDATES[rows.index(best)]), tuple(rows)


def _priced(target: WaitingTarget, outcome: Hindsight, on: Floats, price: Price) -> ForecastPricedTarget:
    worth = outcome.worth(target.label, on)
    waited = 0.0
    if worth.waiting is not None:
        waited = worth.waiting.delayed_gpu_h_per_day * len(outcome.actual) * outcome.step_s / (24 * HOUR_S)
    delay_cost = waited * (price.delay_per_gpu_h or 0.0)
    return ForecastPricedTarget(
        label=target_label(target), energy_cost=worth.cost or 0.0, delay_cost=delay_cost, delayed_gpu_h=waited
    )
