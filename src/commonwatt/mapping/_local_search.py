"""Simulated annealing on one mapping: move a job, swap two, or run one earlier or later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.random import Generator

from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._operators import likelihoods, somewhere
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import Terms, cost, enough, terms
from commonwatt.mapping._search import MappingSearch
from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import Budget, Incumbent, KeepGoing, always

__all__ = ["Annealing", "anneal"]

CHUNK = 500
"""Evaluations between two questions whether to keep going."""


@njit(cache=True)
def _change(
    accelerator: Ints, priority: Floats, one: int, two: int, likely: Floats, fixed: Floats, rng: Generator
) -> None:
    """Make one move: job *one* swapped with *two* (7 in 10), to a random place (2 in 10), to a random priority."""
    draw = rng.random()
    if draw < 0.7:
        accelerator[one], accelerator[two] = accelerator[two], accelerator[one]
        priority[one], priority[two] = priority[two], priority[one]
    else:
        priority[one] = rng.random()
        if draw < 0.9:
            accelerator[one] = somewhere(one, likely, rng)
    if len(fixed) > 0:
        if draw < 0.7 and not (np.isnan(fixed[one]) and np.isnan(fixed[two])):  # neither takes over a fixed priority
            priority[one], priority[two] = priority[two], priority[one]
        for j in (one, two):
            if not np.isnan(fixed[j]):
                priority[j] = fixed[j]


@njit(cache=True)
def anneal(
    t: Terms, likely: Floats, fixed: Floats, accelerator: Ints, priority: Floats,
    worth: float, heats: Floats, rng: Generator,
) -> tuple[Ints, Floats, float, float]:  # fmt: skip
    """Try one move for each of *heats*, relative to the cost; return the best mapping, its cost and the last.

    Jobs move to sub-accelerators by *likely*, as in ``operators``.

    *accelerator* and *priority*, of cost *worth*, are changed to where the search has gone.
    """
    jobs = len(accelerator)
    best_a, best_p, best = accelerator.copy(), priority.copy(), worth
    for heat in heats:
        one, two = int(rng.random() * jobs), int(rng.random() * jobs)
        old = accelerator[one], priority[one], accelerator[two], priority[two]
        _change(accelerator, priority, one, two, likely, fixed, rng)
        found = cost(t, accelerator, priority)
        if found <= worth - heat * worth * np.log(1.0 - rng.random()):
            worth = found
            if worth < best:
                best = worth
                for j in range(jobs):  # not best_a[:] = accelerator: Numba takes 2 s to compile its error message
                    best_a[j], best_p[j] = accelerator[j], priority[j]
        else:
            accelerator[two], priority[two] = old[2], old[3]
            accelerator[one], priority[one] = old[0], old[1]
    return best_a, best_p, best, worth


@dataclass(frozen=True)
class Annealing:
    """Annealing from a given mapping, under a budget; a move that is no worse is always made.

    The temperature, relative to the cost, falls from *hot* to *cold* evenly by its logarithm.
    """

    budget: int
    hot: float = 0.005
    cold: float = 5e-5

    def improve(
        self, problem: MappingProblem, start: MappingSearch, rng: Generator, keep_going: KeepGoing = always
    ) -> MappingSearch:
        """Return the best mapping found, no worse than *start*; evaluations and history are its own."""
        prepared, likely = terms(problem), likelihoods(problem, 1.0, 0.5)
        accelerator, priority = start.best.accelerator.copy(), start.best.priority.copy()
        worth, search = start.cost, Incumbent(Budget(self.budget, keep_going, enough(problem)), start)
        while search.goes_on():
            done = np.arange(search.spent, min(self.budget, search.spent + CHUNK)) / self.budget
            a, p, found, worth = anneal(
                prepared, likely, problem.priority, accelerator, priority, worth,
                self.hot * (self.cold / self.hot) ** done, rng,
            )  # fmt: skip
            search.offer(Mapping(a, p), found, at=len(done), of=len(done))
        return search.result()
