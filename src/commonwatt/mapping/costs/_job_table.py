"""The job table (G#, 3.5): latency, bandwidth and energy of every layer on every sub-accelerator, by a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from commonwatt.mapping.costs._cost import Array, CostModel, Costs
from commonwatt.mapping.costs._layers import Layer, Loops, times
from commonwatt.mapping.costs._maestro import Maestro
from commonwatt.mapping.costs._roofline import Roofline
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError
from commonwatt.optimize import ranked

__all__ = [
    "DRAM_MACS",
    "MAC_NJ",
    "MODELS",
    "SG_MACS",
    "SL_MACS",
    "JobTable",
    "ModelName",
    "costs_on",
    "energy_nj",
    "job_table",
    "shapes",
    "terms_nj",
]


@dataclass(frozen=True)
class JobTable:
    """Tables of J layers on A sub-accelerators, all [J, A]; latency is infinite where a layer does not fit."""

    latency: Floats  # cycles if bandwidth is free
    bandwidth: Floats  # GB/s at 1 GHz, 0 where it does not fit
    energy: Floats  # nJ, infinite where it does not fit
    sg_needed: Floats  # bytes
    rows: Floats  # shape of the array
    cols: Floats


def job_table(layers: Sequence[Layer], arrays: Sequence[Array], model: CostModel) -> JobTable:
    """Return the job table of *layers*; equal layers and equal arrays are looked at once.

    Raises
    ------
    InputError
        For an empty batch or platform, and a layer that no sub-accelerator can run.
    """
    if not layers:
        raise InputError("at least one layer", field="jobs", value="none")
    if not arrays:
        raise InputError("at least one sub-accelerator", field="platform", value="none")
    shapes = [replace(layer, name="", model="", task=None) for layer in layers]
    places = {shape: i for i, shape in enumerate(dict.fromkeys(shapes))}
    loops, at = Loops.of(list(places)), np.array([places[shape] for shape in shapes])
    kinds = {array: costs_on(model, loops, array) for array in dict.fromkeys(replace(a, name="") for a in arrays)}
    columns = [kinds[replace(array, name="")] for array in arrays]
    energies = {array: np.where(costs.fits, energy_nj(costs), np.inf) for array, costs in kinds.items()}
    latency = np.stack([costs.cycles[at] for costs in columns], axis=1)
    _check(layers, latency, np.stack([costs.sg_needed[at] for costs in columns], axis=1))
    return JobTable(
        latency=latency,
        bandwidth=np.stack([costs.bandwidth[at] for costs in columns], axis=1),
        energy=np.stack([energies[replace(array, name="")][at] for array in arrays], axis=1),
        sg_needed=np.stack([costs.sg_needed[at] for costs in columns], axis=1),
        rows=np.stack([costs.rows[at] for costs in columns], axis=1),
        cols=np.stack([costs.cols[at] for costs in columns], axis=1),
    )


def _check(layers: Sequence[Layer], latency: Floats, needed: Floats) -> None:
    stuck = np.flatnonzero(~np.isfinite(latency).any(axis=1))
    if not len(stuck):
        return
    j = int(stuck[0])
    name = f" ({layers[j].name})" if layers[j].name else ""
    expected = "a layer whose smallest tile fits the buffers of some sub-accelerator"
    raise InputError(expected, field=f"jobs.{j}{name}", value=f"{needed[j].min():.0f} bytes")


MAC_NJ = 0.00023
"""Energy of a multiply-accumulate, nJ."""
SL_MACS = 1.68
"""An access to a processing element's scratchpad over a multiply-accumulate."""
SG_MACS = 18.61
"""An access to the global scratchpad over a multiply-accumulate."""
DRAM_MACS = 200.0
"""A byte from or to memory over a multiply-accumulate."""


def terms_nj(costs: Costs) -> dict[str, Floats]:
    """Return the energy of multiply-accumulates, both scratchpads and memory, nJ, each [L]."""
    return {
        "mac": MAC_NJ * costs.macs,
        "sl": MAC_NJ * SL_MACS * costs.sl_accesses,
        "sg": MAC_NJ * SG_MACS * costs.sg_accesses,
        "dram": MAC_NJ * DRAM_MACS * costs.dram_bytes,
    }


def energy_nj(costs: Costs) -> Floats:
    """Return the energy of each layer, nJ, [L]."""
    parts = terms_nj(costs)
    return parts["mac"] + parts["sl"] + parts["sg"] + parts["dram"]


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


ModelName = Literal["maestro", "shi", "roofline"]

MODELS: dict[ModelName, CostModel] = {"maestro": Maestro(), "shi": Maestro(low="SHI"), "roofline": Roofline()}
"""``shi`` is ``maestro`` with the ShiDianNao-like dataflow where a platform says ``LB``."""
