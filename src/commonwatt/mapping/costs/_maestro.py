"""The cost model of the published job tables in closed form: MAESTRO as G#'s code calls it.

It is kept to be comparable and is **not physical**: a layer moves one tile however many it has, ``LB`` and ``SHI`` do
more multiply-accumulates per cycle than they have processing elements for filters larger than 1x1, and depth-wise
layers do not get faster on a larger array. ``HB``, ``LB`` and depth-wise layers are MAESTRO's dataflows read as
formulas; ``SHI`` was fitted to its rows of the published table by us and is exact on all of them, but as all filters
there are square it cannot be told which factors of ``r`` are ``r`` and which ``s``.

MAESTRO is asked for one image, without stride, padding and groups. What is ours: strides and padding enter by the size
of the output, groups and images run one after another on what they are for one.

How often MAESTRO reads and writes the buffers, as formulas found from the published table.

For ``HB`` and depth-wise layers they give every count of that table. For ``LB`` they do where the output has up to 64
rows, and are within 0.02% elsewhere; for ``SHI`` where the output fits one step, and within 20% elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commonwatt.mapping.costs._cost import Array, Costs, Dataflow
from commonwatt.mapping.costs._layers import Loops, times
from commonwatt.model.arrays import Floats

__all__ = ["Accesses", "Maestro", "count"]


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
    usual = {"HB": _hb_accesses, "LB": _lb_accesses, "SHI": _shi_accesses}[dataflow](loops, rows, cols)
    other = _depthwise_accesses(loops)
    repeated = loops.batch * np.where(loops.depthwise, 1.0, loops.groups)
    reads = repeated * np.where(loops.depthwise, other.reads, usual.reads)
    writes = repeated * np.where(loops.depthwise, other.writes, usual.writes)
    return Accesses(4.0 * loops.macs + reads, loops.weights + loops.inputs + reads + writes)


def _sliding(loops: Loops) -> Floats:
    """Inputs of one channel read while a filter slides over it: a row anew, along a row what comes in."""
    first = loops.r * loops.s
    return loops.out_y * (first + (loops.out_x - 1.0) * loops.r * np.minimum(loops.stride, loops.s))


def _hb_accesses(loops: Loops, rows: Floats, cols: Floats) -> _Traffic:
    k, c, filters = loops.k_group, loops.c_group, loops.r * loops.s
    padded = np.where(c > cols, times(c, cols) * cols, c)
    folds = times(k, rows)
    kept = (folds - 1.0) * np.minimum(c, cols) * filters
    written = np.where((k > 1) & (k < rows), k - 1.0, k)
    return _Traffic(
        k * padded * filters + folds * padded * _sliding(loops) - kept,
        written * loops.out_y * loops.out_x * times(c, cols),
    )


def _lb_accesses(loops: Loops, rows: Floats, cols: Floats) -> _Traffic:  # noqa: ARG001
    k, c, filters = loops.k_group, loops.c_group, loops.r * loops.s
    x, tiles = np.minimum(loops.out_x, loops.s), times(loops.out_x, loops.s)
    high = loops.out_y + times(loops.out_y, cols) * (loops.r - 1.0)
    inputs = c * high * ((x + loops.s - 1.0) + k * (tiles - 1.0) * loops.s)
    return _Traffic(k * c * filters + inputs, k * c * loops.out_y * loops.out_x)


def _shi_accesses(loops: Loops, rows: Floats, cols: Floats) -> _Traffic:  # noqa: ARG001
    k, c, filters = loops.k_group, loops.c_group, loops.r * loops.s
    tiles = times(loops.out_x, cols)
    wide = np.where(tiles > 1, tiles * cols, loops.out_x) + tiles * (loops.s - 1.0)
    tile = (loops.out_y + times(loops.out_y, loops.r) * (loops.r - 1.0)) * wide
    return _Traffic(k * c * filters + (k * c - k + 1.0) * tile, k * c * loops.out_y * loops.out_x)


def _depthwise_accesses(loops: Loops) -> _Traffic:
    c = loops.c
    written = np.where((c % 64 == 0) & (c > 64), c - 64.0, c)
    return _Traffic(c * loops.r * loops.s + c * _sliding(loops), written * loops.out_y * loops.out_x)


DEPTHWISE_TILE = 64.0  # of its mapping, whatever the array's columns


class _Form(NamedTuple):
    steps: Floats  # of one group and image
    cycles: Floats  # of a step
    tile: Floats  # half the global scratchpad: weights, inputs and outputs of a step, bytes


@dataclass(frozen=True)
class Maestro:
    """Closed forms; *low* is the dataflow that ``LB`` stands for (the published genetic search has ``SHI`` there)."""

    low: Dataflow = "LB"

    def cycles(self, loops: Loops, array: Array, rows: Floats, cols: Floats) -> Floats:
        """Return MAESTRO's runtime."""
        form = self._form(loops, array, rows, cols)
        return loops.batch * _groups(loops) * form.steps * form.cycles + 1.0

    def costs(self, loops: Loops, array: Array) -> Costs:
        """Return runtime, required bandwidth (one tile over the runtime) and what of the buffers is needed.

        As in the published code only a flexible array has to have the room, and only in its global scratchpad.
        """
        rows, cols = np.full(len(loops), float(array.rows)), np.full(len(loops), float(array.cols))
        form = self._form(loops, array, rows, cols)
        cycles = loops.batch * _groups(loops) * form.steps * form.cycles + 1.0
        sg_needed = 2.0 * form.tile
        if array.flexible and array.sg_bytes is not None:
            cycles = np.where(sg_needed <= array.sg_bytes, cycles, np.inf)
        bandwidth = np.where(np.isfinite(cycles), form.tile / (cycles - 1.0), 0.0)
        filters = 6.0 * loops.r * loops.s
        accesses = count(loops, self._dataflow(array), rows, cols)
        return Costs(
            cycles, bandwidth, sg_needed, np.where(loops.depthwise, DEPTHWISE_TILE * filters, filters), loops.macs,
            accesses.sl, accesses.sg, loops.least_bytes, rows, cols,
        )  # fmt: skip

    def _dataflow(self, array: Array) -> Dataflow:
        return self.low if array.dataflow == "LB" else array.dataflow

    def _form(self, loops: Loops, array: Array, rows: Floats, cols: Floats) -> _Form:
        usual = {"HB": _hb, "LB": _lb, "SHI": _shi}[self._dataflow(array)](loops, rows, cols)
        other = _depthwise(loops, rows * cols)
        return _Form(*(np.where(loops.depthwise, b, a) for a, b in zip(usual, other, strict=True)))


def _groups(loops: Loops) -> Floats:
    return np.where(loops.depthwise, 1.0, loops.groups)


def _hb(loops: Loops, rows: Floats, cols: Floats) -> _Form:
    """Output channels over the rows, input channels over the columns; one output position at a time."""
    k, c, filters = loops.k_group, loops.c_group, loops.r * loops.s
    kt, ct = np.minimum(k, rows), np.minimum(c, cols)
    outputs = np.where((k > 1) & (k < rows), kt - 1.0, kt)
    steps = times(k, rows) * times(c, cols) * loops.out_y * loops.out_x
    return _Form(steps, filters + 1.0, kt * ct * filters + ct * filters + outputs)


def _window(outputs: Floats, tiles: Floats, filters: Floats, stride: Floats) -> Floats:
    """Inputs under *outputs* positions that are cut into *tiles*, each fetched on its own."""
    return tiles * filters + (outputs - tiles) * np.minimum(stride, filters)


def _lb(loops: Loops, rows: Floats, cols: Floats) -> _Form:
    """Rows of the output over all processing elements, columns in tiles of the filter's; channels one at a time."""
    k, c, filters = loops.k_group, loops.c_group, loops.r * loops.s
    y, x = np.minimum(loops.out_y, cols * rows), np.minimum(loops.out_x, loops.s)
    steps = k * c * times(loops.out_y, cols * rows) * times(loops.out_x, loops.s)
    inputs = _window(y, times(y, cols), loops.r, loops.stride) * _window(x, x / x, loops.s, loops.stride)
    return _Form(steps, filters + 1.0, inputs + filters + y * x)


def _shi(loops: Loops, rows: Floats, cols: Floats) -> _Form:
    """Rows of the output over the rows, columns over the columns; channels one at a time."""
    k, c, filters = loops.k_group, loops.c_group, loops.r * loops.s
    y, x = np.minimum(loops.out_y, loops.r * rows), np.minimum(loops.out_x, cols)
    steps = k * c * times(loops.out_y, loops.r * rows) * times(loops.out_x, cols)
    inputs = _window(y, times(y, loops.r), loops.r, loops.stride) * _window(x, x / x, loops.s, loops.stride)
    return _Form(steps, loops.r * filters + 1.0, inputs + filters + y * x)


def _depthwise(loops: Loops, elements: Floats) -> _Form:
    """Tiles of 64 channels over single processing elements, whatever the dataflow."""
    c, tile = loops.c, DEPTHWISE_TILE
    outputs = np.where((c % tile == 0) & (c > tile), c - tile, c)
    steps = times(times(c, tile), elements) * np.minimum(c, tile) * loops.out_y * loops.out_x
    return _Form(steps, loops.r * loops.s, 2.0 * c * loops.r * loops.s + outputs)
