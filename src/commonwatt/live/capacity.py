"""The capacity plan of a live cluster: which nodes stay on, forecast from what was wanted so far."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from commonwatt.control.capacity import Capacity
from commonwatt.forecasting.predictors import PREDICTORS
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.errors import CommonwattError, InputError
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import DAY_S
from commonwatt.simulation.capacity import (
    Fits,
    Past,
    calibrated_on,
    check_capacity,
    check_forecaster,
    check_rules,
    make_capacity,
)
from commonwatt.store.records import SampleRow

__all__ = ["check_plan", "demand_of_samples", "live_capacity", "since_s"]

_RENEW_S = 3600.0
_NEARLY = 0.95

log = logging.getLogger("commonwatt.capacity")


def demand_of_samples(samples: Sequence[SampleRow], step_s: float) -> DemandSeries | None:
    """Return the most GPUs wanted in each whole step between the first sample and the last; ``None`` if too few.

    Between samples the last one holds: a controller ticks whenever something changes.
    """
    if not samples:
        return None
    times = np.array([sample.time_s for sample in samples])
    wanted = np.array([sample.wanted_gpus for sample in samples], dtype=float)
    first = int(np.ceil(times[0] / step_s))
    steps = int(times[-1] // step_s) - first
    if steps < 1:
        return None
    at = (times // step_s).astype(np.int64) - first
    gpus = wanted[np.searchsorted(times, (first + np.arange(steps)) * step_s, side="right") - 1]
    inside = (at >= 0) & (at < steps)
    np.maximum.at(gpus, at[inside], wanted[inside])
    return DemandSeries(first * step_s, step_s, gpus)


def check_plan(plan: CapacitySpec, cluster: Cluster, folder: Path, *, knows_the_future: bool = False) -> None:
    """Raise, before anything runs, on a plan that cannot work here, whatever history there will be.

    In a simulation of what has been the future is known.

    Raises
    ------
    InputError
        For a policy that needs the future, states no node has or that are too slow, and a forecaster there is none of.
    MissingExtraError
        If a package the forecaster needs is not installed.
    """
    if plan.policy == "foresight" and not knows_the_future:
        raise InputError("a policy that needs no future", field="capacity.policy", value=plan.policy)
    check_rules(plan, cluster)
    check_forecaster(plan, folder)


def live_capacity(
    plan: CapacitySpec, cluster: Cluster, samples: Sequence[SampleRow], folder: Path, seed: int, now_s: float,
    fits: Fits,
) -> Capacity:  # fmt: skip
    """Build the plan, one that ``check_plan`` has let pass, from the *samples* so far.

    While its forecaster cannot be fitted to them, as there are too few or whatever the reason, what is wanted now stays
    on, and it is to be built anew in an hour. *fits* is what was fitted for the plans before: that is kept until there
    is twice as much to learn from, a day at most, and then the plan is to be built anew.
    """
    demand = demand_of_samples(samples, plan.step_s)
    past = Past({} if demand is None else {(plan.step_s, plan.history_days): demand}, folder)
    try:
        check_capacity(plan, cluster, past)
        _check_enough(plan, demand)
        return _made(plan, cluster, past, seed, now_s, fits)
    except Exception as error:  # the libraries' own, too: jobs are to be placed, whatever they make of their demand
        if not plan.forecasts:
            raise
        told = isinstance(error, CommonwattError)
        log.warning("no forecast yet: what is wanted now stays on", extra={"cause": str(error)}, exc_info=not told)
    plain = make_capacity(plan.model_copy(update={"policy": "last-value"}), cluster, past, seed)
    plain.renew_s = now_s + _RENEW_S
    return plain


def _made(plan: CapacitySpec, cluster: Cluster, past: Past, seed: int, now_s: float, fits: Fits) -> Capacity:
    """Build the plan, fitting anew what is due; it is to be built anew when that will be due."""
    due, demand = now_s >= fits.due_s, past.demand(plan)
    if due:
        fits.forget()
    made = make_capacity(plan, cluster, past, seed, fits=fits)
    if demand is not None and _learns(plan):
        if due:
            fits.due_s = now_s + min(DAY_S, max(_RENEW_S, plan.step_s * len(demand)))
        made.renew_s = fits.due_s
    return made


def _learns(plan: CapacitySpec) -> bool:
    return plan.forecasts and plan.forecaster in PREDICTORS and PREDICTORS[plan.forecaster].learns


def _check_enough(plan: CapacitySpec, demand: DemandSeries | None) -> None:
    """Raise ``InputError`` while the forecaster would learn next to nothing, and there will be more to learn from."""
    if demand is None or not _learns(plan):
        return
    least, most = PREDICTORS[plan.forecaster].least, plan.history_days * DAY_S / plan.step_s
    learnt = len(demand) - calibrated_on(plan, len(demand))
    if learnt < least and len(demand) < _NEARLY * most:  # the first and the last steps are seldom whole
        expected = f"{least} steps of demand to fit to, besides those it is calibrated on"
        raise InputError(expected, field="capacity.forecaster", value=f"{learnt} steps")


def since_s(plan: CapacitySpec, now_s: float) -> float:
    """From when on samples count for *plan*."""
    return now_s - plan.history_days * DAY_S
