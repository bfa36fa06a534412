"""How a series has moved of late: what LightGBM and the networks look at besides the values themselves."""

from __future__ import annotations

import numpy as np
from numba import njit

from commonwatt.model.arrays import Floats

__all__ = ["LAGS", "WINDOWS", "movements"]

LAGS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 90, 119)
"""Steps over which changes are looked at."""

WINDOWS = (5, 15, 30, 60, 120, 360, 1440)
"""Lengths of the windows, steps."""


def movements(values: Floats) -> Floats:
    """Return, for every instant, how the series moved up to it; windows that reach before the first value are cut.

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
