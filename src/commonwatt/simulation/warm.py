"""Compile and load the code of solvers before their time is taken."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

from commonwatt.control.policy import Policy
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import PolicySpec
from commonwatt.placement import PlacementProblem

__all__ = ["warm_up", "warm_up_all"]


def warm_up_all(specs: Iterable[PolicySpec]) -> None:
    """Warm up each solver of *specs* once, so that no process compiles what another compiles at the same time."""
    for spec in {(spec.solver, spec.aim): spec for spec in specs}.values():
        warm_up(spec)


@cache
def warm_up(spec: PolicySpec) -> None:
    """Let the policy *spec* decide a tiny problem, once in each process."""
    times = {"A": [60.0, 40.0]}
    job = {"due_s": 100, "tardiness_weight": 1.0, "times_s": times}
    file = PlaceFile.model_validate(
        {
            "nodes": [{"name": "a", "count": 2, "gpu_type": "A", "gpus": 2, "idle_w": 100, "gpu_w": 100}],
            "jobs": [{"name": str(i), **job} for i in range(4)],
        }
    )
    Policy.of(spec).decide(PlacementProblem.of(file), np.random.default_rng(0))
