"""All algorithms by name, and ``auto``, which puts them together. A name has one owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace

from numpy.random import Generator

from commonwatt.mapping.baselines import List
from commonwatt.mapping.encoding import Mapping
from commonwatt.mapping.gsharp import GSharp
from commonwatt.mapping.local_search import Annealing
from commonwatt.mapping.problem import Problem
from commonwatt.mapping.scoring import enough
from commonwatt.mapping.search import Algorithm, KeepGoing, Search, always, score
from commonwatt.model.errors import InputError

__all__ = ["ALGORITHMS", "Auto", "warmed"]

STARTS = (List("longest", "eft"), List("longest", "met"), List("sjf", "eft"), List("longest", "olb"))


@dataclass(frozen=True)
class Auto:
    """The best of several rules seeds G#, whose best mapping is annealed with what is left of the budget.

    G# has *genetic* of the budget, 10,000 evaluations at most. Annealing goes by rounds, each from the best so far and
    twice as long as the one before, so that a time limit finds it cold enough whatever the budget is.
    """

    budget: int = 10_000
    genetic: float = 0.3
    first_round: int = 20_000
    seeds: tuple[Mapping, ...] = ()

    def solve(self, problem: Problem, rng: Generator, keep_going: KeepGoing = always) -> Search:
        """Search; what is found is no worse than any rule it starts from, budget permitting."""
        reached = enough(problem)
        built = [score(problem, seed[None]) for seed in self.seeds[: self.budget]]
        built += [rule.solve(problem, rng) for rule in STARTS[: max(1 - len(built), self.budget - len(built))]]
        first = min(range(len(built)), key=lambda k: built[k].makespan)
        best, spent = built[first], len(built)
        history: tuple[tuple[int, float], ...] = ((first + 1, best.makespan),)
        share = min(int(self.genetic * self.budget), self.budget - spent, 10_000)
        if share > 0 and best.makespan > reached and keep_going():
            found = GSharp(share, seeds=tuple(search.mapping for search in built)).solve(problem, rng, keep_going)
            history += tuple((spent + n, worth) for n, worth in found.history if worth < best.makespan)
            spent += found.evaluations
            best = min(best, found, key=lambda search: search.makespan)
        best, length = Search(best.mapping, best.makespan, spent, history), self.first_round
        while best.evaluations < self.budget and best.makespan > reached and keep_going():
            steps = min(length, self.budget - best.evaluations)
            best = Annealing(steps).improve(problem, best, rng, keep_going)
            length *= 2
        return best


def warmed(algorithm: Algorithm, start: Mapping) -> Algorithm:
    """Return the same algorithm, searching from *start*; raises ``InputError`` if it does not search."""
    if not is_dataclass(algorithm) or "seeds" not in {entry.name for entry in fields(algorithm)}:
        raise InputError("an algorithm that searches", field="start", value="one that does not")
    return replace(algorithm, seeds=(start,))


def _always(rule: List) -> Callable[[int], Algorithm]:
    return lambda _: rule


_ORDERS, _RULES = ("fcfs", "sjf", "random"), ("olb", "met", "rr", "random")
ALGORITHMS: dict[str, Callable[[int], Algorithm]] = {
    "auto": Auto,
    "gsharp": GSharp,
    "heft": _always(List("longest", "eft")),
    **{f"{order}-{rule}": _always(List(order, rule)) for order in _ORDERS for rule in _RULES},
}
"""Each made for a budget, which rules without search do not use. ``heft`` is longest first, earliest finish."""
