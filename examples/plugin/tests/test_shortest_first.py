from __future__ import annotations

import numpy as np
from commonwatt_shortest_first import ShortestFirst

import commonwatt
from commonwatt.model.place_file import PlaceFile
from commonwatt.placement import POSTPONED, PlacementProblem

NODE = {"name": "n", "gpu_type": "V100", "gpus": 1, "idle_w": 100, "gpu_w": 200}


def solved(*times_s: float):
    jobs = [
        {"name": f"j{i}", "due_s": 1e5, "tardiness_weight": 0.001, "times_s": {"V100": [t]}}
        for i, t in enumerate(times_s)
    ]
    problem = PlacementProblem.of(PlaceFile.model_validate({"nodes": [NODE], "jobs": jobs}))
    return ShortestFirst().solve(problem, np.random.default_rng(0))


def test_the_shortest_job_gets_the_only_gpu():
    assert [c != POSTPONED for c in solved(300, 100, 200).best.choice] == [False, True, False]


def test_the_same_problem_gives_the_same_schedule():
    one, again = solved(300, 100, 200), solved(300, 100, 200)
    assert one.cost == again.cost
    assert one.best.choice.tolist() == again.best.choice.tolist()


def test_it_decides_in_a_simulation_once_it_is_installed():
    times_s = (300, 100, 200)
    jobs = [
        {"name": f"j{i}", "submit_s": 0, "tardiness_weight": 0.001, "times_s": {"V100": [t]}}
        for i, t in enumerate(times_s)
    ]
    document = {
        "name": "queue", "workload": {"source": "jobs", "jobs": jobs}, "nodes": [NODE],
        "policies": [{"solver": "shortest-first"}],
    }  # fmt: skip
    (result,) = commonwatt.simulate(document).policies
    assert result.mean_jct_s == (100 + 300 + 600) / 3
