"""Gavel's measured throughputs: training speed by model, batch size, GPU type (K80, P100, V100) and count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonwatt.data.profiles.gpu_types import known_gpu_type
from commonwatt.data.table import read_table

__all__ = ["FILE", "Run", "read_gavel"]

FILE = "gavel_throughputs.csv"


@dataclass(frozen=True)
class Run:
    """A model at one batch size per GPU; A3C and CycleGAN have none (0)."""

    model: str
    batch_size: int


def read_gavel(path: Path) -> dict[Run, dict[tuple[str, int], float]]:
    """Samples per second of each run by ``(GPU type, GPUs)``, GPUs in as few servers as possible.

    Steps per second where there is no batch size. The publisher's steps are summed over workers, so samples are
    steps times batch size. Cells that are 0 or empty at the source are left out.
    """
    table = read_table(path)
    samples = table.seconds("samples_per_s", blank=0.0)
    steps = table.seconds("steps_per_s", blank=0.0)
    batch = table.seconds("batch_size", blank=0.0).astype(int)
    gpus, consolidated = table.counts("num_gpus"), table.counts("consolidated")
    models, types = table.text("model"), table.text("gpu_type")
    found: dict[Run, dict[tuple[str, int], float]] = {}
    for row in np.flatnonzero(consolidated == 1):
        speed = float(samples[row] if batch[row] else steps[row])
        if speed > 0:
            key = known_gpu_type(types[row], "gpu_type", f"{path}, line {table.lines[row]}"), int(gpus[row])
            found.setdefault(Run(models[row], int(batch[row])), {})[key] = speed
    return found
