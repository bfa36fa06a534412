"""Inputs of the networks and of LightGBM: the last n values of a demand series, and its recent movements.

The inputs of the networks are relative to the last value and compressed by asinh, so that a drifting level changes
nothing and a rare large jump does not dominate. They do not depend on the time of day.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from commonwatt.forecasting._history import sliding_quantiles
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import DemandSeries
from commonwatt.model.units import DAY_S, WEEK_S
from commonwatt.optimize import njit

__all__ = [
    "IN_GPUS",
    "LAGS",
    "LEVEL_AND_WEEKDAY",
    "MEMORY",
    "PATCH",
    "WINDOWS",
    "context_width",
    "contexts",
    "features",
    "features_at",
    "level_sequences",
    "movements",
    "sequences",
    "width",
]

LAGS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 90, 119)
"""Steps over which changes are taken."""

WINDOWS = (5, 15, 30, 60, 120, 360, 1440)
"""Lengths of the windows, steps."""


def movements(values: Floats) -> Floats:
    """Return, for every instant, the movements of the series up to it; windows are cut at the first value.

    The changes over each of ``LAGS``; then for each of ``WINDOWS`` its maximum, minimum and mean less the last value,
    and the mean absolute change. All in the unit of *values*. Shapes: *values* [T]; returns [T, 43].
    """
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
    return np.column_stack(columns)


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


Singles = NDArray[np.float32]

PATCH = 5
"""Values taken together as one element of the sequence."""

_SPANS = (60, 240, 1440, 4320, 10_080)  # values: the last changes whose quantiles are looked at
_QUANTILES = np.array([0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99])
MEMORY = max(*_SPANS, *WINDOWS)
"""Values back on which any input depends, besides the horizon and the look-back."""

_CHUNK = 50_000
_AT_ONCE = 4096


def sequences(values: Floats, origins: Ints, look_back: int, resolution: float) -> Singles:
    """Return the input of an encoder: each value relative to the last one, and its rise and fall from the one before.

    Parameters
    ----------
    values
        Demand, all known, GPUs. Shape [T].
    origins
        Index of the last value seen. Shape [K].
    look_back
        Values seen (n).
    resolution
        A small change, GPUs.

    Returns
    -------
    Singles
        Shape [K, ceil(n / PATCH), 3 * PATCH].
    """
    out = np.empty((len(origins), -(-look_back // PATCH), 3 * PATCH), dtype=np.float32)
    for first in range(0, len(origins), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        out[part] = _sequences(values, origins[part], look_back, resolution)
    return out


def _sequences(values: Floats, origins: Ints, look_back: int, resolution: float) -> Singles:
    seen = _windows(values, origins, look_back) / resolution
    change = np.diff(seen, axis=1)
    channels = (
        np.arcsinh(seen[:, 1:] - seen[:, -1:]) / 3,
        np.arcsinh(np.maximum(change, 0.0)) / 2,
        np.arcsinh(np.maximum(-change, 0.0)) / 2,
    )
    return np.stack(channels, 2).reshape(len(origins), -1, 3 * PATCH).astype(np.float32)


def level_sequences(values: Floats, origins: Ints, look_back: int, mean: float, spread: float) -> Singles:
    """Return the standardised levels themselves, as in the paper. Shape [K, ceil(n/5), 5]."""
    seen = _windows(values, origins, look_back)[:, 1:]
    return ((seen - mean) / spread).reshape(len(origins), -1, PATCH).astype(np.float32)


def _windows(values: Floats, origins: Ints, look_back: int) -> Floats:
    """Return the values up to each origin and one before them, their number rounded up to whole patches."""
    length = -(-look_back // PATCH) * PATCH + 1
    at = origins[:, None] + np.arange(1 - length, 1)
    return values[np.maximum(at, np.maximum(0, origins[:, None] + 1 - look_back))]


def context_width() -> int:
    """Return the number of context inputs."""
    return _chunk(np.zeros(1), np.zeros(1, dtype=np.int64), 1).shape[1]


def contexts(values: Floats, origins: Ints, horizon: int, resolution: float) -> Singles:
    """Return the context of each origin, from values up to it.

    ``movements``; and the .05, .25, .5, .75, .9, .95, .98 and .99 quantiles of the last 60 to 10,080 changes over the
    horizon, fewer in a shorter series: how rough demand is now, and how rough it usually is.

    Shapes: *values* [T], *origins* [K], rising; returns [K, C].
    """
    out = np.empty((len(origins), context_width()), dtype=np.float32)
    for first in range(0, int(origins[-1]) + 1 if len(origins) else 0, _CHUNK):
        inside = slice(*np.searchsorted(origins, (first, first + _CHUNK)))
        if len(origins[inside]):
            out[inside] = np.arcsinh(_chunk(values, origins[inside], horizon) / resolution)
    return out


def _chunk(values: Floats, origins: Ints, horizon: int) -> Floats:
    begin, end = int(origins[0]), int(origins[-1]) + 1
    near = max(0, begin - max(WINDOWS))
    first = max(0, begin - MEMORY - horizon)
    seen = values[first:end]
    changes = np.full(len(seen), np.nan)
    changes[horizon:] = seen[horizon:] - seen[:-horizon]
    return np.concatenate(
        [
            movements(values[near:end])[origins - near],
            *(sliding_quantiles(changes, span, origins - first, _QUANTILES) for span in _SPANS),
        ],
        axis=1,
    )


IN_GPUS = len(LAGS) + 4 * len(WINDOWS) + 1
"""Features of LightGBM that are GPUs of the series, which come first: its movements and its level."""

LEVEL_AND_WEEKDAY = (IN_GPUS - 1, IN_GPUS + 2)
"""Columns of the level and of the day of the week among the features of LightGBM."""


def features_at(series: DemandSeries, values: Floats, origins: Ints, names: Sequence[str] = ()) -> Floats:
    """Return the features of some rising instants, without computing all of them at once. Shape [K, F].

    Raises ``InputError`` if *series* lacks one of the columns *names*.
    """
    beside = np.array([series.feature(name) for name in names]).reshape(len(names), len(values))
    parts = []
    for first in range(0, len(values), _CHUNK):
        inside = origins[slice(*np.searchsorted(origins, (first, first + _CHUNK)))]
        if len(inside):
            near = max(0, int(inside[0]) - max(WINDOWS))
            end = int(inside[-1]) + 1
            times_s = series.start_s + series.step_s * np.arange(near, end, dtype=np.float64)
            parts.append(features(values[near:end], times_s, beside[:, near:end])[inside - near])
    return np.concatenate(parts) if parts else np.empty((0, width(len(names))))


def width(columns: int) -> int:
    """Return the number of features beside so many further columns."""
    return features(np.zeros(1), np.zeros(1), np.zeros((columns, 1))).shape[1]


def features(values: Floats, times_s: Floats, beside: Iterable[Floats] = ()) -> Floats:
    """Return the features of every instant; windows that reach before the first value are cut.

    *beside* are further columns. Shapes: all [T]; returns [T, F].
    """
    day, week = 2 * np.pi * times_s / DAY_S, np.floor(times_s % WEEK_S / DAY_S)
    return np.column_stack([movements(values), values, np.sin(day), np.cos(day), week, *beside])
