"""Baselines (G#, 5.1.4 and Table 5): rules without search, and the standard genetic algorithm.

A rule is an order of jobs, and a choice of sub-accelerator for each in turn. None looks at bandwidth: they see
no-stall latencies, as the published ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._decoder import raised
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._search import MappingSearch, drive, score
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import KeepGoing, always, ranked

__all__ = ["ORDERS", "RULES", "List", "StandardGenetic", "means"]


def means(problem: MappingProblem) -> Floats:
    """Return the mean latency of each job over the sub-accelerators that can run it, [J]."""
    possible = problem.possible
    return np.where(possible, problem.latency, 0.0).sum(axis=1) / possible.sum(axis=1)


ORDERS: dict[str, Callable[[MappingProblem, Generator], Ints]] = {
    "fcfs": lambda problem, _: np.arange(len(problem)),
    "sjf": lambda problem, _: ranked(means(problem)),
    "longest": lambda problem, _: ranked(-problem.goal.precedence.upward(means(problem))),
    "random": lambda problem, rng: rng.permutation(len(problem)),
    "target": lambda problem, _: ranked(problem.goal.place),
}
"""Jobs as they come; shortest or longest mean latency first (of a chain), ties by index; at random; as aimed for."""

# What a rule sees: when each sub-accelerator is free ([A]), the job's latencies ([A]), how many jobs came before.
_Rule = Callable[[Floats, Floats, int, Generator], int]


def _round_robin(free: Floats, latency: Floats, turn: int, rng: Generator) -> int:  # noqa: ARG001
    turns = (turn + np.arange(len(free))) % len(free)
    return int(turns[np.isfinite(latency[turns])][0])


RULES: dict[str, _Rule] = {
    "olb": lambda free, latency, _, __: int(np.argmin(np.where(np.isfinite(latency), free, np.inf))),
    "met": lambda free, latency, _, __: int(ranked(latency, free)[0]),
    "rr": _round_robin,
    "random": lambda _, latency, __, rng: int(rng.choice(np.flatnonzero(np.isfinite(latency)))),
    "eft": lambda free, latency, _, __: int(np.argmin(free + latency)),
}
"""Free first; fastest for the job, the one free first among equals; in turn; at random; first to end the job."""


@dataclass(frozen=True)
class List:
    """List scheduling: jobs in some order (of ``ORDERS``), each where a rule (of ``RULES``) puts it.

    HEFT is ``List("longest", "eft")``: the longest chain of mean latencies from a job on goes first. For independent
    jobs that is the longest-first earliest-finish rule. No job stands before one that it comes after.
    """

    order: str
    rule: str

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:  # noqa: ARG002
        """Build the one mapping."""
        graph = problem.goal.precedence
        order = ORDERS[self.order](problem, rng)
        priority = np.empty(len(order))
        priority[order] = (np.arange(len(order)) + 0.5) / len(order)
        if graph:
            lifted = raised(priority, graph.order, graph.at, graph.follows)
            order = graph.order[ranked(lifted[graph.order])]
        free, ready = np.zeros(problem.accelerators), np.zeros(len(problem))
        accelerator, rule = np.empty(len(order), dtype=np.int64), RULES[self.rule]
        for turn, j in enumerate(order.tolist()):
            a = rule(np.maximum(free, ready[j]), problem.latency[j], turn, rng)
            accelerator[j] = a
            free[a] = max(free[a], ready[j]) + problem.latency[j, a]
            for k in graph.after(j):
                ready[k] = max(ready[k], free[a])
        return score(problem, Mapping(accelerator[None], priority[None]))


class _Population:
    def __init__(self, problem: MappingProblem, rng: Generator, size: int, mutation: float, crossover: float) -> None:
        self._problem, self._rng, self._size = problem, rng, size
        self._mutation, self._crossover = mutation, crossover
        self._now: Mapping | None = None
        self._worth: Floats = np.zeros(0)

    def ask(self) -> Mapping:
        new = Mapping.random(self._problem, self._size, self._rng)
        if self._now is None:
            return new
        rng, jobs = self._rng, len(self._problem)
        rivals = rng.integers(len(self._worth), size=(2, 2, self._size))
        mothers, fathers = np.where(self._worth[rivals[:, 0]] <= self._worth[rivals[:, 1]], rivals[:, 0], rivals[:, 1])
        pivot = rng.integers(1, 2 * jobs + 1, size=self._size)
        pivot[rng.random(self._size) >= self._crossover] = 2 * jobs
        own: Bools = np.arange(2 * jobs) < pivot[:, None]
        drawn = rng.random((self._size, 2 * jobs)) < self._mutation
        accelerator, priority = (
            np.where(drawn[:, part], fresh, np.where(own[:, part], genes[mothers], genes[fathers]))
            for part, fresh, genes in (
                (slice(jobs), new.accelerator, self._now.accelerator),
                (slice(jobs, None), new.priority, self._now.priority),
            )
        )
        accelerator[0], priority[0] = self._now.accelerator[0], self._now.priority[0]
        return Mapping(accelerator, priority)

    def tell(self, mappings: Mapping, makespans: Floats) -> None:
        order = ranked(makespans)
        self._now, self._worth = mappings[order], makespans[order]


@dataclass(frozen=True)
class StandardGenetic:
    """The algorithm under a budget of mappings."""

    budget: int = 10_000
    population: int = 100
    mutation: float = 0.1
    crossover: float = 0.1

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:
        """Search; *keep_going* is asked after each generation."""
        search = _Population(problem, rng, self.population, self.mutation, self.crossover)
        return drive(problem, search, self.budget, keep_going)
