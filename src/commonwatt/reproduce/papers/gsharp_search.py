"""Black-box optimisers, a standard genetic algorithm and reinforcement learning beside G#: Fig. 7, Table 7."""

from __future__ import annotations

from collections.abc import Mapping as Named
from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time

import numpy as np

from commonwatt.mapping import ALGORITHMS, GSharp
from commonwatt.model.errors import MissingExtraError
from commonwatt.reproduce.papers.gsharp_study import (
    EVERY,
    HEURISTICS,
    LARGE,
    NEAR,
    ORDERS_OF_MAGNITUDE,
    PAPERS,
    SCALE_UP,
    SMALL,
    TASKS,
    TIMES_SMALLER,
    Case,
    GSharpPart,
    GSharpStudy,
    Task,
)

__all__ = ["ORDERS", "OVER", "PAPER_OVER", "SAMPLES", "learners", "orders", "searches", "speedups", "summary"]

_NEVERGRAD = ("de", "one-plus-one", "cma", "tbpsa", "pso", "cauchy-lhs", "halton", "hammersley", "portfolio")
_LEARNERS = ("a2c", "ppo")

_PAPER_MAKESPAN = {"standard-ga": 2.96e9, "a2c": 3.24e6, "ppo": 4.26e6}
_PAPER_SECONDS = {"standard-ga": 40.0, "a2c": 4000.0, "ppo": 4500.0}
_PAPER_CONVERGED_S = {"a2c": 1200.0, "ppo": 1100.0}
_PAPER_ALL, _PAPER_ALL_S = 6.40e8, 1019.0
"""Table 7: all optimisers of nevergrad together."""
_ELITE = ("portfolio", "de", "halton", "hammersley")
_PAPER_ELITE, _PAPER_ELITE_S, _PAPER_ELITE_CONVERGED_S = 1.96e8, 1462.0, 1097.0
OVER = "{}: makespan over that of G# with as many evaluations"
_PAPER_GSHARP = 2.55e6
PAPER_OVER = {method: _PAPER_MAKESPAN[method] / _PAPER_GSHARP for method in ("a2c", "ppo")}
ORDERS = f"nevergrad's optimisers are worse than G# by orders of magnitude ({ORDERS_OF_MAGNITUDE:g} times) in the mean"
SAMPLES = f"G# reaches the makespan of each with orders of magnitude ({ORDERS_OF_MAGNITUDE:g} times) fewer evaluations"
_PAPER_GSHARP_S, _PAPER_GSHARP_CONVERGED_S = 25.0, 1.75
_PAPER_SPEEDUP = {
    "standard-ga": 0.2, "nevergrad's optimisers": 0.95, "nevergrad's best four": 3.1, "a2c": 187.4, "ppo": 142.5,
}  # fmt: skip


@dataclass(frozen=True)
class _Searched:
    """A method on some batches: makespans, those of G# with as many evaluations, and seconds of both.

    Seconds are those of 10,000 evaluations, and of those until the makespan is within 1% of the last.
    """

    makespans: dict[tuple[Task, Case], float]
    gsharp: dict[tuple[Task, Case], float]
    took_s: float
    gsharp_s: float
    converged_s: float
    gsharp_converged_s: float
    fewer: dict[tuple[Task, Case], float]
    """Evaluations over those in which G# is as good; 1 where it never is."""

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.makespans.values())))

    @property
    def over(self) -> float:
        """Geometric mean of the makespans over G#'s."""
        return float(np.exp(np.mean([np.log(self.makespans[pair] / self.gsharp[pair]) for pair in self.makespans])))

    @property
    def fewer_mean(self) -> float:
        """Geometric mean of ``fewer``."""
        return float(np.exp(np.mean(np.log(list(self.fewer.values())))))

    @property
    def ahead(self) -> int:
        """Batches on which it is better than G#."""
        return sum(self.makespans[pair] < self.gsharp[pair] for pair in self.makespans)

    @property
    def even(self) -> int:
        """Batches on which it is as good as G#, often as both are optimal."""
        return sum(self.makespans[pair] == self.gsharp[pair] for pair in self.makespans)


def searches(study: GSharpStudy, part: GSharpPart) -> None:
    """Mean makespans of each method, and its time, over settings and batches.

    Less than the full extent is one batch on one setting with a tenth of the evaluations, which can be compared with G#
    under the same budget, but not with the paper.
    """
    full = len(study.instances) > 1
    pairs: list[tuple[Task, Case]] = [(task, case) for task in TASKS for case in EVERY] if full else [("mix", EVERY[1])]
    budget, why = (study.budget, "") if full else (study.budget // 10, _PART)
    optimisers = _searched(study, part, ("standard-ga", *_NEVERGRAD), pairs, budget, why)
    summary(study, part, optimisers, pairs, why)
    _others(study, part, optimisers, why)
    _best_optimiser(part, optimisers, why)
    said = orders({method: one.over for method, one in optimisers.items()})
    if said is not None:
        holds, note = said
        part.row(ORDERS, paper=True, ours=holds, note=f"{note}{'; ' * bool(why)}{why}", comparable=not why)


def _best_optimiser(part: GSharpPart, optimisers: dict[str, _Searched], why: str) -> None:
    """Add whether PSO is the best of nevergrad's optimisers on S1, as 5.3.1 says."""
    totals = {
        method: sum(value for (_, case), value in one.makespans.items() if case == SMALL[0])
        for method, one in optimisers.items() if method in _NEVERGRAD
    }  # fmt: skip
    if "pso" in totals and not why:
        best = min(totals, key=totals.__getitem__)
        part.row("S1, 16 GB/s: PSO is the best optimiser in total", paper=True, ours=best == "pso",
                 note=f"{best} is; PSO takes {totals['pso'] / totals[best]:.3g} times as long; batch 0")  # fmt: skip


def orders(over: Named[str, float]) -> tuple[bool, str] | None:
    """Return whether optimisers are worse than G# by orders of magnitude in the mean, as in Table 7, and by how much.

    *over* is the makespan of each over that of G#; ``None``: no optimiser was run.
    """
    groups = {"all": (_NEVERGRAD, _PAPER_ALL), "the best four": (_ELITE, _PAPER_ELITE)}
    means = {name: float(np.mean([over[each] for each in methods if each in over])) for name, (methods, _) in
             groups.items() if any(each in over for each in methods)}  # fmt: skip
    if not means:
        return None
    printed = {name: makespan / _PAPER_GSHARP for name, (_, makespan) in groups.items()}
    said = ", ".join(f"{name} {mean:.3g} times for {printed[name]:.3g}" for name, mean in means.items())
    note = f"with as many evaluations; mean over optimisers of geometric means; {said} in the paper's means"
    return min(means.values()) >= ORDERS_OF_MAGNITUDE, note


def summary(
    study: GSharpStudy, part: GSharpPart, optimisers: dict[str, _Searched], pairs: Sequence[tuple[Task, Case]], why: str
) -> None:
    """Add the means over optimisers, and the speedups, of *optimisers*."""
    means = {"standard-ga": optimisers["standard-ga"].mean}
    for name, methods, paper, paper_s in (("nevergrad's optimisers", _NEVERGRAD, _PAPER_ALL, _PAPER_ALL_S),
                                          ("nevergrad's best four", _ELITE, _PAPER_ELITE, _PAPER_ELITE_S)):  # fmt: skip
        boxes = [optimisers[method] for method in methods if method in optimisers]
        if boxes:
            means[name] = float(np.mean([box.mean for box in boxes]))
            part.row(f"mean makespan of {name}", paper, means[name], "cycles", why, comparable=not why)
            converged_s = None if methods is _NEVERGRAD else _PAPER_ELITE_CONVERGED_S
            _times(part, name, paper_s, converged_s, boxes, why=why)
    boxes_by_name = {method: optimisers[method].mean for method in _NEVERGRAD if method in optimisers}
    if boxes_by_name:
        part.row("the best of nevergrad's optimisers", None, min(boxes_by_name, key=boxes_by_name.__getitem__))
    speedups(study, part, means, pairs, why)


def _times(
    part: GSharpPart, name: str, paper_s: float | None, converged_s: float | None, boxes: Sequence[_Searched], *,
    why: str,
) -> None:  # fmt: skip
    """Add the seconds of methods for 10,000 evaluations; where printed, those until convergence; and both over G#'s."""
    for what, printed, of_gsharp, ours, genetic, note in (
        ("for 10,000 evaluations", paper_s, _PAPER_GSHARP_S, [one.took_s for one in boxes],
         [one.gsharp_s for one in boxes], _CPU),
        ("until within 1% of its best", converged_s, _PAPER_GSHARP_CONVERGED_S, [one.converged_s for one in boxes],
         [one.gsharp_converged_s for one in boxes], f"{_CPU}; the paper does not say when a search has converged"),
    ):  # fmt: skip
        if printed is not None or what.startswith("for"):
            part.row(f"seconds of {name} {what}", printed, float(np.mean(ours)), "s", note)
        if printed is not None:
            part.row(f"time of {name} {what}, over G#'s", printed / of_gsharp, float(np.mean(ours) / np.mean(genetic)),
                     "x", f"{note}{'; ' * bool(why)}{why}", comparable=not why)  # fmt: skip


def speedups(
    study: GSharpStudy, part: GSharpPart, means: dict[str, float], pairs: Sequence[tuple[Task, Case]], why: str
) -> None:
    """Add the mean makespan of the rules over each of *means*, on the same pairs."""
    rules = [study.rule(method, *pair) for method in HEURISTICS for pair in pairs]
    for name, mean in means.items():
        part.row(f"speedup over rules: mean makespan of rules over that of {name}", _PAPER_SPEEDUP[name],
                 float(np.mean(rules)) / mean, "x", why, comparable=not why)  # fmt: skip


def _others(study: GSharpStudy, part: GSharpPart, methods: dict[str, _Searched], why: str) -> None:
    """Add what Fig. 7 and 10 say of all other methods at once: rules and optimisers, but for those that learn."""
    said = (
        f"mean over {len(HEURISTICS)} rules, each combination of Table 5, and {len(methods)} optimisers, with as many "
        "evaluations as G#; the paper's has A2C and PPO2, too, and it does not say which combinations"
    )
    for figure, where, cases, place in (("7", "S1 and S2, 16 GB/s", SMALL, 0), ("7", "S4 and S5, 256 GB/s", LARGE, 1),
                                        ("10", "S6, 256 GB/s", (SCALE_UP,), 2)):  # fmt: skip
        for name, printed in TIMES_SMALLER.items():
            tasks = TASKS if name == "all batches" else (name,)
            if len(printed) > place:
                pairs = [(task, case) for task in tasks for case in cases]
                ratio = None if why else _ratio(study, methods, pairs)
                part.row(f"Fig. {figure}, {where}, {name}: other methods over G#", printed[place], ratio, "x",
                         why or said)  # fmt: skip


def _ratio(study: GSharpStudy, optimisers: dict[str, _Searched], pairs: Sequence[tuple[Task, Case]]) -> float:
    """Mean makespan of rules and optimisers over G#'s on *pairs*, as the paper averages."""
    genetic = next(iter(optimisers.values())).gsharp
    ratios = [study.rule(rule, *pair) / genetic[pair] for rule in HEURISTICS for pair in pairs]
    ratios += [one.makespans[pair] / genetic[pair] for one in optimisers.values() for pair in pairs]
    return float(np.mean(ratios))


_CPU = "processor time, one core"
_PART = "one of the paper's 24 settings and classes, with fewer evaluations"


def learners(study: GSharpStudy, part: GSharpPart) -> None:
    """Makespans of A2C and PPO, and their times, over settings and batches.

    Less than the full extent is one batch on one setting with a hundredth of the evaluations.
    """
    full = len(study.instances) > 1
    pairs: list[tuple[Task, Case]] = [(task, case) for task in TASKS for case in EVERY] if full else [("mix", EVERY[1])]
    why = "" if full else _PART
    by_method = _searched(study, part, _LEARNERS, pairs, study.budget if full else study.budget // 100, why)
    speedups(study, part, {method: one.mean for method, one in by_method.items()}, pairs, why)


def _searched(
    study: GSharpStudy, part: GSharpPart, methods: Sequence[str], pairs: list[tuple[Task, Case]], budget: int, why: str
) -> dict[str, _Searched]:  # fmt: skip
    """Add what each of *methods* reaches, and its seconds; *why* it cannot be compared with the paper's number."""
    by_method: dict[str, _Searched] = {}
    for method in methods:
        try:
            by_method[method] = one = _search(study, method, pairs, budget)
        except MissingExtraError as error:
            part.row(f"mean makespan of {method}", _PAPER_MAKESPAN.get(method), None, "cycles", str(error))
            continue
        mean = float(np.mean(list(one.gsharp.values())))
        note = f"{budget} evaluations; G# with as many on the same batches {mean:.3g}{'; ' * bool(why)}{why}"
        printed = _PAPER_MAKESPAN.get(method)
        part.row(f"mean makespan of {method}", printed, one.mean, "cycles", note, comparable=not why)
        part.row(OVER.format(method), PAPER_OVER.get(method), one.over, "x",
                 f"geometric mean{'; ' * bool(why)}{why}", comparable=not why)  # fmt: skip
        _times(part, method, _PAPER_SECONDS.get(method), _PAPER_CONVERGED_S.get(method), [one], why=why)
    if by_method:
        ahead, even = (
            ", ".join(f"{method} on {number}" for method, one in by_method.items() if (number := getattr(one, which)))
            for which in ("ahead", "even")
        )
        where = f"on {len(pairs)} of the paper's 24 settings and classes; {budget} evaluations each"
        where += f"{'; better: ' * bool(ahead)}{ahead}{'; as good, which counts as yes: ' * bool(even)}{even}"
        part.row("none of them is better than G# anywhere, with as many evaluations", paper=True, ours=not ahead,
                 note=where, comparable=not why)  # fmt: skip
        fewer = {method: one.fewer_mean for method, one in by_method.items()}
        note = ", ".join(f"{method} {times:.3g} times" for method, times in fewer.items())
        part.row(SAMPLES, paper=True, ours=min(fewer.values()) >= ORDERS_OF_MAGNITUDE, comparable=not why,
                 note=f"geometric means; where G# is never as good, 1; {note}{'; ' * bool(why)}{why}")  # fmt: skip
    return by_method


def _search(study: GSharpStudy, method: str, pairs: list[tuple[Task, Case]], budget: int) -> _Searched:
    """Run a method, and the paper's G# with as many evaluations, on each of *pairs* once."""
    made: dict[str, dict[tuple[Task, Case], float]] = {"gsharp": {}, method: {}}
    fewer: dict[tuple[Task, Case], float] = {}
    took_s, converged_s = dict.fromkeys(made, 0.0), dict.fromkeys(made, 0.0)
    genetic = GSharp(budget, PAPERS)
    genetic.solve(study.problem(*pairs[0]), np.random.default_rng(0))  # all of it is compiled
    for pair in pairs:
        histories = {}
        for name in made:
            began = process_time()
            algorithm = genetic if name == "gsharp" else ALGORITHMS[name](budget)
            one = algorithm.solve(study.problem(*pair), np.random.default_rng(study.seeds[0]))
            spent_s = (process_time() - began) * 10_000 / budget / len(pairs)
            near = next((spent for spent, best in one.history if best <= (1 + NEAR) * one.cost), budget)
            took_s[name] += spent_s
            converged_s[name] += spent_s * near / budget
            made[name][pair], histories[name] = one.cost, one.history
        reached = next((spent for spent, best in histories["gsharp"] if best <= made[method][pair]), budget)
        fewer[pair] = budget / reached
    return _Searched(made[method], made["gsharp"], took_s[method], took_s["gsharp"], converged_s[method],
                     converged_s["gsharp"], fewer)  # fmt: skip
