"""All algorithms by name, and ``auto``, which puts them together. A name has one owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace

from numpy.random import Generator

from commonwatt.mapping.baselines import List
from commonwatt.mapping.encoding import Mapping
from commonwatt.mapping.evaluator import makespan
from commonwatt.mapping.gsharp import GSharp
from commonwatt.mapping.local_search import Annealing
from commonwatt.mapping.problem import Problem
from commonwatt.mapping.rounding import Rounding
from commonwatt.mapping.scoring import enough
from commonwatt.mapping.search import Algorithm, KeepGoing, Search, always, score
from commonwatt.model.errors import InputError

__all__ = ["ALGORITHMS", "Auto", "warmed"]

STARTS = (List("longest", "eft"), List("longest", "met"), List("sjf", "eft"), List("longest", "olb"))


LARGEST_PROGRAM = 20_000
"""Pairs of jobs and sub-accelerators up to which the linear program is solved for a start: half a second or less."""


@dataclass(frozen=True)
class Auto:
    """The best of several rules seeds G#; its best, and the rounded linear program, are annealed.

    G# has *genetic* of the budget, 10,000 evaluations at most. Annealing goes by rounds, each twice as long as the one
    before it, so that a time limit finds it cold enough whatever the budget is: first from the best of G# and from the
    rounded program, in turn, then from the best so far. It stops at the target. A time limit only cuts it short: with
    the same budget and seed it goes the same way.
    """

    budget: int = 10_000
    genetic: float = 0.3
    first_round: int = 20_000
    seeds: tuple[Mapping, ...] = ()

    def solve(self, problem: Problem, rng: Generator, keep_going: KeepGoing = always) -> Search:
        """Search; what is found is no worse than any rule it starts from, budget permitting."""
        trail = _Trail(enough(problem), self.budget, keep_going)
        built: list[Search] = []
        for seed in self.seeds:
            if trail.goes_on():
                built.append(trail.take(score(problem, seed[None])))
        aimed = (List("target", "eft"),) if problem.goal.objective == "satisfaction" else ()
        for rule in (*aimed, *STARTS):
            if trail.goes_on():
                built.append(trail.take(rule.solve(problem, rng)))
        rounded = None
        if problem.latency.size <= LARGEST_PROGRAM and trail.goes_on():
            longest = makespan(problem, trail.best.mapping)
            rounded = trail.take(Rounding(longest).solve(problem, rng))
            built.append(rounded)
        share = min(int(self.genetic * self.budget), trail.left, 10_000)
        if share > 0 and trail.goes_on():
            seeds = tuple(search.mapping for search in built)
            trail.take(GSharp(share, seeds=seeds).solve(problem, rng, keep_going))
        length = min(self.first_round, max(1, trail.left // 2))
        for first in (trail.best, rounded):
            if first is not None and trail.goes_on():
                trail.take(Annealing(min(length, trail.left)).improve(problem, first, rng, keep_going))
        while trail.goes_on():
            length *= 2
            trail.take(Annealing(min(length, trail.left)).improve(problem, trail.best, rng, keep_going))
        return replace(trail.best, evaluations=trail.spent, history=tuple(trail.history))


class _Trail:
    """The best of what several searches find one after the other, and what they spend."""

    def __init__(self, reached: float, budget: int, keep_going: KeepGoing) -> None:
        self._reached, self._budget, self._keep_going = reached, budget, keep_going
        self._best: Search | None = None
        self.spent, self.history = 0, list[tuple[int, float]]()

    @property
    def best(self) -> Search:
        assert self._best is not None
        return self._best

    @property
    def left(self) -> int:
        return self._budget - self.spent

    def goes_on(self) -> bool:
        return self._best is None or (self.left > 0 and self.best.makespan > self._reached and self._keep_going())

    def take(self, found: Search) -> Search:
        for spent, worth in found.history:
            if self._best is None or worth < self.best.makespan:
                self.history.append((self.spent + spent, worth))
        self.spent += found.evaluations
        if self._best is None or found.makespan < self.best.makespan:
            self._best = found
        return found


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
