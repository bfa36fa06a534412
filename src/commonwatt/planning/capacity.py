"""The capacity plan of a controller, simulated or live: fitted to past demand, calibrated on the last of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from commonwatt.capacity import CapacityPlanner, calibration_steps, check_spec, make_calibrator, make_outlook
from commonwatt.control.capacity import Capacity
from commonwatt.data.forecast_model import read_model
from commonwatt.forecasting import PREDICTORS, make_predictor
from commonwatt.model.arrays import Floats
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import LOOK_BACK, Arrivals, DemandSeries, FittedPredictor, Predictor
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import DAY_S, plural

__all__ = [
    "DemandSample", "FitCache", "Past", "check_capacity", "check_forecaster", "demand_of_run", "demand_of_samples",
    "is_model", "make_capacity",
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


def demand_of_run(samples: Sequence[DemandSample], step_s: float) -> DemandSeries:
    """Return the peak demand in each step of a finished run, from time 0 to its last sample."""
    times_s, wanted = _columns(samples)
    at = (times_s // step_s).astype(np.int64)
    steps = int(at[-1]) + 1
    last = np.searchsorted(at, np.arange(steps)) - 1
    carried = np.where(last >= 0, wanted[np.maximum(last, 0)], 0.0)  # demand just before each step
    return DemandSeries(0.0, step_s, _peaks(carried, at, wanted))


def demand_of_samples(samples: Sequence[DemandSample], step_s: float) -> DemandSeries | None:
    """Return the peak demand in each whole step between the first sample and the last; ``None`` if there is none."""
    if not samples:
        return None
    times_s, wanted = _columns(samples)
    first = int(np.ceil(times_s[0] / step_s))
    steps = int(times_s[-1] // step_s) - first
    if steps < 1:
        return None
    at = (times_s // step_s).astype(np.int64) - first
    carried = wanted[np.searchsorted(times_s, (first + np.arange(steps)) * step_s, side="right") - 1]
    return DemandSeries(first * step_s, step_s, _peaks(carried, at, wanted))


def _columns(samples: Sequence[DemandSample]) -> tuple[Floats, Floats]:
    times_s = np.array([sample.time_s for sample in samples], dtype=float)
    return times_s, np.array([sample.wanted_gpus for sample in samples], dtype=float)


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
    """

    demands: Mapping[tuple[float, float], DemandSeries] = field(default_factory=dict)
    folder: Path = Path()
    models: Mapping[str, str] = field(default_factory=dict)
    arrivals: Mapping[tuple[float, float], Arrivals] = field(default_factory=dict)

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
        # Name, horizon, step, end of what it learned from, and the predictor
        self._fitted: tuple[str, int, float, float, FittedPredictor] | None = None

    def forget(self) -> None:
        """Refit next time."""
        self._fitted = None

    def of(self, spec: CapacitySpec, past: DemandSeries, seed: int) -> Predictor:
        """Return the predictor of *spec* after *past*, fitted to that or to a series that ended a little earlier."""
        if self._fitted is not None:
            name, horizon, step_s, until_s, fitted = self._fitted
            same = (name, horizon, step_s) == (spec.forecaster, spec.horizon, past.step_s)
            if same and 0 <= past.end_s - until_s < self._longest_s:
                fitted.see(past)
                return fitted
        predictor = make_predictor(spec.forecaster, horizon=spec.horizon)
        predictor.fit(past, np.random.default_rng([seed, 4]))
        if isinstance(predictor, FittedPredictor):
            self._fitted = spec.forecaster, spec.horizon, past.step_s, past.end_s, predictor
        return predictor


def check_capacity(spec: CapacitySpec, cluster: Cluster, past: Past) -> None:
    """Raise ``InputError`` on what would stop a plan: unknown states, states too slow, too little past demand.

    Raises ``MissingExtraError`` if a package its forecaster needs is not installed.
    """
    check_spec(spec, cluster)
    check_forecaster(spec, past.folder)
    least, demand = 2 * (LOOK_BACK + spec.horizon), past.demand(spec)
    if spec.forecasts and spec.forecaster in PREDICTORS and (demand is None or len(demand) < least):
        have = 0 if demand is None else len(demand)
        expected = (
            f"at least {least} steps of demand before the period to fit to: a log that begins earlier, or a model"
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
    if spec.forecaster in PREDICTORS:
        make_predictor(spec.forecaster)
    elif is_model(folder, spec.forecaster):
        _read(folder / spec.forecaster, spec)
    else:
        expected = f"a fitted model's file, or {one_of(PREDICTORS, spec.forecaster)}"
        raise InputError(expected, field="capacity.forecaster", value=spec.forecaster)


def is_model(folder: Path, forecaster: str) -> bool:
    """Whether *forecaster* names a file, relative to *folder*; raises ``InputError`` if it cannot be accessed."""
    try:
        return (folder / forecaster).is_file()
    except OSError as error:
        expected = f"a fitted model's file that can be read ({error.strerror}), or {one_of(PREDICTORS, forecaster)}"
        raise InputError(expected, field="capacity.forecaster", value=forecaster) from None


def make_capacity(
    spec: CapacitySpec, cluster: Cluster, past: Past, seed: int, foreseen: DemandSeries | None = None,
    fits: FitCache | None = None,
) -> Capacity:  # fmt: skip
    """Build the plan of *spec*.

    Parameters
    ----------
    foreseen
        Future demand, for foresight.
    fits
        The predictor fitted for the plans before.

    Raises
    ------
    InputError
        As ``check_capacity``, and as the predictor for demand it cannot be fitted to.
    """
    demand, predictor, observed = past.demand(spec), None, 0
    if spec.forecasts:
        predictor, observed = _fitted(spec, past, seed, fits or FitCache())
    outlook = make_outlook(
        spec, cluster.total_gpus, foreseen=foreseen, predictor=predictor, past=demand, observed=observed,
        arrivals=past.jobs(spec),
    )  # fmt: skip
    return Capacity(CapacityPlanner(cluster, outlook, spec))


def _fitted(spec: CapacitySpec, past: Past, seed: int, fits: FitCache) -> tuple[Predictor, int]:
    """Return the predictor, and how many values of the past demand it has observed.

    A predictor by its name is fitted to those values; a model file observes them in place of its training values.
    """
    demand = past.demand(spec)
    observed = 0 if demand is None else len(demand) - calibration_steps(spec, len(demand))
    if spec.forecaster not in PREDICTORS:
        saved = _read(past.folder / spec.forecaster, spec)
        if demand is not None and observed:
            saved.see(demand.between(0, observed))
        return saved, observed
    if demand is None:
        raise InputError("demand before the period", field="capacity.forecaster", value="none")
    return fits.of(spec, demand.between(0, observed), seed), observed


def _read(path: Path, spec: CapacitySpec) -> FittedPredictor:
    """Read a fitted model; raises ``InputError`` for one of another step or horizon."""
    step_s = spec.step_s
    predictor, _ = read_model(path)
    if not np.isclose(predictor.step_s, step_s):
        expected = f"a model of the step of capacity.step_s, {step_s:g} s"
        raise InputError(expected, file=path, field="step_s", value=predictor.step_s)
    if predictor.horizon < spec.horizon:
        expected = f"a model that forecasts capacity.horizon, {spec.horizon} steps"
        raise InputError(expected, file=path, field="horizon", value=predictor.horizon)
    return predictor
