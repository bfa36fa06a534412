"""A physically honest cost model: multiply-accumulates against bytes, with buffers that choose the tiles (ours).

A layer takes at least a cycle for what its array can do in one, never more multiply-accumulates than processing
elements, and moves each weight, input and output at least once. Of the tiles that fit one half of the global scratchpad
(the other half is being filled) the one with the fewest cycles is taken, among those the one that moves the least. What
it requests, bytes over cycles, keeps the fetching of the next tile hidden behind the computing of the current one on
average over the layer.

Not modelled: the fetch of the very first tile (the job before can hide it), the network on the chip, banks, refresh.

The tiles of a layer that fit a buffer, and what each choice makes the layer read and write.

Symbols: a layer is ``groups`` times ``k`` output by ``c`` input channels; a tile is ``groups`` blocks of ``k`` by ``c``
channels by ``pixels`` (images, rows and columns of the output). G, T, P: number of choices of channels-out, channels-in
and pixels; tables are [G, T, P].
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import permutations
from typing import NamedTuple

import numpy as np

from commonwatt.mapping.costs._cost import Array, Costs
from commonwatt.mapping.costs._layers import Loops, times
from commonwatt.model.arrays import Bools, Floats

__all__ = ["ACCUMULATOR_BYTES", "Choices", "Layout", "Pixels", "Roofline", "choices", "folds", "moved", "tile_bytes"]

ACCUMULATOR_BYTES = 4.0
"""Of a partial sum, on the chip and when it has to leave it; inputs, weights and finished outputs have one."""


class Layout(NamedTuple):
    """How far the array spreads channels and pixels: what a tile is best a multiple of."""

    out_channels: float
    in_channels: float
    rows: float
    columns: float


class Pixels(NamedTuple):
    """A tile of the output: images, rows, columns; and what all such tiles of a channel fetch of the input."""

    images: float
    rows: float
    columns: float
    inputs: float  # of a tile in the middle
    fetched: float  # by all tiles together, halos again for each
    tiles: float


@dataclass(frozen=True)
class Choices:
    """Tiles to choose among: all, ``blocks`` and ``k`` [G, 1, 1], ``c`` [1, T, 1], others [1, 1, P]; or some, [N]."""

    blocks: Floats
    k: Floats
    c: Floats
    images: Floats
    rows: Floats
    columns: Floats
    inputs: Floats
    fetched: Floats
    tiles: Floats

    def where(self, chosen: Bools) -> Choices:
        """Return the tiles of a mask ([G, T, P]), [N]."""
        return Choices(*(np.broadcast_to(getattr(self, field.name), chosen.shape)[chosen] for field in fields(self)))


def folds(size: Floats | float, tile: Floats | float, unit: Floats | float) -> Floats:
    """Return how often an array of *unit* is filled if *size* comes in tiles: the last is smaller, none shares."""
    size, tile = np.asarray(size, dtype=np.float64), np.asarray(tile, dtype=np.float64)
    whole = size // tile
    return np.asarray(whole * -(-tile // unit) + -(-(size - whole * tile) // unit), dtype=np.float64)


def _ladder(size: float, unit: float) -> list[float]:
    """Tiles worth a try: all, multiples of what the array spreads over, and smaller ones if even that is too much.

    Of multiples those that cut the size into up to eight like parts, and doubled ones below.
    """
    unit = max(1.0, min(unit, size))
    units = -(-size // unit)
    tiles = {size, *(min(size, unit * -(-units // parts)) for parts in range(2, 9))}
    step = unit
    while step < size:
        tiles.add(step)
        step *= 2.0
    while unit > 1.0:
        unit = float(unit // 2)
        tiles.add(unit)
    return sorted(tiles)


def _clipped(first: float, step: float, count: float, size: float) -> float:
    """Sum of *count* numbers from *first* on by *step*, each no less than 0 and no more than *size*."""
    below = min(max(-first // step + 1.0, 0.0), count)
    within = min(max(-((first - size) // step), below), count)
    terms = within - below
    return terms * first + step * (below + within - 1.0) * terms / 2.0 + (count - within) * size


def _extent(
    size: float, outputs: float, tile: float, filters: float, stride: float, padding: float
) -> tuple[float, float]:
    """Inputs under a tile in the middle, and under all tiles, along one direction; padding is not fetched."""
    count = -(-outputs // tile)
    first = (tile - 1.0) * stride - padding + filters
    ends = _clipped(first, tile * stride, count - 1.0, size)
    last = min(max((outputs - 1.0) * stride - padding + filters, 0.0), size)
    return min(size, first + padding), ends + last - _clipped(-padding, tile * stride, count, size)


def _pixels(loops: Loops, layout: Layout) -> list[Pixels]:
    batch, out_y, out_x = float(loops.batch[0]), float(loops.out_y[0]), float(loops.out_x[0])
    tall, wide = _ladder(out_y, layout.rows), _ladder(out_x, layout.columns)
    shapes = {(1.0, rows, out_x) for rows in tall} | {(1.0, out_y, columns) for columns in wide}
    shapes |= {(1.0, min(tall, key=lambda rows: abs(rows - columns)), columns) for columns in wide}
    shapes |= {(1.0, min(layout.rows, out_y), columns) for columns in wide} | {(1.0, 1.0, columns) for columns in wide}
    shapes |= {(images, out_y, out_x) for images in _ladder(batch, batch)}
    pixels = []
    for images, rows, columns in sorted(shapes):
        along = (float(loops.stride[0]), float(loops.padding[0]))
        high, all_high = _extent(float(loops.y[0]), out_y, rows, float(loops.r[0]), *along)
        broad, all_broad = _extent(float(loops.x[0]), out_x, columns, float(loops.s[0]), *along)
        tiles = -(-batch // images) * -(-out_y // rows) * -(-out_x // columns)
        pixels.append(Pixels(images, rows, columns, images * high * broad, batch * all_high * all_broad, tiles))
    return pixels


def choices(loops: Loops, layout: Layout) -> Choices:
    """Return the tiles of one layer worth a try on an array of this layout."""
    groups, k, c = float(loops.groups[0]), float(loops.k_group[0]), float(loops.c_group[0])
    out = [(1.0, tile) for tile in _ladder(k, layout.out_channels)]
    if groups > 1 and k < layout.out_channels:
        out += [(blocks, k) for blocks in _ladder(groups, max(1.0, layout.out_channels // k)) if blocks > 1]
    outs, pixels = np.array(out), np.array(_pixels(loops, layout))
    return Choices(
        outs[:, 0][:, None, None],
        outs[:, 1][:, None, None],
        np.array(_ladder(c, layout.in_channels))[None, :, None],
        *pixels.T[:, None, None, :],
    )


def tile_bytes(loops: Loops, tried: Choices) -> Floats:
    """Return what a tile takes in one half of the buffer, as the choices broadcast."""
    filters = float(loops.r[0] * loops.s[0])
    weights = tried.blocks * tried.k * tried.c * filters
    inputs = tried.blocks * tried.c * tried.inputs
    outputs = tried.blocks * tried.k * tried.images * tried.rows * tried.columns
    return weights + inputs + ACCUMULATOR_BYTES * outputs


def moved(loops: Loops, tried: Choices) -> Floats:
    """Return the bytes from and to memory in the best order of tiles, as the choices broadcast; at least each once.

    A tile of weights stays while only pixels change, one of inputs while only output channels do, one of outputs while
    only input channels do. A loop that goes on outside of one that changes a tile brings it again. Partial sums that
    leave come back, with four bytes each way.
    """
    groups, k, c = float(loops.groups[0]), float(loops.k_group[0]), float(loops.c_group[0])
    trips = {"k": -(-k // tried.k), "c": -(-c // tried.c), "p": tried.tiles}
    weights, outputs = float(loops.weights[0]), float(loops.outputs[0])
    inputs = np.maximum(groups * c * tried.fetched, float(loops.inputs[0]))
    best: Floats = np.array(np.inf)
    for order in permutations("kcp"):
        again = {loop: _again(order, loop, trips) for loop in order}
        spilled = 2.0 * ACCUMULATOR_BYTES * (again["c"] - 1.0)
        best = np.minimum(best, weights * again["p"] + inputs * again["k"] + outputs * (1.0 + spilled))
    return best


def _again(order: tuple[str, ...], loop: str, trips: dict[str, Floats]) -> Floats:
    """How often a tile that does not depend on *loop* is brought: once, or each time *loop* goes on."""
    inside = order[order.index(loop) + 1 :]
    changes: Bools = np.array(False)  # noqa: FBT003
    for other in inside:
        changes = changes | (trips[other] > 1)
    return np.where(changes, trips[loop], 1.0)


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
        rows = [_one(loops[i : i + 1], array) for i in range(len(loops))]
        columns = np.array(rows).reshape(len(loops), -1).T
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
    sg_needed = 2.0 * tile_bytes(loops, chosen).item()
    return fewest, moving, sg_needed, sl_needed, 4.0 * float(loops.macs[0]) + reads, moving + reads + writes


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
