"""The mean of several predictors' quantiles: where they err differently it errs less than each of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonwatt.forecasting.forecast import HORIZON, LEVELS, LOOK_BACK, Predictor, QuantileForecast
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError

__all__ = ["Blend", "network_and_trees"]


class Blend:
    """Averages the quantiles, level by level, of predictors fitted on the same series.

    Parameters
    ----------
    parts
        Predictors of one horizon.
    name
        Name it goes by.

    Raises
    ------
    InputError
        For no predictor, or several horizons.
    """

    def __init__(self, parts: Sequence[Predictor], name: str) -> None:
        horizons = {part.horizon for part in parts}
        if len(horizons) != 1:
            raise InputError("predictors of one horizon", field="parts", value=f"horizons {sorted(horizons)}")
        self._parts, self.name = tuple(parts), name
        self.horizon = horizons.pop()
        self._whole = True

    @property
    def look_back(self) -> int:
        """The longest of theirs."""
        return max(part.look_back for part in self._parts)

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Fit each of them. Raises ``InputError`` as they do."""
        for part in self._parts:
            part.fit(series, rng)
        known = series.gpus[series.known]
        self._whole = bool((known == np.round(known)).all())

    def update(self, gpus: float) -> None:
        """Let each see one more value."""
        for part in self._parts:
            part.update(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast from the values seen."""
        return QuantileForecast(LEVELS, self._mean([part.predict().gpus for part in self._parts]))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        return self._mean([part.predict_many(series, origins) for part in self._parts])

    def _mean(self, forecasts: list[Floats]) -> Floats:
        mean: Floats = np.mean(forecasts, axis=0)
        return np.round(mean) if self._whole else mean


def network_and_trees(look_back: int = LOOK_BACK, horizon: int = HORIZON, kind: str = "gru") -> Blend:
    """Return the mean of a network and of LightGBM: no network alone, and called so."""
    from commonwatt.forecasting.lightgbm_quantile import LightGbmQuantile
    from commonwatt.forecasting.networks import NetworkPredictor

    network = NetworkPredictor(kind, look_back=look_back, horizon=horizon)
    return Blend((network, LightGbmQuantile(look_back, horizon)), f"{kind}+lightgbm")
