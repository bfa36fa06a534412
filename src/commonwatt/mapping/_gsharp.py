"""G# (section 4.2): a genetic search whose crossovers keep what belongs together.

The operators and their rates are the paper's. Ours is what it leaves open:

- A random sub-accelerator is not any with the same chance: it is drawn by how long the job takes there if all
  sub-accelerators have an equal share of the bandwidth, ``latency * max(1, A r / B)``. Of two, the one where it takes
  twice as long is drawn ``2 ** power`` times less often; a part of all draws, ``even``, is left to pure chance, so that
  every mapping can be reached. This holds for the first population, mutation, and jobs that crossover-accel throws out.
- Parents are the best of the population: ``parents`` of it at first, ever fewer, ``last_parents`` at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._operators import breed, likelihoods, scatter
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._search import MappingSearch, drive
from commonwatt.model.arrays import Floats
from commonwatt.optimize import KeepGoing, always, ranked

__all__ = ["GSharp", "GSharpSettings", "Genetic"]


@dataclass(frozen=True)
class GSharpSettings:
    """Hyper-parameters. The rates are the paper's; the others were searched for (``benchmarks/gsharp_settings.py``)."""

    population: int = 100
    mutation: float = 0.05
    crossover_gen: float = 0.9
    crossover_rg: float = 0.05
    crossover_accel: float = 0.05
    elites: float = 0.1
    parents: float = 0.286
    last_parents: float = 0.065
    power: float = 3.0
    even: float = 0.1

    @property
    def rates(self) -> Floats:
        """Rates in the order ``breed`` takes them."""
        return np.array([self.mutation, self.crossover_gen, self.crossover_rg, self.crossover_accel])


@dataclass
class Genetic:
    """The search, by ask and tell. The first population is random but for *seeds*; elites are not evaluated again.

    *generations* is how many there will be; it only decides how fast parents become fewer.
    """

    problem: MappingProblem
    rng: Generator
    settings: GSharpSettings = GSharpSettings()
    seeds: Sequence[Mapping] = ()
    generations: int = 100
    generation: int = field(default=0, init=False)
    best: Mapping | None = field(default=None, init=False)
    worth: Floats = field(default_factory=lambda: np.zeros(0), init=False)

    def __post_init__(self) -> None:
        self._likely = likelihoods(self.problem, self.settings.power, self.settings.even)

    def ask(self) -> Mapping:
        """Return the first population, or the next generation's children."""
        size = self.settings.population
        if self.best is None:
            made = Mapping(*scatter(self._likely, size, self.rng))
            for p, seed in enumerate(self.seeds[:size]):
                made.accelerator[p], made.priority[p] = seed.accelerator, seed.priority
            return made
        chosen = min(len(self.best), max(2, round(self._parents() * size)))
        pairs = self.rng.integers(chosen, size=((size + 1) // 2, 2))
        genes = (self.best.accelerator, self.best.priority)
        children = breed(*genes, pairs, self.settings.rates, self._likely, self.rng)
        return Mapping(children[0][:size], children[1][:size])

    def _parents(self) -> float:
        """Part of the population that has children now: evenly fewer by its logarithm."""
        first, last = self.settings.parents, self.settings.last_parents
        return float(first * (last / first) ** min(1.0, self.generation / max(1, self.generations)))

    def tell(self, mappings: Mapping, makespans: Floats) -> None:
        """Keep the best of the generation, and of the elites of those before."""
        if self.best is not None:
            elites = max(1, round(self.settings.elites * self.settings.population))
            mappings = Mapping(
                np.vstack([self.best.accelerator[:elites], mappings.accelerator]),
                np.vstack([self.best.priority[:elites], mappings.priority]),
            )
            makespans = np.append(self.worth[:elites], makespans)
        kept = ranked(makespans)[: self.settings.population]
        self.best, self.worth = mappings[kept], makespans[kept]
        self.generation += 1


@dataclass(frozen=True)
class GSharp:
    """G# under a budget: 100 generations of 100 by default."""

    budget: int = 10_000
    settings: GSharpSettings = GSharpSettings()
    seeds: tuple[Mapping, ...] = ()

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:
        """Search; *keep_going* is asked after each generation."""
        generations = self.budget // self.settings.population
        search = Genetic(problem, rng, self.settings, self.seeds, generations)
        return drive(problem, search, self.budget, keep_going)
