"""Seeded placement problems of any size, half V100 and half T4 nodes, as in the scenarios of ANDREAS section V-B."""

from __future__ import annotations

import numpy as np

from commonwatt.model.place_file import PlaceFile
from commonwatt.placement.problem import Problem


def problem(nodes: int, jobs: int, seed: int = 0, gpus: int = 2) -> Problem:
    """Nodes of *gpus* V100 or half as many T4, and jobs of 10 to 100 minutes, some of them late already."""
    rng = np.random.default_rng(seed)
    made = []
    for j in range(jobs):
        alone_s, scaling = rng.uniform(600, 6000), rng.uniform(0.6, 0.95)
        made.append(
            {
                "name": f"j{j}",
                "due_s": float(rng.uniform(500, 8000)),
                "tardiness_weight": float(rng.integers(1, 6)) * 1e-4,
                "times_s": {
                    "V100": [float(alone_s / g**scaling) for g in range(1, gpus + 1)],
                    "T4": [float(2.5 * alone_s / g**scaling) for g in range(1, max(1, gpus // 2) + 1)],
                },
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
    return Problem.of(PlaceFile.model_validate({"nodes": cluster, "jobs": made}))
