"""Seeded problems of any size, half V100 and half T4 nodes, more work than room."""

from __future__ import annotations

import numpy as np

from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._problem import PlacementProblem


def crowded_problem(*, nodes: int, jobs: int, seed: int, gpus: int = 2) -> PlacementProblem:
    rng = np.random.default_rng(seed)
    made = []
    for j in range(jobs):
        alone_s, scaling = rng.uniform(600, 6000), rng.uniform(0.6, 0.95)
        v100 = [float(alone_s / g**scaling) for g in range(1, gpus + 1)]
        t4 = [float(2.5 * alone_s / g**scaling) for g in range(1, max(1, gpus // 2) + 1)]
        made.append(
            {
                "name": f"j{j}",
                "due_s": float(rng.uniform(500, 8000)),
                "tardiness_weight": float(rng.integers(1, 6)) * 1e-4,
                "times_s": {"V100": v100, "T4": t4},
            }
        )
    cluster = [
        {"name": "v", "count": (nodes + 1) // 2, "gpu_type": "V100", "gpus": gpus, "idle_w": 150, "gpu_w": 250},
        {
            "name": "t",
            "count": max(1, nodes // 2),
            "gpu_type": "T4",
            "gpus": max(1, gpus // 2),
            "idle_w": 120,
            "gpu_w": 70,
        },
    ]
    return PlacementProblem.of(PlaceFile.model_validate({"nodes": cluster, "jobs": made}))
