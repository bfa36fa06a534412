"""Adapters of forecasting libraries: statsforecast's AutoETS and Chronos models.

AutoETS is fitted once, on the end of the series; afterwards the fitted smoothing runs over the last ``look_back``
values, and the widths of its conformal intervals stay. The intervals come from absolute errors: they are symmetric
about the mean, and their outermost levels are as coarse as its windows are few.

The weights of a Chronos model (Ansari et al., 2024) come from its publisher and are no part of this package; the
adapter is tested against a stub of ``predict_quantiles`` as Chronos-T5 and Chronos-Bolt have it (chronos-forecasting
1.4 to 2.3). Published models are trained on levels .1 to .9; levels beyond are the model's extrapolation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from commonwatt.forecasting._history import History, check_length, checked_origins
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import HORIZON, LEVELS, LOOK_BACK, DemandSeries, QuantileForecast
from commonwatt.model.errors import InputError

__all__ = ["AutoEts", "ChronosPredictor"]

_BATCH = 256


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
        prediction = self._model.predict(h=self.horizon, level=wanted)
        for q, (level, side) in enumerate(zip(LEVELS.tolist(), sides.tolist(), strict=True)):
            if side > 0:
                end = prediction[f"{'hi' if level > 0.5 else 'lo'}-{side}"]
                self._moved[:, q] = end - prediction["mean"]
        self._moved = np.maximum.accumulate(self._moved, axis=1)

    def update(self, gpus: float) -> None:
        """Observe one more value."""
        self._history.see(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast from the values observed."""
        return QuantileForecast(LEVELS, self._forecast(self._history.values))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin, one after another. Shape [K, m, Q]."""
        at, values = checked_origins(series, origins, 1), series.filled()
        return np.array([self._forecast(values[max(0, t + 1 - self.look_back) : t + 1]) for t in at.tolist()])

    def _forecast(self, seen: Floats) -> Floats:
        mean = np.asarray(self._model.forward(y=np.ascontiguousarray(seen), h=self.horizon)["mean"], dtype=float)
        mean = np.where(np.isfinite(mean), mean, seen[-1])
        return np.maximum(mean[:, None] + self._moved, 0.0)


class ChronosPredictor:
    """Zero-shot forecasts: nothing is fitted.

    Parameters
    ----------
    pipeline
        An object with ``predict_quantiles(context, prediction_length, quantile_levels)`` giving quantiles of shape
        [B, m, Q] and means; loaded from *checkpoint* by the package ``chronos`` at the first fit if ``None``.
    checkpoint
        A folder with weights, or their published name.
    """

    name = "chronos"

    def __init__(
        self, look_back: int = LOOK_BACK, horizon: int = HORIZON, pipeline: Any = None,  # noqa: ANN401
        checkpoint: str = "amazon/chronos-bolt-small",
    ) -> None:  # fmt: skip
        self.look_back, self.horizon = look_back, horizon
        self._pipeline, self._checkpoint = pipeline, checkpoint
        self._history = History(look_back)

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Load the model, and take *series* as observed.

        Raises ``InputError`` if it is too short or the weights cannot be loaded.
        """
        check_length(series, self.look_back + self.horizon)
        self._history.see_series(series)
        if self._pipeline is None:
            from chronos import BaseChronosPipeline

            try:
                self._pipeline = BaseChronosPipeline.from_pretrained(self._checkpoint)
            except (OSError, ValueError) as error:
                expected = "weights of a Chronos model, in a folder or for download"
                raise InputError(expected, field="checkpoint", value=error) from None

    def update(self, gpus: float) -> None:
        """Observe one more value."""
        self._history.see(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast from the last values observed."""
        return QuantileForecast(LEVELS, self._forecast(self._history.values[None, :])[0])

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        at = checked_origins(series, origins, self.look_back)
        windows = np.lib.stride_tricks.sliding_window_view(series.filled(), self.look_back)[at - self.look_back + 1]
        parts = [self._forecast(windows[first : first + _BATCH]) for first in range(0, len(at), _BATCH)]
        return np.concatenate(parts) if parts else np.empty((0, self.horizon, len(LEVELS)))

    def _forecast(self, contexts: Floats) -> Floats:
        import torch

        asked = torch.tensor(np.ascontiguousarray(contexts), dtype=torch.float32)
        quantiles, _ = self._pipeline.predict_quantiles(asked, self.horizon, LEVELS.tolist())
        values = np.asarray(quantiles, dtype=np.float64)
        if values.shape != (len(contexts), self.horizon, len(LEVELS)):
            expected = f"quantiles of shape {(len(contexts), self.horizon, len(LEVELS))} from the pipeline"
            raise InputError(expected, field="pipeline", value=values.shape)
        return np.maximum(np.maximum.accumulate(values, axis=2), 0.0)
