"""Black-box optimisers, a standard genetic algorithm and reinforcement learning beside G#: Fig. 7, Table 7."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from commonwatt.mapping.methods import METHODS
from commonwatt.mapping.nevergrad_search import NEVERGRAD
from commonwatt.mapping.reinforcement import LEARNERS
from commonwatt.model.errors import MissingExtraError
from commonwatt.reproduce.papers._gsharp_study import EVERY, TASKS, Case, Part, Study, Task

__all__ = ["searches"]

_PAPER_MAKESPAN = {"standard-ga": 2.96e9, "a2c": 3.24e6, "ppo": 4.26e6}
_PAPER_SECONDS = {"standard-ga": 40.0, "a2c": 4000.0, "ppo": 4500.0}
_PAPER_ALL, _PAPER_ALL_S = 6.40e8, 1019.0
"""Table 7: all optimisers of nevergrad together."""


def searches(study: Study, part: Part) -> None:
    """Mean makespans of each method, and its time, over settings and batches.

    Less than the full extent is one batch on one setting with a tenth of the evaluations (learners: a hundredth), which
    can be compared with G# under the same budget, but not with the paper.
    """
    full = len(study.instances) > 1
    pairs: list[tuple[Task, Case]] = [(task, case) for task in TASKS for case in EVERY] if full else [("mix", EVERY[1])]
    found: dict[str, float] = {}
    took: dict[str, float] = {}
    for method in ("standard-ga", *NEVERGRAD, *LEARNERS):
        budget = study.budget if full else study.budget // (100 if method in LEARNERS else 10)
        began = perf_counter()
        try:
            ours, over = _means(study, method, pairs, budget)
        except MissingExtraError as error:
            part.row(f"mean makespan of {method}", _PAPER_MAKESPAN.get(method), None, "cycles", str(error))
            continue
        took[method] = (perf_counter() - began) / len(pairs) * 10_000 / budget
        found[method] = ours
        told = f"{budget} evaluations, {over:.3g} times as long as G# with as many"
        part.row(f"mean makespan of {method}", _PAPER_MAKESPAN.get(method), ours, "cycles", told, comparable=full)
        part.row(f"seconds of {method} for 10,000 evaluations", _PAPER_SECONDS.get(method), took[method], "s")
    boxes = [method for method in NEVERGRAD if method in found]
    if boxes:
        mean = float(np.mean([found[method] for method in boxes]))
        part.row("mean makespan of nevergrad's optimisers", _PAPER_ALL, mean, "cycles", comparable=full)
        seconds = float(np.mean([took[method] for method in boxes]))
        part.row("seconds of nevergrad's optimisers for 10,000 evaluations", _PAPER_ALL_S, seconds, "s")
        best = min(boxes, key=lambda method: found[method])
        part.row("the best of nevergrad's optimisers", None, best)


def _means(study: Study, method: str, pairs: list[tuple[Task, Case]], budget: int) -> tuple[float, float]:
    """Return the mean makespan over *pairs*, and over G#'s within the same budget on geometric mean."""
    made = []
    for task, case in pairs:
        problem, seed = study.problem(task, case), study.seeds[0]
        ours = METHODS[method](budget).solve(problem, np.random.default_rng(seed)).makespan
        made.append((ours, METHODS["gsharp"](budget).solve(problem, np.random.default_rng(seed)).makespan))
    makespans, genetic = np.array(made).T
    return float(makespans.mean()), float(np.exp(np.mean(np.log(makespans / genetic))))
