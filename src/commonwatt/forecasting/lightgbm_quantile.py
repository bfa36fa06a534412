"""LightGBM quantile regression on hand-made features: what a careful user would try first.

One model for each step and level forecasts the change from the last value with the quantile objective. Quantiles are
sorted afterwards, so that they do not cross; where demand came in whole GPUs only, they are rounded to the nearest one
(scores round up, which would add half a GPU). Features of an instant, all computed from values up to it: changes over
``LAGS`` steps; over the last ``WINDOWS`` minutes the maximum, minimum and mean less the last value, and the mean
absolute change; the level; hour of day and day of week.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from commonwatt.forecasting.baselines import check_length, checked_origins
from commonwatt.forecasting.forecast import HORIZON, LEVELS, LOOK_BACK, QuantileForecast
from commonwatt.forecasting.history import History
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.units import DAY_S, WEEK_S

__all__ = ["LAGS", "PARAMETERS", "WINDOWS", "LightGbmQuantile", "features"]

LAGS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 90, 119)
"""Steps over which changes are features."""

WINDOWS = (5, 15, 30, 60, 120, 360, 1440)
"""Lengths of the windows, steps."""

PARAMETERS: dict[str, Any] = {
    "learning_rate": 0.03,
    "num_leaves": 7,
    "min_data_in_leaf": 500,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
}
"""The best of some twenty on Philly and Earth: fitted on five sevenths, scored on the sixth (docs/forecasting.md)."""

_TREES = 200
_MOST_ROWS = 60_000


class LightGbmQuantile:
    """A LightGBM model for each step and level.

    Parameters
    ----------
    trees
        Trees of each model.
    parameters
        What differs from ``PARAMETERS``.
    threads
        Threads of a fit. More make small fits slower where others want the cores too.
    steps, levels
        What is fitted, all if ``None``: steps from 1, and levels of ``LEVELS``. Those between are interpolated.
    """

    name = "lightgbm"

    def __init__(
        self, look_back: int = LOOK_BACK, horizon: int = HORIZON, trees: int = _TREES,
        parameters: dict[str, Any] | None = None, steps: tuple[int, ...] | None = None,
        levels: tuple[float, ...] | None = None, threads: int = 1,
    ) -> None:  # fmt: skip
        self.look_back, self.horizon, self._trees = look_back, horizon, trees
        self._threads = threads
        self._parameters = PARAMETERS | (parameters or {})
        self._steps = steps or tuple(range(1, horizon + 1))
        self._levels = np.array(levels) if levels else LEVELS
        self._history = History(max(WINDOWS) + 1)
        self._models: list[list[Any]] = []  # [steps][levels]
        self._next_s = self._step_s = 0.0
        self._whole = True

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Fit all models. Raises ``InputError`` if *series* is too short."""
        import lightgbm

        check_length(series, self.look_back + self.horizon)
        self._history.see_series(series)
        self._next_s, self._step_s = series.end_s, series.step_s
        self._whole = bool((series.gpus[series.known] == np.rint(series.gpus[series.known])).all())
        values, seed = series.filled(), int(rng.integers(2**31))
        origins = np.flatnonzero(_usable(series, self.horizon))
        origins = origins[origins >= self.look_back - 1]
        if len(origins) > _MOST_ROWS:
            origins = np.sort(rng.choice(origins, _MOST_ROWS, replace=False))
        rows = _all_features(series, values)[origins]
        settings = {**self._parameters, "objective": "quantile", "verbose": -1, "seed": seed, "deterministic": True,
                    "num_threads": self._threads, "force_row_wise": True, "max_bin": 127}  # fmt: skip
        binned = lightgbm.Dataset(rows, params={"max_bin": 127, "verbose": -1}, free_raw_data=False).construct()
        self._models = []
        for h in self._steps:
            binned.set_label(values[origins + h] - values[origins])
            self._models.append(
                [lightgbm.train({**settings, "alpha": float(q)}, binned, self._trees) for q in self._levels]
            )

    def update(self, gpus: float) -> None:
        """See one more value."""
        self._history.see(gpus)
        self._next_s += self._step_s

    def predict(self) -> QuantileForecast:
        """Forecast from the values seen."""
        seen = self._history.values
        series = DemandSeries(self._next_s - self._step_s * len(seen), self._step_s, seen)
        return QuantileForecast(LEVELS, self._forecast(_all_features(series, seen)[-1:], seen[-1:])[0])

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q]."""
        at, values = checked_origins(series, origins, 1), series.filled()
        return self._forecast(_all_features(series, values)[at], values[at])

    def _forecast(self, rows: Floats, last: Floats) -> Floats:
        moved = np.array([[model.predict(rows) for model in models] for models in self._models])  # [S, L, K]
        moved = np.sort(moved, axis=1).transpose(2, 0, 1)
        moved = _between(self._levels, moved, LEVELS, axis=2)
        moved = _between(np.array(self._steps, dtype=float), moved, np.arange(1.0, self.horizon + 1), axis=1)
        gpus = np.maximum(last[:, None, None] + moved, 0.0)
        return np.rint(gpus) if self._whole else gpus


def _between(known: Floats, values: Floats, wanted: Floats, axis: int) -> Floats:
    """Interpolate along *axis*, the outermost beyond."""
    if len(known) == len(wanted):
        return values
    high = np.clip(np.searchsorted(known, wanted), 1, max(1, len(known) - 1))
    if len(known) == 1:
        return np.repeat(values, len(wanted), axis=axis)
    part = np.clip((wanted - known[high - 1]) / (known[high] - known[high - 1]), 0.0, 1.0)
    shape = [1] * values.ndim
    shape[axis] = len(wanted)
    weight = part.reshape(shape)
    return (1 - weight) * np.take(values, high - 1, axis=axis) + weight * np.take(values, high, axis=axis)


def _usable(series: DemandSeries, horizon: int) -> np.ndarray:
    """Whether an instant and all steps after it are known."""
    known = series.known
    good = np.zeros(len(series), dtype=bool)
    good[: len(series) - horizon] = True
    for h in range(horizon + 1):
        good[: len(series) - horizon] &= known[h : len(series) - horizon + h]
    return good


def _all_features(series: DemandSeries, values: Floats) -> Floats:
    return features(values, series.start_s + series.step_s * np.arange(len(values), dtype=np.float64))


def features(values: Floats, times_s: Floats) -> Floats:
    """Return the features of every instant; windows that reach before the first value are cut. Shape [T, F]."""
    moves = np.abs(np.diff(values, prepend=values[:1]))
    columns = [values - values[np.maximum(np.arange(len(values)) - lag, 0)] for lag in LAGS]
    totals, moved = (np.concatenate(([0.0], np.cumsum(part))) for part in (values, moves))
    index = np.arange(len(values))
    for length in WINDOWS:
        begin = np.maximum(index - length + 1, 0)
        count = index + 1 - begin
        columns += [
            _sliding_maximum(values, length) - values,
            -_sliding_maximum(-values, length) - values,
            (totals[index + 1] - totals[begin]) / count - values,
            (moved[index + 1] - moved[begin]) / count,
        ]
    day, week = 2 * np.pi * times_s / DAY_S, np.floor(times_s % WEEK_S / DAY_S)
    return np.column_stack([*columns, values, np.sin(day), np.cos(day), week])


@njit(cache=True)
def _sliding_maximum(values: Floats, length: int) -> Floats:
    """Maximum of the last *length* values at every instant, by a queue of falling candidates."""
    out = np.empty(len(values))
    queue = np.empty(len(values), dtype=np.int64)
    head, tail = 0, 0
    for t in range(len(values)):
        if head < tail and queue[head] <= t - length:
            head += 1
        while head < tail and values[queue[tail - 1]] <= values[t]:
            tail -= 1
        queue[tail] = t
        tail += 1
        out[t] = values[queue[head]]
    return out
