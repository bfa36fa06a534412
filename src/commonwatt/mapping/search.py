"""What searches share: ask and tell, a budget of evaluations, a time limit that is somebody else's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator

from commonwatt.mapping.encoding import Mapping
from commonwatt.mapping.problem import Problem
from commonwatt.mapping.scoring import costs, enough, pinned
from commonwatt.model.arrays import Floats

__all__ = ["Algorithm", "KeepGoing", "Optimiser", "Search", "always", "drive", "score"]

KeepGoing = Callable[[], bool]


def always() -> bool:
    """Keep going: the budget alone ends the search."""
    return True


@dataclass(frozen=True)
class Search:
    """What an algorithm found and what it spent.

    Parameters
    ----------
    mapping
        The best it found.
    makespan
        What that costs under the problem's goal: its makespan in cycles unless the goal is another.
    evaluations
        Mappings evaluated.
    history
        After how many evaluations the best so far was found, and what it costs, each time it got better.
    proven
        Whether the search proved that no mapping costs less.
    """

    mapping: Mapping
    makespan: float
    evaluations: int
    history: tuple[tuple[int, float], ...] = ()
    proven: bool = False


class Optimiser(Protocol):
    """Anything that searches by asking what mappings cost."""

    def ask(self) -> Mapping:
        """Return a population of mappings to be evaluated, [P, J]."""
        ...

    def tell(self, mappings: Mapping, makespans: Floats) -> None:
        """Hear what they cost ([P]), by default their makespans; those that were never asked for are welcome too."""
        ...


class Algorithm(Protocol):
    """Anything that maps a problem."""

    def solve(self, problem: Problem, rng: Generator, keep_going: KeepGoing = always) -> Search:
        """Return the best mapping found. *keep_going* is asked now and then; at least one mapping is evaluated."""
        ...


def score(problem: Problem, mappings: Mapping) -> Search:
    """Return the best of a population; the first of equals."""
    found = costs(problem, mappings)
    best = int(np.argmin(found))
    worth = float(found[best])
    return Search(pinned(problem, mappings[best]), worth, len(found), ((best + 1, worth),))


def drive(problem: Problem, optimiser: Optimiser, budget: int, keep_going: KeepGoing = always) -> Search:
    """Let *optimiser* ask until *budget* evaluations are spent, or *keep_going* says no; return the best it asked for.

    What it asks for beyond the budget is cut off, so it is never exceeded. It ends early if the goal is reached.
    """
    best: Mapping | None = None
    worth, spent, reached = np.inf, 0, enough(problem)
    history: list[tuple[int, float]] = []
    while spent < max(1, budget) and (best is None or (worth > reached and keep_going())):
        asked = optimiser.ask()[: max(1, budget) - spent]
        found = costs(problem, asked)
        optimiser.tell(asked, found)
        least = int(np.argmin(found))
        if best is None or found[least] < worth:
            best, worth = asked[least], float(found[least])
            history.append((spent + least + 1, worth))
        spent += len(found)
    assert best is not None
    return Search(pinned(problem, best), worth, spent, tuple(history))
