"""Data reduced for drawing: step curves, heat maps of busy nodes, and distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.nodes import Cluster
from commonwatt.simulation.record import Segments

__all__ = ["Distribution", "HeatMap", "Steps", "distribution", "heat_map", "shrink"]


@dataclass(frozen=True)
class Steps:
    """A step curve. ``value[i]`` holds from ``time_s[i]`` until ``time_s[i + 1]``, the last one until ``end_s``."""

    time_s: Floats
    value: Floats  # NaN: unknown
    end_s: float

    @classmethod
    def of(cls, time_s: Floats, value: Floats, end_s: float) -> Steps:
        """Return the curve of a run's columns: sorted by time, with the last of simultaneous values, up to *end_s*."""
        times, values = np.asarray(time_s, dtype=float), np.asarray(value, dtype=float)
        if not len(times):
            return cls(times, values, end_s)
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        keep = np.append(times[1:] > times[:-1], [True]) & (times < end_s)
        return cls(times[keep], values[keep], end_s)

    def widths(self) -> Floats:
        """Return the duration of each value, s."""
        return np.diff(self.time_s, append=self.end_s)

    def integral(self) -> float:
        """Return the integral over the time in which the value is known."""
        return float(np.nansum(self.value * self.widths())) if len(self.value) else 0.0


def shrink(curve: Steps, most: int = 2000, until_s: float = math.inf) -> Steps:
    """Return *curve* with at most *most* steps, its extremes and its integral.

    Time is cut into bins, most of them before *until_s*, the end of the initial view. In each, the curve
    becomes up to four steps: its smallest and its largest value for their total durations, the mean of the rest,
    and the unknown part. Only the order within a bin is lost. A small curve is returned unchanged.
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
    """Cut into *bins* bins, three quarters of them before *until_s*; returns widths and values in each."""
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
    """Return up to four (width, value) for a bin."""
    unknown = np.isnan(values)
    steps: list[tuple[float, float]] = []
    if not unknown.all():
        width_s, value = widths[~unknown], values[~unknown]
        low, high = value.min(), value.max()
        first, second = (low, high) if value.argmin() < value.argmax() else (high, low)
        rest = (value != low) & (value != high)
        steps.append((float(width_s[value == first].sum()), float(first)))
        if rest.any():
            width = float(width_s[rest].sum())
            steps.append((width, float(width_s[rest] @ value[rest]) / width))
        if low != high:
            steps.append((float(width_s[value == second].sum()), float(second)))
    if unknown.any():
        steps.append((float(widths[unknown].sum()), float("nan")))
    return steps


@dataclass(frozen=True)
class HeatMap:
    """Allocated share of GPU time, for each row of nodes and bin of time."""

    share: Floats  # [R, T], 0 to 1
    gpus: Ints  # [R] GPUs of each row
    nodes: tuple[tuple[str, str], ...]  # [R] names of the first and the last node
    edges_s: Floats  # [T + 1]


def heat_map(cluster: Cluster, segments: Segments, edges_s: Floats, rows: int = 200) -> HeatMap:
    """Return the busy share in the bins between *edges_s*, in at most *rows* rows of neighbouring nodes."""
    each = -(-len(cluster) // rows)
    firsts = np.arange(0, len(cluster), each)
    gpus = np.add.reduceat(cluster.gpus, firsts)
    row = segments.node // each
    begun = _begun(row, segments.gpus, segments.from_s, edges_s, len(firsts))
    busy = begun - _begun(row, segments.gpus, segments.to_s, edges_s, len(firsts))
    share = np.clip(busy / (gpus[:, None] * np.diff(edges_s)), 0.0, 1.0)
    ends = tuple((cluster.names[i], cluster.names[min(i + each, len(cluster)) - 1]) for i in firsts.tolist())
    return HeatMap(share, gpus, ends, edges_s)


def _begun(row: Ints, gpus: Ints, start_s: Floats, edges: Floats, rows: int) -> Floats:
    """Return the GPU-seconds in each cell if every segment continued forever from its start.

    Two sums over the segments of any length: the part of the bin after a start, and all later bins.
    """
    columns = len(edges) - 1
    at = np.clip(start_s, edges[0], edges[-1])
    column = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, columns - 1)
    cell = row * columns + column
    partly = np.bincount(cell, gpus * (edges[column + 1] - at), rows * columns).reshape(rows, columns)
    begun = np.bincount(cell, gpus, rows * columns).reshape(rows, columns)
    later = begun.cumsum(axis=1) - begun
    return np.asarray(partly + later * np.diff(edges), dtype=np.float64)


@dataclass(frozen=True)
class Distribution:
    """An empirical distribution function: ``share[i]`` of the known values are ``value[i]`` or less."""

    value: Floats
    share: Floats
    unknown: int


def distribution(values: Floats, most: int = 400, least: float | None = None) -> Distribution:
    """Return the distribution of *values* in at most *most* points, the smallest and largest among them.

    Parameters
    ----------
    values
        NaN and infinity count as unknown and are left out.
    most
        Number of points, spread evenly over the jobs. The curve passes exactly through each.
    least
        Lower limit of values, for a logarithmic axis.
    """
    finite = np.sort(values[np.isfinite(values)])
    unknown = len(values) - len(finite)
    if least is not None:
        finite = np.maximum(finite, least)
    if not len(finite):
        return Distribution(finite, finite, unknown)
    ranks = np.unique(np.linspace(0, len(finite) - 1, min(most, len(finite))).round().astype(np.int64))
    points = np.unique(finite[ranks])
    share = np.searchsorted(finite, points, side="right") / len(finite)
    return Distribution(points, share, unknown)
