"""Values observed so far, sorted in a sliding window; what predictors check, and learn from, in a series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import MOST_DEMAND, DemandSeries
from commonwatt.model.errors import InputError
from commonwatt.optimize import njit

__all__ = [
    "MOST_EXAMPLES",
    "History",
    "ObservingPredictor",
    "SortedWindow",
    "check_length",
    "check_step",
    "checked_origins",
    "learnable_origins",
    "recent_steps",
    "sliding_quantiles",
    "steps_in",
]


class History:
    """The last values observed, unknown ones replaced by the last known.

    Parameters
    ----------
    length
        Values kept.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._buffer = np.empty(2 * length)
        self._end = 0

    @property
    def values(self) -> Floats:
        """The values kept, oldest first: a view. Shape [up to length], GPUs."""
        return self._buffer[max(0, self._end - self._length) : self._end]

    def see(self, gpus: float) -> float:
        """Append one value and return it; NaN repeats the value before it.

        Raises ``InputError`` for a negative value, one above ``MOST_DEMAND``, and NaN before any known value.
        """
        if np.isnan(gpus):
            if not self._end:
                raise InputError("a known demand first", field="gpus", value="nan")
            gpus = float(self._buffer[self._end - 1])
        if not 0 <= gpus <= MOST_DEMAND:
            expected = f"a finite demand, 0 or more, at most {MOST_DEMAND:,.0f}"
            raise InputError(expected, field="gpus", value=gpus)
        if self._end == len(self._buffer):
            self._buffer[: self._length] = self._buffer[self._end - self._length :]
            self._end = self._length
        self._buffer[self._end] = gpus
        self._end += 1
        return gpus

    def see_series(self, series: DemandSeries) -> None:
        """Replace everything by the end of *series*."""
        self.see_values(series.filled())

    def see_values(self, values: Floats) -> None:
        """Replace everything by the end of *values*, all known."""
        kept = values[-self._length :]
        self._buffer[: len(kept)] = kept
        self._end = len(kept)


class ObservingPredictor:
    """Base of predictors that can be saved: the end of the series observed, and its clock.

    Parameters
    ----------
    length
        Values kept.
    """

    def __init__(self, length: int) -> None:
        self._history = History(length)
        self._start_s, self._step_s, self._seen = 0.0, 60.0, 0

    @property
    def step_s(self) -> float:
        """Seconds between the values it was fitted on."""
        return self._step_s

    @property
    def fitted_until_s(self) -> float:
        """Instant after the last value observed."""
        return self._start_s + self._seen * self._step_s

    def see(self, series: DemandSeries) -> None:
        """Take *series* as observed in place of everything before; nothing is refitted.

        Raises ``InputError`` for one without a known value.
        """
        self._history.see_series(series)
        self._start_s, self._step_s, self._seen = series.start_s, series.step_s, len(series)

    def update(self, gpus: float) -> None:
        """Observe one more value, GPUs; NaN repeats the value before it. Nothing is refitted."""
        self._history.see(gpus)
        self._seen += 1

    def _clock(self) -> dict[str, float]:
        return {"start_s": self._start_s, "step_s": self._step_s, "seen": self._seen}

    def _restore(self, about: Mapping[str, Any], history: Floats, features: Mapping[str, Floats] | None = None) -> None:
        """Take *history* and *features* as the end of the series whose ``_clock`` is in *about*."""
        self.see(DemandSeries(0.0, about["step_s"], history, features or {}))
        self._start_s, self._step_s, self._seen = about["start_s"], about["step_s"], about["seen"]


class SortedWindow:
    """Numbers of a sliding window in order: a push shifts memory, a quantile is a look-up.

    Parameters
    ----------
    values
        The first numbers, oldest first; the last *length* are kept. Shape [any].
    length
        Numbers kept at most.
    """

    def __init__(self, values: Floats, length: int) -> None:
        kept = values[-length:] if length else values[:0]
        self._ring = np.empty(length)
        self._ring[: len(kept)] = kept
        self._sorted = np.empty(length + 1)
        self._sorted[: len(kept)] = np.sort(kept)
        self._count, self._next = len(kept), len(kept) % length

    def push(self, value: float) -> None:
        """Add a number; the oldest leaves once the window is full."""
        full = self._count == len(self._ring)
        if full:
            _remove(self._sorted, self._count, self._ring[self._next])
        else:
            self._count += 1
        _insert(self._sorted, self._count - 1, value)
        self._ring[self._next] = value
        self._next = (self._next + 1) % len(self._ring)

    def quantiles(self, levels: Floats) -> Floats:
        """Return quantiles, linear between neighbours as ``numpy.quantile``; 0 if there are no numbers. Shape [Q]."""
        return _quantiles(self._sorted, self._count, levels)


def sliding_quantiles(values: Floats, window: int, at: Ints, levels: Floats) -> Floats:
    """Return quantiles of ``values[t - window + 1 .. t]`` for each t of *at*, which must not fall.

    Leading NaN are skipped; a window without numbers has quantiles 0.

    Shapes: *values* [T], *at* [K], *levels* [Q]; returns [K, Q].
    """
    unknown = np.isnan(values)
    first = len(values) if unknown.all() else int(np.argmin(unknown))
    out = np.zeros((len(at), len(levels)))
    if len(at):
        _slide(values, first, window, at.astype(np.int64), levels, out)
    return out


@njit(cache=True)
def _insert(sorted_values: Floats, count: int, value: float) -> None:
    place = np.searchsorted(sorted_values[:count], value)
    for i in range(count, place, -1):
        sorted_values[i] = sorted_values[i - 1]
    sorted_values[place] = value


@njit(cache=True)
def _remove(sorted_values: Floats, count: int, value: float) -> None:
    place = np.searchsorted(sorted_values[:count], value)
    for i in range(place, count - 1):
        sorted_values[i] = sorted_values[i + 1]


@njit(cache=True)
def _quantiles(sorted_values: Floats, count: int, levels: Floats) -> Floats:
    out = np.zeros(len(levels))
    if count == 0:
        return out
    for q in range(len(levels)):
        place = levels[q] * (count - 1)
        low = int(place)
        part = place - low
        out[q] = sorted_values[low]
        if part > 0.0:
            out[q] += part * (sorted_values[low + 1] - sorted_values[low])
    return out


@njit(cache=True)
def _slide(values: Floats, first: int, window: int, at: Ints, levels: Floats, out: Floats) -> None:
    sorted_values = np.empty(window + 1)
    begin = max(first, at[0] - window + 1)
    count = max(0, at[0] + 1 - begin)
    sorted_values[:count] = np.sort(values[begin : begin + count])
    t = at[0]
    for k in range(len(at)):
        while t < at[k]:
            t += 1
            if t < first:
                continue
            if count == window:
                _remove(sorted_values, count, values[t - window])
                count -= 1
            _insert(sorted_values, count, values[t])
            count += 1
        out[k] = _quantiles(sorted_values, count, levels)


def steps_in(span_s: float, step_s: float) -> int:
    """Return the number of steps in a span of time, 1 or more."""
    return max(1, round(span_s / step_s))


def recent_steps(window_s: float, step_s: float) -> int:
    """Return the number of steps in a window of recent changes, at most a million: all are kept in memory."""
    return min(steps_in(window_s, step_s), 1_000_000)


MOST_EXAMPLES = 60_000
"""Origins to learn from at most."""


def check_length(series: DemandSeries, least: int) -> None:
    """Raise ``InputError`` if *series* has fewer than *least* values."""
    if len(series) < least:
        raise InputError(f"at least {least} values", field="series", value=len(series))


def checked_origins(series: DemandSeries, origins: Ints, look_back: int) -> Ints:
    """Return *origins* as integers.

    Raises ``InputError`` if one lies outside the series, or has too few values, or none that is known, up to it.
    """
    at = np.asarray(origins, dtype=np.int64)
    if len(at) and not (look_back - 1 <= at.min() and at.max() < len(series)):
        expected = f"indices from {look_back - 1} to {len(series) - 1}"
        raise InputError(expected, field="origins", value=f"{at.min()} to {at.max()}")
    if len(at) and at.min() < series.first_index:
        raise InputError("origins with a known value up to them", field="origins", value=int(at.min()))
    if (np.diff(at) < 0).any():
        raise InputError("indices that do not fall", field="origins", value="falling ones")
    return at


def check_step(series: DemandSeries, step_s: float) -> None:
    """Raise ``InputError`` if *series* has another step than *step_s*, that of the training."""
    if not np.isclose(series.step_s, step_s):
        raise InputError(f"values every {step_s:g} s, as in training", field="step_s", value=series.step_s)


def learnable_origins(
    series: DemandSeries, look_back: int, horizon: int, rng: np.random.Generator, most: int = MOST_EXAMPLES
) -> Ints:
    """Return rising origins to learn from: those whose value and targets are known, at most *most* drawn at random.

    Where gaps leave none (regular gaps do), all origins, with unknown values as in ``filled``.
    """
    origins = np.arange(look_back - 1, len(series) - horizon)
    complete = np.lib.stride_tricks.sliding_window_view(series.has_value, horizon + 1)[look_back - 1 :].all(axis=1)
    if complete.any():
        origins = origins[complete]
    if len(origins) > most:
        origins = np.sort(rng.choice(origins, most, replace=False))
    return origins
