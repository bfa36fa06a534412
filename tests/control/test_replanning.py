"""What is decided anew on a large cluster: everything, only what is new, or nothing yet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control import replanning
from commonwatt.control.job_registry import Status
from commonwatt.control.replanning import LONGEST, SMALL, Replanning, Scope
from commonwatt.model.place_file import PlaceFile
from commonwatt.placement import PlacementProblem, Schedule
from tests.control.worlds import cluster_of, random_jobs, simulate
from tests.strategies import problems

H = 300.0
LARGE = SMALL + 150


def planned(at_s: float = 1000.0) -> Replanning:
    """Replanning that has planned at *at_s*."""
    nodes = [{"name": "n", "gpu_type": "V100", "gpus": 2, "idle_w": 300, "gpu_w": 100}]
    jobs = [{"name": "a", "tardiness_weight": 0, "times_s": {"V100": [10]}}]
    problem = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
    known = Replanning(H)
    known.planned(at_s, problem, Schedule.empty(problem))
    return known


def test_few_jobs_are_all_planned_at_every_event():
    assert planned().scope(1000.1, SMALL, {1}) is Scope.ALL
    assert planned().scope(1000.1, SMALL, set()) is Scope.ALL


def test_the_first_time_and_at_rescheduling_points_all_are_planned():
    assert Replanning(H).scope(0.0, LARGE, set()) is Scope.ALL
    assert planned(1000.0).scope(1000.0 + H, LARGE, set()) is Scope.ALL


def test_while_nobody_waits_nothing_is_decided():
    assert planned().scope(1001.0, LARGE, set()) is Scope.NOTHING


def test_a_new_job_is_added_while_nobody_else_waits():
    now = planned()
    now.submitted(7)
    assert now.scope(1001.0, LARGE, {7}) is Scope.NEW
    now.added(all_started=True)
    now.submitted(8)
    assert now.scope(1002.0, LARGE, {8}) is Scope.NEW
    now.added(all_started=False)
    assert now.scope(1002.0, LARGE, {7, 8}) is Scope.NOTHING  # 7 waits as well: it was preempted, say


def test_where_jobs_wait_events_are_gathered_the_longer_the_more_jobs_there_are():
    few, many = planned(), planned()
    assert few.scope(1000.5, SMALL + 60, {1}) is Scope.NOTHING
    assert many.scope(1000.5, 1_000_000, {1}) is Scope.NOTHING
    assert (few.due_s, many.due_s) == (1002.0, 1000.0 + LONGEST * H)
    assert few.scope(1002.0, SMALL + 60, {1}) is Scope.ALL


def test_nothing_is_due_once_nobody_waits_any_more():
    """Its owner cancelled the job: a moment that has passed would be ticked at for ever."""
    now = planned()
    assert now.scope(1000.5, SMALL + 60, {1}) is Scope.NOTHING
    assert now.due_s == 1002.0
    assert now.scope(1001.0, SMALL + 59, set()) is Scope.NOTHING
    assert now.due_s is None


def test_what_is_more_than_a_completion_is_not_put_off():
    now = planned()
    now.hurry()
    assert now.scope(1001.0, LARGE, {1}) is Scope.ALL


@settings(deadline=None, max_examples=30)
@given(p=problems(most_jobs=4, most_nodes=3))
def test_the_background_says_how_long_nodes_stay_on(p):
    """As long as the last of their jobs."""
    running = Schedule.unchanged(p)
    now = Replanning(H)
    now.planned(p.now_s, p, running)
    on_s = np.zeros(len(p.node_gpus))
    for j in np.flatnonzero(running.choice >= 0):
        for n in running.nodes_of(p, j):
            on_s[n] = max(on_s[n], p.time_s[running.choice[j]])
    assert now.background(p.node_gpus, p.now_s).on_s == pytest.approx(on_s)
    later = now.background(p.node_gpus, p.now_s + 5.0).on_s
    assert later == pytest.approx(np.maximum(0.0, on_s - 5.0))


@pytest.mark.long
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10_000))
def test_paced_every_job_ends_and_the_ledger_adds_up(seed):
    """With jobs that are many where a dozen are."""
    table = random_jobs(60, seed, gpus=4, gap_s=60.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replanning, "SMALL", 4)
        done = simulate(cluster_of(nodes=4, gpus=4), table, "lookahead")
    assert (done.registry.job("status") == Status.COMPLETED).all()
    assert done.ledger.total().energy_uj == done.ledger.meter.energy_uj
    assert not done.registry.allocated_gpus.any()
