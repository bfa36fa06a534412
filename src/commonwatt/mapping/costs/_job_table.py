"""From layers and sub-accelerators to the job table (G#, 3.5): what every layer asks of every sub-accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from commonwatt.mapping.costs._cost import Array, CostModel
from commonwatt.mapping.costs._energy import energy_nj
from commonwatt.mapping.costs._flexible import costs_on
from commonwatt.mapping.costs._layers import Layer
from commonwatt.mapping.costs._loops import Loops
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = ["JobTable", "job_table"]


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
