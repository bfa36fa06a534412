"""Busy share of nodes over time, for clusters too large to draw every job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.nodes import Cluster
from commonwatt.simulation.record import Segments

__all__ = ["HeatMap", "heat_map"]


@dataclass(frozen=True)
class HeatMap:
    """Share of GPU time held by jobs, for each row of nodes and bin of time."""

    share: Floats  # [R, T], 0 to 1
    gpus: Ints  # [R] GPUs of each row
    nodes: tuple[tuple[str, str], ...]  # [R] names of the first and the last node
    edges_s: Floats  # [T + 1]


def heat_map(cluster: Cluster, segments: Segments, edges_s: Floats, rows: int = 200) -> HeatMap:
    """Return the busy share in the bins between *edges_s*; each of at most *rows* rows is as many neighbours."""
    each = -(-len(cluster) // rows)
    firsts = np.arange(0, len(cluster), each)
    gpus = np.add.reduceat(cluster.gpus, firsts)
    row = segments.node // each
    begun = _held(row, segments.gpus, segments.from_s, edges_s, len(firsts))
    busy = begun - _held(row, segments.gpus, segments.to_s, edges_s, len(firsts))
    share = np.clip(busy / (gpus[:, None] * np.diff(edges_s)), 0.0, 1.0)
    ends = tuple((cluster.names[i], cluster.names[min(i + each, len(cluster)) - 1]) for i in firsts.tolist())
    return HeatMap(share, gpus, ends, edges_s)


def _held(row: Ints, gpus: Ints, start_s: Floats, edges: Floats, rows: int) -> Floats:
    """GPU-seconds in each cell had every segment gone on for ever from its start.

    Two sums over the segments, whatever their length: what is held from the middle of a bin, and the GPUs held
    throughout every later bin.
    """
    columns = len(edges) - 1
    at = np.clip(start_s, edges[0], edges[-1])
    column = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, columns - 1)
    cell = row * columns + column
    partly = np.bincount(cell, gpus * (edges[column + 1] - at), rows * columns).reshape(rows, columns)
    begun = np.bincount(cell, gpus, rows * columns).reshape(rows, columns)
    later = begun.cumsum(axis=1) - begun
    return np.asarray(partly + later * np.diff(edges), dtype=np.float64)
