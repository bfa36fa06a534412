"""``auto``: rules, G# and annealing, one after the other; and the start they lack, the rounded linear program."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._baselines import List
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._evaluator import makespan
from commonwatt.mapping._gsharp import GSharp
from commonwatt.mapping._local_search import Annealing
from commonwatt.mapping._lower_bound import shared_out
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import enough
from commonwatt.mapping._search import Algorithm, MappingSearch, score
from commonwatt.model.errors import InputError
from commonwatt.optimize import Budget, Incumbent, KeepGoing, always, ranked

__all__ = ["Auto", "Rounding", "warmed"]


@dataclass(frozen=True)
class Rounding:
    """Each job goes where the linear program has most of it, of equals to the one with the least load, longest first.

    The program knows loads, volumes, and that a job that requests more than all bandwidth holds up the others, but no
    order: priorities are random. Pairs that take longer than *longest* alone, such as a known makespan, are left out.
    """

    longest: float = np.inf

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:  # noqa: ARG002
        """Build the one mapping."""
        alone = problem.alone
        least, most = alone.min(axis=1).max(), alone[np.isfinite(alone)].max()
        shares = shared_out(problem, float(min(max(self.longest, least), most)))
        chosen = shares >= shares.max(axis=1, keepdims=True) - 1e-9
        latency = np.where(chosen, problem.latency, 0.0).max(axis=1)
        free, accelerator = np.zeros(problem.accelerators), np.empty(len(problem), dtype=np.int64)
        for j in ranked(-latency).tolist():
            a = int(np.argmin(np.where(chosen[j], free + problem.latency[j], np.inf)))
            accelerator[j] = a
            free[a] += problem.latency[j, a]
        return score(problem, Mapping(accelerator[None], rng.random(len(problem))[None]))


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

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:
        """Search; what is found is no worse than any rule it starts from, budget permitting."""
        search = Incumbent[Mapping](Budget(self.budget, keep_going, enough(problem)))
        built: list[MappingSearch] = []
        for seed in self.seeds:
            if search.goes_on():
                built.append(search.take(score(problem, seed[None])))
        aimed = (List("target", "eft"),) if problem.goal.objective == "satisfaction" else ()
        for rule in (*aimed, *STARTS):
            if search.goes_on():
                built.append(search.take(rule.solve(problem, rng)))
        rounded = None
        if problem.latency.size <= LARGEST_PROGRAM and search.goes_on():
            longest = makespan(problem, search.best)
            rounded = search.take(Rounding(longest).solve(problem, rng))
            built.append(rounded)
        share = min(int(self.genetic * self.budget), search.left, 10_000)
        if share > 0 and search.goes_on():
            seeds = tuple(found.best for found in built)
            search.take(GSharp(share, seeds=seeds).solve(problem, rng, keep_going))
        length = min(self.first_round, max(1, search.left // 2))
        for first in (search.result(), rounded):
            if first is not None and search.goes_on():
                search.take(Annealing(min(length, search.left)).improve(problem, first, rng, keep_going))
        while search.goes_on():
            length *= 2
            search.take(Annealing(min(length, search.left)).improve(problem, search.result(), rng, keep_going))
        return search.result()


def warmed(algorithm: Algorithm, start: Mapping) -> Algorithm:
    """Return the same algorithm, searching from *start*; raises ``InputError`` if it does not search."""
    if not is_dataclass(algorithm) or "seeds" not in {entry.name for entry in fields(algorithm)}:
        raise InputError("an algorithm that searches", field="start", value="one that does not")
    return replace(algorithm, seeds=(start,))
