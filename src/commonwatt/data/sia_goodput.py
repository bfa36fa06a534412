"""Goodput of the applications of Sia's simulator: how fast they train with each batch, on any placement.

Goodput is throughput times statistical efficiency (A. Qiao et al., "Pollux: Co-adaptive cluster scheduling for
goodput-optimized deep learning", OSDI 2021, section 3). An iteration with batch ``M`` is worth
``gain = (var + sqr) / (var * M0 / M + sqr)`` of those with the least batch ``M0``. ``sqr`` is the squared norm of the
gradient and ``var`` its variance with ``M0``, both as measured in that epoch with ``M``. It takes
``step + k * (step - sync)`` seconds with ``k`` steps of accumulation. An epoch takes its progress (iterations with
``M0``) times that, over the gain.

Source of the tables and of the rules of splitting a batch: the public simulator of Sia (SOSP 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonwatt.data.table import TextTable, read_table
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = ["TYPES", "GoodputModel", "Placement", "StepTimes", "read_trainings"]

TYPES = {"aws": "T4", "rtx": "RTX2080Ti", "dgx-ext": "A100"}  # by the name its tables give the cluster
BATCHES = 50  # tried in geometric steps, as in that simulator, besides those with measured gradients
NEAR = 1e-8  # for ceilings, as there

Placement = tuple[int, ...]  # GPUs on each host, in the order of hosts


@dataclass(frozen=True)
class StepTimes:
    """Measured training steps of one application on one GPU type; each value is the rows batch, step and sync, [3, M].

    Attributes
    ----------
    placements
        Samples on a GPU, step and sync time (s), by GPUs on each host, from the host where that list sorts first.
    columns
        The same by number of hosts and of GPUs: the mean of such placements, or a measurement by these two.
    least
        Fewest samples on a GPU.
    """

    placements: Mapping[Placement, Floats]
    columns: Mapping[tuple[int, int], Floats]
    least: float

    def of(self, placement: Placement) -> Floats | None:
        """Return the steps in *placement*, [3, M]; ``None``: outside of what was measured.

        What was not measured is interpolated: between numbers of GPUs on so many hosts; else between numbers of hosts
        with as many GPUs on each.
        """
        measured = self.placements.get(min(placement[i:] + placement[:i] for i in range(len(placement))))
        return measured if measured is not None else self._column(len(placement), sum(placement))

    def _column(self, hosts: int, gpus: float) -> Floats | None:
        own = sorted(count for many, count in self.columns if many == hosts)
        if own:
            low, high = (max((n for n in own if n <= gpus), default=0), min((n for n in own if n >= gpus), default=0))
            if not low or not high:
                return None
            part = (gpus - low) / (high - low) if high > low else 0.0
            return _between(self.columns[hosts, low], self.columns[hosts, high], part)
        fewer = max((many for many, _ in self.columns if many < hosts), default=0)
        more = min((many for many, _ in self.columns if many > hosts), default=0)
        if not fewer or not more:
            return None
        below, above = self._column(fewer, gpus * fewer / hosts), self._column(more, gpus * more / hosts)
        return None if below is None or above is None else _between(below, above, (hosts - fewer) / (more - fewer))


@dataclass(frozen=True)
class GoodputModel:
    """How an application trains: with what progress, and how fast.

    Attributes
    ----------
    batches
        Those whose gradients were measured, the least first, [B].
    progress
        Iterations with the least batch that each epoch is worth, [E].
    sqr, var
        Squared norm of the gradient and its variance with the least batch, in each epoch, [B, E].
    steps
        By GPU type.
    slowdown
        By what all times are longer than the measured ones.
    """

    batches: Floats
    progress: Floats
    sqr: Floats
    var: Floats
    steps: Mapping[str, StepTimes]
    slowdown: float

    def gain(self, batch: Floats) -> Floats:
        """Return the iterations with the least batch that one with *batch* ([M]) is worth, in each epoch, [M, E]."""
        place = np.interp(batch, self.batches, np.arange(len(self.batches)))
        low = np.minimum(place.astype(np.int64), max(len(self.batches) - 2, 0))
        high, part = np.minimum(low + 1, len(self.batches) - 1), (place - low)[:, None]
        sqr, var = (of[low] * (1 - part) + of[high] * part for of in (self.sqr, self.var))
        left = var * (self.batches[0] / batch)[:, None] + sqr
        return np.where(left > 0, (var + sqr) / np.where(left > 0, left, 1.0), 1.0)

    def epoch_s(self, gpu_type: str, placement: Placement, batch: Floats) -> Floats:
        """Return the time of each epoch with each *batch* ([M]), [M, E]; infinity where that is not possible.

        The batch on a GPU is split into steps that were measured, and rounded up. A single GPU takes at least two steps
        for more than the least batch, as the variance of its gradient is not known otherwise.
        """
        steps = self.steps[gpu_type].of(placement) if gpu_type in self.steps else None
        if steps is None:
            return np.full((len(batch), len(self.progress)), np.inf)
        gpus = sum(placement)
        again = np.ceil(batch / gpus / steps[0, -1] - NEAR) - 1  # steps of accumulation
        if gpus == 1:
            again = np.where(batch > self.batches[0] + NEAR, np.maximum(again, 1), again)
        count = gpus * (again + 1)
        own = np.minimum(np.ceil(batch / count - NEAR), np.floor(self.batches[-1] / count))  # samples of a GPU's step
        possible = (own >= self.steps[gpu_type].least) & (own <= steps[0, -1]) & (own * count >= self.batches[0])
        step_s, sync_s = (np.interp(own, steps[0], row) for row in steps[1:])
        iteration_s = (step_s + again * (step_s - sync_s)) * self.slowdown
        each_s = self.progress * iteration_s[:, None] / self.gain(np.maximum(own * count, self.batches[0]))
        return np.where(possible[:, None], each_s, np.inf)

    def run_time_s(self, gpu_type: str, placement: Placement, batch: float | None = None) -> float:
        """Return the time of the whole training; infinity: not possible.

        With *batch* in all epochs; without, with the best in each: of 50 in geometric steps, and of ``batches``.
        """
        if batch is not None:
            return float(self.epoch_s(gpu_type, placement, np.array([float(batch)])).sum())
        return float(self.best_s(gpu_type, placement).sum())

    def best_s(self, gpu_type: str, placement: Placement) -> Floats:
        """Return the time of each epoch with its best batch, [E]; infinity: not possible."""
        most = self.batches[-1]
        fewest = self.steps[gpu_type].least * sum(placement) if gpu_type in self.steps else np.inf
        if fewest > most:
            return np.full(len(self.progress), np.inf)
        tried = np.geomspace(max(self.batches[0], fewest), most, BATCHES)
        return np.asarray(self.epoch_s(gpu_type, placement, np.concatenate((tried, self.batches))).min(axis=0))


def read_trainings(root: Path, slowdown: Mapping[str, float]) -> dict[str, GoodputModel]:
    """Return the applications of the folder *root* by name, with the factors *slowdown* of its cluster.json.

    Raises ``InputError`` on whatever is wrong in its tables: a column that is missing, a number out of range, a
    placement that is not what its counts say, an application without a factor or without step times.
    """
    steps = _step_times(read_table(root / "throughput" / "scaling.csv.gz"))
    table = read_table(root / "throughput" / "validation.csv.gz")
    models, batch, progress = table.text("model"), table.seconds("batch_size"), table.seconds("progress")
    sqr, var = (table.parse(name, _above(0.0), "a number, 0 or more") for name in ("grad_sqr", "grad_var"))
    trainings = {}
    for model in dict.fromkeys(models):
        if model not in slowdown:
            raise InputError(f"a factor for {model}", file=root / "cluster.json", field="slowdown", value="none")
        if model not in steps:
            raise InputError(
                f"rows of {model}", file=root / "throughput" / "scaling.csv.gz", field="model", value="none"
            )
        own = np.array([name == model for name in models])
        batches = np.unique(batch[own])
        rows = [np.flatnonzero(own & (batch == each)) for each in batches]
        if batches[0] == 0:
            raise table.error(int(rows[0][0]), "batch_size", "1 or more")
        epochs = min(len(each) for each in rows)
        passed = np.min([progress[each[:epochs]] for each in rows], axis=0)
        if not (np.diff(passed, prepend=0.0) > 0).all():
            raise table.error(int(rows[0][0]), "progress", "more with every epoch of a batch")
        of_epochs = [np.array([values[each[:epochs]] for each in rows]) for values in (sqr, var)]
        trainings[model] = GoodputModel(
            batches, np.diff(passed, prepend=0.0), of_epochs[0], of_epochs[1], steps[model], slowdown[model]
        )
    return trainings


def _step_times(table: TextTable) -> dict[str, dict[str, StepTimes]]:
    """Steps of each application, by GPU type."""
    by_row = zip(*(table.text(name) for name in ("model", "cluster", "table", "placement")), strict=True)
    hosts, gpus = table.counts("num_nodes"), table.counts("num_gpus")
    batch = table.parse("local_bsz", _above(1.0), "a number of samples, 1 or more")
    step_s = table.parse("step_time_s", _above(1e-9), "a number of seconds above 0")
    sync_s = table.seconds("sync_time_s")
    if (sync_s > step_s).any():
        raise table.error(int(np.argmax(sync_s > step_s)), "sync_time_s", "no more than step_time_s")
    placed: dict[tuple[str, str], dict[Placement, list[int]]] = {}
    counted: dict[tuple[str, str], dict[tuple[int, int], list[int]]] = {}
    for row, (model, cluster, name, placement) in enumerate(by_row):
        if cluster not in TYPES:
            continue
        if name == "placements":
            counts = tuple(int(digit) for digit in placement if digit.isdecimal() and digit != "0")
            if (len(counts), sum(counts)) != (hosts[row], gpus[row]) or len(counts) < len(placement):
                raise table.error(row, "placement", f"{gpus[row]} GPUs on {hosts[row]} hosts, such as 42")
            placed.setdefault((model, cluster), {}).setdefault(counts, []).append(row)
        counted.setdefault((model, cluster), {}).setdefault((int(hosts[row]), int(gpus[row])), []).append(row)
    steps: dict[str, dict[str, StepTimes]] = {}
    for (model, cluster), rows in placed.items():
        columns = {key: _means(of, batch, step_s, sync_s) for key, of in counted[model, cluster].items()}
        own = {key: _means(of, batch, step_s, sync_s) for key, of in rows.items()}
        least = min(float(column[0, 0]) for column in own.values())
        steps.setdefault(model, {})[TYPES[cluster]] = StepTimes(own, columns, least)
    return steps


def _means(rows: list[int], batch: Floats, step_s: Floats, sync_s: Floats) -> Floats:
    """Batches of *rows*, each once, with the means of their step and sync times, [3, M]."""
    each, at = np.unique(batch[rows], return_inverse=True)
    many = np.bincount(at)
    return np.stack((each, np.bincount(at, step_s[rows]) / many, np.bincount(at, sync_s[rows]) / many))


def _between(low: Floats, high: Floats, part: float) -> Floats:
    """Steps at *part* of the way from *low* to *high*, at the batches within both, [3, M]."""
    batch = np.unique(np.concatenate((low[0], high[0])))
    batch = batch[(batch >= max(low[0, 0], high[0, 0])) & (batch <= min(low[0, -1], high[0, -1]))]
    mixed = [(1 - part) * np.interp(batch, low[0], low[i]) + part * np.interp(batch, high[0], high[i]) for i in (1, 2)]
    return np.stack((batch, *mixed))


def _above(least: float) -> Callable[[str], float]:
    def read(cell: str) -> float:
        value = float(cell)
        if not least <= value < math.inf:
            raise ValueError
        return value

    return read
