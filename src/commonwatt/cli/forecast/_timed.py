"""How long a predictor takes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from time import perf_counter
from typing import TYPE_CHECKING

from commonwatt.cli.forecast._wrapped import Wrapped

if TYPE_CHECKING:
    import numpy as np

    from commonwatt.forecasting.forecast import Predictor
    from commonwatt.forecasting.series import DemandSeries
    from commonwatt.model.arrays import Floats

__all__ = ["Timed", "median_ms"]

_REPEATS = 21


class Timed(Wrapped):
    """A predictor, and the time its fits took.

    Parameters
    ----------
    progress
        Told what part of a fit is done, within 0 and 1, by predictors that can tell.
    """

    def __init__(self, inner: Predictor, progress: Callable[[float], None] = lambda _: None) -> None:
        super().__init__(inner)
        self._progress = progress
        self.fits_s: list[float] = []

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Fit the other, on the clock."""
        began = perf_counter()
        if "progress" in signature(self._inner.fit).parameters:
            self._inner.fit(series, rng, progress=self._progress)  # type: ignore[call-arg]
        else:
            self._inner.fit(series, rng)
        self.fits_s.append(perf_counter() - began)


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
