"""statsforecast's AutoETS with its conformal intervals, behind our interface.

The model and its intervals are made once, on the end of what is fitted on; afterwards the fitted smoothing is run over
the last ``look_back`` values, and the widths of the intervals stay. The library's intervals come from absolute errors:
they lie evenly about the mean, and their outermost levels are as coarse as its windows are few.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from commonwatt.forecasting.baselines import check_length, checked_origins
from commonwatt.forecasting.forecast import HORIZON, LEVELS, LOOK_BACK, QuantileForecast
from commonwatt.forecasting.history import History
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats, Ints

__all__ = ["AutoEts"]


class AutoEts:
    """Exponential smoothing without a season, chosen by the library.

    Parameters
    ----------
    length
        Values at the end of the series it is fitted on.
    windows
        Refits from which the library takes the errors of its intervals.
    """

    name = "auto-ets"

    def __init__(
        self, look_back: int = LOOK_BACK, horizon: int = HORIZON, length: int = 1000, windows: int = 50
    ) -> None:
        self.look_back, self.horizon = look_back, horizon
        self._length, self._windows = length, windows
        self._history = History(look_back)
        self._model: Any = None
        self._moved = np.zeros((horizon, len(LEVELS)))

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Choose a model and its intervals. Raises ``InputError`` if *series* is too short."""
        from statsforecast.models import AutoETS
        from statsforecast.utils import ConformalIntervals

        check_length(series, self.look_back + self.horizon)
        self._history.see_series(series)
        values = series.filled()[-self._length :]
        windows = max(2, min(self._windows, (len(values) - 20) // self.horizon))
        self._model = AutoETS(model="ZNN" if np.ptp(values) == 0 else "ZZN")
        self._model.prediction_intervals = ConformalIntervals(n_windows=windows, h=self.horizon)
        self._model.fit(values)
        sides = np.round(np.abs(200 * LEVELS - 100), 6)
        wanted = sorted(set(sides[sides > 0].tolist()))
        found = self._model.predict(h=self.horizon, level=wanted)
        for q, (level, side) in enumerate(zip(LEVELS.tolist(), sides.tolist(), strict=True)):
            if side > 0:
                end = found[f"{'hi' if level > 0.5 else 'lo'}-{side}"]
                self._moved[:, q] = end - found["mean"]
        self._moved = np.maximum.accumulate(self._moved, axis=1)

    def update(self, gpus: float) -> None:
        """See one more value."""
        self._history.see(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast from the values seen."""
        return QuantileForecast(LEVELS, self._forecast(self._history.values))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin, one after another. Shape [K, m, Q]."""
        at, values = checked_origins(series, origins, 1), series.filled()
        return np.array([self._forecast(values[max(0, t + 1 - self.look_back) : t + 1]) for t in at.tolist()])

    def _forecast(self, seen: Floats) -> Floats:
        mean = np.asarray(self._model.forward(y=np.ascontiguousarray(seen), h=self.horizon)["mean"], dtype=float)
        mean = np.where(np.isfinite(mean), mean, seen[-1])
        return np.maximum(mean[:, None] + self._moved, 0.0)
