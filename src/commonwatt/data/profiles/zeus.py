"""Zeus' measured power table: time and power of an epoch of training, on one GPU (P100, V100, RTX6000, A40)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonwatt.data.profiles.base import known_gpu_type
from commonwatt.data.table import read_table
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = ["FILE", "LimitCurve", "Training", "read_limits", "read_zeus"]

FILE = "zeus_power.csv"


@dataclass(frozen=True)
class Training:
    """What was trained."""

    dataset: str
    model: str
    batch_size: int
    optimizer: str


@dataclass(frozen=True)
class LimitCurve:
    """A training at each power limit of one GPU, increasing; all relative to the highest."""

    limit: Floats
    time: Floats
    power: Floats

    def at(self, limit: float) -> tuple[float, float]:
        """Return time and power at *limit*, between the limits measured next to it. Neither saves both: no noise."""
        time, power = (float(np.interp(limit, self.limit, column)) for column in (self.time, self.power))
        return max(1.0, time), min(1.0, power)


def read_zeus(path: Path) -> dict[Training, dict[str, tuple[float, float]]]:
    """``(seconds per epoch, watts)`` of each training by GPU type, at the GPU's highest power limit.

    Reads the tidied table of all GPUs, or a publisher's ``summary_power_GPU.csv``.
    """
    trainings: dict[Training, dict[str, tuple[float, float]]] = {}
    for (training, gpu_type), (limit_w, time_s, power_w) in _by_training(path).items():
        if limit_w[-1] == 1.0:
            trainings.setdefault(training, {})[gpu_type] = float(time_s[-1]), float(power_w[-1])
    return trainings


def read_limits(path: Path) -> dict[Training, dict[str, LimitCurve]]:
    """Each training by GPU type at the power limits it was measured at, the GPU's highest among them."""
    curves: dict[Training, dict[str, LimitCurve]] = {}
    for (training, gpu_type), (limit, time_s, power_w) in _by_training(path).items():
        if limit[-1] == 1.0 and len(limit) > 1:
            curve = LimitCurve(limit, time_s / time_s[-1], power_w / power_w[-1])
            curves.setdefault(training, {})[gpu_type] = curve
    return curves


def _by_training(path: Path) -> dict[tuple[Training, str], tuple[Floats, Floats, Floats]]:
    """Limit as a part of the GPU type's highest, seconds of an epoch, and watts; by increasing limit."""
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
    rows: dict[tuple[Training, str], dict[float, tuple[float, float]]] = {}
    for row, (gpu_type, dataset, model, optimizer) in enumerate(zip(types, *texts, strict=True)):
        training = Training(dataset, model, int(batch[row]), optimizer)
        limit = float(limit_w[row] / top_w[gpu_type])
        rows.setdefault((training, gpu_type), {})[limit] = float(time_s[row]), float(power_w[row])
    columns = {}
    for key, measured in rows.items():
        limits = sorted(measured)
        time, power = np.array([measured[part] for part in limits]).T
        columns[key] = np.array(limits), time, power
    return columns


def _type(path: Path, name: str) -> str:
    return known_gpu_type(name, "gpu_type", path)


def _type_of(path: Path) -> str:
    try:
        return known_gpu_type(path.name.partition(".")[0])
    except InputError:
        raise InputError("a name that ends in the GPU type, as summary_power_v100.csv", file=path) from None
