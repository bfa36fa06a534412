"""Racks as partitions of nodes: a job of several nodes is placed within one, if brute force finds one with room."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.model.errors import JobNeverFitsError
from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._problem import POSTPONED, PlacementProblem
from commonwatt.placement._solvers import SOLVERS, make_solver

GPUS = 4


def problem(racks, width, each):
    """One job of *width* nodes with *each* so many GPUs; *racks* are the free GPUs of the nodes of each."""
    nodes = [
        {
            "name": f"{rack}-{n}", "gpu_type": "A100", "gpus": GPUS, "idle_w": 100, "gpu_w": 300,
            "partitions": [f"rack-{rack}"],
        }
        for rack, free in enumerate(racks)
        for n in range(len(free))
    ]  # fmt: skip
    job = {
        "name": "gang", "times_s": {"A100": {width * each: 1000.0}}, "due_s": 1000.0, "tardiness_weight": 1.0,
    }  # fmt: skip
    found = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": [job]}))
    return replace(found, node_gpus=np.array([gpus for free in racks for gpus in free], dtype=np.int64))


def sets_of_nodes(p, racks, width, each):
    """All sets of nodes of one rack with room for it."""
    rack = [k for k, free in enumerate(racks) for _ in free]
    every = combinations(range(len(rack)), width)
    return {nodes for nodes in every if len({rack[n] for n in nodes}) == 1 and all(p.node_gpus[list(nodes)] >= each)}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SOLVERS))
@settings(deadline=None, max_examples=40)
@given(
    racks=st.lists(st.lists(st.sampled_from([0, 2, 4]), min_size=2, max_size=4), min_size=1, max_size=3),
    each=st.sampled_from([3, 4]),
)
def test_a_gang_is_within_one_rack_and_placed_if_one_has_room(name, racks, each):
    p = problem(racks, 2, each)
    schedule = make_solver(name, iterations=20).solve(p, np.random.default_rng(0)).best
    possible = sets_of_nodes(p, racks, 2, each)
    if schedule.choice[0] == POSTPONED:
        assert not possible
    else:
        assert tuple(sorted(schedule.nodes[:2].tolist())) in possible


def test_one_that_no_rack_can_ever_hold_is_refused():
    with pytest.raises(JobNeverFitsError):
        problem([[4, 4], [4, 4]], 4, 4)
