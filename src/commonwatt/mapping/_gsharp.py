"""G# (section 4.2): a genetic search whose crossovers keep what belongs together.

The operators and their rates are the paper's. Ours is what it leaves open:

- A random sub-accelerator is not any with the same chance: it is drawn by how long the job takes there if all
  sub-accelerators have an equal share of the bandwidth, ``latency * max(1, A r / B)``. Of two, the one where it takes
  twice as long is drawn ``2 ** power`` times less often; a part of all draws, ``even``, is left to pure chance, so that
  every mapping can be reached. This holds for the first population, mutation, and jobs that crossover-accel throws out.
- Parents are the best of the population: ``parents`` of it at first, ever fewer, ``last_parents`` at the end.

Each of the four operators (section 4.2.3) makes children of its own; parents are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._search import MappingSearch, drive
from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import KeepGoing, always, njit, ranked

__all__ = [
    "GSharp",
    "GSharpSettings",
    "Genetic",
    "breed",
    "cross_accelerator",
    "cross_genome",
    "cross_range",
    "likelihoods",
    "mutate",
    "scatter",
    "somewhere",
]


def likelihoods(problem: MappingProblem, power: float, even: float) -> Floats:
    """Return, for each job, running sums of how likely each sub-accelerator is drawn, [J, A]. See ``gsharp``."""
    possible = problem.possible
    latency = np.where(possible, problem.latency, 1.0)
    shared = latency * np.maximum(1.0, problem.accelerators * problem.bandwidth / problem.system_bandwidth)
    shared = np.where(possible, shared, np.inf)
    drawn = (shared.min(axis=1, keepdims=True) / shared) ** power * possible
    drawn /= drawn.sum(axis=1, keepdims=True)
    sums = np.cumsum((1.0 - even) * drawn + even * possible / possible.sum(axis=1, keepdims=True), axis=1)
    last = problem.accelerators - 1 - np.argmax(possible[:, ::-1], axis=1)
    sums[np.arange(problem.accelerators) >= last[:, None]] = 1.0  # a draw below 1 never falls beyond it
    return sums


@njit(cache=True)
def somewhere(job: int, likely: Floats, rng: Generator) -> int:
    """A sub-accelerator for *job*: drawn by the running sums of likelihoods in its row of *likely*."""
    draw, a = rng.random(), 0
    while likely[job, a] <= draw:
        a += 1
    return a


@njit(cache=True)
def scatter(likely: Floats, size: int, rng: Generator) -> tuple[Ints, Floats]:
    """Return the genes of *size* mappings ([size, J] each): sub-accelerators by *likely*, any priorities."""
    accelerator, priority = np.empty((size, len(likely)), dtype=np.int64), np.empty((size, len(likely)))
    for p in range(size):
        for j in range(len(likely)):
            accelerator[p, j], priority[p, j] = somewhere(j, likely, rng), rng.random()
    return accelerator, priority


@njit(cache=True)
def mutate(accelerator: Ints, priority: Floats, rate: float, likely: Floats, rng: Generator) -> None:
    """Set each gene of a child, with probability *rate*, to a random value.

    A job goes to a sub-accelerator by *likely* ([J, A]): sums, along each row, of the likelihoods it is drawn with.
    """
    for j in range(len(accelerator)):
        if rng.random() < rate:
            accelerator[j] = somewhere(j, likely, rng)
        if rng.random() < rate:
            priority[j] = rng.random()


@njit(cache=True)
def cross_genome(a1: Ints, p1: Floats, a2: Ints, p2: Floats, rng: Generator) -> None:
    """Crossover-gen: two children exchange the genes of one genome from a pivot on."""
    pivot = int(rng.random() * len(a1))
    if rng.random() < 0.5:
        for j in range(pivot, len(a1)):
            a1[j], a2[j] = a2[j], a1[j]
    else:
        for j in range(pivot, len(a1)):
            p1[j], p2[j] = p2[j], p1[j]


@njit(cache=True)
def cross_range(a1: Ints, p1: Floats, a2: Ints, p2: Floats, rng: Generator) -> None:
    """Crossover-rg: two children exchange both genes of every job in a range."""
    one, two = int(rng.random() * len(a1)), int(rng.random() * len(a1))
    for j in range(min(one, two), max(one, two) + 1):
        a1[j], a2[j] = a2[j], a1[j]
        p1[j], p2[j] = p2[j], p1[j]


@njit(cache=True)
def cross_accelerator(
    accelerator: Ints, priority: Floats, from_accelerator: Ints, from_priority: Floats, which: int,
    likely: Floats, rng: Generator,
) -> None:  # fmt: skip
    """Crossover-accel: a child takes over, genes and all, the jobs the other parent has on *which*.

    Those it had there itself go to a random place (by *likely*), with a random priority, to keep loads even.
    """
    for j in range(len(accelerator)):
        if from_accelerator[j] == which:
            accelerator[j], priority[j] = which, from_priority[j]
        elif accelerator[j] == which:
            accelerator[j], priority[j] = somewhere(j, likely, rng), rng.random()


@njit(cache=True)
def breed(
    accelerator: Ints, priority: Floats, pairs: Ints, rates: Floats, likely: Floats, rng: Generator
) -> tuple[Ints, Floats]:
    """Return two children of every pair of parents ([N, 2], rows of the population).

    *rates* are of mutation for each gene, and of crossover-gen, -rg and -accel for each pair, which gets one or none.
    """
    jobs = accelerator.shape[1]
    new_a, new_p = np.empty((2 * len(pairs), jobs), dtype=np.int64), np.empty((2 * len(pairs), jobs))
    for n in range(len(pairs)):
        mom, dad = pairs[n, 0], pairs[n, 1]
        a1, p1, a2, p2 = new_a[2 * n], new_p[2 * n], new_a[2 * n + 1], new_p[2 * n + 1]
        for j in range(jobs):  # not a1[:] = accelerator[mom]: Numba takes 2 s to compile its error message
            a1[j], p1[j] = accelerator[mom, j], priority[mom, j]
            a2[j], p2[j] = accelerator[dad, j], priority[dad, j]
        draw = rng.random()
        if draw < rates[1]:
            cross_genome(a1, p1, a2, p2, rng)
        elif draw < rates[1] + rates[2]:
            cross_range(a1, p1, a2, p2, rng)
        elif draw < rates[1] + rates[2] + rates[3]:
            which = int(rng.random() * likely.shape[1])
            cross_accelerator(a1, p1, accelerator[dad], priority[dad], which, likely, rng)
            cross_accelerator(a2, p2, accelerator[mom], priority[mom], which, likely, rng)
        mutate(a1, p1, rates[0], likely, rng)
        mutate(a2, p2, rates[0], likely, rng)
    return new_a, new_p


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
