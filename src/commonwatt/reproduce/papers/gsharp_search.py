"""A mapping learnt on one batch, taken to others: Table 6.

Inside G#: operators (Fig. 12), a schedule (Fig. 13) and satisfaction (Fig. 14).

Black-box optimisers, a standard genetic algorithm and reinforcement learning beside G#: Fig. 7, Table 7.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import process_time
from typing import Literal

import numpy as np

from commonwatt.mapping import (
    ALGORITHMS,
    Goal,
    GSharp,
    GSharpSettings,
    Mapping,
    Transfer,
    costs_of,
    timeline,
)
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import MissingExtraError
from commonwatt.optimize import SearchResult
from commonwatt.reproduce.papers import gsharp_plots as plots
from commonwatt.reproduce.papers.gsharp_study import EVERY, HEURISTICS, TASKS, Case, GSharpPart, GSharpStudy, Task

__all__ = ["figure_12", "figure_13", "figure_14", "learners", "searches", "speedups", "summary", "table_6"]

_NEVERGRAD = ("de", "one-plus-one", "cma", "tbpsa", "pso", "cauchy-lhs", "halton", "hammersley", "portfolio")
_LEARNERS = ("a2c", "ppo")
_Match = Literal["rank", "nearest"]
_LEVELS = {
    "mutation": GSharpSettings(crossover_gen=0.0, crossover_rg=0.0, crossover_accel=0.0),
    "mutation and crossover-gen": GSharpSettings(crossover_rg=0.0, crossover_accel=0.0),
    "all operators": GSharpSettings(),
}
_CASES: tuple[tuple[Task, Case], ...] = (("mix", ("S2", 16.0)), ("mix", ("S5", 1.0)))


def _so_far(search: SearchResult[Mapping], at: Floats) -> Floats:
    """The best makespan after each number of evaluations."""
    spent, best = (np.array(column) for column in zip(*search.history, strict=True))
    return best[np.maximum(np.searchsorted(spent, at, side="right") - 1, 0)]


def figure_12(study: GSharpStudy, part: GSharpPart) -> None:
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


def figure_13(study: GSharpStudy, part: GSharpPart) -> None:
    """Mix on S5 at 1 GB/s under FCFS-OLB and G#."""
    case, problem = ("S5", 1.0), study.problem("mix", ("S5", 1.0))
    used, ends = {}, {}
    for method in ("fcfs-olb", "gsharp"):
        found = study.solve(method, "mix", case, seed=study.seeds[0] if method == "gsharp" else 0)
        played = timeline(problem, found.best)
        ends[method] = played.makespan
        used[method] = float((played.used * np.diff(played.edges)).sum() / played.makespan)
        part.row(f"{method}: mean bandwidth in use, of 1 GB/s", None, used[method], "GB/s")
        part.row(f"{method}: makespan", None, played.makespan, "cycles")
        at = found.best.accelerator.tolist()
        part.draw(f"{method}, jobs", partial(plots.jobs, played=played, accelerator=at))
        part.draw(f"{method}, bandwidth", partial(plots.bandwidth, played=played, limit=1.0))
    part.row("G# uses more of the bandwidth and ends sooner", paper=True,
             ours=used["gsharp"] > used["fcfs-olb"] and ends["gsharp"] < ends["fcfs-olb"])  # fmt: skip


def figure_14(study: GSharpStudy, part: GSharpPart) -> None:
    """Satisfaction of a random target order: mix on S3 at 1 GB/s."""
    before, after = [], []
    for seed in study.seeds:
        rng = np.random.default_rng(seed)
        problem = study.problem("mix", ("S3", 1.0))
        place = rng.permutation(len(problem)).astype(np.int64)
        asked = replace(problem, goal=Goal(objective="satisfaction", place=place))
        before.append(100 * (1 - float(costs_of(asked, Mapping.random(asked, 100, rng)).mean())))
        after.append(100 * (1 - GSharp(study.budget).solve(asked, rng).cost))
    note = "the target order is not printed: drawn at random; the formula is missing in our copy, ours is in _goal.py"
    part.row("jobs satisfied by a random mapping", 24.0, float(np.mean(before)), "%", note, comparable=False)
    part.row("jobs satisfied after the search", 96.0, float(np.mean(after)), "%", note, comparable=False)


_PAPER_MAKESPAN = {"standard-ga": 2.96e9, "a2c": 3.24e6, "ppo": 4.26e6}
_PAPER_SECONDS = {"standard-ga": 40.0, "a2c": 4000.0, "ppo": 4500.0}
_PAPER_ALL, _PAPER_ALL_S = 6.40e8, 1019.0
"""Table 7: all optimisers of nevergrad together."""
_ELITE = ("portfolio", "de", "halton", "hammersley")
_PAPER_ELITE, _PAPER_ELITE_S = 1.96e8, 1462.0
_PAPER_SPEEDUP = {
    "standard-ga": 0.2, "nevergrad's optimisers": 0.95, "nevergrad's best four": 3.1, "a2c": 187.4, "ppo": 142.5,
}  # fmt: skip


def searches(study: GSharpStudy, part: GSharpPart) -> None:
    """Mean makespans of each method, and its time, over settings and batches.

    Less than the full extent is one batch on one setting with a tenth of the evaluations, which can be compared with G#
    under the same budget, but not with the paper.
    """
    full = len(study.instances) > 1
    pairs: list[tuple[Task, Case]] = [(task, case) for task in TASKS for case in EVERY] if full else [("mix", EVERY[1])]
    budget = study.budget if full else study.budget // 10
    found, took = _searched(study, part, ("standard-ga", *_NEVERGRAD), pairs, budget, "" if full else _PART)
    summary(study, part, found, took, pairs, "" if full else _PART)


def summary(
    study: GSharpStudy, part: GSharpPart, found: dict[str, float], took: dict[str, float],
    pairs: Sequence[tuple[Task, Case]], why: str,
) -> None:  # fmt: skip
    """Add the means over optimisers, and the speedups, of the makespans *found* and the seconds each *took*."""
    means = {"standard-ga": found["standard-ga"]}
    for name, methods, paper, paper_s in (("nevergrad's optimisers", _NEVERGRAD, _PAPER_ALL, _PAPER_ALL_S),
                                          ("nevergrad's best four", _ELITE, _PAPER_ELITE, _PAPER_ELITE_S)):  # fmt: skip
        boxes = [method for method in methods if method in found]
        if boxes:
            means[name] = float(np.mean([found[method] for method in boxes]))
            part.row(f"mean makespan of {name}", paper, means[name], "cycles", why, comparable=not why)
            seconds = float(np.mean([took[method] for method in boxes]))
            part.row(f"seconds of {name} for 10,000 evaluations", paper_s, seconds, "s", _CPU)
    boxes = [method for method in _NEVERGRAD if method in found]
    if boxes:
        part.row("the best of nevergrad's optimisers", None, min(boxes, key=lambda method: found[method]))
    speedups(study, part, means, pairs, why)


def speedups(
    study: GSharpStudy, part: GSharpPart, means: dict[str, float], pairs: Sequence[tuple[Task, Case]], why: str
) -> None:
    """Add the mean makespan of the rules over each of *means*, on the same settings and batches."""
    rules = [study.solve(method, *pair).cost for method in HEURISTICS for pair in pairs]
    for name, mean in means.items():
        part.row(f"speedup over rules: mean makespan of rules over that of {name}", _PAPER_SPEEDUP[name],
                 float(np.mean(rules)) / mean, "x", why, comparable=not why)  # fmt: skip


_CPU = "processor time, one core"
_PART = "one of the paper's 24 settings and classes, with fewer evaluations"


def learners(study: GSharpStudy, part: GSharpPart) -> None:
    """Makespans of A2C and PPO, and their times, on one of the paper's 24 settings and classes: all take half a day.

    Less than the full extent is a hundredth of the evaluations.
    """
    full = len(study.instances) > 1
    why = "one of the paper's 24 settings and classes: mix on S2" if full else _PART
    pairs: list[tuple[Task, Case]] = [("mix", EVERY[1])]
    found, _ = _searched(study, part, _LEARNERS, pairs, study.budget if full else study.budget // 100, why)
    speedups(study, part, found, pairs, why)


def _searched(
    study: GSharpStudy, part: GSharpPart, methods: Sequence[str], pairs: list[tuple[Task, Case]], budget: int, why: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Add what each of *methods* reaches, and its seconds for 10,000 evaluations; *why* it cannot be compared."""
    found: dict[str, float] = {}
    took: dict[str, float] = {}
    for method in methods:
        try:
            found[method], over, spent_s = _means(study, method, pairs, budget)
        except MissingExtraError as error:
            part.row(f"mean makespan of {method}", _PAPER_MAKESPAN.get(method), None, "cycles", str(error))
            continue
        took[method] = spent_s / len(pairs) * 10_000 / budget
        told = f"{budget} evaluations, {over:.3g} times as long as G# with as many{'; ' * bool(why)}{why}"
        printed = _PAPER_MAKESPAN.get(method)
        part.row(f"mean makespan of {method}", printed, found[method], "cycles", told, comparable=not why)
        part.row(f"{method}: makespan over that of G# with as many evaluations", None, over, "x")
        part.row(f"seconds of {method} for 10,000 evaluations", _PAPER_SECONDS.get(method), took[method], "s", _CPU)
    return found, took


def _means(study: GSharpStudy, method: str, pairs: list[tuple[Task, Case]], budget: int) -> tuple[float, float, float]:
    """Return the mean makespan over *pairs*, that over G#'s within the same budget on geometric mean, and seconds."""
    made, spent_s = [], 0.0
    for task, case in pairs:
        problem, seed = study.problem(task, case), study.seeds[0]
        began = process_time()
        ours = ALGORITHMS[method](budget).solve(problem, np.random.default_rng(seed)).cost
        spent_s += process_time() - began
        made.append((ours, ALGORITHMS["gsharp"](budget).solve(problem, np.random.default_rng(seed)).cost))
    makespans, genetic = np.array(made).T
    return float(makespans.mean()), float(np.exp(np.mean(np.log(makespans / genetic)))), spent_s


_EACH = {  # Table 6(a): batches 1 to 4
    "Raw": (25.32, 66.21, 11.28, 20.71), "Trf-0-ep": (3.09, 1.67, 1.29, 1.72), "Trf-1-ep": (2.30, 1.37, 1.04, 1.14),
    "Trf-30-ep": (1.01, 1.02, 1.01, 1.01),
}  # fmt: skip
_RAW_LEARNT = 52.37
_PRINTED = {"Raw": 30.88, "Trf-0-ep": 1.94, "Trf-1-ep": 1.46, "Trf-30-ep": 1.01}
_EPOCHS = {"Trf-0-ep": 0, "Trf-1-ep": 1, "Trf-30-ep": 30}
_TESTS = (1, 2, 3, 4)
_WAYS: tuple[tuple[str, _Match, bool], ...] = (
    ("by rank, as the paper does", "rank", False), ("by the nearest job, ours", "nearest", True),
)  # fmt: skip

_Ratios = dict[str, list[float]]


def _ratios(study: GSharpStudy, task: Task, case: Case, match: _Match, *, guard: bool, seed: int) -> _Ratios:
    """Makespans over those of a full search, on the batches that were not learnt from."""
    learnt = study.solve("gsharp", task, case, 0, seed=seed)
    known = Transfer.learn(study.problem(task, case, 0), learnt.best)
    found: _Ratios = defaultdict(list)
    for test in _TESTS:
        problem = study.problem(task, case, test)
        full = study.solve("gsharp", task, case, test, seed=seed).cost
        rng = np.random.default_rng((seed, test))
        found["Raw"].append(float(costs_of(problem, Mapping.random(problem, 100, rng)).mean()) / full)
        for name, epochs in _EPOCHS.items():
            tuned = known.tuned(epochs, match, guard=guard).solve(problem, np.random.default_rng((seed, test)))
            found[name].append(tuned.cost / full)
    return found


def table_6(study: GSharpStudy, part: GSharpPart) -> None:
    """Mix on S4 at 1 GB/s; then all classes on all settings at 1 GB/s."""
    for way, match, guard in _WAYS:
        mean: _Ratios = defaultdict(list)
        for seed in study.seeds:
            for name, ratios in _ratios(study, "mix", ("S4", 1.0), match, guard=guard, seed=seed).items():
                mean[name] += ratios
        for name, paper in _PRINTED.items():
            part.row(f"mix, S4, 1 GB/s, {way}: {name} over the full search", paper, float(np.mean(mean[name])), "x",
                     "mean over instances 1 to 4, learnt on 0")  # fmt: skip
        if match == "rank":
            _each(study, part, way, mean)
    settings = ("S2", "S4") if study.quick else ("S1", "S2", "S3", "S4", "S5", "S6")
    gains: dict[Task, float] = {}
    for way, match, guard in _WAYS:
        every: _Ratios = defaultdict(list)
        for task in TASKS:
            own: _Ratios = defaultdict(list)
            for setting in settings:
                case = setting, 1.0
                for name, ratios in _ratios(study, task, case, match, guard=guard, seed=study.seeds[0]).items():
                    every[name] += ratios
                    own[name] += ratios
            if match == "rank":
                gains[task] = float(np.mean(own["Raw"]) / np.mean(own["Trf-0-ep"]))
        for name, values in every.items():
            part.row(f"all classes, {settings[0]} to {settings[-1]}, 1 GB/s, {way}: {name} over the full search", None,
                     float(np.exp(np.mean(np.log(values)))), "x",
                     f"geometric mean, worst {max(values):.2f}")  # fmt: skip
    for what, paper, of in (("least", 7.4, min(gains, key=gains.__getitem__)),
                            ("most", 152.0, max(gains, key=gains.__getitem__))):  # fmt: skip
        part.row(f"all classes, {what} of any: Raw over Trf-0-ep", paper, gains[of], "x",
                 f"{of}; means over {settings[0]} to {settings[-1]}, 1 GB/s; the paper's table of classes is not in "
                 "our copy")  # fmt: skip


def _each(study: GSharpStudy, part: GSharpPart, way: str, ratios: _Ratios) -> None:
    """Each batch of Table 6(a), and the two numbers that the text draws from their means."""
    raw = [float(costs_of(problem, Mapping.random(problem, 100, np.random.default_rng((seed, 0)))).mean())
           / study.solve("gsharp", "mix", ("S4", 1.0), 0, seed=seed).cost
           for seed in study.seeds for problem in (study.problem("mix", ("S4", 1.0), 0),)]  # fmt: skip
    where = f"mix, S4, 1 GB/s, {way}"
    part.row(f"{where}, batch 0, learnt on: Raw over the full search", _RAW_LEARNT, float(np.mean(raw)), "x")
    for name, printed in _EACH.items():
        for place, (batch, paper) in enumerate(zip(_TESTS, printed, strict=True)):
            own = ratios[name][place :: len(_TESTS)]
            part.row(f"{where}, batch {batch}: {name} over the full search", paper, float(np.mean(own)), "x")
    mean = {name: float(np.mean(values)) for name, values in ratios.items()}
    part.row(f"{where}: Raw over Trf-0-ep", 16.0, mean["Raw"] / mean["Trf-0-ep"], "x", "means of batches 1 to 4")
    gain = 100 * (mean["Raw"] - mean["Trf-1-ep"]) / (mean["Raw"] - 1)
    part.row(f"{where}: part of the full search's gain after 1 epoch", 93.0, gain, "%",
             "the paper does not say how it counts: its own table gives 98% so, and 68% as Trf-100-ep over Trf-1-ep",
             comparable=False)  # fmt: skip
