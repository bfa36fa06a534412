"""Step curves made small: a value holds from its time until the next one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats

__all__ = ["Steps", "shrink"]


@dataclass(frozen=True)
class Steps:
    """A step curve. ``value[i]`` holds from ``time_s[i]`` until ``time_s[i + 1]``, the last one until ``end_s``."""

    time_s: Floats
    value: Floats  # NaN: unknown
    end_s: float

    @classmethod
    def of(cls, time_s: Floats, value: Floats, end_s: float) -> Steps:
        """Take the columns of a run: in order of time, of several values at one moment the last, none after *end_s*."""
        times, values = np.asarray(time_s, dtype=float), np.asarray(value, dtype=float)
        if not len(times):
            return cls(times, values, end_s)
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        keep = np.append(times[1:] > times[:-1], [True]) & (times < end_s)
        return cls(times[keep], values[keep], end_s)

    def widths(self) -> Floats:
        """How long each value holds, s."""
        return np.diff(self.time_s, append=self.end_s)

    def integral(self) -> float:
        """Integral over the time for which the value is known."""
        return float(np.nansum(self.value * self.widths())) if len(self.value) else 0.0


def shrink(curve: Steps, most: int = 2000, until_s: float = math.inf) -> Steps:
    """Return *curve* with at most *most* steps, its extremes and its integral.

    Time is cut into bins, most of them before *until_s*, the end of what is looked at first. In each, the curve
    becomes up to four steps: its least and its greatest value, for as long as they are held, the mean of the rest,
    and the unknown part. Only the order within a bin is lost. A curve that is small enough is returned as it is.
    """
    if len(curve.time_s) <= most:
        return curve
    parts = 4 if np.isnan(curve.value).any() else 3
    pieces = _split(curve, max(4, most // parts), until_s)
    steps = [step for bin_ in pieces for step in _summary(*bin_)]
    widths = np.array([width for width, _ in steps])
    ends = curve.time_s[0] + np.cumsum(widths)
    starts = np.append(curve.time_s[0], ends[:-1])
    return Steps(starts, np.array([value for _, value in steps]), curve.end_s)


def _split(curve: Steps, bins: int, until_s: float) -> list[tuple[Floats, Floats]]:
    """Cut into *bins* bins, of which three quarters end before *until_s*; return the widths and values in each."""
    first, last = float(curve.time_s[0]), curve.end_s
    borders = np.linspace(first, last, bins + 1)
    if first < until_s < last:
        early = bins * 3 // 4
        borders = np.union1d(np.linspace(first, until_s, early + 1), np.linspace(until_s, last, bins - early + 1))
    starts = np.union1d(curve.time_s, borders[:-1])
    values = curve.value[np.searchsorted(curve.time_s, starts, side="right") - 1]
    widths = np.diff(starts, append=curve.end_s)
    cuts = np.searchsorted(starts, borders[1:-1])
    return list(zip(np.split(widths, cuts), np.split(values, cuts), strict=True))


def _summary(widths: Floats, values: Floats) -> list[tuple[float, float]]:
    """Return up to four (width, value) that stand for a bin."""
    unknown = np.isnan(values)
    steps: list[tuple[float, float]] = []
    if not unknown.all():
        held, value = widths[~unknown], values[~unknown]
        low, high = value.min(), value.max()
        first, second = (low, high) if value.argmin() < value.argmax() else (high, low)
        rest = (value != low) & (value != high)
        steps.append((float(held[value == first].sum()), float(first)))
        if rest.any():
            width = float(held[rest].sum())
            steps.append((width, float(held[rest] @ value[rest]) / width))
        if low != high:
            steps.append((float(held[value == second].sum()), float(second)))
    if unknown.any():
        steps.append((float(widths[unknown].sum()), float("nan")))
    return steps
