"""The capacity plan of a controller, simulated or live: fitted to past demand, calibrated on the last of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from commonwatt import forecasting
from commonwatt.capacity import (
    CapacityPlanner,
    DemandForecaster,
    calibration_steps,
    check_spec,
    make_calibrator,
    make_demand_forecaster,
)
from commonwatt.control.capacity import Capacity
from commonwatt.data.demand import LogDemand
from commonwatt.data.forecast_model import read_model
from commonwatt.data.log import JobLog
from commonwatt.data.series_files import SeriesFile
from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.capacity import CapacitySpec, Target
from commonwatt.model.demand import LOOK_BACK, Arrivals, DemandSeries, FittedPredictor, Predictor
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_file import TREES
from commonwatt.model.names import one_of
from commonwatt.model.nodes import Cluster
from commonwatt.model.pools import Pools
from commonwatt.model.units import DAY_S, plural

__all__ = [
    "DemandSample", "FitCache", "Past", "check_capacity", "check_forecaster", "demand_of_run", "demand_of_samples",
    "foreseen_by", "is_model", "make_capacity", "pool_of_each",
]  # fmt: skip


class DemandSample(Protocol):
    """The demand at an instant: a controller samples it whenever something changes."""

    @property
    def time_s(self) -> float:
        """The instant."""
        ...

    @property
    def wanted_gpus(self) -> int:
        """GPUs of running and waiting jobs."""
        ...

    @property
    def wanted_by_pool(self) -> Mapping[str, int] | None:
        """The same by pool; ``None`` where there is one pool."""
        ...


def pool_of_each(log: JobLog, spec: CapacitySpec, cluster: Cluster) -> list[str]:
    """Return the pool of each job of *log*, by the first nodes that it could have run on."""
    pools, spelt = Pools.of(spec, cluster), {name.casefold(): name for name in cluster.gpu_types}

    @cache
    def pool(gpu_type: str, gpus: int, partition: str) -> str:
        own = spelt.get(gpu_type.casefold())
        ways = (cluster.shapes(one, gpus, partition) for one in ((own,) if own else cluster.gpu_types))
        klass = next((shapes[0][0] for shapes in ways if shapes), 0)
        return pools.names[pools.of_job(partition, klass, gpus)]

    partitions = log.partition or ("",) * len(log)
    return [pool(*job) for job in zip(log.gpu_type, log.gpus.tolist(), partitions, strict=True)]


def foreseen_by(spec: CapacitySpec, cluster: Cluster, samples: Sequence[DemandSample]) -> list[DemandSeries]:
    """Return the demand of each pool of *spec* in a finished run, as ``demand_of_run``."""
    names = Pools.of(spec, cluster).names
    return [demand_of_run(samples, spec.step_s, name if len(names) > 1 else None) for name in names]


def demand_of_run(samples: Sequence[DemandSample], step_s: float, pool: str | None = None) -> DemandSeries:
    """Return the peak demand in each step of a finished run, from time 0 to its last sample; of all pools, or one."""
    times_s, wanted = _columns(samples, pool)
    at = (times_s // step_s).astype(np.int64)
    steps = int(at[-1]) + 1
    last = np.searchsorted(at, np.arange(steps)) - 1
    carried = np.where(last >= 0, wanted[np.maximum(last, 0)], 0.0)  # demand just before each step
    return DemandSeries(0.0, step_s, _peaks(carried, at, wanted))


def demand_of_samples(samples: Sequence[DemandSample], step_s: float, pool: str | None = None) -> DemandSeries | None:
    """Return the peak demand in each whole step between the first sample and the last; ``None`` if there is none.

    Of a *pool* only the samples after the last one without it count.
    """
    if pool is not None:
        without = [k for k, sample in enumerate(samples) if pool not in (sample.wanted_by_pool or {})]
        samples = samples[without[-1] + 1 :] if without else samples
    if not samples:
        return None
    times_s, wanted = _columns(samples, pool)
    first = int(np.ceil(times_s[0] / step_s))
    steps = int(times_s[-1] // step_s) - first
    if steps < 1:
        return None
    at = (times_s // step_s).astype(np.int64) - first
    carried = wanted[np.searchsorted(times_s, (first + np.arange(steps)) * step_s, side="right") - 1]
    return DemandSeries(first * step_s, step_s, _peaks(carried, at, wanted))


def _columns(samples: Sequence[DemandSample], pool: str | None) -> tuple[Floats, Floats]:
    times_s = np.array([sample.time_s for sample in samples], dtype=float)
    if pool is None:
        return times_s, np.array([sample.wanted_gpus for sample in samples], dtype=float)
    return times_s, np.array([(sample.wanted_by_pool or {}).get(pool, 0) for sample in samples], dtype=float)


def _peaks(carried: Floats, at: np.ndarray, wanted: Floats) -> Floats:
    """Return the most of *carried*, the demand when each step begins, and the samples *wanted* of steps *at*."""
    inside = (at >= 0) & (at < len(carried))
    np.maximum.at(carried, at[inside], wanted[inside])
    return carried


@dataclass(frozen=True)
class Past:
    """What is known before the period begins.

    Parameters
    ----------
    demands
        Demand before the period, the last value one step before it, by step (s) and requested length (days); empty
        where there is no log of it.
    folder
        Folder that paths of model files are relative to.
    models
        SHA-256 of each model file's content, by its path in the plan.
    arrivals
        The jobs that came, by the keys of *demands*; where they are unknown, each rise of demand counts as one job.
    pools
        The same of each pool, by what names the pools and by name; of one pool it is all of this.
    """

    demands: dict[tuple[float, float], DemandSeries] = field(default_factory=dict)
    folder: Path = Path()
    models: Mapping[str, str] = field(default_factory=dict)
    arrivals: dict[tuple[float, float], Arrivals] = field(default_factory=dict)
    pools: dict[tuple[str, str], Past] = field(default_factory=dict)

    def of_pool(self, spec: CapacitySpec, name: str) -> Past:
        """Return what is known of a pool of *spec*; without a name all of this, and nothing without a record of it."""
        return self.pools.get((spec.pools, name), Past({}, self.folder, self.models)) if spec.pools and name else self

    def knows(self, spec: CapacitySpec, cluster: Cluster) -> bool:
        """Whether the demand that a plan is fitted to has been noted."""
        return all(self.of_pool(spec, name).demand(spec) is not None for name in Pools.of(spec, cluster).names)

    def note(self, spec: CapacitySpec, cluster: Cluster, demands: Mapping[str, LogDemand]) -> None:
        """Note the demand of each pool, by name; that of a pool which the log has no job of is 0."""
        key, some = (spec.step_s, spec.history_days), next(iter(demands.values()), None)
        for name in Pools.of(spec, cluster).names if some is not None else ():
            past = self
            if spec.pools is not None:
                past = self.pools.setdefault((spec.pools, name), Past({}, self.folder, self.models))
            own = demands.get(name)
            if own is not None:
                past.demands[key], past.arrivals[key] = own.wanted, own.submitted
            elif some is not None:
                past.demands[key] = replace(some.wanted, gpus=np.zeros(len(some.wanted)))
                past.arrivals[key] = Arrivals.none()

    def demand(self, spec: CapacitySpec) -> DemandSeries | None:
        """Return the demand a plan is fitted to; ``None`` if there is none."""
        return self.demands.get((spec.step_s, spec.history_days))

    def jobs(self, spec: CapacitySpec) -> Arrivals | None:
        """Return the jobs that came in that demand; ``None`` without one."""
        demand, key = self.demand(spec), (spec.step_s, spec.history_days)
        if demand is None or key in self.arrivals:
            return self.arrivals.get(key)
        values = demand.filled()
        risen = 1 + np.flatnonzero(np.diff(values) > 0)
        return Arrivals(risen, values[risen] - values[risen - 1], values[risen])


class FitCache:
    """The predictor fitted last. It is refitted only after *longest_s* of demand if it can observe values in between.

    The cached predictor belongs to one plan at a time.

    Attributes
    ----------
    due_s
        When the caller should forget it, on the caller's clock.
    """

    def __init__(self, longest_s: float = DAY_S) -> None:
        self._longest_s = longest_s
        self.due_s = -math.inf
        self._pools: dict[str, FitCache] = {}
        # Name, horizon, step and GPUs of the pools, end of what they learned from, and their predictors
        self._joint: tuple[tuple[object, ...], float, dict[str, Any]] | None = None
        # Name, horizon, step, end of what it learned from, and the predictor
        self._fitted: tuple[str, int, float, float, FittedPredictor] | None = None

    def forget(self) -> None:
        """Refit next time."""
        self._fitted = self._joint = None
        self._pools = {}

    def of_pool(self, name: str) -> FitCache:
        """Return the cache of a pool; this one if it has no name."""
        return self._pools.setdefault(name, FitCache(self._longest_s)) if name else self

    def joint(
        self, spec: CapacitySpec, demands: Mapping[str, DemandSeries], gpus: Mapping[str, int], seed: int
    ) -> dict[str, tuple[DemandSeries, Predictor]] | None:
        """Return each pool's demand with its size, and a predictor whose one model is fitted to all of them.

        It is fitted, or was a little earlier, to what comes before the part that the promises are calibrated on.
        ``None`` as of ``joint_pools``.
        """
        made = forecasting.joint_pools(demands, forecasting.make_predictor(spec.forecaster, horizon=spec.horizon), gpus)
        if made is None:
            return None
        one = next(iter(demands.values()))
        until_s = one.start_s + one.step_s * _learned(spec, one)
        key = (spec.forecaster, spec.horizon, one.step_s, tuple(sorted(gpus.items())))
        if self._joint is not None and self._joint[0] == key and 0 <= until_s - self._joint[1] < self._longest_s:
            predictors = self._joint[2]
            for name, (series, _) in made.items():
                predictors[name].see(series.between(0, _learned(spec, series)))
        else:
            predictors = {name: predictor for name, (_, predictor) in made.items()}
            for name, (series, _) in made.items():
                predictors[name].fit(series.between(0, _learned(spec, series)), np.random.default_rng([seed, 4]))
            self._joint = key, until_s, predictors
        return {name: (series, predictors[name]) for name, (series, _) in made.items()}

    def of(self, spec: CapacitySpec, past: DemandSeries, seed: int) -> Predictor:
        """Return the predictor of *spec* after *past*, fitted to that or to a series that ended a little earlier."""
        if self._fitted is not None:
            name, horizon, step_s, until_s, fitted = self._fitted
            same = (name, horizon, step_s) == (spec.forecaster, spec.horizon, past.step_s)
            if same and 0 <= past.end_s - until_s < self._longest_s:
                fitted.see(past)
                return fitted
        predictor = forecasting.make_predictor(spec.forecaster, horizon=spec.horizon)
        predictor.fit(past, np.random.default_rng([seed, 4]))
        if isinstance(predictor, FittedPredictor):
            self._fitted = spec.forecaster, spec.horizon, past.step_s, past.end_s, predictor
        return predictor


def check_capacity(spec: CapacitySpec, cluster: Cluster, past: Past) -> None:
    """Raise ``InputError`` on what would stop a plan: what ``check_spec`` finds, too little past demand of a pool.

    Raises ``MissingExtraError`` if a package its forecaster needs is not installed.
    """
    check_spec(spec, cluster)
    check_forecaster(spec, past.folder)
    pools = Pools.of(spec, cluster)
    for name in pools.names:
        _check_past(spec, past.of_pool(spec, name), name)


def _check_past(spec: CapacitySpec, past: Past, pool: str) -> None:
    """Raise ``InputError`` if there is too little demand of a *pool* to fit to."""
    least, demand = 2 * (LOOK_BACK + spec.horizon), past.demand(spec)
    of = f" of pool {pool}" if pool else ""
    if spec.forecasts and spec.forecaster in forecasting.PREDICTORS and (demand is None or len(demand) < least):
        have = 0 if demand is None else len(demand)
        expected = (
            f"at least {plural(least, 'step')} of demand{of} before the period to fit to: a log that begins earlier, "
            "or a model"
        )
        raise InputError(expected, field="capacity.forecaster", value=plural(have, "step"))


def check_forecaster(spec: CapacitySpec, folder: Path) -> None:
    """Make the forecaster, or read its file (relative to *folder*), if the policy needs one.

    Raises
    ------
    InputError
        For a target that needs no plan, an unknown name, a file that is no model, and a model of another step.
    MissingExtraError
        If a package it needs is not installed.
    """
    if not spec.forecasts:
        return
    try:
        make_calibrator(spec.target, step_s=spec.step_s, whole_gpus=None, steps=spec.horizon)
    except InputError as error:
        raise InputError(error.expected, field=f"capacity.{error.field}", value=error.value) from None
    if spec.forecaster in forecasting.PREDICTORS:
        forecasting.make_predictor(spec.forecaster)
    elif is_model(folder, spec.forecaster):
        _read(folder / spec.forecaster, spec)
    else:
        expected = f"a fitted model's file, or {one_of(forecasting.PREDICTORS, spec.forecaster)}"
        raise InputError(expected, field="capacity.forecaster", value=spec.forecaster)


def is_model(folder: Path, forecaster: str) -> bool:
    """Whether *forecaster* names a file, relative to *folder*; raises ``InputError`` if it cannot be accessed."""
    try:
        return (folder / forecaster).is_file()
    except OSError as error:
        known = one_of(forecasting.PREDICTORS, forecaster)
        expected = f"a fitted model's file that can be read ({error.strerror}), or {known}"
        raise InputError(expected, field="capacity.forecaster", value=forecaster) from None


def make_capacity(
    spec: CapacitySpec, cluster: Cluster, past: Past, seed: int, foreseen: Sequence[DemandSeries] | None = None,
    fits: FitCache | None = None, tariff: Tariff | None = None,
    check: Callable[[str], None] = lambda _: None, otherwise: Callable[[str, Exception], None] | None = None,
) -> Capacity:  # fmt: skip
    """Build the plan of *spec*.

    Parameters
    ----------
    foreseen
        Future demand of each pool, for foresight.
    fits
        The predictors fitted for the plans before.
    tariff
        Price of electricity, for a price of delay, and a limit of power over time; ``None``: neither.
    check
        Called with each pool before it is forecast; may raise.
    otherwise
        Called with a pool that cannot be forecast, and why: what is wanted there now stays on. ``None``: that is an
        error.

    Raises
    ------
    InputError
        As ``check_capacity``, and as the predictor for demand it cannot be fitted to.
    """
    pools, fits = Pools.of(spec, cluster), fits or FitCache()
    try:
        joint = _joint(spec, cluster, pools, past, seed, fits, check)
    except Exception:
        if otherwise is None:
            raise
        joint = {}  # each pool by itself: then its error is told
    forecasters: list[DemandForecaster] = []
    targets: list[Target | None] = []
    for p, (name, gpus) in enumerate(zip(pools.names, pools.gpus(cluster).tolist(), strict=True)):
        own, kept = past.of_pool(spec, name), fits.of_pool(name)
        future = None if foreseen is None else foreseen[p]
        try:
            check(name)
            forecaster, target = _forecaster(
                spec, cluster, pools, p, gpus, own, seed, future, kept, tariff, joint.get(name)
            )
        except Exception as error:
            if otherwise is None:
                raise
            otherwise(name, error)
            plain = spec.model_copy(update={"policy": "last-value", "delay_price": None})
            forecaster, target = make_demand_forecaster(plain, gpus), None
        forecasters.append(forecaster)
        targets.append(target)
    cap_w = None if tariff is None else tariff.cap_w
    return Capacity(CapacityPlanner(cluster, forecasters, spec, cap_w), targets)


def _joint(
    spec: CapacitySpec, cluster: Cluster, pools: Pools, past: Past, seed: int, fits: FitCache,
    check: Callable[[str], None],
) -> dict[str, tuple[DemandSeries, Predictor]]:  # fmt: skip
    """Return demand and predictor of each pool where one model can be fitted to all; empty: each is fitted by itself.

    That takes LightGBM, more than one pool, and demand of all of them over the same time.
    """
    if not spec.forecasts or spec.forecaster != TREES or len(pools) == 1:
        return {}
    demands: dict[str, DemandSeries] = {}
    for name in pools.names:
        own = past.of_pool(spec, name)
        try:
            check(name)
            _check_past(spec, own, name)
        except InputError:  # told when that pool's turn comes
            return {}
        demand = own.demand(spec)
        assert demand is not None
        demands[name] = demand
    if len({(demand.start_s, demand.step_s, len(demand)) for demand in demands.values()}) > 1:
        return {}
    gpus = dict(zip(pools.names, pools.gpus(cluster).tolist(), strict=True))
    return fits.joint(spec, demands, gpus, seed) or {}


def _learned(spec: CapacitySpec, demand: DemandSeries) -> int:
    """Return how many values a predictor is fitted to: those before the part that the promise is calibrated on."""
    return len(demand) - calibration_steps(spec, len(demand))


def _forecaster(
    spec: CapacitySpec, cluster: Cluster, pools: Pools, pool: int, gpus: int, past: Past, seed: int,
    foreseen: DemandSeries | None, fits: FitCache, tariff: Tariff | None,
    joint: tuple[DemandSeries, Predictor] | None,
) -> tuple[DemandForecaster, Target | None]:  # fmt: skip
    """Return what looks ahead in one pool of so many *gpus*, and what is promised there; ``None``: nothing."""
    predictor, observed = None, 0
    if joint is not None:
        demand, predictor = joint
        past = replace(past, demands={(spec.step_s, spec.history_days): demand})
        observed = _learned(spec, demand)
    elif spec.forecasts:
        if len(pools) > 1:
            _check_past(spec, past, pools.names[pool])
        predictor, observed = _fitted(spec, past, seed, fits)
    if predictor is not None and spec.delay_price is not None and tariff is not None:
        gpu_w = _asleep_saves_w(spec, cluster, pools.reach[pool])
        target = _cheapest(spec.delay_price, tariff, gpu_w, predictor, past, spec, observed, gpus)
        spec = spec.model_copy(update={"target": target})
    forecaster = make_demand_forecaster(
        spec,
        gpus,
        foreseen=foreseen,
        predictor=predictor,
        past=past.demand(spec),
        observed=observed,
        arrivals=past.jobs(spec),
    )
    return forecaster, spec.target if spec.policy == "cuff" else None


def _asleep_saves_w(spec: CapacitySpec, cluster: Cluster, reach: Bools) -> float:
    """Return what a GPU of the classes in *reach* saves while its node is in its deepest state, W, without PUE."""
    own = np.flatnonzero(reach[cluster.klass])
    kinds = [cluster.classes[k] for k in cluster.klass[own].tolist()]
    deepest = [(kind, kind.deepest(spec.states)) for kind in kinds]
    saved_w = sum(kind.idle_w - state.power_w for kind, state in deepest if state is not None)
    return max(0.0, saved_w / sum(kind.gpus for kind in kinds))


def _cheapest(
    delay_price: float, tariff: Tariff, gpu_w: float, predictor: Predictor, past: Past, spec: CapacitySpec,
    observed: int, gpus: int,
) -> Target:  # fmt: skip
    """Return the promise to jobs that was cheapest over the demand the plan is calibrated on, at its mean price.

    Raises ``InputError`` if no job came then.
    """
    demand = past.demand(spec)
    if demand is None:
        expected = "a record of demand before the period, on which promises are priced"
        raise InputError(expected, field="capacity.delay_price", value=delay_price)
    origins = np.arange(max(observed, predictor.look_back) - 1, len(demand), dtype=np.int64)
    quantiles = predictor.predict_many(demand, origins)
    from commonwatt.planning.budget import cheapest_target
    from commonwatt.planning.series import LoadedSeries
    from commonwatt.planning.waiting import Price

    price = Price(gpu_w * tariff.pue, _mean_price(tariff), delay_per_gpu_h=delay_price, currency=tariff.currency)
    loaded = LoadedSeries(SeriesFile(demand, dated=False, holes=0), past.jobs(spec))
    try:
        return cheapest_target(loaded, origins, quantiles, price, total_gpus=gpus, begin=len(demand))[0]
    except InputError as error:
        raise InputError(error.expected, field="capacity.delay_price", value=delay_price) from None


def _mean_price(tariff: Tariff) -> float:
    """Return the mean price of a kWh over the steps of a tariff, a whole number of its periods."""
    price = tariff.price
    from_s, to_s = float(price.starts_s[0]), float(price.starts_s[-1])
    return float(tariff.flat(from_s, to_s if price.period_s is None else from_s + price.period_s).price.values[0])


def _fitted(spec: CapacitySpec, past: Past, seed: int, fits: FitCache) -> tuple[Predictor, int]:
    """Return the predictor, and how many values of the past demand it has observed.

    A predictor by its name is fitted to those values; a model file observes them in place of its training values.
    """
    demand = past.demand(spec)
    observed = 0 if demand is None else _learned(spec, demand)
    if spec.forecaster not in forecasting.PREDICTORS:
        saved = _read(past.folder / spec.forecaster, spec)
        if demand is not None and observed:
            saved.see(demand.between(0, observed))
        return saved, observed
    if demand is None:
        raise InputError("demand before the period", field="capacity.forecaster", value="none")
    return fits.of(spec, demand.between(0, observed), seed), observed


def _read(path: Path, spec: CapacitySpec) -> FittedPredictor:
    """Read a fitted model; raises ``InputError`` for one of another step or horizon."""
    from commonwatt.planning.predictors import features_of

    step_s = spec.step_s
    predictor, _ = read_model(path)
    if not np.isclose(predictor.step_s, step_s):
        expected = f"a model of the step of capacity.step_s, {step_s:g} s"
        raise InputError(expected, file=path, field="step_s", value=predictor.step_s)
    if predictor.horizon < spec.horizon:
        expected = f"a model that forecasts capacity.horizon, {plural(spec.horizon, 'step')}"
        raise InputError(expected, file=path, field="horizon", value=predictor.horizon)
    if features := features_of(predictor):
        expected = "a model without features: a controller records demand, nothing beside it"
        raise InputError(expected, file=path, field="features", value=", ".join(features))
    return predictor
