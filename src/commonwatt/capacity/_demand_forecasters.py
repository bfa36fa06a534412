"""What demand to expect over the next steps: the part of a capacity policy that looks ahead.

Each forecaster observes the demand of now and returns the ``ExpectedDemand`` of the steps after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from commonwatt.capacity._power_plan import exceedance
from commonwatt.capacity._promise import WINDOW, OnlineCalibrator
from commonwatt.capacity._waiting import make_calibrator
from commonwatt.capacity.scores import kept_on
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import (
    HORIZON,
    LEVELS,
    Arrivals,
    DemandSeries,
    Predictor,
    QuantileForecast,
    quantile_at,
    with_due,
)
from commonwatt.model.units import DAY_S

__all__ = [
    "AlwaysOnForecaster",
    "CalibratedForecaster",
    "DemandForecaster",
    "ExpectedDemand",
    "ForesightForecaster",
    "LastValueForecaster",
    "ThresholdForecaster",
    "calibration_steps",
    "make_demand_forecaster",
]

CALIBRATION_DAYS = 7.0
"""Last part of the past demand, on which the promise is calibrated; at most a third of it."""

_MOST_MISSED = 10_000  # steps without a value that are replayed; a week of minutes


@dataclass(frozen=True)
class ExpectedDemand:
    """Demand expected over the next steps.

    Parameters
    ----------
    promised_gpus
        GPUs that must be on in each step. Shape [m].
    levels, quantiles
        Distribution of demand, GPUs, shapes [Q] and [m, Q]; ``None`` if demand is exactly what is promised.
    kept
        Whether a promise is being kept; false while everything stays on because none can be made.
    sentence
        Why not, in one sentence.
    """

    promised_gpus: Ints
    levels: Floats | None = None
    quantiles: Floats | None = None
    kept: bool = True
    sentence: str = ""

    def last_step(self) -> ExpectedDemand:
        """Return what is expected of the last step alone."""
        quantiles = None if self.quantiles is None else self.quantiles[-1:]
        return replace(self, promised_gpus=self.promised_gpus[-1:], quantiles=quantiles)

    def probability(self, before_gpus: Floats) -> Floats:
        """Return the probability that demand exceeds each of *before_gpus* [N] in each step. Shape [N, m]."""
        if self.levels is None or self.quantiles is None:
            return np.asarray(before_gpus[:, None] < self.promised_gpus[None, :], dtype=float)
        return exceedance(self.levels, self.quantiles, before_gpus)


class DemandForecaster(Protocol):
    """Expects demand, step by step."""

    @property
    def steps(self) -> int:
        """Steps it looks ahead (m)."""
        ...

    def ahead(
        self, wanted_gpus: float, now_s: float, arrivals: Arrivals | None = None, due: Floats | None = None
    ) -> ExpectedDemand:  # fmt: skip
        """Observe the demand of now and the jobs that came since the last call; return the demand of the next steps.

        *due* are the GPUs of jobs known to come within 1, 2, ... m steps; none if ``None``. Shape [m].
        """
        ...

    def missed(self, steps: int) -> None:
        """Note that the demand of so many steps before the next call of ``ahead`` is unknown."""
        ...


def _promise(gpus: Floats, most: int) -> ExpectedDemand:
    return ExpectedDemand(kept_on(gpus, most).astype(np.int64))


class _Stateless:
    """A forecaster that learns nothing from past demand."""

    def missed(self, steps: int) -> None:
        """Do nothing: only the demand of now counts."""


@dataclass(frozen=True)
class AlwaysOnForecaster(_Stateless):
    """Every GPU may be needed at any time."""

    whole_gpus: int
    steps: int = HORIZON

    def ahead(
        self, wanted_gpus: float, now_s: float, arrivals: Arrivals | None = None, due: Floats | None = None  # noqa: ARG002
    ) -> ExpectedDemand:  # fmt: skip
        """Return all GPUs."""
        return ExpectedDemand(np.full(self.steps, self.whole_gpus, dtype=np.int64))


@dataclass(frozen=True)
class LastValueForecaster(_Stateless):
    """Demand stays as it is now, but for jobs known to come."""

    whole_gpus: int
    steps: int = HORIZON

    def ahead(
        self, wanted_gpus: float, now_s: float, arrivals: Arrivals | None = None, due: Floats | None = None  # noqa: ARG002
    ) -> ExpectedDemand:  # fmt: skip
        """Return the demand of now, and the jobs *due* by each step."""
        return _promise(np.full(self.steps, wanted_gpus) + (0.0 if due is None else due), self.whole_gpus)


@dataclass(frozen=True)
class ForesightForecaster(_Stateless):
    """Future demand is known.

    Parameters
    ----------
    series
        Peak demand in each step. Beyond its end demand is 0.
    """

    series: DemandSeries
    whole_gpus: int
    steps: int = HORIZON

    def ahead(
        self, wanted_gpus: float, now_s: float, arrivals: Arrivals | None = None, due: Floats | None = None  # noqa: ARG002
    ) -> ExpectedDemand:  # fmt: skip
        """Return the steps from *now_s* on, the first no less than the demand of now."""
        first = math.floor((now_s - self.series.start_s) / self.series.step_s + 1e-9)
        own = self.series.gpus[max(0, first) : max(0, first + self.steps)]
        gpus = np.concatenate([own, np.zeros(self.steps - len(own))])
        gpus[0] = max(gpus[0], wanted_gpus)
        return _promise(gpus, self.whole_gpus)


class ThresholdForecaster:
    """The point forecast (the median) and a margin; CUFF, section 4.4."""

    def __init__(self, predictor: Predictor, margin: float, whole_gpus: int) -> None:
        self._predictor, self._margin, self._whole_gpus = predictor, margin, whole_gpus
        self.steps = predictor.horizon

    def ahead(
        self, wanted_gpus: float, now_s: float, arrivals: Arrivals | None = None, due: Floats | None = None  # noqa: ARG002
    ) -> ExpectedDemand:  # fmt: skip
        """Return the median forecast and the margin."""
        self._predictor.update(wanted_gpus)
        median = with_due(self._predictor.predict().gpus, due)
        median = quantile_at(LEVELS, median, 0.5)
        return _promise(np.ceil(median - 1e-9) * (1.0 + self._margin), self._whole_gpus)

    def missed(self, steps: int) -> None:
        """Let the last value stand for the missing ones."""
        for _ in range(min(steps, _MOST_MISSED)):
            self._predictor.update(math.nan)


class CalibratedForecaster:
    """CUFF: the GPUs the calibrated promise needs, and the distribution shifted alike."""

    def __init__(self, predictor: Predictor, calibrator: OnlineCalibrator) -> None:
        self._predictor, self._calibrator = predictor, calibrator
        self.steps = predictor.horizon

    def warm(self, series: DemandSeries, begin: int, arrivals: Arrivals | None = None) -> None:
        """Calibrate on *series* from index *begin* on; the predictor has observed the values before it.

        The forecasts are those made value by value, computed at once where enough values lie before them.
        """
        many = min(max(begin, self._predictor.look_back - 1), len(series))
        for index in range(begin, many):
            self._observe(float(series.gpus[index]), None if arrivals is None else arrivals.at(index))
            self._keep_on(self._forecast(None if arrivals is None else arrivals.due(np.array([index]), self.steps)))
        origins = np.arange(many, len(series))
        if len(origins):
            forecasts = self._predictor.predict_many(series, origins)
            forecasts = with_due(forecasts, None if arrivals is None else arrivals.due(origins, self.steps))
            self._calibrator.follow(series.gpus, origins, LEVELS, forecasts, arrivals)
        for gpus in series.gpus[many:]:
            self._predictor.update(float(gpus))

    def missed(self, steps: int) -> None:
        """Let the last value stand for the missing ones; the calibration observes the latest of them as unknown."""
        observed = min(steps, WINDOW + self.steps)
        for _ in range(min(steps, _MOST_MISSED) - observed):
            self._predictor.update(math.nan)
        for _ in range(observed):
            self._observe(math.nan)
            self._keep_on(self._forecast())

    def _observe(self, gpus: float, arrivals: Arrivals | None = None) -> None:
        self._predictor.update(gpus)
        self._calibrator.observe(gpus, arrivals)

    def _forecast(self, due: Floats | None = None) -> QuantileForecast:
        forecast = self._predictor.predict()
        return QuantileForecast(forecast.levels, with_due(forecast.gpus, None if due is None else due.reshape(-1)))

    def _keep_on(self, forecast: QuantileForecast) -> Ints:
        return self._calibrator.keep_on_rows(forecast.levels, forecast.gpus)

    def ahead(
        self, wanted_gpus: float, now_s: float, arrivals: Arrivals | None = None, due: Floats | None = None  # noqa: ARG002
    ) -> ExpectedDemand:  # fmt: skip
        """Return the GPUs of the promise, all of them while it cannot be kept, and the shifted quantiles."""
        self._observe(wanted_gpus, arrivals)
        forecast = self._forecast(due)
        kept = self._keep_on(forecast)
        state, shift = self._calibrator.state, self._calibrator.shift_gpus
        if shift is None:
            return ExpectedDemand(kept, kept=state.kept, sentence=state.sentence)
        shifted = np.maximum(forecast.gpus + shift[:, None], 0.0)
        return ExpectedDemand(kept, forecast.levels, shifted, state.kept, state.sentence)


def calibration_steps(spec: CapacitySpec, steps: int) -> int:
    """Return how many of the last of *steps* past values are reserved for the calibration."""
    return min(round(CALIBRATION_DAYS * DAY_S / spec.step_s), steps // 3)


def make_demand_forecaster(
    spec: CapacitySpec, whole_gpus: int, *, foreseen: DemandSeries | None = None, predictor: Predictor | None = None,
    past: DemandSeries | None = None, observed: int = 0, arrivals: Arrivals | None = None,
) -> DemandForecaster:  # fmt: skip
    """Return the forecaster of a policy.

    Parameters
    ----------
    spec
        The policy. One that forecasts needs *predictor*.
    whole_gpus
        All GPUs.
    foreseen
        Future demand, for foresight; without it foresight keeps everything on.
    predictor
        Fitted; it has observed the first *observed* values of *past*, and observes the others here.
    past
        Demand so far; ``None`` if there is no record of it.
    arrivals
        The jobs that came in *past*, for a promise about jobs.
    """
    if spec.policy == "last-value":
        return LastValueForecaster(whole_gpus, spec.horizon)
    if spec.policy == "foresight" and foreseen is not None:
        return ForesightForecaster(foreseen, whole_gpus, spec.horizon)
    if predictor is None:
        return AlwaysOnForecaster(whole_gpus, spec.horizon)
    if spec.policy == "threshold":
        for gpus in () if past is None else past.gpus[observed:]:
            predictor.update(float(gpus))
        return ThresholdForecaster(predictor, spec.margin, whole_gpus)
    calibrator = make_calibrator(spec.target, step_s=spec.step_s, whole_gpus=whole_gpus, steps=predictor.horizon)
    calibrated = CalibratedForecaster(predictor, calibrator)
    if past is not None:
        calibrated.warm(past, observed, arrivals)
    return calibrated
