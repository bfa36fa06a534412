"""Compile and load what a solver needs before its time is taken."""

from __future__ import annotations

from functools import cache

import numpy as np

from commonwatt.control.policy import Policy
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import PolicySpec
from commonwatt.placement.problem import Problem

__all__ = ["warm_up"]


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
    Policy.of(spec).decide(Problem.of(file), np.random.default_rng(0))
