"""A policy: a solver, and what the controller does to its schedule before carrying it out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.scenario import PolicySpec
from commonwatt.placement.problem import Problem, Schedule
from commonwatt.placement.settle import filled, without_idle_evictions, without_idle_moves
from commonwatt.placement.solvers import (
    Backfill,
    Exact,
    KeepGoing,
    LocalSearch,
    Lookahead,
    PriorityOrder,
    RandomGreedy,
    Search,
    Solver,
    always,
)

__all__ = ["Policy"]

PLAN_MOVES = 200  # of a local search over plans


@dataclass(frozen=True)
class Policy:
    """How the controller decides.

    Attributes
    ----------
    fill
        Start waiting jobs that still fit. For solvers of eq. (1), which can prefer to leave a job that is not urgent
        waiting beside free GPUs; not for those that hold GPUs back on purpose.
    plans
        The solver weighs moves of running jobs against each other itself, as those of eq. (1) do not.
    """

    name: str
    solver: Solver
    fill: bool = False
    plans: bool = False

    @classmethod
    def of(cls, spec: PolicySpec) -> Policy:
        """Build the policy a scenario file describes."""
        greedy = RandomGreedy(iterations=spec.iterations, placements=spec.placements)
        match spec.solver:
            case "lookahead":
                return cls(spec.label, Lookahead(), plans=True)
            case "local-search" if spec.aim == "plan":
                return cls(spec.label, Lookahead(moves=PLAN_MOVES), plans=True)
            case "local-search":
                return cls(spec.label, LocalSearch(start=greedy, steps=spec.iterations), fill=True)
            case "random-greedy":
                return cls(spec.label, greedy)
            case "exact":
                return cls(spec.label, Exact(time_limit_s=spec.time_limit_s), fill=True)
            case "easy":
                return cls(spec.label, Backfill())
            case "fair-share":
                return cls(spec.label, Backfill(fair_share_weight=spec.fair_share_weight))
            case order:
                return cls(spec.label, PriorityOrder(order))

    def decide(
        self, problem: Problem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> tuple[Schedule, Search]:
        """Return the schedule to carry out, and the search it came from."""
        search = self.solver.solve(problem, rng, keep_going)
        settled = without_idle_moves(problem, search.schedule, planned=self.plans)
        schedule = without_idle_evictions(problem, settled)
        return (filled(problem, schedule) if self.fill else schedule), search
