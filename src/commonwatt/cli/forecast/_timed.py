"""How long a predictor takes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from commonwatt.forecasting.forecast import Predictor, QuantileForecast
    from commonwatt.forecasting.series import DemandSeries
    from commonwatt.model.arrays import Floats, Ints

__all__ = ["Timed", "median_ms"]

_REPEATS = 21


class Timed:
    """A predictor, and the time its fits took.

    Parameters
    ----------
    progress
        Told what part of a fit is done, within 0 and 1, by predictors that can tell.
    """

    def __init__(self, inner: Predictor, progress: Callable[[float], None] = lambda _: None) -> None:
        self._inner, self._progress = inner, progress
        self.fits_s: list[float] = []

    @property
    def name(self) -> str:
        """As the other's."""
        return self._inner.name

    @property
    def look_back(self) -> int:
        """As the other's."""
        return self._inner.look_back

    @property
    def horizon(self) -> int:
        """As the other's."""
        return self._inner.horizon

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Fit the other, on the clock."""
        began = perf_counter()
        if "progress" in signature(self._inner.fit).parameters:
            self._inner.fit(series, rng, progress=self._progress)  # type: ignore[call-arg]
        else:
            self._inner.fit(series, rng)
        self.fits_s.append(perf_counter() - began)

    def update(self, gpus: float) -> None:
        """Let the other see one more value."""
        self._inner.update(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast."""
        return self._inner.predict()

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin."""
        return self._inner.predict_many(series, origins)


def median_ms(predictor: Predictor, values: Floats) -> tuple[float, float]:
    """Return the median time of a forecast and of an update, ms, seeing *values* one after another."""
    forecasts, updates = [], []
    for repeat in range(_REPEATS):
        began = perf_counter()
        predictor.update(float(values[repeat % len(values)]))
        seen = perf_counter()
        predictor.predict()
        updates.append(seen - began)
        forecasts.append(perf_counter() - seen)
    middle = _REPEATS // 2
    return 1e3 * sorted(forecasts)[middle], 1e3 * sorted(updates)[middle]
