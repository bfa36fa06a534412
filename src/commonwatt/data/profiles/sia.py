"""Sia's measured scaling: time of a training step by model, GPU type and count (T4, RTX2080Ti, RTX6000, A100)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonwatt.data.profiles.gpu_types import known_gpu_type
from commonwatt.data.table import read_table

__all__ = ["FILE", "Step", "read_sia"]

FILE = "sia_scaling.csv.gz"
_CLUSTERS = {"aws", "rtx", "quad", "dgx"}  # azure names no GPU type; dgx-ext is the same GPU, partly extrapolated


@dataclass(frozen=True)
class Step:
    """A training step of *model* with *batch* samples on each GPU."""

    model: str
    batch: float


def read_sia(path: Path) -> dict[Step, dict[tuple[str, int], float]]:
    """Samples per second of each step by ``(GPU type, GPUs)``, all GPUs in one node."""
    table = read_table(path)
    nodes, gpus = table.counts("num_nodes"), table.counts("num_gpus")
    batch, time_s = table.seconds("local_bsz"), table.seconds("step_time_s")
    models, clusters, types, tables = (table.text(name) for name in ("model", "cluster", "gpu_type", "table"))
    found: dict[Step, dict[tuple[str, int], float]] = {}
    for row in np.flatnonzero(nodes == 1):
        if clusters[row] in _CLUSTERS and tables[row] == "placements":
            key = known_gpu_type(types[row], "gpu_type", path), int(gpus[row])
            found.setdefault(Step(models[row], float(batch[row])), {})[key] = gpus[row] * batch[row] / time_s[row]
    return found
