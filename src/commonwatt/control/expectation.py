"""What demand is expected to be: the part of a capacity policy that looks ahead.

Each expectation is told what is wanted now and answers with an ``Outlook`` on the steps to come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from commonwatt.forecasting.calibration import WINDOW, Calibrator, quantile_at
from commonwatt.forecasting.forecast import HORIZON, LEVELS, Predictor
from commonwatt.forecasting.planner import exceedance
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats, Ints

__all__ = ["Calibrated", "Everything", "Expectation", "Foresight", "LastValue", "Outlook", "Threshold"]


_MOST_MISSED = 10_000  # steps without a value that are gone through; a week of minutes


@dataclass(frozen=True)
class Outlook:
    """Demand over the steps to come.

    Parameters
    ----------
    promised_gpus
        GPUs that must be on in each step. Shape [m].
    levels, quantiles
        Distribution of demand, GPUs, shapes [Q] and [m, Q]; none if demand is taken to be exactly what is promised.
    kept
        Whether a promise is being kept; false while it falls back to everything.
    sentence
        Why not, for a person.
    """

    promised_gpus: Ints
    levels: Floats | None = None
    quantiles: Floats | None = None
    kept: bool = True
    sentence: str = ""

    def probability(self, before_gpus: Floats) -> Floats:
        """Return the probability that demand exceeds each of *before_gpus* [N] in each step. Shape [N, m]."""
        if self.levels is None or self.quantiles is None:
            return np.asarray(before_gpus[:, None] < self.promised_gpus[None, :], dtype=float)
        return exceedance(self.levels, self.quantiles, before_gpus)


class Expectation(Protocol):
    """Looks ahead."""

    @property
    def steps(self) -> int:
        """Steps it looks ahead (m)."""
        ...

    def ahead(self, wanted_gpus: float, now_s: float) -> Outlook:
        """Hear what is wanted now, and return the steps after it."""
        ...

    def missed(self, steps: int) -> None:
        """Hear that nobody knows what was wanted in so many steps before the next call of ``ahead``."""
        ...


def _whole(gpus: Floats, most: int) -> Ints:
    return np.minimum(np.ceil(np.maximum(gpus, 0.0) - 1e-9), most).astype(np.int64)


@dataclass(frozen=True)
class Everything:
    """Every GPU might be needed at any time."""

    whole_gpus: int
    steps: int = HORIZON

    def ahead(self, wanted_gpus: float, now_s: float) -> Outlook:  # noqa: ARG002
        """Return everything."""
        return Outlook(np.full(self.steps, self.whole_gpus, dtype=np.int64))

    def missed(self, steps: int) -> None:
        """Nothing is learnt from what was wanted."""


@dataclass(frozen=True)
class LastValue:
    """What is wanted now is what will be wanted."""

    whole_gpus: int
    steps: int = HORIZON

    def ahead(self, wanted_gpus: float, now_s: float) -> Outlook:  # noqa: ARG002
        """Return what is wanted now."""
        return Outlook(_whole(np.full(self.steps, wanted_gpus), self.whole_gpus))

    def missed(self, steps: int) -> None:
        """Only what is wanted now counts."""


@dataclass(frozen=True)
class Foresight:
    """What will be wanted is known.

    Parameters
    ----------
    series
        Most GPUs wanted in each step. Beyond its end nothing is wanted.
    """

    series: DemandSeries
    whole_gpus: int
    steps: int = HORIZON

    def ahead(self, wanted_gpus: float, now_s: float) -> Outlook:
        """Return the steps from *now_s* on; no less than what is wanted now in the first."""
        first = math.floor((now_s - self.series.start_s) / self.series.step_s + 1e-9)
        own = self.series.gpus[max(0, first) : max(0, first + self.steps)]
        gpus = np.concatenate([own, np.zeros(self.steps - len(own))])
        gpus[0] = max(gpus[0], wanted_gpus)
        return Outlook(_whole(gpus, self.whole_gpus))

    def missed(self, steps: int) -> None:
        """What was wanted is known, too."""


class Threshold:
    """The point forecast (the median) and a margin; CUFF, section 4.4."""

    def __init__(self, predictor: Predictor, margin: float, whole_gpus: int) -> None:
        self._predictor, self._margin, self._whole_gpus = predictor, margin, whole_gpus
        self.steps = predictor.horizon

    def ahead(self, wanted_gpus: float, now_s: float) -> Outlook:  # noqa: ARG002
        """Return the median forecast and the margin."""
        self._predictor.update(wanted_gpus)
        forecast = self._predictor.predict()
        median = quantile_at(forecast.levels, forecast.gpus, 0.5)
        return Outlook(_whole(np.ceil(median - 1e-9) * (1.0 + self._margin), self._whole_gpus))

    def missed(self, steps: int) -> None:
        """Let the last value stand for those missed."""
        for _ in range(min(steps, _MOST_MISSED)):
            self._predictor.update(math.nan)


class Calibrated:
    """CUFF: what the calibrated promise needs, and the distribution shifted likewise."""

    def __init__(self, predictor: Predictor, calibrator: Calibrator) -> None:
        self._predictor, self._calibrator = predictor, calibrator
        self.steps = predictor.horizon

    def warm(self, series: DemandSeries, begin: int) -> None:
        """Go through *series* from index *begin* on, before which the predictor has seen it, planning nothing.

        The forecasts are those of the values one by one, made at once where enough lies before them.
        """
        many = min(max(begin, self._predictor.look_back - 1), len(series))
        for gpus in series.gpus[begin:many]:
            self._see(float(gpus))
            self._calibrator.keep_on(self._predictor.predict())
        origins = np.arange(many, len(series))
        if len(origins):
            forecasts = self._predictor.predict_many(series, origins)
            self._calibrator.follow(series.gpus, origins, LEVELS, forecasts)
        for gpus in series.gpus[many:]:
            self._predictor.update(float(gpus))

    def missed(self, steps: int) -> None:
        """Let the last value stand for those missed; of what matters still the calibration hears that it is unknown."""
        heard = min(steps, WINDOW + self.steps)
        for _ in range(min(steps, _MOST_MISSED) - heard):
            self._predictor.update(math.nan)
        for _ in range(heard):
            self._see(math.nan)
            self._calibrator.keep_on(self._predictor.predict())

    def _see(self, gpus: float) -> None:
        self._predictor.update(gpus)
        self._calibrator.observe(gpus)

    def ahead(self, wanted_gpus: float, now_s: float) -> Outlook:  # noqa: ARG002
        """Return the promise's GPUs, everything while it cannot be kept, and the shifted quantiles."""
        self._see(wanted_gpus)
        forecast = self._predictor.predict()
        kept = self._calibrator.keep_on(forecast)
        state = self._calibrator.state
        shifted = np.maximum(forecast.gpus + self._calibrator.shift_gpus[:, None], 0.0)
        return Outlook(kept, forecast.levels, shifted, state.kept, state.sentence)
