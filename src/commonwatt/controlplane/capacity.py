"""The capacity plan of a live cluster: which nodes stay on, forecast from the demand so far."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from commonwatt.capacity import calibration_steps, check_spec
from commonwatt.control.capacity import Capacity
from commonwatt.forecasting import PREDICTORS
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import DemandSeries
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import CommonwattError, InputError
from commonwatt.model.nodes import Cluster
from commonwatt.model.pools import Pools
from commonwatt.model.units import DAY_S, plural
from commonwatt.planning.capacity import (
    FitCache,
    Past,
    check_capacity,
    check_forecaster,
    demand_of_samples,
    make_capacity,
)
from commonwatt.store.records import SampleRow

__all__ = ["check_plan", "live_capacity", "since_s"]

_RENEW_S = 3600.0
_NEARLY = 0.95

log = logging.getLogger("commonwatt.capacity")


def check_plan(plan: CapacitySpec, cluster: Cluster, folder: Path, *, knows_the_future: bool = False) -> None:
    """Raise, before anything runs, on a plan that cannot work here whatever the demand will be.

    Only a simulation of the past *knows_the_future*.

    Raises
    ------
    InputError
        For a policy that needs the future, states no node has or that are too slow, and an unknown forecaster.
    MissingExtraError
        If a package the forecaster needs is not installed.
    """
    if plan.policy == "foresight" and not knows_the_future:
        raise InputError("a policy that needs no future", field="capacity.policy", value=plan.policy)
    check_spec(plan, cluster)
    check_forecaster(plan, folder)


def live_capacity(
    plan: CapacitySpec, cluster: Cluster, samples: Sequence[SampleRow], folder: Path, seed: int, now_s: float,
    fits: FitCache, tariff: Tariff | None = None,
) -> Capacity:  # fmt: skip
    """Build a plan that ``check_plan`` accepted, from the *samples* so far.

    While its forecaster cannot be fitted to them (too few, or any other reason), the demand of now stays on, and the
    plan is due for renewal in an hour. The predictor in *fits* is reused until twice as much demand is known, for a day
    at most; then the plan is due for renewal. So it is pool by pool: samples from before the configuration had pools do
    not say what each of them wanted.
    """
    pools = Pools.of(plan, cluster)
    if len(pools) > 1:
        return _of_pools(plan, cluster, pools, samples, folder, seed, now_s, fits, tariff)
    plan = plan.model_copy(update={"pools": None, "share": ()})  # one pool: all demand is its
    demand = demand_of_samples(samples, plan.step_s)
    past = Past({} if demand is None else {(plan.step_s, plan.history_days): demand}, folder)
    try:
        check_capacity(plan, cluster, past)
        _check_enough(plan, demand)
        return _made(plan, cluster, past, seed, now_s, fits, tariff)
    except Exception as error:  # the libraries' own errors, too: jobs must be placed all the same
        if not plan.forecasts:
            raise
        ours = isinstance(error, CommonwattError)
        log.warning("no forecast yet: what is wanted now stays on", extra={"cause": str(error)}, exc_info=not ours)
    plain = make_capacity(_plain(plan), cluster, past, seed, tariff=tariff)
    plain.renew_s = now_s + _RENEW_S
    return plain


def _plain(plan: CapacitySpec) -> CapacitySpec:
    return plan.model_copy(update={"policy": "last-value", "delay_price": None})


def _of_pools(
    plan: CapacitySpec, cluster: Cluster, pools: Pools, samples: Sequence[SampleRow], folder: Path, seed: int,
    now_s: float, fits: FitCache, tariff: Tariff | None,
) -> Capacity:  # fmt: skip
    """Build a plan with pools; in those that cannot be forecast yet, the demand of now stays on."""
    key, parts = (plan.step_s, plan.history_days), {}
    for name in pools.names:
        demand = demand_of_samples(samples, plan.step_s, name)
        parts[str(plan.pools), name] = Past({} if demand is None else {key: demand}, folder)
    due, plain = now_s >= fits.due_s, []
    if due:
        fits.forget()

    def otherwise(name: str, error: Exception) -> None:
        plain.append(name)
        ours = isinstance(error, CommonwattError)
        cause = {"cause": str(error), "pool": name}
        log.warning("no forecast yet: what is wanted now stays on", extra=cause, exc_info=not ours)

    def check(name: str) -> None:
        _check_enough(plan, parts[str(plan.pools), name].demand(plan))

    past = Past({}, folder, pools=parts)
    made = make_capacity(plan, cluster, past, seed, fits=fits, tariff=tariff, check=check, otherwise=otherwise)
    if plain:
        fits.due_s = now_s + _RENEW_S
    elif _learns(plan) and due:
        known = min(len(demand) for part in parts.values() if (demand := part.demand(plan)) is not None)
        fits.due_s = now_s + min(DAY_S, max(_RENEW_S, plan.step_s * known))
    if plain or _learns(plan):
        made.renew_s = fits.due_s
    return made


def _made(
    plan: CapacitySpec, cluster: Cluster, past: Past, seed: int, now_s: float, fits: FitCache, tariff: Tariff | None
) -> Capacity:
    """Build the plan, refitting what is due, and set its renewal to when that will be due again."""
    due, demand = now_s >= fits.due_s, past.demand(plan)
    if due:
        fits.forget()
    made = make_capacity(plan, cluster, past, seed, fits=fits, tariff=tariff)
    if demand is not None and _learns(plan):
        if due:
            fits.due_s = now_s + min(DAY_S, max(_RENEW_S, plan.step_s * len(demand)))
        made.renew_s = fits.due_s
    return made


def _learns(plan: CapacitySpec) -> bool:
    return plan.forecasts and plan.forecaster in PREDICTORS and PREDICTORS[plan.forecaster].learns


def _check_enough(plan: CapacitySpec, demand: DemandSeries | None) -> None:
    """Raise ``InputError`` while the forecaster would learn next to nothing and more demand will be recorded."""
    if demand is None or not _learns(plan):
        return
    least, most = PREDICTORS[plan.forecaster].least, plan.history_days * DAY_S / plan.step_s
    fitted = len(demand) - calibration_steps(plan, len(demand))
    if fitted < least and len(demand) < _NEARLY * most:  # the first and the last steps are seldom whole
        expected = f"{least} steps of demand to fit to, besides those it is calibrated on"
        raise InputError(expected, field="capacity.forecaster", value=plural(fitted, "step"))


def since_s(plan: CapacitySpec, now_s: float) -> float:
    """Return the time from which samples count for *plan*."""
    return now_s - plan.history_days * DAY_S
