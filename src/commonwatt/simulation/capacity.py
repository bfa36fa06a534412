"""The capacity plan of a run: its predictor fitted to the demand before the period, its promise calibrated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from commonwatt.control.capacity import Capacity, CapacityRules
from commonwatt.control.expectation import Calibrated, Everything, Expectation, Foresight, LastValue, Threshold
from commonwatt.control.sample import Sample
from commonwatt.forecasting.calibration import Calibrator
from commonwatt.forecasting.forecast import HORIZON, LOOK_BACK, FittedPredictor, Predictor
from commonwatt.forecasting.predictors import PREDICTORS, make_predictor
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import DAY_S

__all__ = [
    "Fits", "Past", "calibrated_on", "check_capacity", "check_forecaster", "check_rules", "demand_in", "is_model",
    "make_capacity",
]  # fmt: skip

CALIBRATION_DAYS = 7.0
"""Last part of the demand before the period, on which the promise is calibrated; at most a third of it."""


@dataclass(frozen=True)
class Past:
    """What is known before the period begins.

    Parameters
    ----------
    demands
        GPUs wanted before the period, the last value one step before it, by step (s) and length asked for (days);
        none where there is no log of it.
    folder
        Folder that paths of model files are relative to.
    models
        SHA-256 of each model file's content, by its path as the plan has it.
    """

    demands: Mapping[tuple[float, float], DemandSeries] = field(default_factory=dict)
    folder: Path = Path()
    models: Mapping[str, str] = field(default_factory=dict)

    def demand(self, spec: CapacitySpec) -> DemandSeries | None:
        """Return the demand a plan is fitted to; ``None`` if there is none."""
        return self.demands.get((spec.step_s, spec.history_days))


class Fits:
    """Predictors by name, fitted anew only after *longest_s* of demand where they can take other values as seen.

    What is fitted is lent to one plan at a time.

    Attributes
    ----------
    due_s
        From when on what is held is better forgotten, on the clock of whoever says so.
    """

    def __init__(self, longest_s: float = DAY_S) -> None:
        self._longest_s = longest_s
        self.due_s = -math.inf
        # Name, step, end of what it learnt from, and the predictor itself
        self._held: tuple[str, float, float, FittedPredictor] | None = None

    def forget(self) -> None:
        """Fit anew next time."""
        self._held = None

    def of(self, spec: CapacitySpec, learnt: DemandSeries, seed: int) -> Predictor:
        """Return the predictor of *spec*, having seen *learnt* and fitted to that or to what ended a little earlier."""
        if self._held is not None:
            name, step_s, until_s, held = self._held
            same = (name, step_s) == (spec.forecaster, learnt.step_s)
            if same and 0 <= learnt.end_s - until_s < self._longest_s:
                held.see(learnt)
                return held
        predictor = make_predictor(spec.forecaster)
        predictor.fit(learnt, np.random.default_rng([seed, 4]))
        if isinstance(predictor, FittedPredictor):
            self._held = spec.forecaster, learnt.step_s, learnt.end_s, predictor
        return predictor


def demand_in(samples: Sequence[Sample], step_s: float) -> DemandSeries:
    """Return the most GPUs wanted in each step of a finished run, from time 0 on."""
    at = np.array([int(sample.time_s // step_s) for sample in samples])
    wanted = np.array([sample.wanted_gpus for sample in samples], dtype=float)
    gpus = np.zeros(int(at[-1]) + 1)
    np.maximum.at(gpus, at, wanted)
    carried = np.zeros(len(gpus))  # what is wanted when a step begins
    last = np.searchsorted(at, np.arange(len(gpus))) - 1
    carried[last >= 0] = wanted[last[last >= 0]]
    return DemandSeries(0.0, step_s, np.maximum(gpus, carried))


def check_capacity(spec: CapacitySpec, cluster: Cluster, past: Past) -> None:
    """Raise ``InputError`` on what would stop a plan: unknown states, states too slow, nothing to fit to.

    Raises ``MissingExtraError`` if a package its forecaster needs is not installed.
    """
    check_rules(spec, cluster)
    check_forecaster(spec, past.folder)
    least, demand = 2 * (LOOK_BACK + HORIZON), past.demand(spec)
    if spec.forecasts and spec.forecaster in PREDICTORS and (demand is None or len(demand) < least):
        have = 0 if demand is None else len(demand)
        expected = (
            f"at least {least} steps of demand before the period to fit to: a log that begins earlier, or a model"
        )
        raise InputError(expected, field="capacity.forecaster", value=f"{have} steps")


def check_rules(spec: CapacitySpec, cluster: Cluster) -> None:
    """Raise ``InputError`` on states no node has or that are too slow, and on more GPUs always on than there are."""
    Capacity(cluster, Everything(cluster.total_gpus), _rules(spec))
    if spec.floor_gpus > cluster.total_gpus:
        expected = f"at most the {cluster.total_gpus} GPUs there are"
        raise InputError(expected, field="capacity.floor_gpus", value=spec.floor_gpus)


def check_forecaster(spec: CapacitySpec, folder: Path) -> None:
    """Try whether the forecaster can be made, or its file (relative to *folder*) be read, as far as one is needed.

    Raises
    ------
    InputError
        For an unknown name, and a file that is no model file or one of another step.
    MissingExtraError
        If a package it needs is not installed.
    """
    if not spec.forecasts:
        return
    if spec.forecaster in PREDICTORS:
        make_predictor(spec.forecaster)
    elif is_model(folder, spec.forecaster):
        _read(folder / spec.forecaster, spec.step_s)
    else:
        expected = f"a fitted model's file, or one of {', '.join(PREDICTORS)}"
        raise InputError(expected, field="capacity.forecaster", value=spec.forecaster)


def is_model(folder: Path, forecaster: str) -> bool:
    """Whether *forecaster* names a file (relative to *folder*); raises ``InputError`` if none can be looked at."""
    try:
        return (folder / forecaster).is_file()
    except OSError as error:
        expected = f"a fitted model's file that can be read ({error.strerror}), or one of {', '.join(PREDICTORS)}"
        raise InputError(expected, field="capacity.forecaster", value=forecaster) from None


def make_capacity(
    spec: CapacitySpec, cluster: Cluster, past: Past, seed: int, foreseen: DemandSeries | None = None,
    fits: Fits | None = None,
) -> Capacity:  # fmt: skip
    """Build the plan of *spec*; *foreseen* is the demand to come, for foresight, *fits* what was fitted before."""
    if spec.policy == "foresight" and foreseen is not None:
        ahead: Expectation = Foresight(foreseen, cluster.total_gpus)
    else:
        ahead = _expectation(spec, cluster.total_gpus, past, seed, fits or Fits())
    return Capacity(cluster, ahead, _rules(spec))


def _rules(spec: CapacitySpec) -> CapacityRules:
    return CapacityRules(
        target=spec.target, states=spec.states, step_s=spec.step_s, floor_gpus=spec.floor_gpus, hold_s=spec.hold_s
    )


def _expectation(spec: CapacitySpec, whole: int, past: Past, seed: int, fits: Fits) -> Expectation:
    if spec.policy == "last-value":
        return LastValue(whole)
    if not spec.forecasts:
        return Everything(whole)
    predictor, rest = _fitted(spec, past, seed, fits)
    if spec.policy == "threshold":
        for gpus in rest:
            predictor.update(float(gpus))
        return Threshold(predictor, spec.margin, whole)
    calibrated = Calibrated(predictor, Calibrator(spec.target, whole_gpus=whole, steps=predictor.horizon))
    if (demand := past.demand(spec)) is not None:
        calibrated.warm(demand, len(demand) - len(rest))
    return calibrated


def calibrated_on(spec: CapacitySpec, steps: int) -> int:
    """Return how many of the last of so many *steps* of demand are left for the calibration."""
    return min(round(CALIBRATION_DAYS * DAY_S / spec.step_s), steps // 3)


def _fitted(spec: CapacitySpec, past: Past, seed: int, fits: Fits) -> tuple[Predictor, Floats]:
    """Return the predictor, having seen the first part of the past, and the part after it.

    A predictor named is fitted to that first part; a fitted model only sees it, in place of what it was fitted on.
    """
    demand = past.demand(spec)
    gpus = np.zeros(0) if demand is None else demand.gpus
    tail = calibrated_on(spec, len(gpus))
    if spec.forecaster not in PREDICTORS:
        read = _read(past.folder / spec.forecaster, spec.step_s)
        if demand is not None and len(gpus) > tail:
            read.see(demand.between(0, len(gpus) - tail))
        predictor: Predictor = read
    elif demand is None:
        raise InputError("demand before the period", field="capacity.forecaster", value="none")
    else:
        predictor = fits.of(spec, demand.between(0, len(gpus) - tail), seed)
    return predictor, gpus[len(gpus) - tail :]


def _read(path: Path, step_s: float) -> FittedPredictor:
    """Read a fitted model; raises ``InputError`` for one of another step."""
    from commonwatt.data.forecast_model import read_model

    predictor, _ = read_model(path)
    if not np.isclose(predictor.step_s, step_s):
        expected = f"a model of the step of capacity.step_s, {step_s:g} s"
        raise InputError(expected, file=path, field="step_s", value=predictor.step_s)
    return predictor
