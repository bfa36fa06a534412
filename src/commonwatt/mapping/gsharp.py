"""G# (section 4.2): a genetic search whose crossovers keep what belongs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from commonwatt.mapping.encoding import Mapping, random_mappings
from commonwatt.mapping.operators import breed
from commonwatt.mapping.problem import Problem
from commonwatt.mapping.search import KeepGoing, Search, always, drive
from commonwatt.model.arrays import Floats

__all__ = ["GSharp", "Genetic", "Settings"]


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters; the rates are the paper's, which does not print the parts that are parents and elites."""

    population: int = 100
    mutation: float = 0.05
    crossover_gen: float = 0.9
    crossover_rg: float = 0.05
    crossover_accel: float = 0.05
    elites: float = 0.05
    parents: float = 0.1

    @property
    def rates(self) -> Floats:
        """Rates in the order ``breed`` takes them."""
        return np.array([self.mutation, self.crossover_gen, self.crossover_rg, self.crossover_accel])


@dataclass
class Genetic:
    """The search, by ask and tell. The first population is random but for *seeds*; elites are not evaluated again."""

    problem: Problem
    rng: Generator
    settings: Settings = Settings()
    seeds: Sequence[Mapping] = ()
    best: Mapping | None = field(default=None, init=False)
    worth: Floats = field(default_factory=lambda: np.zeros(0), init=False)

    def __post_init__(self) -> None:
        possible = self.problem.possible
        self._where = np.argsort(~possible, axis=1, kind="stable")
        self._count = possible.sum(axis=1)

    def ask(self) -> Mapping:
        """Return the first population, or the next generation's children."""
        size = self.settings.population
        if self.best is None:
            made = random_mappings(self.problem, size, self.rng)
            for p, seed in enumerate(self.seeds[:size]):
                made.accelerator[p], made.priority[p] = seed.accelerator, seed.priority
            return made
        chosen = min(len(self.best), max(2, round(self.settings.parents * size)))
        pairs = self.rng.integers(chosen, size=((size + 1) // 2, 2))
        genes = (self.best.accelerator, self.best.priority)
        children = breed(*genes, pairs, self.settings.rates, self._where, self._count, self.rng)
        return Mapping(children[0][:size], children[1][:size])

    def tell(self, mappings: Mapping, makespans: Floats) -> None:
        """Keep the best of the generation, and of the elites of those before."""
        if self.best is not None:
            elites = max(1, round(self.settings.elites * self.settings.population))
            mappings = Mapping(
                np.vstack([self.best.accelerator[:elites], mappings.accelerator]),
                np.vstack([self.best.priority[:elites], mappings.priority]),
            )
            makespans = np.append(self.worth[:elites], makespans)
        kept = np.argsort(makespans, kind="stable")[: self.settings.population]
        self.best, self.worth = mappings[kept], makespans[kept]


@dataclass(frozen=True)
class GSharp:
    """G# under a budget: 100 generations of 100 by default."""

    budget: int = 10_000
    settings: Settings = Settings()
    seeds: tuple[Mapping, ...] = ()

    def solve(self, problem: Problem, rng: Generator, keep_going: KeepGoing = always) -> Search:
        """Search; *keep_going* is asked after each generation."""
        return drive(problem, Genetic(problem, rng, self.settings, self.seeds), self.budget, keep_going)
