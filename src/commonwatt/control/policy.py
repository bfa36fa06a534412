"""A policy: a solver, and what the controller does to its schedule before carrying it out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.placement.problem import Problem, Schedule
from commonwatt.placement.settle import filled, without_idle_evictions
from commonwatt.placement.solvers import KeepGoing, Search, Solver, always

__all__ = ["Policy"]


@dataclass(frozen=True)
class Policy:
    """How the controller decides.

    Attributes
    ----------
    fill
        Start waiting jobs that still fit. For solvers of eq. (1), which can prefer to leave a job that is not urgent
        waiting beside free GPUs; not for those that hold GPUs back on purpose.
    """

    name: str
    solver: Solver
    fill: bool = False

    def decide(
        self, problem: Problem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> tuple[Schedule, Search]:
        """Return the schedule to carry out, and the search it came from."""
        search = self.solver.solve(problem, rng, keep_going)
        schedule = without_idle_evictions(problem, search.schedule)
        return (filled(problem, schedule) if self.fill else schedule), search
