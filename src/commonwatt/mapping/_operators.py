"""The four genetic operators of G#, section 4.2.3. Each makes children of its own; parents are left as they are."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.random import Generator

from commonwatt.mapping._problem import MappingProblem
from commonwatt.model.arrays import Floats, Ints

__all__ = ["breed", "cross_accelerator", "cross_genome", "cross_range", "likelihoods", "mutate", "scatter", "somewhere"]


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
