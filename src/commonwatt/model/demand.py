"""Demand for GPUs over time, forecasts of it, and what every predictor can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import InputError

__all__ = [
    "HORIZON",
    "LEVELS",
    "LOOK_BACK",
    "MOST_DEMAND",
    "TIME_COLUMNS",
    "Arrivals",
    "DemandSeries",
    "FittedPredictor",
    "Notices",
    "Predictor",
    "QuantileForecast",
    "quantile_at",
    "with_due",
]

MOST_DEMAND = 1e9
"""Largest demand accepted, GPUs; scores of much larger ones overflow."""

TIME_COLUMNS = ("time", "t_s", "time_s", "ds", "timestamp")
"""Names of a time column."""

LEVELS: Floats = np.round(np.concatenate([np.linspace(0.1, 0.8, 8), np.linspace(0.90, 0.99, 10)]), 2)
"""Quantile levels trained jointly: .1 to .8 by .1, then .90 to .99 by .01 (CUFF, section III)."""

LOOK_BACK = 120
"""Values seen before a forecast, the paper's n."""

HORIZON = 5
"""Values forecast, the paper's m."""


@dataclass(frozen=True)
class DemandSeries:
    """Demand at ``start_s``, ``start_s + step_s``, ...

    Parameters
    ----------
    start_s
        Instant of the first value, seconds since 1970-01-01 UTC or any other origin.
    step_s
        Seconds between values, above 0.
    gpus
        Demand, GPUs, 0 or more; NaN where it is unknown. Shape [T].
    features
        Counts known at the same instants, such as the GPUs that waiting jobs request, by name: 0 or more, NaN where
        they are unknown. Shape [T] each.

    Raises
    ------
    InputError
        For a step that is not above 0, no values, features of another length, and values that are negative, infinite
        or above ``MOST_DEMAND``.
    """

    start_s: float
    step_s: float
    gpus: Floats  # [T]
    features: Mapping[str, Floats] = field(default_factory=dict)  # [T] each

    def __post_init__(self) -> None:
        if not (np.isfinite(self.step_s) and self.step_s > 0):
            raise InputError("a number of seconds above 0", field="step_s", value=self.step_s)
        if self.gpus.ndim != 1 or len(self.gpus) == 0:
            raise InputError("one value or more, in a row", field="gpus", value=f"shape {self.gpus.shape}")
        for name, values in {"gpus": self.gpus, **self.features}.items():
            if values.shape != self.gpus.shape:
                raise InputError(f"{len(self.gpus)} values", field=name, value=f"shape {values.shape}")
            wrong = np.flatnonzero((values < 0) | (values > MOST_DEMAND))
            if len(wrong):
                expected = f"a finite {'demand' if name == 'gpus' else 'count'}, 0 or more, at most {MOST_DEMAND:,.0f}"
                raise InputError(expected, field=f"{name}.{wrong[0]}", value=float(values[wrong[0]]))

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def has_value(self) -> Bools:
        """Where the demand is known. Shape [T]."""
        return ~np.isnan(self.gpus)

    @property
    def first_index(self) -> int:
        """Index of the first known value; the length of the series if none is known."""
        return int(np.argmax(self.has_value)) if self.has_value.any() else len(self)

    @property
    def whole(self) -> bool:
        """Whether all known values are whole GPUs."""
        values = self.gpus[self.has_value]
        return bool((values == np.rint(values)).all())

    @property
    def end_s(self) -> float:
        """Instant one step after the last value."""
        return self.start_s + self.step_s * len(self)

    def time_s(self, index: int) -> float:
        """Return the instant of value *index*."""
        return self.start_s + self.step_s * index

    def index_of(self, time_s: float) -> int:
        """Return the index of the first value at or after *time_s*; may lie outside the series."""
        return int(np.ceil((time_s - self.start_s) / self.step_s - 1e-9))

    def between(self, first: int, last: int) -> DemandSeries:
        """Return values *first* up to, but not including, *last*."""
        features = {name: values[first:last] for name, values in self.features.items()}
        return DemandSeries(self.time_s(first), self.step_s, self.gpus[first:last], features)

    def feature(self, name: str) -> Floats:
        """Return a feature with unknown values replaced by the last known one; by 0 before any is known. Shape [T].

        Raises ``InputError`` if the series has none of that name.
        """
        if name not in self.features:
            names = ", ".join(self.features) or "no features"
            raise InputError(f"a series with the column {name}, a feature of the model", field="features", value=names)
        values = self.features[name]
        last = _last_index(values)
        filled: Floats = np.where(last < 0, 0.0, values[last])
        return filled

    def filled(self) -> Floats:
        """Return the demand with unknown values replaced by the last known one; by the first known one at the start.

        Raises ``InputError`` if nothing is known.
        """
        indices = np.flatnonzero(self.has_value)
        if len(indices) == 0:
            raise InputError("at least one known value", field="gpus", value="none")
        last = _last_index(self.gpus)
        return self.gpus[np.where(last < 0, indices[0], last)]


def _last_index(values: Floats) -> Ints:
    """Return the index of the last value that is known at each instant; -1 before any is. Shape [T]."""
    last: Ints = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    return last


@dataclass(frozen=True)
class Notices:
    """GPUs that were expected, by when that was known, as indices of a series. Shapes [N].

    Parameters
    ----------
    first, stop
        It was expected from value *first* up to, but not including, *stop*.
    at
        Value at which the GPUs were expected.
    gpus
        How many, beyond those they take over.
    """

    first: Ints
    stop: Ints
    at: Ints
    gpus: Floats


@dataclass(frozen=True)
class Arrivals:
    """Jobs that come while demand is observed, in their order.

    Parameters
    ----------
    index
        Index of the first value of the series that counts each job, not falling. Shape [J].
    gpus
        GPUs of each job. Shape [J].
    met_gpus
        Demand when the job came, with it and without the jobs behind it of the same instant, GPUs. Shape [J].
    notice_index
        Index of the first value at which the cluster knew when the job would come, at most *index*; ``None`` if each
        job was known only with its arrival. Shape [J].
    notices
        What was expected besides, right or wrong, of jobs that wait for others; ``None``: nothing.
    """

    index: Ints  # [J]
    gpus: Floats  # [J]
    met_gpus: Floats  # [J]
    notice_index: Ints | None = None  # [J]
    notices: Notices | None = None

    @classmethod
    def of(
        cls, series: DemandSeries, index: Ints, gpus: Ints | Floats, notice_index: Ints | None = None,
        notices: Notices | None = None,
    ) -> Arrivals:  # fmt: skip
        """Return the arrivals of jobs of *gpus* at *index*, which does not fall, in a series that counts them."""
        inside = (index >= 0) & (index < len(series))
        at, size = index[inside], gpus[inside].astype(float)
        total = np.cumsum(size)
        last = np.searchsorted(at, at, side="right") - 1
        met = series.gpus[at] - (total[last] - total)
        return cls(at, size, met, None if notice_index is None else np.minimum(notice_index[inside], at), notices)

    @classmethod
    def none(cls) -> Arrivals:
        """Return no arrivals."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))

    def at(self, index: int) -> Arrivals:
        """Return the jobs that come with value *index*."""
        return self.between(index, index + 1)

    def between(self, first: int, last: int) -> Arrivals:
        """Return the jobs of values *first* up to, but not including, *last*; indices stay as they are."""
        own = slice(*np.searchsorted(self.index, (first, last)))
        notice_index = None if self.notice_index is None else self.notice_index[own]
        return Arrivals(self.index[own], self.gpus[own], self.met_gpus[own], notice_index, self.notices)

    def due(self, origins: Ints, steps: int) -> Floats | None:
        """Return the GPUs of jobs known at each of *origins* that come within 1, 2, ... *steps* values of it, GPUs.

        Shape [len(origins), steps]; ``None`` if no job is known before it comes.
        """
        notices = [] if self.notices is None else [self.notices]
        if self.notice_index is not None and (self.notice_index < self.index).any():
            notices.append(Notices(self.notice_index, self.index, self.index, self.gpus))
        if not notices or not len(origins):
            return None
        first, stop = int(origins[0]), int(origins[-1]) + 1
        due = np.zeros((stop - first + 1, steps))
        for own in notices:
            for step in range(steps):
                begin = np.maximum(own.first, own.at - step - 1)
                end = np.maximum(begin, own.stop)
                np.add.at(due[:, step], np.clip(begin, first, stop) - first, own.gpus)
                np.add.at(due[:, step], np.clip(end, first, stop) - first, -own.gpus)
        rows: Floats = np.cumsum(due, axis=0)[origins - first]
        return rows

    def __len__(self) -> int:
        return len(self.index)


def quantile_at(levels: Floats, quantiles: Floats, level: float) -> Floats:
    """Return the quantiles at *level*: interpolated between *levels*, the outermost ones beyond them.

    *levels* has shape [Q] and *quantiles* [..., Q]; the result has the shape before Q.
    """
    upper = int(np.clip(np.searchsorted(levels, level), 0, len(levels) - 1))
    lower = max(upper - 1, 0)
    gap = levels[upper] - levels[lower]
    weight = float(np.clip((level - levels[lower]) / gap, 0.0, 1.0)) if gap > 0 else 1.0
    return (1.0 - weight) * quantiles[..., lower] + weight * quantiles[..., upper]


def with_due(quantiles: Floats, due: Floats | None) -> Floats:
    """Return *quantiles* of demand, [..., m, Q], with the GPUs *due* of jobs known to come, [..., m], on top.

    What is known of a job is when it comes, not what leaves meanwhile: the calibration follows that.
    """
    return quantiles if due is None else quantiles + due[..., None]


@dataclass(frozen=True)
class QuantileForecast:
    """Quantiles of demand at the next instants.

    Parameters
    ----------
    levels
        Rising quantile levels within (0, 1). Shape [Q].
    gpus
        Demand at each step and level, GPUs, 0 or more, not falling along levels. Shape [m, Q].

    Raises
    ------
    InputError
        For other shapes, values that are negative or not finite, and quantiles that cross.
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
        """Return the demand at *level*, as ``quantile_at``. Shape [m], GPUs."""
        return quantile_at(self.levels, self.gpus, level)


@runtime_checkable
class Predictor(Protocol):
    """Learns from a series, then forecasts from the values observed since."""

    @property
    def name(self) -> str:
        """Name on the command line."""
        ...

    @property
    def look_back(self) -> int:
        """Values needed before the first forecast (n)."""
        ...

    @property
    def horizon(self) -> int:
        """Steps forecast (m)."""
        ...

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Learn from *series*, and take it as observed.

        Raises ``InputError`` for one shorter than ``look_back + horizon``.
        """
        ...

    def update(self, gpus: float) -> None:
        """Observe one more value, GPUs; NaN if it is unknown. Nothing is refitted."""
        ...

    def predict(self) -> QuantileForecast:
        """Forecast the ``horizon`` values after the last one observed."""
        ...

    def predict_many(self, series: DemandSeries, origins: np.ndarray) -> Floats:
        """Forecast from each index of *origins* with the values up to and including it, whatever was observed before.

        Returns quantiles at ``LEVELS``, GPUs. Shape [len(origins), horizon, len(LEVELS)].
        """
        ...


@runtime_checkable
class FittedPredictor(Predictor, Protocol):
    """A predictor that can be saved to a file."""

    @property
    def step_s(self) -> float:
        """Seconds between the values it was fitted on."""
        ...

    @property
    def fitted_until_s(self) -> float:
        """Instant after the last value observed."""
        ...

    @property
    def members(self) -> int:
        """Models fitted."""
        ...

    def see(self, series: DemandSeries) -> None:
        """Take *series* as observed in place of everything before; nothing is refitted."""
        ...

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file must hold: settings and numbers, and arrays by name."""
        ...
