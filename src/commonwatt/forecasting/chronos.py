"""A Chronos model (Ansari et al., 2024) behind our interface.

Its weights come from the model's publisher and are no part of this package; the adapter is tested against a stub of
``predict_quantiles`` as Chronos-T5 and Chronos-Bolt have it (chronos-forecasting 1.4 to 2.3), never against a model.
Published models are trained on levels .1 to .9: what they answer beyond is theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from commonwatt.forecasting.baselines import check_length, checked_origins
from commonwatt.forecasting.forecast import HORIZON, LEVELS, LOOK_BACK, QuantileForecast
from commonwatt.forecasting.history import History
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError

__all__ = ["ChronosPredictor"]

_BATCH = 256


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
        """Load the model, and take *series* as seen.

        Raises ``InputError`` if it is too short or the weights are not to be had.
        """
        check_length(series, self.look_back + self.horizon)
        self._history.see_series(series)
        if self._pipeline is None:
            from chronos import BaseChronosPipeline

            try:
                self._pipeline = BaseChronosPipeline.from_pretrained(self._checkpoint)
            except (OSError, ValueError) as error:
                expected = "weights of a Chronos model, in a folder or to be fetched"
                raise InputError(expected, field="checkpoint", value=error) from None

    def update(self, gpus: float) -> None:
        """See one more value."""
        self._history.see(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast from the last values seen."""
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
        found = np.asarray(quantiles, dtype=np.float64)
        if found.shape != (len(contexts), self.horizon, len(LEVELS)):
            expected = f"quantiles of shape {(len(contexts), self.horizon, len(LEVELS))} from the pipeline"
            raise InputError(expected, field="pipeline", value=found.shape)
        return np.maximum(np.maximum.accumulate(found, axis=2), 0.0)
