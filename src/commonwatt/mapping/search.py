"""What searches share: ask and tell, a budget of evaluations, a time limit that is somebody else's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator

from commonwatt.mapping.encoding import Mapping
from commonwatt.mapping.evaluator import makespans
from commonwatt.mapping.problem import Problem
from commonwatt.model.arrays import Floats

__all__ = ["Algorithm", "KeepGoing", "Optimiser", "Search", "always", "drive", "score"]

KeepGoing = Callable[[], bool]


def always() -> bool:
    """Keep going: the budget alone ends the search."""
    return True


@dataclass(frozen=True)
class Search:
    """What an algorithm found and what it spent."""

    mapping: Mapping
    makespan: float
    evaluations: int


class Optimiser(Protocol):
    """Anything that searches by asking for makespans."""

    def ask(self) -> Mapping:
        """Return a population of mappings to be evaluated, [P, J]."""
        ...

    def tell(self, mappings: Mapping, makespans: Floats) -> None:
        """Hear their makespans ([P]); mappings that were never asked for are welcome too."""
        ...


class Algorithm(Protocol):
    """Anything that maps a problem."""

    def solve(self, problem: Problem, rng: Generator, keep_going: KeepGoing = always) -> Search:
        """Return the best mapping found. *keep_going* is asked now and then; at least one mapping is evaluated."""
        ...


def score(problem: Problem, mappings: Mapping) -> Search:
    """Return the best of a population; the first of equals."""
    found = makespans(problem, mappings)
    best = int(np.argmin(found))
    return Search(mappings[best], float(found[best]), len(found))


def drive(problem: Problem, optimiser: Optimiser, budget: int, keep_going: KeepGoing = always) -> Search:
    """Let *optimiser* ask until *budget* evaluations are spent, or *keep_going* says no; return the best it asked for.

    What it asks for beyond the budget is cut off, so it is never exceeded.
    """
    best: Search | None = None
    spent = 0
    while spent < max(1, budget) and (best is None or keep_going()):
        asked = optimiser.ask()[: max(1, budget) - spent]
        found = makespans(problem, asked)
        spent += len(found)
        optimiser.tell(asked, found)
        least = int(np.argmin(found))
        if best is None or found[least] < best.makespan:
            best = Search(asked[least], float(found[least]), spent)
    assert best is not None
    return Search(best.mapping, best.makespan, spent)
