"""Lanes for the Gantt chart: which of a node's GPUs a job is drawn on.

A record says how many GPUs a job held on a node, not which; jobs are drawn on the lowest lanes that are free,
side by side where they can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.simulation.record import Segments

__all__ = ["Bars", "node_rows", "to_bars"]


_GAP = 0.5  # between nodes, in GPUs


@dataclass(frozen=True)
class Bars:
    """Rectangles: a segment is drawn as one, or as several where its lanes are apart."""

    segment: Ints  # row in Segments
    lane: Ints  # its first lane, from 0 on each node
    lanes: Ints


def node_rows(gpus: Ints) -> tuple[Floats, Floats]:
    """Return the top and bottom of nodes with *gpus* GPUs, one below the other, where every GPU is 1 high."""
    bottoms = np.cumsum(gpus + _GAP) - _GAP
    return bottoms - gpus, bottoms


def to_bars(gpus: Ints, segments: Segments) -> Bars:
    """Give every segment its lanes on nodes with *gpus* GPUs each."""
    order = np.lexsort((segments.job, segments.to_s, segments.from_s, segments.node))
    span = float(segments.to_s.max() - segments.from_s.min()) if len(order) else 0.0
    found: list[tuple[int, int, int]] = []
    for node, rows in groupby(order.tolist(), key=lambda i: int(segments.node[i])):
        free_s = np.full(int(gpus[node]), -np.inf)
        for i in rows:
            lanes = _choose(free_s, float(segments.from_s[i]) + 1e-9 * span, int(segments.gpus[i]))
            free_s[lanes] = segments.to_s[i]
            found += [(i, first, length) for first, length in _runs(lanes)]
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return Bars(table[:, 0], table[:, 1], table[:, 2])


def _choose(free_s: Floats, now_s: float, wanted: int) -> list[int]:
    """Return *wanted* lanes free at *now_s*: neighbours if there are, else the lowest, else those free first."""
    wanted = min(wanted, len(free_s))
    free = np.flatnonzero(free_s <= now_s)
    for start in range(len(free) - wanted + 1):
        if free[start + wanted - 1] - free[start] == wanted - 1:
            return [int(lane) for lane in free[start : start + wanted]]
    if len(free) >= wanted:
        return [int(lane) for lane in free[:wanted]]
    return sorted(int(lane) for lane in np.argsort(free_s, kind="stable")[:wanted])


def _runs(lanes: list[int]) -> list[tuple[int, int]]:
    """Return (first, length) of each run of neighbours."""
    runs: list[tuple[int, int]] = []
    for lane in lanes:
        if runs and sum(runs[-1]) == lane:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((lane, 1))
    return runs
