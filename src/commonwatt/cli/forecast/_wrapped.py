"""A predictor around another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from commonwatt.forecasting.forecast import Predictor, QuantileForecast
    from commonwatt.forecasting.series import DemandSeries
    from commonwatt.model.arrays import Floats, Ints

__all__ = ["Wrapped"]


class Wrapped:
    """Does what the inner one does."""

    def __init__(self, inner: Predictor) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """As the inner one's."""
        return self._inner.name

    @property
    def look_back(self) -> int:
        """As the inner one's."""
        return self._inner.look_back

    @property
    def horizon(self) -> int:
        """As the inner one's."""
        return self._inner.horizon

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Fit the inner one."""
        self._inner.fit(series, rng)

    def update(self, gpus: float) -> None:
        """Let the inner one see one more value."""
        self._inner.update(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast."""
        return self._inner.predict()

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin."""
        return self._inner.predict_many(series, origins)
