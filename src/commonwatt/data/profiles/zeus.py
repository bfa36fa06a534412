"""Zeus' measured power table: time and power of an epoch of training, on one GPU (P100, V100, RTX6000, A40)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonwatt.data.profiles.base import known_gpu_type
from commonwatt.data.table import read_table
from commonwatt.model.errors import InputError

__all__ = ["FILE", "Training", "read_zeus"]

FILE = "zeus_power.csv"


@dataclass(frozen=True)
class Training:
    """What was trained."""

    dataset: str
    model: str
    batch_size: int
    optimizer: str


def read_zeus(path: Path) -> dict[Training, dict[str, tuple[float, float]]]:
    """``(seconds per epoch, watts)`` of each training by GPU type, at the GPU's highest power limit.

    Reads the tidied table of all GPUs, or a publisher's ``summary_power_GPU.csv``.
    """
    table = read_table(path)
    published = "network" in table
    limit_w, time_s, power_w = (
        table.seconds(theirs if published else ours)
        for ours, theirs in (
            ("power_limit_w", "power_limit"),
            ("time_per_epoch_s", "time_per_epoch"),
            ("average_power_w", "average_power"),
        )
    )
    types = [_type_of(path)] * len(table) if published else [_type(path, t) for t in table.text("gpu_type")]
    batch = table.counts("batch_size")
    texts = [table.text(name) for name in ("dataset", "network" if published else "model", "optimizer")]
    top_w = {t: max(w for w, other in zip(limit_w, types, strict=True) if other == t) for t in set(types)}
    trainings: dict[Training, dict[str, tuple[float, float]]] = {}
    for row in np.flatnonzero(limit_w == [top_w[t] for t in types]):
        dataset, model, optimizer = (column[row] for column in texts)
        training = Training(dataset, model, int(batch[row]), optimizer)
        trainings.setdefault(training, {})[types[row]] = float(time_s[row]), float(power_w[row])
    return trainings


def _type(path: Path, name: str) -> str:
    return known_gpu_type(name, "gpu_type", path)


def _type_of(path: Path) -> str:
    try:
        return known_gpu_type(path.name.partition(".")[0])
    except InputError:
        raise InputError("a name that ends in the GPU type, as summary_power_v100.csv", file=path) from None
