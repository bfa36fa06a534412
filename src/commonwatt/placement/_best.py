"""The best schedule there is time for, and how far from the optimum it can be. Ours, beyond the paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from commonwatt.optimize import KeepGoing, always
from commonwatt.placement._exact import Exact
from commonwatt.placement._local_search import LocalSearch
from commonwatt.placement._problem import PlacementProblem, PlacementSearch

__all__ = ["Best"]

MOST_EXACT = 200
"""Pairs of a configuration and a node up to which branch and bound takes seconds."""

MOST_BOUNDED = 5_000
"""Those up to which its linear program takes seconds."""

MOST_NODES = 1_000
"""Nodes of the tree after which branch and bound stops: a limit that does not depend on the machine."""

_CLOSE = 1e-9


@dataclass(frozen=True)
class Best:
    """Local search, beside branch and bound where the problem is small enough, else beside its linear program.

    Attributes
    ----------
    search
        The local search.
    time_limit_s
        Of branch and bound, which reads the clock itself; no limit if ``None``.
    """

    search: LocalSearch = field(default_factory=LocalSearch)
    time_limit_s: float | None = None

    plans: ClassVar[bool] = False
    leaves_room: ClassVar[bool] = True

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> PlacementSearch:
        """Return the best schedule found, with a bound unless the problem is too large for one.

        Raises ``SolverError`` if ``use_every_node`` cannot be met: branch and bound alone keeps it.
        """
        exact = Exact(time_limit_s=self.time_limit_s, most_nodes=MOST_NODES)
        if problem.use_every_node:
            return Exact(time_limit_s=self.time_limit_s).solve(problem, rng)
        found, items = self.search.solve(problem, rng, keep_going), exact.items(problem)
        if not len(problem) or items > MOST_BOUNDED:
            return found
        if items > MOST_EXACT:
            bound, better = exact.bound(problem), found
        else:
            proven = exact.solve(problem, rng)
            bound, better = proven.bound, proven if proven.cost < found.cost - _CLOSE * abs(found.cost) else found
        optimal = bound is not None and better.cost <= bound + _CLOSE * abs(bound)
        return PlacementSearch(better.best, better.cost, found.evaluations, optimal=optimal, bound=bound)
