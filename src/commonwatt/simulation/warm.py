"""Compile and load the code of solvers before their time is taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np

from commonwatt.control.policy import Policy
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import Knowledge, PeerName, PolicySpec
from commonwatt.placement import PlacementProblem

__all__ = ["warm_up", "warm_up_all"]


def warm_up_all(specs: Iterable[PolicySpec], knowledge: Knowledge = "oracle") -> None:
    """Warm up each solver of *specs* once, so that no process compiles what another compiles at the same time.

    *knowledge* is the scenario's.
    """
    known = [(spec, (spec.knowledge or knowledge) in ("oracle", "user-limit")) for spec in specs]
    for spec, certain in {(spec.solver, spec.aim, certain): (spec, certain) for spec, certain in known}.values():
        warm_up(spec, certain=certain)


@cache
def warm_up(spec: PolicySpec, *, certain: bool = True) -> None:
    """Let the policy *spec* decide a tiny problem, once in each process; run times may not be *certain*."""
    if spec.solver in get_args(PeerName) and spec.solver != "completion":  # nothing of it is compiled
        return
    times = {"A": [60.0, 40.0]}
    job = {"due_s": 100, "tardiness_weight": 1.0, "times_s": times, "requested_gpus": 1}
    file = PlaceFile.model_validate(
        {
            "nodes": [{"name": "a", "count": 2, "gpu_type": "A", "gpus": 2, "idle_w": 100, "gpu_w": 100}],
            "jobs": [{"name": str(i), **job} for i in range(4)],
        }
    )
    problem = PlacementProblem.of(file)
    if not certain:
        problem = replace(problem, outcomes=np.array([[0.5, 1.5]] * 4))
    Policy.of(spec).decide(problem, np.random.default_rng(0))
