"""LightGBM quantile regression on hand-made features: the obvious peer of a network.

One model for each step and level forecasts the change from the last value with the quantile objective. Quantiles are
sorted afterwards, so that they do not cross; where demand came in whole GPUs only, they are rounded to the nearest one
(scores round up, which would add half a GPU). Features of an instant, all computed from values up to it: changes over
1 to 119 steps; over windows of 5 to 1440 steps the maximum, minimum and mean less the last value, and the mean
absolute change (``movements``); the level; hour of day and day of week.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from commonwatt.forecasting._history import ObservingPredictor
from commonwatt.forecasting._network_inputs import WINDOWS, movements
from commonwatt.forecasting._origins import check_length, check_step, checked_origins, learnable_origins
from commonwatt.forecasting._trees import Trees
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import HORIZON, LEVELS, LOOK_BACK, DemandSeries, QuantileForecast
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_file import TREES
from commonwatt.model.units import DAY_S, WEEK_S

__all__ = ["PARAMETERS", "LightGbmQuantile", "features", "features_at"]

PARAMETERS: dict[str, Any] = {
    "learning_rate": 0.03,
    "num_leaves": 7,
    "min_data_in_leaf": 500,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
}
"""The best of some twenty on Philly and Earth: fitted on five sevenths, scored on the sixth."""

_TREES = 200

CHOSEN_STEPS = (1, 2, 5, 15, 30, 60, 120, 240, 480, 960)
"""Steps fitted directly where more than 15 are forecast: clocks and sleep, deep sleep, off, and beyond."""


def _chosen(horizon: int) -> tuple[int, ...]:
    """Return the steps that are fitted for a horizon."""
    if horizon <= CHOSEN_STEPS[3]:
        return tuple(range(1, horizon + 1))
    return (*(step for step in CHOSEN_STEPS if step < horizon), horizon)


_CHUNK = 50_000


class LightGbmQuantile(ObservingPredictor):
    """A LightGBM model for each step and level.

    Parameters
    ----------
    trees
        Trees of each model.
    parameters
        Overrides of ``PARAMETERS``.
    threads
        Threads of a fit. More than one slows small fits down on busy machines.
    steps, levels
        Steps and levels fitted; the others are interpolated. If ``None``: all levels, and all steps of up to 15, of
        more ``CHOSEN_STEPS`` and the last, so that an hour of minutes takes 6 x 18 fits instead of 60 x 18.

    Raises
    ------
    InputError
        For steps that do not rise from 1 or more to the horizon, and levels that do not rise within (0, 1).
    """

    name = TREES

    def __init__(
        self, look_back: int = LOOK_BACK, horizon: int = HORIZON, trees: int = _TREES,
        parameters: dict[str, Any] | None = None, steps: tuple[int, ...] | None = None,
        levels: tuple[float, ...] | None = None, threads: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(max(WINDOWS) + 1)
        self.look_back, self.horizon, self._trees = look_back, horizon, trees
        self._threads = threads
        self._parameters = PARAMETERS | (parameters or {})
        self._steps = steps or _chosen(horizon)
        self._levels = np.array(levels) if levels else LEVELS
        if not self._steps or self._steps[0] < 1 or self._steps[-1] != horizon or (np.diff(self._steps) <= 0).any():
            expected = f"rising steps, from 1 or more to the horizon, {horizon}"
            raise InputError(expected, field="steps", value=self._steps)
        if self._levels[0] <= 0 or self._levels[-1] >= 1 or (np.diff(self._levels) <= 0).any():
            value = self._levels.tolist()
            raise InputError("rising quantile levels above 0 and below 1", field="levels", value=value)
        self._models: Trees | None = None  # one for each step and, within it, level
        self._whole = True

    def fit(
        self, series: DemandSeries, rng: np.random.Generator, *, progress: Callable[[float], None] = lambda _: None
    ) -> None:
        """Fit all models; *progress* is called with the part done. Raises ``InputError`` if *series* is too short."""
        import lightgbm

        check_length(series, self.look_back + self.horizon)
        self.see(series)
        self._whole = series.whole
        values, seed = series.filled(), int(rng.integers(2**31))
        origins = learnable_origins(series, self.look_back, self.horizon, rng)
        rows = features_at(series, values, origins)
        settings = {**self._parameters, "objective": "quantile", "verbose": -1, "seed": seed, "deterministic": True,
                    "num_threads": self._threads, "force_row_wise": True, "max_bin": 127}  # fmt: skip
        binned = lightgbm.Dataset(rows, params={"max_bin": 127, "verbose": -1}, free_raw_data=False).construct()
        models = []
        for done, h in enumerate(self._steps, 1):
            binned.set_label(values[origins + h] - values[origins])
            models += [lightgbm.train({**settings, "alpha": float(q)}, binned, self._trees) for q in self._levels]
            progress(done / len(self._steps))
        self._models = Trees.of_lightgbm(models)

    @property
    def whole(self) -> bool:
        """Whether demand came in whole GPUs only: then forecasts are rounded to the nearest."""
        return self._whole

    @property
    def members(self) -> int:
        """Models fitted: one for each step and level."""
        return len(self._steps) * len(self._levels) if self._models else 0

    def predict(self) -> QuantileForecast:
        """Forecast from the values observed."""
        seen = self._history.values
        series = DemandSeries(self.fitted_until_s - self._step_s * len(seen), self._step_s, seen)
        return QuantileForecast(
            LEVELS, self._forecast(features_at(series, seen, np.array([len(seen) - 1])), seen[-1:])[0]
        )

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q].

        Raises ``InputError`` if nothing was fitted, or *series* has another step than the series fitted on.
        """
        at, values = checked_origins(series, origins, 1), series.filled()
        if self._models is not None:
            check_step(series, self._step_s)
        return self._forecast(features_at(series, values, at), values[at])

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file must hold: numbers, and arrays by name.

        Raises ``InputError`` if nothing was fitted.
        """
        if not self._models:
            raise InputError("a predictor that was fitted", field="model", value=self.name)
        about = {
            "kind": self.name, "look_back": self.look_back, "horizon": self.horizon, "trees": self._trees,
            "steps": self._steps, "levels": tuple(self._levels.tolist()), "whole": self._whole,
            **self._clock(),
        }  # fmt: skip
        return about, {"history": self._history.values.copy()} | self._models.arrays()

    @classmethod
    def restored(cls, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> LightGbmQuantile:
        """Return the predictor that ``state`` was taken from.

        Raises ``InputError`` if arrays are missing or describe other trees.
        """
        made = cls(
            about["look_back"], about["horizon"], about["trees"], steps=tuple(about["steps"]),
            levels=tuple(about["levels"]),
        )  # fmt: skip
        if "history" not in arrays:
            raise InputError("the last values observed", field="arrays", value="no history")
        made._models = Trees.from_arrays(arrays, len(made._steps) * len(made._levels), _width())
        made._restore(about, arrays["history"])
        made._whole = about["whole"]
        return made

    def _forecast(self, rows: Floats, last: Floats) -> Floats:
        if self._models is None:
            raise InputError("a predictor that was fitted", field="model", value=self.name)
        moved = self._models.predict(rows).reshape(len(self._steps), len(self._levels), len(rows))
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


def features_at(series: DemandSeries, values: Floats, origins: Ints) -> Floats:
    """Return the features of some rising instants, without computing all of them at once. Shape [K, F]."""
    parts = []
    for first in range(0, len(values), _CHUNK):
        inside = origins[slice(*np.searchsorted(origins, (first, first + _CHUNK)))]
        if len(inside):
            near = max(0, int(inside[0]) - max(WINDOWS))
            end = int(inside[-1]) + 1
            times_s = series.start_s + series.step_s * np.arange(near, end, dtype=np.float64)
            parts.append(features(values[near:end], times_s)[inside - near])
    return np.concatenate(parts) if parts else np.empty((0, _width()))


def _width() -> int:
    return features(np.zeros(1), np.zeros(1)).shape[1]


def features(values: Floats, times_s: Floats) -> Floats:
    """Return the features of every instant; windows that reach before the first value are cut. Shape [T, F]."""
    day, week = 2 * np.pi * times_s / DAY_S, np.floor(times_s % WEEK_S / DAY_S)
    return np.column_stack([movements(values), values, np.sin(day), np.cos(day), week])
