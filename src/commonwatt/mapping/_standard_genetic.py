"""The standard genetic algorithm of Table 5: one genome of all genes, one-point crossover, mutation, nothing else.

Mutation and crossover rate are 0.1. Ours is what the table does not say: parents are picked by tournaments of two, and
the best of a population lives on. A gene is drawn evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._encoding import Mapping, random_mappings
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._search import MappingSearch, drive
from commonwatt.model.arrays import Bools, Floats
from commonwatt.optimize import KeepGoing, always, ranked

__all__ = ["StandardGenetic"]


class _Population:
    def __init__(self, problem: MappingProblem, rng: Generator, size: int, mutation: float, crossover: float) -> None:
        self._problem, self._rng, self._size = problem, rng, size
        self._mutation, self._crossover = mutation, crossover
        self._now: Mapping | None = None
        self._worth: Floats = np.zeros(0)

    def ask(self) -> Mapping:
        new = random_mappings(self._problem, self._size, self._rng)
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
