"""How often MAESTRO reads and writes the buffers, as formulas found from the published table.

For ``HB`` and depth-wise layers they give every count of that table. For ``LB`` they do where the output has up to 64
rows, and are within 0.02% elsewhere; for ``SHI`` where the output fits one step, and within 20% elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from commonwatt.mapping.costs.cost import Dataflow
from commonwatt.mapping.costs.loops import Loops, times
from commonwatt.model.arrays import Floats

__all__ = ["Accesses", "count"]


class Accesses(NamedTuple):
    """Accesses to all scratchpads of processing elements, and to the global one. Each [L]."""

    sl: Floats
    sg: Floats


class _Traffic(NamedTuple):
    reads: Floats  # of weights and inputs from the global scratchpad, a multicast once
    writes: Floats  # of outputs to it


def count(loops: Loops, dataflow: Dataflow, rows: Floats, cols: Floats) -> Accesses:
    """Return the accesses of each layer: reads and writes, and what fills the global scratchpad from memory.

    A multiply-accumulate reads three values from its scratchpad and writes one, what is read from the global one is
    written there first.
    """
    usual = {"HB": _hb, "LB": _lb, "SHI": _shi}[dataflow](loops, rows, cols)
    other = _depthwise(loops)
    repeated = loops.batch * np.where(loops.depthwise, 1.0, loops.groups)
    reads = repeated * np.where(loops.depthwise, other.reads, usual.reads)
    writes = repeated * np.where(loops.depthwise, other.writes, usual.writes)
    return Accesses(4.0 * loops.macs + reads, loops.weights + loops.inputs + reads + writes)


def _sliding(loops: Loops) -> Floats:
    """Inputs of one channel read while a filter slides over it: a row anew, along a row what comes in."""
    first = loops.r * loops.s
    return loops.out_y * (first + (loops.out_x - 1.0) * loops.r * np.minimum(loops.stride, loops.s))


def _hb(loops: Loops, rows: Floats, cols: Floats) -> _Traffic:
    k, c, filters = loops.k_group, loops.c_group, loops.r * loops.s
    padded = np.where(c > cols, times(c, cols) * cols, c)
    folds = times(k, rows)
    kept = (folds - 1.0) * np.minimum(c, cols) * filters
    written = np.where((k > 1) & (k < rows), k - 1.0, k)
    return _Traffic(
        k * padded * filters + folds * padded * _sliding(loops) - kept,
        written * loops.out_y * loops.out_x * times(c, cols),
    )


def _lb(loops: Loops, rows: Floats, cols: Floats) -> _Traffic:  # noqa: ARG001
    k, c, filters = loops.k_group, loops.c_group, loops.r * loops.s
    x, tiles = np.minimum(loops.out_x, loops.s), times(loops.out_x, loops.s)
    high = loops.out_y + times(loops.out_y, cols) * (loops.r - 1.0)
    inputs = c * high * ((x + loops.s - 1.0) + k * (tiles - 1.0) * loops.s)
    return _Traffic(k * c * filters + inputs, k * c * loops.out_y * loops.out_x)


def _shi(loops: Loops, rows: Floats, cols: Floats) -> _Traffic:  # noqa: ARG001
    k, c, filters = loops.k_group, loops.c_group, loops.r * loops.s
    tiles = times(loops.out_x, cols)
    wide = np.where(tiles > 1, tiles * cols, loops.out_x) + tiles * (loops.s - 1.0)
    tile = (loops.out_y + times(loops.out_y, loops.r) * (loops.r - 1.0)) * wide
    return _Traffic(k * c * filters + (k * c - k + 1.0) * tile, k * c * loops.out_y * loops.out_x)


def _depthwise(loops: Loops) -> _Traffic:
    c = loops.c
    written = np.where((c % 64 == 0) & (c > 64), c - 64.0, c)
    return _Traffic(c * loops.r * loops.s + c * _sliding(loops), written * loops.out_y * loops.out_x)
