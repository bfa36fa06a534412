"""LightGBM quantile regression on hand-made features: the obvious peer of a network.

One model for each step and level forecasts the change from the last value with the quantile objective. Quantiles are
sorted afterwards, so that they do not cross; where demand came in whole GPUs only, they are rounded to the nearest one
(scores round up, which would add half a GPU). Features of an instant, all computed from values up to it: changes over
1 to 119 steps; over windows of 5 to 1440 steps the maximum, minimum and mean less the last value, and the mean
absolute change (``movements``); the level; hour of day and day of week. Further columns, such as the GPUs that
waiting jobs request, are features as they are.

More than 5 steps ahead the forecast is a mean with that of ``last-value``, which knows the last seven days only: what
was learned from earlier weeks says less about the next hour than about the next minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from commonwatt.forecasting._baselines import WrappedPredictor
from commonwatt.forecasting._history import (
    MOST_EXAMPLES,
    History,
    ObservingPredictor,
    check_length,
    check_step,
    checked_origins,
    learnable_origins,
    recent_steps,
    sliding_quantiles,
)
from commonwatt.forecasting._network_inputs import IN_GPUS, LEVEL_AND_WEEKDAY, WINDOWS, features_at, width
from commonwatt.forecasting._trees import PARAMETERS, StepSettings, Trees, chosen_steps, settings_of
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import HORIZON, LEVELS, LOOK_BACK, DemandSeries, Predictor, QuantileForecast
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_file import TREES
from commonwatt.model.units import WEEK_S

__all__ = ["POOL_SIZE", "LightGbmQuantile", "joint_pools"]

_TREES = 200


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
    features
        Columns beside demand it learns from; every series it is given must have them.
    size
        The feature that says how large a series is, GPUs. Changes and the level are then learned in units of its square
        root, so that small series and large ones are alike; the loss is still that in GPUs.
    settings
        Settings of a step.

    Raises
    ------
    InputError
        For steps that do not rise from 1 or more to the horizon, levels that do not rise within (0, 1), a feature
        without a name or named twice, and a share outside [0, 1].
    """

    name = TREES

    def __init__(
        self, look_back: int = LOOK_BACK, horizon: int = HORIZON, trees: int = _TREES,
        parameters: dict[str, Any] | None = None, steps: tuple[int, ...] | None = None,
        levels: tuple[float, ...] | None = None, threads: int = 1, features: Sequence[str] = (),
        size: str | None = None, settings: Callable[[int], StepSettings] = settings_of,
    ) -> None:  # fmt: skip
        super().__init__(max(WINDOWS) + 1)
        self.look_back, self.horizon, self._trees = look_back, horizon, trees
        self._threads = threads
        self._parameters = PARAMETERS | (parameters or {})
        self._steps = steps or chosen_steps(horizon)
        self._levels = np.array(levels) if levels else LEVELS
        if not self._steps or self._steps[0] < 1 or self._steps[-1] != horizon or (np.diff(self._steps) <= 0).any():
            expected = f"rising steps, from 1 or more to the horizon, {horizon}"
            raise InputError(expected, field="steps", value=self._steps)
        if self._levels[0] <= 0 or self._levels[-1] >= 1 or (np.diff(self._levels) <= 0).any():
            value = self._levels.tolist()
            raise InputError("rising quantile levels above 0 and below 1", field="levels", value=value)
        self.features = tuple(features)
        if not all(self.features) or len(set(self.features)) < len(self.features):
            raise InputError("names of columns, each once", field="features", value=",".join(self.features))
        self._settings_of, self._settings = settings, [settings(step) for step in self._steps]
        self._shares = np.array([own.share for own in self._settings])
        if not ((self._shares >= 0) & (self._shares <= 1)).all():
            raise InputError("shares from 0 to 1", field="shares", value=self._shares.tolist())
        self._size = size
        self._beside: dict[str, History] = {}
        self._models: Trees | None = None  # one for each step and, within it, level
        self._whole = True

    def fit(
        self, series: DemandSeries, rng: np.random.Generator, *, progress: Callable[[float], None] = lambda _: None
    ) -> None:
        """Fit all models; *progress* is called with the part done. Raises ``InputError`` if *series* is too short."""
        check_length(series, self.look_back + self.horizon)
        self.take(series, self.learn([series], rng, progress))

    def take(self, series: DemandSeries, models: Trees) -> None:
        """Forecast by *models*, and take *series* as observed in place of everything before."""
        self.see(series)
        self._whole, self._models = series.whole, models

    def learn(
        self, several: Sequence[DemandSeries], rng: np.random.Generator,
        progress: Callable[[float], None] = lambda _: None,
    ) -> Trees:  # fmt: skip
        """Return models fitted to the windows of *several* series together; *progress* is called with the part done."""
        import lightgbm

        seed = int(rng.integers(2**31))
        most = MOST_EXAMPLES // len(several)
        origins = [learnable_origins(series, self.look_back, self.horizon, rng, most) for series in several]
        values = [series.filled() for series in several]
        read = [self._rows(series, own, at) for series, own, at in zip(several, values, origins, strict=True)]
        rows, unit = (np.concatenate(part) for part in zip(*read, strict=True))
        settings = {**self._parameters, "objective": "quantile", "verbose": -1, "seed": seed, "deterministic": True,
                    "num_threads": self._threads, "force_row_wise": True, "max_bin": 127}  # fmt: skip
        if len(rows) == 1:
            settings["bagging_freq"] = 0  # a share of one row is none
        weight = None if self._size is None else unit
        binned: dict[bool, Any] = {}
        models = []
        for done, (h, own) in enumerate(zip(self._steps, self._settings, strict=True), 1):
            if own.level_and_weekday not in binned:
                shown = rows.copy()
                shown[:, LEVEL_AND_WEEKDAY] *= own.level_and_weekday  # what is 0 everywhere splits nothing
                binned = {own.level_and_weekday: lightgbm.Dataset(
                    shown, weight=weight, params={"max_bin": 127, "verbose": -1}, free_raw_data=False
                ).construct()}  # fmt: skip
            moved = [one[at + h] - one[at] for one, at in zip(values, origins, strict=True)]
            data = binned[own.level_and_weekday]
            data.set_label(np.concatenate(moved) / unit)
            models += [lightgbm.train({**settings, "alpha": float(q)}, data, self._trees) for q in self._levels]
            progress(done / len(self._steps))
        return Trees.of_lightgbm(models)

    def sized(self, size: str) -> LightGbmQuantile:
        """Return an unfitted predictor of the same settings for series of many sizes, which the column *size* has."""
        return LightGbmQuantile(
            self.look_back, self.horizon, self._trees, self._parameters, self._steps, tuple(self._levels.tolist()),
            self._threads, (*self.features, size), size, self._settings_of,
        )  # fmt: skip

    @property
    def whole(self) -> bool:
        """Whether demand came in whole GPUs only: then forecasts are rounded to the nearest."""
        return self._whole

    @property
    def members(self) -> int:
        """Models fitted: one for each step and level."""
        return len(self._steps) * len(self._levels) if self._models else 0

    def see(self, series: DemandSeries) -> None:
        """Take *series* as observed in place of everything before; nothing is refitted.

        Raises ``InputError`` for one without a known value or without one of the features.
        """
        kept = max(WINDOWS) + 1
        if self._shares.any():
            kept = max(kept, recent_steps(WEEK_S, series.step_s) + self.horizon)
        self._history = History(kept)
        self._beside = {name: History(kept) for name in self.features}
        super().see(series)
        for name, history in self._beside.items():
            history.see_values(series.feature(name))

    def update(self, gpus: float, features: Mapping[str, float] | None = None) -> None:
        """Observe one more value, GPUs, and the *features* of that instant; one not given repeats its last value."""
        super().update(gpus)
        for name, history in self._beside.items():
            history.see((features or {}).get(name, np.nan))

    def predict(self) -> QuantileForecast:
        """Forecast from the values observed."""
        seen = self._history.values
        beside = {name: history.values for name, history in self._beside.items()}
        series = DemandSeries(self.fitted_until_s - self._step_s * len(seen), self._step_s, seen, beside)
        return QuantileForecast(LEVELS, self._forecast(series, seen, np.array([len(seen) - 1]))[0])

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q].

        Raises ``InputError`` if nothing was fitted, or *series* has another step than the series fitted on or lacks
        one of the features.
        """
        at, values = checked_origins(series, origins, 1), series.filled()
        if self._models is not None:
            check_step(series, self._step_s)
        return self._forecast(series, values, at)

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file must hold: numbers, and arrays by name.

        Raises ``InputError`` if nothing was fitted.
        """
        if not self._models:
            raise InputError("a predictor that was fitted", field="model", value=self.name)
        about = {
            "kind": self.name, "look_back": self.look_back, "horizon": self.horizon, "trees": self._trees,
            "steps": self._steps, "levels": tuple(self._levels.tolist()), "whole": self._whole,
            "features": self.features, "shares": tuple(self._shares.tolist()), **self._clock(),
        }  # fmt: skip
        beside = {f"history.{number}": own.values.copy() for number, own in enumerate(self._beside.values())}
        return about, {"history": self._history.values.copy()} | beside | self._models.arrays()

    @classmethod
    def restored(cls, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> LightGbmQuantile:
        """Return the predictor that ``state`` was taken from.

        Raises ``InputError`` if arrays are missing or describe other trees.
        """
        steps, shares = tuple(about["steps"]), about["shares"] or [0.0] * len(about["steps"])  # none in older files
        if len(shares) != len(steps):
            raise InputError(f"{len(steps)} shares, one for each step", field="shares", value=shares)
        made = cls(
            about["look_back"], about["horizon"], about["trees"], steps=steps, levels=tuple(about["levels"]),
            features=about["features"], settings=lambda step: StepSettings(share=shares[steps.index(step)]),
        )  # fmt: skip
        names = {f"history.{number}": name for number, name in enumerate(made.features)}
        if missing := [name for name in ("history", *names) if name not in arrays]:
            raise InputError("the last values observed", field="arrays", value=f"no {missing[0]}")
        made._models = Trees.from_arrays(arrays, len(made._steps) * len(made._levels), width(len(names)))
        made._restore(about, arrays["history"], {name: arrays[array] for array, name in names.items()})
        made._whole = about["whole"]
        return made

    def _rows(self, series: DemandSeries, values: Floats, origins: Ints) -> tuple[Floats, Floats]:
        """Return the features of each origin, and the unit in GPUs of its changes. Shapes [K, F], [K]."""
        rows = features_at(series, values, origins, self.features)
        if self._size is None:
            return rows, np.ones(len(origins))
        unit = np.sqrt(np.maximum(series.feature(self._size)[origins], 1.0))
        rows[:, :IN_GPUS] /= unit[:, None]
        return rows, unit

    def _forecast(self, series: DemandSeries, values: Floats, origins: Ints) -> Floats:
        if self._models is None:
            raise InputError("a predictor that was fitted", field="model", value=self.name)
        (rows, unit), last = self._rows(series, values, origins), values[origins]
        moved = self._models.predict(rows) * unit
        moved = moved.reshape(len(self._steps), len(self._levels), len(rows))
        moved = np.sort(moved, axis=1).transpose(2, 0, 1)
        for number in np.flatnonzero(self._shares):
            h, share = self._steps[number], self._shares[number]
            changes = np.concatenate((np.full(h, np.nan), values[h:] - values[:-h]))
            recent = sliding_quantiles(changes, recent_steps(WEEK_S, series.step_s), origins, self._levels)
            moved[:, number] += share * (recent - moved[:, number])
        moved = _between(self._levels, moved, LEVELS, axis=2)
        moved = _between(np.array(self._steps, dtype=float), moved, np.arange(1.0, self.horizon + 1), axis=1)
        gpus = np.maximum(last[:, None, None] + moved, 0.0)
        return np.rint(gpus) if self._whole else gpus


def _between(grid: Floats, values: Floats, wanted: Floats, axis: int) -> Floats:
    """Interpolate along *axis*, the outermost beyond."""
    if len(grid) == len(wanted):
        return values
    high = np.clip(np.searchsorted(grid, wanted), 1, max(1, len(grid) - 1))
    if len(grid) == 1:
        return np.repeat(values, len(wanted), axis=axis)
    part = np.clip((wanted - grid[high - 1]) / (grid[high] - grid[high - 1]), 0.0, 1.0)
    shape = [1] * values.ndim
    shape[axis] = len(wanted)
    weight = part.reshape(shape)
    return (1 - weight) * np.take(values, high - 1, axis=axis) + weight * np.take(values, high, axis=axis)


POOL_SIZE = "size of the pool"
"""Column that models of all pools learn from."""


def joint_pools(
    pools: Mapping[str, DemandSeries], predictor: Predictor, gpus: Mapping[str, int] | None = None
) -> dict[str, tuple[DemandSeries, Predictor]] | None:
    """Return a series and a predictor for each of *pools*, whose models are fitted to the windows of all of them.

    The series have one column more, the size of the pool: its GPUs in *gpus* or else the most it has wanted by then.
    Neither the names nor the order of the pools matter. ``None`` for one pool, and for a predictor other than LightGBM:
    each is forecast by itself.

    Parameters
    ----------
    pools
        Series of one start, step and length.
    predictor
        Not fitted; it gives the settings.
    """
    if len(pools) < 2 or not isinstance(predictor, LightGbmQuantile):
        return None
    sized = {}
    for name, series in pools.items():
        size = np.fmax.accumulate(series.gpus) if gpus is None else np.full(len(series), float(gpus[name]))
        sized[name] = replace(series, features={**series.features, POOL_SIZE: size})
    fits = _JointFits(predictor.sized(POOL_SIZE), sized.values())
    return {name: (series, _JointPool(predictor.sized(POOL_SIZE), fits)) for name, series in sized.items()}


def _content(series: DemandSeries) -> bytes:
    return b"".join(values.tobytes() for values in (series.gpus, *series.features.values()))


class _JointFits:
    """Models fitted to the windows of all pools, once for each end of their training parts."""

    def __init__(self, predictor: LightGbmQuantile, pools: Iterable[DemandSeries]) -> None:
        self._predictor, self._pools = predictor, sorted(pools, key=_content)
        self._fitted: dict[int, Trees] = {}

    def until(self, end: int, rng: np.random.Generator) -> Trees:
        """Return models fitted to the values before index *end*."""
        if end not in self._fitted:
            self._fitted[end] = self._predictor.learn([series.between(0, end) for series in self._pools], rng)
        return self._fitted[end]


class _JointPool(WrappedPredictor):
    """The forecast of one pool by models of all pools."""

    def __init__(self, inner: LightGbmQuantile, fits: _JointFits) -> None:
        super().__init__(inner)
        self._own, self._fits = inner, fits

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Take *series*, the beginning of that of the pool, as observed; all pools are learned from up to its end."""
        check_length(series, self.look_back + self.horizon)
        self._own.take(series, self._fits.until(len(series), rng))

    def see(self, series: DemandSeries) -> None:
        """Take *series*, with the size of the pool, as observed in place of everything before; nothing is refitted."""
        self._own.see(series)
