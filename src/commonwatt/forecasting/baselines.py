"""What a forecast must beat: the last value, the value one season ago, the maximum of late.

The first two add empirical quantiles of recent changes: the change over h steps (or over a season) is taken to be
distributed as it was in the last seven days. The third is one number, the same at every level.
"""

from __future__ import annotations

import numpy as np

from commonwatt.forecasting.forecast import HORIZON, LEVELS, LOOK_BACK, QuantileForecast
from commonwatt.forecasting.history import History, SortedWindow, sliding_quantiles
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.units import DAY_S, WEEK_S

__all__ = ["LastValue", "MovingMaximum", "SeasonalNaive", "check_length", "checked_origins"]


def check_length(series: DemandSeries, least: int) -> None:
    """Raise ``InputError`` if *series* has fewer than *least* values."""
    if len(series) < least:
        raise InputError(f"at least {least} values", field="series", value=len(series))


def checked_origins(series: DemandSeries, origins: Ints, look_back: int) -> Ints:
    """Return *origins* as integers.

    Raises ``InputError`` if one lies outside, has too little before it, or nothing that is known up to it.
    """
    at = np.asarray(origins, dtype=np.int64)
    if len(at) and not (look_back - 1 <= at.min() and at.max() < len(series)):
        expected = f"indices from {look_back - 1} to {len(series) - 1}"
        raise InputError(expected, field="origins", value=f"{at.min()} to {at.max()}")
    if len(at) and at.min() < series.first_known:
        raise InputError("origins with a known value up to them", field="origins", value=int(at.min()))
    if (np.diff(at) < 0).any():
        raise InputError("indices that do not fall", field="origins", value="falling ones")
    return at


def _steps(span_s: float, step_s: float) -> int:
    return max(1, round(span_s / step_s))


class LastValue:
    """Last value plus the empirical quantiles of the last seven days' changes over as many steps.

    Parameters
    ----------
    window_s
        How far back changes are looked at, s.
    """

    name = "last-value"

    def __init__(self, look_back: int = LOOK_BACK, horizon: int = HORIZON, window_s: float = WEEK_S) -> None:
        self.look_back, self.horizon, self._window_s = look_back, horizon, window_s
        self._history = History(horizon + 1)
        self._changes: list[SortedWindow] = []

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Take *series* as seen; nothing is learnt. Raises ``InputError`` if it is too short."""
        check_length(series, self.look_back + self.horizon)
        values, window = series.filled(), _steps(self._window_s, series.step_s)
        self._history.see_series(series)
        self._changes = [SortedWindow(values[h:] - values[:-h], window) for h in range(1, self.horizon + 1)]

    def update(self, gpus: float) -> None:
        """See one more value."""
        gpus = self._history.see(gpus)
        seen = self._history.values
        for h, changes in enumerate(self._changes, 1):
            changes.push(gpus - seen[-1 - h])

    def predict(self) -> QuantileForecast:
        """Forecast from the last value seen."""
        moved = np.array([changes.quantiles(LEVELS) for changes in self._changes])
        return QuantileForecast(LEVELS, np.maximum(self._history.values[-1] + moved, 0.0))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        at, values = checked_origins(series, origins, 1), series.filled()
        window = _steps(self._window_s, series.step_s)
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
        """Take *series* as seen; ``look_back`` becomes at least a season. Raises ``InputError`` if it is too short."""
        self._season = _steps(self._season_s, series.step_s)
        self.look_back = max(self.look_back, self._season)
        check_length(series, self.look_back + self.horizon)
        values = series.filled()
        self._history = History(self._season + self.horizon)
        self._history.see_series(series)
        self._changes = SortedWindow(values[self._season :] - values[: -self._season], self._window(series))

    def _window(self, series: DemandSeries) -> int:
        return _steps(self._window_s, series.step_s)

    def update(self, gpus: float) -> None:
        """See one more value."""
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
        season = _steps(self._season_s, series.step_s)
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
        """Take *series* as seen. Raises ``InputError`` if it is too short."""
        check_length(series, self.look_back + self.horizon)
        self._history.see_series(series)

    def update(self, gpus: float) -> None:
        """See one more value."""
        self._history.see(gpus)

    def predict(self) -> QuantileForecast:
        """Forecast the maximum seen."""
        return QuantileForecast(LEVELS, np.full((self.horizon, len(LEVELS)), self._history.values.max()))

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        at = checked_origins(series, origins, self.look_back)
        windows = np.lib.stride_tricks.sliding_window_view(series.filled(), self.look_back)
        largest = windows[at - self.look_back + 1].max(axis=1)
        return np.broadcast_to(largest[:, None, None], (len(at), self.horizon, len(LEVELS))).copy()
