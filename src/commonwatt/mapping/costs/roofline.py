"""A physically honest cost model: multiply-accumulates against bytes, with buffers that choose the tiles (ours).

A layer takes at least a cycle for what its array can do in one, never more multiply-accumulates than processing
elements, and moves each weight, input and output at least once. Of the tiles that fit one half of the global scratchpad
(the other half is being filled) the one with the fewest cycles is taken, among those the one that moves the least. What
it asks for, bytes over cycles, keeps the fetching of the next tile hidden behind the computing of the current one on
average over the layer.

Not modelled: the fetch of the very first tile (the job before can hide it), the network on the chip, banks, refresh.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.mapping.costs.cost import Array, Costs
from commonwatt.mapping.costs.loops import Loops, times
from commonwatt.mapping.costs.tiling import ACCUMULATOR_BYTES, Choices, Layout, choices, folds, moved, tile_bytes
from commonwatt.model.arrays import Floats

__all__ = ["Roofline"]


@dataclass(frozen=True)
class Roofline:
    """Cycles at full buffers, bytes by the best tiles that fit."""

    def cycles(self, loops: Loops, array: Array, rows: Floats, cols: Floats) -> Floats:
        """Return the cycles of the array's dataflow if the whole layer is one tile."""
        filters = loops.r * loops.s
        single = loops.batch * loops.k_group * loops.c_group * loops.groups
        if array.dataflow == "HB":
            over = np.where(
                loops.k_group < rows,
                times(loops.groups * loops.k_group, rows),
                loops.groups * times(loops.k_group, rows),
            )
            return over * times(loops.c_group, cols) * loops.batch * loops.out_y * loops.out_x * filters
        if array.dataflow == "LB":
            strips, passes = _strips(loops, rows * cols)
            return single * times(loops.out_y, strips) * passes * loops.out_x * loops.s
        return single * times(loops.out_y, rows) * times(loops.out_x, cols) * filters

    def costs(self, loops: Loops, array: Array) -> Costs:
        """Return what each layer costs; infinite cycles if not even the smallest tile fits."""
        found = [_one(loops[i : i + 1], array) for i in range(len(loops))]
        columns = np.array(found).reshape(len(loops), -1).T
        cycles, volume, sg_needed, sl_needed, sl_accesses, sg_accesses = columns
        fits = np.isfinite(cycles)
        return Costs(
            cycles, np.where(fits, volume / np.where(fits, cycles, 1.0), 0.0), sg_needed, sl_needed, loops.macs,
            sl_accesses, sg_accesses, volume,
            np.full(len(loops), float(array.rows)), np.full(len(loops), float(array.cols)),
        )  # fmt: skip


def _strips(loops: Loops, elements: Floats | float) -> tuple[Floats, Floats]:
    """Rows of the output worked on at a time, each by as many elements as the filter has rows; and turns for one."""
    return np.maximum(1.0, elements // loops.r), times(loops.r, elements)


def _one(loops: Loops, array: Array) -> tuple[float, float, float, float, float, float]:
    layout = _layout(loops, array)
    tried = choices(loops, layout)
    needed = 2.0 * tile_bytes(loops, tried)
    sl_needed = _sl_bytes(loops, array)
    room = np.inf if array.sg_bytes is None else array.sg_bytes
    cycles = np.where(needed <= room, _cycles(loops, tried, array, layout), np.inf)
    if array.sl_bytes is not None and sl_needed > array.sl_bytes:
        cycles = np.full_like(cycles, np.inf)
    fewest = float(cycles.min())
    if not np.isfinite(fewest):
        least = float(loops.least_bytes[0])
        return np.inf, least, float(needed.min()), sl_needed, np.inf, np.inf
    fast = tried.where(cycles == fewest)
    volume = moved(loops, fast)
    at = np.arange(len(volume)) == int(np.argmin(volume))
    chosen, moving = fast.where(at), float(volume.min())
    reads, writes = (float(part.item()) for part in _accesses(loops, chosen, array, layout))
    held = 2.0 * tile_bytes(loops, chosen).item()
    return fewest, moving, held, sl_needed, 4.0 * float(loops.macs[0]) + reads, moving + reads + writes


def _layout(loops: Loops, array: Array) -> Layout:
    if array.dataflow == "HB":
        return Layout(float(array.rows), float(array.cols), 1.0, 1.0)
    if array.dataflow == "LB":
        return Layout(1.0, 1.0, float(_strips(loops, float(array.elements))[0][0]), 1.0)
    return Layout(1.0, 1.0, float(array.rows), float(array.cols))


def _sl_bytes(loops: Loops, array: Array) -> float:
    """Weights and inputs one element holds, twice as the next are on their way, and one partial sum."""
    filters = {"HB": loops.r * loops.s, "LB": loops.s, "SHI": np.ones(1)}[array.dataflow]
    return float(4.0 * filters[0] + ACCUMULATOR_BYTES)


def _out_folds(loops: Loops, tried: Choices, unit: float) -> Floats:
    """Times the rows are filled with output channels; several groups of few channels stand side by side."""
    groups, k = float(loops.groups[0]), float(loops.k_group[0])
    several = folds(groups * k, tried.blocks * k, unit)
    return np.where(tried.blocks > 1, several, groups * folds(k, tried.k, unit))


def _cycles(loops: Loops, tried: Choices, array: Array, layout: Layout) -> Floats:
    batch, filters = float(loops.batch[0]), float(loops.r[0] * loops.s[0])
    out_y, out_x, c = float(loops.out_y[0]), float(loops.out_x[0]), float(loops.c_group[0])
    if array.dataflow == "HB":
        over = _out_folds(loops, tried, layout.out_channels) * folds(c, tried.c, layout.in_channels)
        return over * np.ones_like(tried.tiles) * batch * out_y * out_x * filters
    single = batch * float(loops.groups[0] * loops.k_group[0]) * c * np.ones_like(tried.blocks * tried.c)
    high = folds(out_y, tried.rows, layout.rows)
    if array.dataflow == "LB":
        passes = float(_strips(loops, float(array.elements))[1][0])
        return single * high * passes * out_x * float(loops.s[0])
    return single * high * folds(out_x, tried.columns, layout.columns) * filters


def _accesses(loops: Loops, tried: Choices, array: Array, layout: Layout) -> tuple[Floats, Floats]:
    """Weights and inputs the array reads from the global scratchpad, and partial sums to and from it."""
    batch, groups = float(loops.batch[0]), float(loops.groups[0])
    k, c, weights = float(loops.k_group[0]), float(loops.c_group[0]), float(loops.weights[0])
    inputs, outputs = groups * c * tried.fetched, float(loops.outputs[0])
    if array.dataflow == "HB":
        inputs = inputs * np.maximum(1.0, _out_folds(loops, tried, layout.out_channels) / groups)
        return weights * tried.tiles + inputs, outputs * (2.0 * folds(c, tried.c, layout.in_channels) - 1.0)
    high = folds(float(loops.out_y[0]), tried.rows, layout.rows)
    broad = folds(float(loops.out_x[0]), tried.columns, layout.columns if array.dataflow == "SHI" else np.inf)
    sums = np.array(c) if array.dataflow == "LB" else -(-c // tried.c)
    return weights * batch * high * broad + inputs * k, outputs * (2.0 * sums - 1.0)
