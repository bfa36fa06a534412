"""A mapping learnt on one batch, taken to others: Table 6."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from commonwatt.mapping.encoding import random_mappings
from commonwatt.mapping.evaluator import makespans
from commonwatt.mapping.transfer import Match, Transfer, Transferred
from commonwatt.reproduce.papers._gsharp_study import TASKS, Case, Part, Study, Task

__all__ = ["table_6"]

_PRINTED = {"Raw": 30.88, "Trf-0-ep": 1.94, "Trf-1-ep": 1.46, "Trf-30-ep": 1.01}
_EPOCHS = {"Trf-0-ep": 0, "Trf-1-ep": 1, "Trf-30-ep": 30}
_TESTS = (1, 2, 3, 4)
_WAYS: tuple[tuple[str, Match, bool], ...] = (
    ("by rank, as the paper does", "rank", False), ("by the nearest job, ours", "nearest", True),
)  # fmt: skip

_Ratios = dict[str, list[float]]


def _ratios(study: Study, task: Task, case: Case, match: Match, *, guard: bool, seed: int) -> _Ratios:
    """Makespans over those of a full search, on the batches that were not learnt from."""
    learnt = study.solve("gsharp", task, case, 0, seed=seed)
    known = Transfer.learn(study.problem(task, case, 0), learnt.mapping)
    found: _Ratios = defaultdict(list)
    for test in _TESTS:
        problem = study.problem(task, case, test)
        full = study.solve("gsharp", task, case, test, seed=seed).makespan
        rng = np.random.default_rng((seed, test))
        found["Raw"].append(float(makespans(problem, random_mappings(problem, 100, rng)).mean()) / full)
        for name, epochs in _EPOCHS.items():
            tuned = Transferred(known, epochs, match, guard).solve(problem, np.random.default_rng((seed, test)))
            found[name].append(tuned.makespan / full)
    return found


def table_6(study: Study, part: Part) -> None:
    """Mix on S4 at 1 GB/s; then all classes on all settings at 1 GB/s."""
    for way, match, guard in _WAYS:
        mean: _Ratios = defaultdict(list)
        for seed in study.seeds:
            for name, ratios in _ratios(study, "mix", ("S4", 1.0), match, guard=guard, seed=seed).items():
                mean[name] += ratios
        for name, paper in _PRINTED.items():
            part.row(f"mix, S4, 1 GB/s, {way}: {name} over the full search", paper, float(np.mean(mean[name])), "x",
                     "mean over instances 1 to 4, learnt on 0")  # fmt: skip
    settings = ("S2", "S4") if study.quick else ("S1", "S2", "S3", "S4", "S5", "S6")
    for way, match, guard in _WAYS:
        every: _Ratios = defaultdict(list)
        for task in TASKS:
            for setting in settings:
                case = setting, 1.0
                for name, ratios in _ratios(study, task, case, match, guard=guard, seed=study.seeds[0]).items():
                    every[name] += ratios
        for name, values in every.items():
            part.row(f"all classes, {settings[0]} to {settings[-1]}, 1 GB/s, {way}: {name} over the full search", None,
                     float(np.exp(np.mean(np.log(values)))), "x",
                     f"geometric mean, worst {max(values):.2f}")  # fmt: skip
