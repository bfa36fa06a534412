"""What a predictor gives, and what every predictor can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = ["HORIZON", "LEVELS", "LOOK_BACK", "FittedPredictor", "Predictor", "QuantileForecast"]

LEVELS: Floats = np.round(np.concatenate([np.linspace(0.1, 0.8, 8), np.linspace(0.90, 0.99, 10)]), 2)
"""Quantile levels trained jointly: .1 to .8 by .1, then .90 to .99 by .01 (CUFF, section III)."""

LOOK_BACK = 120
"""Values seen before a forecast, the paper's n."""

HORIZON = 5
"""Values forecast, the paper's m."""


@dataclass(frozen=True)
class QuantileForecast:
    """Quantiles of demand at the next instants.

    Parameters
    ----------
    levels
        Rising quantile levels within (0, 1). Shape [Q].
    gpus
        Demand at each step and level, GPUs, 0 or more, not falling along levels. Shape [m, Q].
    """

    levels: Floats  # [Q]
    gpus: Floats  # [m, Q]

    def __post_init__(self) -> None:
        if self.gpus.ndim != 2 or self.gpus.shape[1] != len(self.levels):
            raise InputError("one column for each level", field="gpus", value=f"shape {self.gpus.shape}")
        if not np.isfinite(self.gpus).all() or (self.gpus < 0).any():
            raise InputError("finite values, 0 or more", field="gpus", value="others")
        if (np.diff(self.gpus, axis=1) < 0).any():
            raise InputError("quantiles that do not cross", field="gpus", value="crossing ones")

    def at(self, level: float) -> Floats:
        """Return the demand at *level*, between levels interpolated, beyond them the outermost one. Shape [m], GPUs."""
        return np.array([np.interp(level, self.levels, step) for step in self.gpus])


@runtime_checkable
class Predictor(Protocol):
    """Learns from a series, then forecasts from whatever has been seen since."""

    @property
    def name(self) -> str:
        """Name it goes by on the command line."""
        ...

    @property
    def look_back(self) -> int:
        """Values it needs to have seen before it can forecast (n)."""
        ...

    @property
    def horizon(self) -> int:
        """Steps it forecasts (m)."""
        ...

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Learn from *series*, and take it as seen.

        Raises ``InputError`` for one shorter than ``look_back + horizon``.
        """
        ...

    def update(self, gpus: float) -> None:
        """See one more value, GPUs; NaN if it is not known. Nothing is learnt anew."""
        ...

    def predict(self) -> QuantileForecast:
        """Forecast the ``horizon`` values after the last one seen."""
        ...

    def predict_many(self, series: DemandSeries, origins: np.ndarray) -> Floats:
        """Forecast from each index of *origins*, seeing the values up to and including it, whatever was seen before.

        Returns quantiles at ``LEVELS``, GPUs. Shape [len(origins), horizon, len(LEVELS)].
        """
        ...


@runtime_checkable
class FittedPredictor(Predictor, Protocol):
    """A predictor that can be kept in a file."""

    @property
    def step_s(self) -> float:
        """Seconds between the values it was fitted on."""
        ...

    @property
    def fitted_until_s(self) -> float:
        """Instant after the last value seen."""
        ...

    @property
    def members(self) -> int:
        """Models fitted."""
        ...

    def see(self, series: DemandSeries) -> None:
        """Take *series* as what was seen, and forget what was before; nothing is learnt."""
        ...

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return all there is to keep of it: settings and numbers, and arrays by name."""
        ...
