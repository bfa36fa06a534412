"""What the searches of mappings share: ask and tell under a budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import enough, pinned, population_costs
from commonwatt.model.arrays import Floats
from commonwatt.optimize import Budget, Incumbent, KeepGoing, SearchResult, Solver, always

__all__ = ["Algorithm", "MappingSearch", "Optimiser", "drive", "score"]

Algorithm = Solver[MappingProblem, Mapping]
MappingSearch = SearchResult[Mapping]
"""Its ``cost`` is a makespan in cycles unless the problem's goal is another."""


class Optimiser(Protocol):
    """Anything that searches by asking what mappings cost."""

    def ask(self) -> Mapping:
        """Return a population of mappings to be evaluated, [P, J]."""
        ...

    def tell(self, mappings: Mapping, costs: Floats) -> None:
        """Learn what *mappings* cost ([P]); some of them may never have been asked for."""
        ...


def score(problem: MappingProblem, mappings: Mapping) -> MappingSearch:
    """Return the best of a population."""
    search = Incumbent[Mapping](Budget(len(mappings)))
    _offer(search, mappings, population_costs(problem, mappings))
    return _pinned(problem, search)


def drive(problem: MappingProblem, optimiser: Optimiser, budget: int, keep_going: KeepGoing = always) -> MappingSearch:
    """Let *optimiser* ask until *budget* evaluations are spent, *keep_going* says no, or the goal is reached.

    The budget is never exceeded: what is asked beyond it is cut off.
    """
    search = Incumbent[Mapping](Budget(max(1, budget), keep_going, enough(problem)))
    while search.goes_on():
        asked = optimiser.ask()[: search.left]
        costs = population_costs(problem, asked)
        optimiser.tell(asked, costs)
        _offer(search, asked, costs)
    return _pinned(problem, search)


def _offer(search: Incumbent[Mapping], mappings: Mapping, costs: Floats) -> None:
    least = int(np.argmin(costs))
    search.offer(mappings[least], float(costs[least]), at=least + 1, of=len(costs))


def _pinned(problem: MappingProblem, search: Incumbent[Mapping]) -> MappingSearch:
    """The best mapping with the priorities the problem fixes."""
    result = search.result()
    return replace(result, best=pinned(problem, result.best))
