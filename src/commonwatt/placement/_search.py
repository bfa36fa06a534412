"""What every search over schedules takes and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from commonwatt.placement.problem import Problem, Schedule

__all__ = ["KeepGoing", "Search", "Solver", "always"]

KeepGoing = Callable[[], bool]


def always() -> bool:
    """Keep going: the solver's own budget alone ends the search."""
    return True


@dataclass(frozen=True)
class Search:
    """What a solver found and what it spent.

    Attributes
    ----------
    iterations
        Candidates tried; 1 for a solver that builds a single schedule.
    optimal, bound
        Whether the schedule is proven optimal, and a proven lower bound on the objective; ``None`` where
        the solver proves nothing.
    planned_cost
        Cost of the plan the schedule is the start of, for solvers that plan.
    """

    schedule: Schedule
    iterations: int = 1
    optimal: bool | None = None
    bound: float | None = None
    planned_cost: float | None = None


class Solver(Protocol):
    """Problem in, schedule out; no clock, no files, randomness only from *rng*."""

    def solve(self, problem: Problem, rng: np.random.Generator, keep_going: KeepGoing = always) -> Search:
        """Return a feasible schedule; *keep_going* is asked now and then and may end the search early."""
        ...
