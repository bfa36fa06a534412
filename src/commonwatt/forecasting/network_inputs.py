"""What the networks see of a demand series: the last n values, and what the values before them come to.

Everything is relative to the last value and compressed by asinh, so that a drifting level changes nothing and a rare
large jump does not drown the rest. Before the first value of a series its demand is taken to have been constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.units import DAY_S

__all__ = ["MEMORY", "PATCH", "Clock", "context_width", "contexts", "level_sequences", "sequences"]

Singles = NDArray[np.float32]

MEMORY = 1445
"""Values back that any input depends on: a day of minutes, and the default horizon."""

PATCH = 5
"""Values taken together as one element of the sequence."""

_SPANS = (2, 3, 5, 10, 15, 30, 60, 120, 360, 720, 1440)  # values over which changes are summed
_PEAKS = (5, 15, 60, 360, 1440)  # values over which the largest change is looked for
_LEVELS = (10, 30, 120, 360, 1440)  # values over which the level is described
_LAGS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 45, 60, 90, 119)
_JUMPS = (1.0, 8.0, 30.0)  # in resolutions: how long ago was the last one that large
_LONGEST = 2000.0
_CHUNK = 50_000
_AT_ONCE = 4096


@dataclass(frozen=True)
class Clock:
    """When the values of a series are.

    Parameters
    ----------
    start_s
        Instant of the first value, s.
    step_s
        Time between values, s.
    """

    start_s: float
    step_s: float


def sequences(values: Floats, origins: Ints, look_back: int, resolution: float) -> Singles:
    """Return what is fed to an encoder: each value against the last one, and its rise and fall against the one before.

    Parameters
    ----------
    values
        Demand, all known, GPUs. Shape [T].
    origins
        Index of the last value seen. Shape [K].
    look_back
        Values seen (n).
    resolution
        What counts as a small change, GPUs.

    Returns
    -------
    Singles
        Shape [K, ceil(n / PATCH), 3 * PATCH].
    """
    parts = np.array_split(origins, -(-len(origins) // _AT_ONCE) or 1)
    return np.concatenate([_sequences(values, part, look_back, resolution) for part in parts])


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
    """Return the standardised levels themselves, as a network of the paper would get. Shape [K, ceil(n/5), 5]."""
    seen = _windows(values, origins, look_back)[:, 1:]
    return ((seen - mean) / spread).reshape(len(origins), -1, PATCH).astype(np.float32)


def _windows(values: Floats, origins: Ints, look_back: int) -> Floats:
    """Return the values up to each origin and one before them, their number rounded up to whole patches."""
    length = -(-look_back // PATCH) * PATCH + 1
    at = origins[:, None] + np.arange(1 - length, 1)
    return values[np.maximum(at, np.maximum(0, origins[:, None] + 1 - look_back))]


def context_width() -> int:
    """Return the number of context inputs."""
    return contexts(np.zeros(1), np.zeros(1, dtype=np.int64), Clock(0.0, 60.0), 1, 1.0).shape[1]


def contexts(values: Floats, origins: Ints, clock: Clock, horizon: int, resolution: float) -> Singles:
    """Return what is known besides the sequence, none of it from after the origin.

    Rises and falls summed, counted and at their largest over 2 to 1440 values; level against its mean, maximum and
    minimum of late, and its spread; time since the last jumps; phase of the day; the rise at this time
    of day a day ago (0 if a day is more than 1440 values).

    Shapes: *values* [T], *origins* [K], rising; returns [K, C].
    """
    rows = []
    for first in range(0, int(origins[-1]) + 1 if len(origins) else 0, _CHUNK):
        inside = origins[(origins >= first) & (origins < first + _CHUNK)]
        if len(inside):
            rows.append(_chunk(values, inside, clock, horizon, resolution))
    return np.concatenate(rows) if rows else np.zeros((0, context_width()), dtype=np.float32)


def _chunk(values: Floats, origins: Ints, clock: Clock, horizon: int, resolution: float) -> Singles:
    begin = int(origins[0]) - MEMORY
    at = np.arange(begin, int(origins[-1]) + 1)
    level = values[np.maximum(at, 0)] / resolution
    rows = origins - begin
    change = np.diff(level, prepend=level[0])
    up, down = np.maximum(change, 0.0), np.maximum(-change, 0.0)
    found = [
        *_moves(up, down, rows),
        *_levels(level, rows),
        *(np.arcsinh(level[rows - lag] - level[rows]) for lag in _LAGS),
        *_since(up, down, rows),
        *_phases(clock, origins),
        _a_day_ago(up, rows, clock, horizon),
    ]
    return np.stack(found, 1).astype(np.float32)


def _moves(up: Floats, down: Floats, rows: Ints) -> list[Floats]:
    found = []
    for moved in (up, down):
        total = np.concatenate(([0.0], np.cumsum(moved)))
        found += [np.arcsinh(total[rows + 1] - total[rows + 1 - span]) for span in _SPANS]
        found += [np.arcsinh(_trailing_max(moved, span)[rows]) for span in _PEAKS]
    count = np.concatenate(([0.0], np.cumsum(up > 0)))
    return found + [np.arcsinh(count[rows + 1] - count[rows + 1 - span]) for span in _SPANS]


def _levels(level: Floats, rows: Ints) -> list[Floats]:
    found = []
    base = level - level[0]  # small numbers: sums of squares stay exact
    total, squares = (np.concatenate(([0.0], np.cumsum(x))) for x in (base, base * base))
    for span in _LEVELS:
        mean = (total[rows + 1] - total[rows + 1 - span]) / span
        variance = (squares[rows + 1] - squares[rows + 1 - span]) / span - mean * mean
        found += [
            np.arcsinh(base[rows] - mean),
            np.arcsinh(np.sqrt(np.maximum(variance, 0.0))),
            np.arcsinh(_trailing_max(level, span)[rows] - level[rows]),
            np.arcsinh(level[rows] + _trailing_max(-level, span)[rows]),
        ]
    return found


def _since(up: Floats, down: Floats, rows: Ints) -> list[Floats]:
    index = np.arange(len(up))
    found = []
    for least in _JUMPS:
        for moved in (up, down):
            last = np.maximum.accumulate(np.where(moved >= least, index, -1))[rows]
            ago = np.where(last <= rows - MEMORY, _LONGEST, rows - last)
            found.append(np.log1p(ago))
    return found


def _phases(clock: Clock, origins: Ints) -> list[Floats]:
    time_s = clock.start_s + clock.step_s * origins
    found = []
    for k in (1, 2, 3):
        angle = 2 * np.pi * k * np.mod(time_s, DAY_S) / DAY_S
        found += [np.sin(angle), np.cos(angle)]
    return found


def _a_day_ago(up: Floats, rows: Ints, clock: Clock, horizon: int) -> Floats:
    day = round(DAY_S / clock.step_s)
    if not horizon <= day < MEMORY:
        return np.zeros(len(rows))
    total = np.concatenate(([0.0], np.cumsum(up)))
    return np.arcsinh(total[rows + 1 - day + horizon] - total[rows + 1 - day])


def _trailing_max(values: Floats, span: int) -> Floats:
    """Return the maximum of the last *span* values at each index, fewer at the beginning; by doubling."""
    held, width = values.copy(), 1
    while 2 * width <= span:
        held[width:] = np.maximum(held[width:], held[:-width])
        width *= 2
    rest = span - width
    if rest:
        held[rest:] = np.maximum(held[rest:], held[:-rest])
    return held
