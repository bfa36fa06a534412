"""The problem where unused nodes stay on: their idle power is drawn whatever is decided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commonwatt.placement._problem import PlacementProblem

__all__ = ["with_sunk_idle_power"]


def with_sunk_idle_power(problem: PlacementProblem) -> PlacementProblem:
    """Return *problem* without the cost of idle power, so that only the power of busy GPUs counts.

    Solvers otherwise take a node without jobs to draw nothing. Idle power counts at the present price.
    """
    idle = problem.class_idle_cost_s[problem.klass] * problem.time_s
    return replace(
        problem,
        class_idle_cost_s=np.zeros_like(problem.class_idle_cost_s),
        node_cost=np.maximum(0.0, problem.node_cost - idle),
    )
