"""Baselines: the last value, the value one season ago, the recent maximum; and the threshold method of the paper.

The first two add empirical quantiles of recent changes: the change over h steps (or over a season) is distributed as
in the last seven days. The third is one number, the same at every level. The threshold method adds a margin to a point
forecast (CUFF, section 4.4: 5%).
"""

from __future__ import annotations

import numpy as np

from commonwatt.forecasting._history import (
    History,
    SortedWindow,
    check_length,
    checked_origins,
    recent_steps,
    sliding_quantiles,
    steps_in,
)
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import HORIZON, LEVELS, LOOK_BACK, DemandSeries, Predictor, QuantileForecast
from commonwatt.model.errors import InputError
from commonwatt.model.units import DAY_S, WEEK_S

__all__ = ["LastValue", "MovingMaximum", "SeasonalNaive", "Threshold", "WrappedPredictor"]


class LastValue:
    """Last value plus the empirical quantiles of the last seven days' changes over as many steps.

    Parameters
    ----------
    window_s
        Length of the window of recent changes, s.
    """

    name = "last-value"

    def __init__(self, look_back: int = LOOK_BACK, horizon: int = HORIZON, window_s: float = WEEK_S) -> None:
        self.look_back, self.horizon, self._window_s = look_back, horizon, window_s
        self._history = History(horizon + 1)
        self._changes: list[SortedWindow] = []

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Take *series* as observed; nothing is learned. Raises ``InputError`` if it is too short."""
        check_length(series, self.look_back + self.horizon)
        values, window = series.filled(), recent_steps(self._window_s, series.step_s)
        self._history.see_series(series)
        self._changes = [SortedWindow(values[h:] - values[:-h], window) for h in range(1, self.horizon + 1)]

    def update(self, gpus: float) -> None:
        """Observe one more value."""
        gpus = self._history.see(gpus)
        seen = self._history.values
        for h, changes in enumerate(self._changes, 1):
            changes.push(gpus - seen[-1 - h])

    def predict(self) -> QuantileForecast:
        """Forecast from the last value observed."""
        moved = np.array([changes.quantiles(LEVELS) for changes in self._changes])
        return QuantileForecast(LEVELS, np.maximum(self._history.values[-1] + moved, 0.0))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        at, values = checked_origins(series, origins, 1), series.filled()
        window = recent_steps(self._window_s, series.step_s)
        moved = np.empty((len(at), self.horizon, len(LEVELS)))
        for h in range(1, self.horizon + 1):
            changes = np.concatenate((np.full(h, np.nan), values[h:] - values[:-h]))
            moved[:, h - 1] = sliding_quantiles(changes, window, at, LEVELS)
        return np.maximum(values[at][:, None, None] + moved, 0.0)


class SeasonalNaive:
    """Value one season ago plus the empirical quantiles of the last seven days' changes over a season.

    Parameters
    ----------
    season_s
        Length of the season, s; a day by default.
    """

    name = "seasonal-naive"

    def __init__(
        self, look_back: int = LOOK_BACK, horizon: int = HORIZON, season_s: float = DAY_S, window_s: float = WEEK_S
    ) -> None:
        self.look_back, self.horizon = look_back, horizon
        self._season_s, self._window_s = season_s, window_s
        self._season = 0
        self._history = History(1)
        self._changes = SortedWindow(np.empty(0), 1)

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Take *series* as observed; ``look_back`` grows to a season. Raises ``InputError`` if it is too short."""
        self._season = steps_in(self._season_s, series.step_s)
        self.look_back = max(self.look_back, self._season)
        check_length(series, self.look_back + self.horizon)
        values = series.filled()
        self._history = History(self._season + self.horizon)
        self._history.see_series(series)
        self._changes = SortedWindow(values[self._season :] - values[: -self._season], self._window(series))

    def _window(self, series: DemandSeries) -> int:
        return recent_steps(self._window_s, series.step_s)

    def update(self, gpus: float) -> None:
        """Observe one more value."""
        gpus = self._history.see(gpus)
        self._changes.push(gpus - self._history.values[-1 - self._season])

    def predict(self) -> QuantileForecast:
        """Forecast from the values one season before each step."""
        seen, steps = self._history.values, np.arange(1, self.horizon + 1)
        before = seen[len(seen) - 1 + (steps - 1) % self._season + 1 - self._season]
        moved = self._changes.quantiles(LEVELS)
        return QuantileForecast(LEVELS, np.maximum(before[:, None] + moved, 0.0))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        season = steps_in(self._season_s, series.step_s)
        at, values = checked_origins(series, origins, season), series.filled()
        changes = np.concatenate((np.full(season, np.nan), values[season:] - values[:-season]))
        moved = sliding_quantiles(changes, self._window(series), at, LEVELS)
        before = values[at[:, None] + np.arange(self.horizon) % season + 1 - season]
        return np.maximum(before[:, :, None] + moved[:, None, :], 0.0)


class MovingMaximum:
    """Maximum of the last ``look_back`` values, at every step and level."""

    name = "moving-max"

    def __init__(self, look_back: int = LOOK_BACK, horizon: int = HORIZON) -> None:
        self.look_back, self.horizon = look_back, horizon
        self._history = History(look_back)

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Take *series* as observed. Raises ``InputError`` if it is too short."""
        check_length(series, self.look_back + self.horizon)
        self._history.see_series(series)

    def update(self, gpus: float) -> None:
        """Observe one more value."""
        self._history.see(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast the maximum observed."""
        return QuantileForecast(LEVELS, np.full((self.horizon, len(LEVELS)), self._history.values.max()))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        at = checked_origins(series, origins, self.look_back)
        windows = np.lib.stride_tricks.sliding_window_view(series.filled(), self.look_back)
        largest = windows[at - self.look_back + 1].max(axis=1)
        return np.broadcast_to(largest[:, None, None], (len(at), self.horizon, len(LEVELS))).copy()


class WrappedPredictor:
    """Delegates everything to another predictor; subclasses override what differs."""

    def __init__(self, inner: Predictor) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """Name of the other."""
        return self._inner.name

    @property
    def features(self) -> tuple[str, ...]:
        """Columns beside demand that the other learns from."""
        features: tuple[str, ...] = getattr(self._inner, "features", ())
        return features

    @property
    def look_back(self) -> int:
        """Look-back of the other."""
        return self._inner.look_back

    @property
    def horizon(self) -> int:
        """Horizon of the other."""
        return self._inner.horizon

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Fit the other."""
        self._inner.fit(series, rng)

    def update(self, gpus: float) -> None:
        """Let the other observe one more value."""
        self._inner.update(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast."""
        return self._inner.predict()

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin."""
        return self._inner.predict_many(series, origins)


MARGIN = 0.05
"""The paper's margin, as a part of the forecast."""

_MEDIAN = int(np.argmin(np.abs(LEVELS - 0.5)))


class Threshold(WrappedPredictor):
    """The median (for a point forecast: the forecast) of another predictor times ``1 + margin``, at every level.

    The paper does not say what its 5% is a part of; here it is the forecast.

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
        super().__init__(point)
        self._margin = margin

    @property
    def name(self) -> str:
        """Name of the other, and the margin."""
        return f"{self._inner.name}+{100 * self._margin:g}%"

    def predict(self) -> QuantileForecast:
        """Forecast the same at every level."""
        median = self._inner.predict().at(LEVELS[_MEDIAN])
        return QuantileForecast(LEVELS, self._raised(median))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        return self._raised(self._inner.predict_many(series, origins)[:, :, _MEDIAN])

    def _raised(self, median: Floats) -> Floats:
        return np.repeat((median * (1 + self._margin))[..., None], len(LEVELS), axis=-1)
