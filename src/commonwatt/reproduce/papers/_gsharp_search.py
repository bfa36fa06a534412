"""Inside G#: operators (Fig. 12), a schedule (Fig. 13) and satisfaction (Fig. 14)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from commonwatt.mapping.encoding import random_mappings
from commonwatt.mapping.evaluator import timeline
from commonwatt.mapping.goal import Goal
from commonwatt.mapping.gsharp import GSharp, Settings
from commonwatt.mapping.scoring import costs
from commonwatt.mapping.search import Search
from commonwatt.model.arrays import Floats
from commonwatt.reproduce.papers import _gsharp_plots as plots
from commonwatt.reproduce.papers._gsharp_study import Case, Part, Study, Task

__all__ = ["figure_12", "figure_13", "figure_14"]

_LEVELS = {
    "mutation": Settings(crossover_gen=0.0, crossover_rg=0.0, crossover_accel=0.0),
    "mutation and crossover-gen": Settings(crossover_rg=0.0, crossover_accel=0.0),
    "all operators": Settings(),
}
_CASES: tuple[tuple[Task, Case], ...] = (("mix", ("S2", 16.0)), ("mix", ("S5", 1.0)))


def _so_far(search: Search, at: Floats) -> Floats:
    """The best found by each number of evaluations."""
    spent, best = (np.array(column) for column in zip(*search.history, strict=True))
    return best[np.maximum(np.searchsorted(spent, at, side="right") - 1, 0)]


def figure_12(study: Study, part: Part) -> None:
    """The best so far by evaluations at three levels of operators, mean over the seeds."""
    at = np.unique(np.geomspace(100, study.budget, 12).round(-2))
    for task, case in _CASES:
        problem, where = study.problem(task, case), f"{task}, {case[0]}, {case[1]:g} GB/s"
        found = {
            level: [GSharp(study.budget, settings).solve(problem, np.random.default_rng(s)) for s in study.seeds]
            for level, settings in _LEVELS.items()
        }
        curves = {level: np.mean([_so_far(one, at) for one in searches], axis=0) for level, searches in found.items()}
        for level, curve in curves.items():
            for x, value in zip(at.tolist(), curve.tolist(), strict=True):
                part.point(level, f"{where}: best makespan", x, value, "cycles")
        best = min(float(curve[-1]) for curve in curves.values())
        above = {level: 100 * float(np.mean(np.log(curve / best))) for level, curve in curves.items()}
        note = "mean over log evaluations of how far the best so far is above the best of all: " + ", ".join(
            f"{level} {mean:.1f}%" for level, mean in above.items()
        )
        mutation, gen, every = above.values()
        part.row(f"{where}: crossover-gen makes mutation converge sooner", paper=True, ours=gen < mutation, note=note)
        part.row(f"{where}: all operators converge sooner still", paper=True, ours=every < gen)
        part.draw(where, partial(plots.curves, at=at, lines=curves))


def figure_13(study: Study, part: Part) -> None:
    """Mix on S5 at 1 GB/s under FCFS-OLB and G#."""
    case, problem = ("S5", 1.0), study.problem("mix", ("S5", 1.0))
    used, ends = {}, {}
    for method in ("fcfs-olb", "gsharp"):
        found = study.solve(method, "mix", case, seed=study.seeds[0] if method == "gsharp" else 0)
        played = timeline(problem, found.mapping)
        ends[method] = played.makespan
        used[method] = float((played.used * np.diff(played.edges)).sum() / played.makespan)
        part.row(f"{method}: mean bandwidth in use, of 1 GB/s", None, used[method], "GB/s")
        part.row(f"{method}: makespan", None, played.makespan, "cycles")
        at = found.mapping.accelerator.tolist()
        part.draw(f"{method}, jobs", partial(plots.jobs, played=played, accelerator=at))
        part.draw(f"{method}, bandwidth", partial(plots.bandwidth, played=played, limit=1.0))
    part.row("G# uses more of the bandwidth and ends sooner", paper=True,
             ours=used["gsharp"] > used["fcfs-olb"] and ends["gsharp"] < ends["fcfs-olb"])  # fmt: skip


def figure_14(study: Study, part: Part) -> None:
    """Satisfaction of a random target order: mix on S3 at 1 GB/s."""
    before, after = [], []
    for seed in study.seeds:
        rng = np.random.default_rng(seed)
        problem = study.problem("mix", ("S3", 1.0))
        place = rng.permutation(len(problem)).astype(np.int64)
        asked = replace(problem, goal=Goal(objective="satisfaction", place=place))
        before.append(100 * (1 - float(costs(asked, random_mappings(asked, 100, rng)).mean())))
        after.append(100 * (1 - GSharp(study.budget).solve(asked, rng).makespan))
    note = (
        "the target order is not printed: drawn at random; the formula is lost in the text at hand, ours is in goal.py"
    )
    part.row("jobs satisfied by a random mapping", 24.0, float(np.mean(before)), "%", note, comparable=False)
    part.row("jobs satisfied after the search", 96.0, float(np.mean(after)), "%", note, comparable=False)
