"""The threshold method: a point forecast and some GPUs more (CUFF, section 4.4: 5%)."""

from __future__ import annotations

import numpy as np

from commonwatt.forecasting.forecast import LEVELS, Predictor, QuantileForecast
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError

__all__ = ["MARGIN", "Threshold"]

MARGIN = 0.05
"""The paper's extra GPUs, as a part of the forecast."""

_MEDIAN = int(np.argmin(np.abs(LEVELS - 0.5)))


class Threshold:
    """The median (for a point forecast: the forecast) of another predictor times ``1 + margin``, at every level.

    The paper does not say of what it adds 5%; here it is of the forecast.

    Parameters
    ----------
    point
        The predictor.
    margin
        Part of the forecast that is added, 0 or more.

    Raises
    ------
    InputError
        For a negative or infinite margin.
    """

    def __init__(self, point: Predictor, margin: float = MARGIN) -> None:
        if not 0 <= margin < np.inf:
            raise InputError("a finite part of the forecast, 0 or more", field="margin", value=margin)
        self._point, self._margin = point, margin
        self.name = f"{point.name}+{100 * margin:g}%"

    @property
    def look_back(self) -> int:
        """As the other's."""
        return self._point.look_back

    @property
    def horizon(self) -> int:
        """As the other's."""
        return self._point.horizon

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Fit the other."""
        self._point.fit(series, rng)

    def update(self, gpus: float) -> None:
        """Let the other see one more value."""
        self._point.update(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast the same at every level."""
        median = self._point.predict().at(LEVELS[_MEDIAN])
        return QuantileForecast(LEVELS, self._raised(median))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        return self._raised(self._point.predict_many(series, origins)[:, :, _MEDIAN])

    def _raised(self, median: Floats) -> Floats:
        return np.repeat((median * (1 + self._margin))[..., None], len(LEVELS), axis=-1)
