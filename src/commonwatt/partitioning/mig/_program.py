"""The mixed-integer program over layouts: how many GPUs of each group take each layout. Solvers add what they need."""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import Program, Solution
from commonwatt.partitioning.mig._problem import MigProblem

__all__ = ["LayoutProgram"]


class LayoutProgram(Program):
    """Minimise the penalty of draining: the first columns are layouts, and each GPU takes one.

    A gain is a negative cost, so that ``-Solution.bound`` is what no decision exceeds.
    """

    def __init__(self, problem: MigProblem) -> None:
        super().__init__()
        self._groups = problem.groups
        self._counts = np.array([choice.counts for group in problem.groups for choice in group.choices], dtype=float)
        for group in problem.groups:
            size, penalties = len(group.members), [problem.drain_penalty * choice.drained for choice in group.choices]
            self.row(self.columns(penalties, high=size, whole=True), np.ones(len(penalties)), size, size)

    def supply(self, prices: Floats) -> tuple[Ints, Floats]:
        """Return columns and values that add up to ``prices @ totals``, the worth of all instances."""
        return np.arange(len(self._counts)), self._counts @ prices

    def picked(self, x: Floats) -> list[list[int]]:
        """Return how many GPUs of each group take each layout in the solution *x*."""
        ends = np.cumsum([len(group.choices) for group in self._groups])
        return [part.tolist() for part in np.split(np.rint(x[: ends[-1]]).astype(int), ends[:-1])]

    def solve(self, time_limit_s: float | None = None) -> Solution:
        """Solve to a relative gap of 1e-10; raises ``SolverError`` if HiGHS fails."""
        return self.minimise(time_limit_s=time_limit_s, gap=1e-10)
