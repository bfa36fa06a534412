"""Lucid's tables: what a training uses of a GPU that it has alone, and how fast two trainings are that share one.

Q. Hu et al., "Lucid: A non-intrusive, scalable and interpretable scheduler for deep learning training jobs" (ASPLOS
2023), measured on one RTX 3090 of 24 GB. A kind of job is represented by a model of its class (``base.CLASSES``) in
single precision, at the nearest batch size. Speeds above 1, which are noise, count as 1.

Without the tables each class is represented at batch size 64 (``USE``). Pairs that were not measured, and all without
the tables, follow a law: ``speed = 1 / (1 + SLOWDOWN * u * v)`` with the utilizations u and v of the two. ``SLOWDOWN``
is the least-squares fit to all 2,776 speeds of the table; its root mean square error is 0.07. The table has none of
ResNet-50, Transformer and BERT beside others, and NeuMF beside NeuMF only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.profiles.base import CLASSES, class_of
from commonwatt.data.profiles.law import data_sheet
from commonwatt.data.table import read_table
from commonwatt.model.packing import GpuFootprint, Packing

__all__ = ["PAIRS", "SINGLE", "SLOWDOWN", "USE", "make_packing"]

SINGLE, PAIRS = "lucid_single.csv", "lucid_colocated.csv.gz"
SLOWDOWN = 0.44
BATCH_SIZE = 64
MIB_PER_GIB = 1024

# fmt: off
USE = {  # rows of lucid_single.csv; BERT was measured at batch size 32 only
    "resnet18": GpuFootprint(0.807, 0.470, 2.60),
    "resnet50": GpuFootprint(1.000, 0.809, 8.37),
    "transformer": GpuFootprint(0.752, 0.318, 11.52),
    "bert": GpuFootprint(0.997, 0.625, 19.69),
    "lm": GpuFootprint(0.970, 0.749, 3.79),
    "recommendation": GpuFootprint(0.105, 0.020, 2.00),
}
# fmt: on

_Run = tuple[str, str, int]
"""Model, dataset, batch size."""


@dataclass(frozen=True)
class _Tables:
    alone: Mapping[_Run, GpuFootprint]
    speeds: Mapping[tuple[_Run, _Run], float]


def make_packing(kinds: Iterable[str], gpu_types: Iterable[str]) -> Packing:
    """Return which of *kinds* of job may share GPUs of *gpu_types*, by Lucid's tables if they are there."""
    own = {kind: of_class for kind in sorted(set(kinds)) if (of_class := class_of(kind)) is not None}
    sheets = {name: data_sheet(name) for name in sorted(set(gpu_types))}
    memory = {name: sheet.memory_gib for name, sheet in sheets.items() if sheet is not None}
    single, pairs = third_party.find(SINGLE), third_party.find(PAIRS)
    if single is None or pairs is None:
        use = {kind: USE[of_class] for kind, of_class in own.items()}
        return Packing(use, memory, {}, SLOWDOWN, "sharing by the law fitted to Lucid's measurements")
    tables = _read(single, pairs)
    runs = {kind: _nearest(tables, of_class, kind) for kind, of_class in own.items()}
    speeds = {
        (one, other): tables.speeds[runs[one], runs[other]]
        for one in runs for other in runs if (runs[one], runs[other]) in tables.speeds
    }  # fmt: skip
    use = {kind: tables.alone[run] for kind, run in runs.items()}
    return Packing(use, memory, speeds, SLOWDOWN, "sharing measured by Lucid, elsewhere by a law fitted to it")


def _nearest(tables: _Tables, of_class: str, kind: str) -> _Run:
    """Return the run of the class's model whose batch size is nearest to that of *kind*, in logarithms."""
    size = float(kind.rpartition("-b")[2]) if kind != of_class else BATCH_SIZE
    runs = [run for run in tables.alone if run[:2] == CLASSES[of_class].lucid]
    return min(runs, key=lambda run: (abs(np.log(run[2] / size)), run[2]))


@cache
def _read(single: Path, pairs: Path) -> _Tables:
    table, alone = read_table(single), {}
    columns = [table.numbers(name).tolist() for name in ("amp", "gpu_util", "gmem_util", "gmem")]
    for run, amp, busy, memory_busy, mib in zip(_runs(single, ""), *columns, strict=True):
        if not amp:
            alone[run] = GpuFootprint(busy / 100, memory_busy / 100, mib / MIB_PER_GIB)
    both = read_table(pairs)
    full = ((both.numbers("amp1") == 0) & (both.numbers("amp2") == 0)).tolist()
    found: dict[tuple[_Run, _Run], list[float]] = {}
    for one, other, mine, its, kept in zip(
        _runs(pairs, "1"), _runs(pairs, "2"), both.numbers("speed1").tolist(), both.numbers("speed2").tolist(), full,
        strict=True,
    ):  # fmt: skip
        if kept and mine > 0 and its > 0:
            found.setdefault((one, other), []).append(mine)
            found.setdefault((other, one), []).append(its)
    return _Tables(alone, {pair: min(1.0, float(np.mean(speeds))) for pair, speeds in found.items()})


def _runs(path: Path, which: str) -> list[_Run]:
    table = read_table(path)
    sizes = [int(size) for size in table.numbers(f"batchsize{which}")]
    return list(zip(table.text(f"model{which}"), table.text(f"dataset{which}"), sizes, strict=True))
