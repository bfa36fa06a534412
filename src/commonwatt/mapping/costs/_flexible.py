"""An array whose shape is chosen for each layer (G#, section 5.5): least latency within its buffers.

The number of processing elements is fixed. The paper tries shapes aligned to factors of the tile; here all shapes are
tried that differ in cycles at all: as few rows as give each number of folds, and the columns the rows leave. They are
gone through by what they take at best, until none of the rest can be better: the answer is the best of all shapes.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from commonwatt.mapping.costs._cost import Array, CostModel, Costs
from commonwatt.mapping.costs._loops import Loops, times
from commonwatt.model.arrays import Floats
from commonwatt.optimize import ranked

__all__ = ["costs_on", "shapes"]

MOST_TRIED = 64
"""Shapes of a layer whose buffers are looked at; beyond it the best so far is taken."""


def shapes(size: float, elements: int) -> Floats:
    """Return numbers of rows worth a try for a dimension of *size* over them: the fewest for each count of folds."""
    roots = np.arange(1.0, np.sqrt(size) + 1.0)
    rows = np.unique(np.concatenate([roots, -(-size // roots)]))
    return rows[rows <= min(size, elements)]


def costs_on(model: CostModel, loops: Loops, array: Array) -> Costs:
    """Return what layers cost on *array*, in the shape that suits each best if it is flexible."""
    if not array.flexible:
        return model.costs(loops, array)
    chosen = [_best(model, loops[i : i + 1], array) for i in range(len(loops))]
    return Costs(*(np.concatenate([getattr(one, field.name) for one in chosen]) for field in fields(Costs)))


def _best(model: CostModel, loops: Loops, array: Array) -> Costs:
    if array.dataflow == "HB":
        sizes = (loops.k_group, loops.k_group * loops.groups)
    else:
        sizes = (loops.out_y, times(loops.out_y, loops.r))  # some models give a row as many as the filter has
    rows = np.unique(np.concatenate([shapes(float(size[0]), array.elements) for size in sizes]))
    cols = np.floor(array.elements / rows)
    ideal = model.cycles(loops, array, rows, cols)
    best = model.costs(loops, array)
    for at in ranked(ideal, rows).tolist()[:MOST_TRIED]:
        if ideal[at] >= best.cycles[0]:
            break
        made = model.costs(loops, replace(array, rows=int(rows[at]), cols=int(cols[at])))
        if made.cycles[0] < best.cycles[0]:
            best = made
    return best
