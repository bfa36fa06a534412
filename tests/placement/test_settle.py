"""No job is stopped or moved for nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from commonwatt.control.policy import Policy
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import PolicySpec
from commonwatt.placement._exact import Exact
from commonwatt.placement._needless_moves import filled, without_idle_evictions, without_idle_moves
from commonwatt.placement._objective import check
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement._random_greedy import RandomGreedy
from tests.placement.brute_force import used_gpus
from tests.strategies import problems

MANY = settings(deadline=None, max_examples=150)


def own_cost(p: PlacementProblem, row: int, j: int) -> float:
    late = max(0.0, p.now_s + p.time_s[row] - p.due_s[j])
    return p.run_cost[row] + (p.weight[j] * late if p.weight[j] else 0.0)


@pytest.mark.long
@MANY
@given(problems(most_jobs=6, most_nodes=4))
def test_no_eviction_unless_its_gpus_are_needed(p):
    for solver in (RandomGreedy(iterations=30), Exact()):
        s = without_idle_evictions(p, solver.solve(p, np.random.default_rng(1)).best)
        check(p, s)
        free = p.node_gpus - used_gpus(p, s)
        for j in np.flatnonzero((p.stay >= 0) & (s.choice == POSTPONED)):
            assert np.any(free[p.nodes_held(j)] < p.per_node[p.stay[j]])


def unweighted(running_s, waiting_s, free_nodes=0):
    """One job that runs on a node, and others that would like to; none has a due date."""
    node = {"gpu_type": "A", "gpus": 8, "idle_w": 100, "gpu_w": 100}
    nodes = [{"name": "n", **node}, *({"name": f"m{i}", **node} for i in range(free_nodes))]
    job = {"tardiness_weight": 0.0}
    current = {"nodes": ["n"], "gpus": 8, "remaining_s": running_s}
    jobs = [{"name": "runs", "times_s": {"A": {8: running_s + 20}}, "current": current, **job}]
    jobs += [{"name": f"w{i}", "times_s": {"A": {8: time_s}}, **job} for i, time_s in enumerate(waiting_s)]
    return PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))


@pytest.mark.parametrize("solver", ["random-greedy", "local-search", "exact"])
def test_of_jobs_without_due_dates_one_that_runs_is_not_stopped_for_a_shorter_one(solver):
    policy = Policy.of(PolicySpec(solver=solver, iterations=20, aim="objective", limits={}))
    for seed in range(5):
        p = unweighted(100.0, [40.0, 30.0])
        assert policy.decide(p, np.random.default_rng(seed)).choice.tolist() == [p.stay[0], POSTPONED, POSTPONED]
        p = unweighted(100.0, [40.0, 30.0], free_nodes=1)
        s = policy.decide(p, np.random.default_rng(seed))
        assert s.choice[0] == p.stay[0]
        assert (s.choice != POSTPONED).sum() == 2


@pytest.mark.parametrize("spec", [{"solver": "lookahead", "slowdown_price": 0.01}, {"solver": "lookahead"}])
@pytest.mark.parametrize(("weight", "running"), [(0.0, ["x0", "x1", "x2"]), (1.0, ["x0", "late"])])
def test_a_due_date_that_costs_nothing_stops_no_job(spec, weight, running):
    """Of 24 h each, as of jobs whose time nobody knows: the one that waits is late whatever is done."""
    node = {"name": "n", "gpu_type": "A", "gpus": 8, "idle_w": 100, "gpu_w": 100}
    current = {"nodes": ["n"], "gpus": 1, "remaining_s": 86_390.0}
    jobs = [{"name": f"x{i}", "times_s": {"A": {1: 86_400.0}}, "current": current} for i in range(3)]
    wide = {"times_s": {"A": {7: 86_400.0}}, "submit_s": 100.0}
    jobs += [{"name": "no", **wide}, {"name": "far", **wide, "due_s": 3e7}, {"name": "late", **wide, "due_s": 110.0}]
    jobs = [{"tardiness_weight": weight if job["name"] == "late" else 0.0, **job} for job in jobs]
    p = PlacementProblem.of(PlaceFile.model_validate({"now_s": 110.0, "nodes": [node], "jobs": jobs}))
    s = Policy.of(PolicySpec(**spec)).decide(p, np.random.default_rng(0))
    assert [name for name, row in zip(p.job_names, s.choice, strict=True) if row != POSTPONED] == running


def test_a_job_that_is_due_still_stops_one_that_is_not():
    p = unweighted(100.0, [40.0])
    p = replace(p, weight=np.array([0.0, 1.0]), due_s=np.array([np.inf, 50.0]))
    s = Policy.of(PolicySpec(solver="random-greedy", iterations=20)).decide(p, np.random.default_rng(0))
    assert s.choice[0] == POSTPONED
    assert s.choice[1] != POSTPONED


def pays(p: PlacementProblem, s: Schedule, j: int) -> bool:
    return own_cost(p, s.choice[j], j) < own_cost(p, p.stay[j], j)


def movers(p: PlacementProblem, s: Schedule) -> list[int]:
    return [int(j) for j in np.flatnonzero((p.stay >= 0) & (s.choice != POSTPONED) & (s.choice != p.stay))]


@pytest.mark.slow
@MANY
@given(problems(most_jobs=6, most_nodes=4))
def test_moves_pay_or_make_room(p):
    before = RandomGreedy(iterations=30).solve(p, np.random.default_rng(1)).best
    starts = np.any((p.stay < 0) & (before.choice != POSTPONED))
    for planned in (False, True):
        after = without_idle_moves(p, before, planned=planned)
        check(p, after)
        assert np.array_equal(after.choice == POSTPONED, before.choice == POSTPONED)
        assert set(movers(p, after)) <= set(movers(p, before))
        if not starts and not (planned and np.any(before.choice == POSTPONED)):
            assert all(pays(p, after, j) for j in movers(p, after))


TWO_NODES = [
    {"name": "v", "gpu_type": "V100", "gpus": 1, "idle_w": 50, "gpu_w": 100},
    {"name": "t", "gpu_type": "T4", "gpus": 1, "idle_w": 50, "gpu_w": 100},
]


def running(name: str, node: str, remaining_s: float, times_s: dict) -> dict:
    current = {"nodes": [node], "gpus": 1, "remaining_s": remaining_s}
    return {"name": name, "tardiness_weight": 0, "times_s": times_s, "current": current}


def two_running(*, third: bool) -> PlacementProblem:
    """Two nodes of one GPU, A on the slow one and B on the fast one; A gains by the fast one what B loses."""
    jobs = [
        running("A", "t", 2000, {"V100": [900], "T4": [2100]}),
        running("B", "v", 1000, {"V100": [1100], "T4": [9000]}),
    ]
    if third:
        jobs.append({"name": "C", "tardiness_weight": 0, "times_s": {"V100": [10]}})
    return PlacementProblem.of(PlaceFile.model_validate({"nodes": TWO_NODES, "jobs": jobs}))


def on(p: PlacementProblem, **node_of: str) -> Schedule:
    s = Schedule.empty(p)
    for job, node in node_of.items():
        j, n = p.job_names.index(job), p.node_names.index(node)
        rows = np.arange(p.start[j], p.start[j + 1])
        stays = p.stay[j] >= 0 and n in p.nodes_held(j)
        s.choice[j] = p.stay[j] if stays else rows[(p.klass[rows] == p.node_class[n]) & (rows != p.stay[j])][0]
        s.nodes[p.slot_start[j]] = n
    return s


def test_a_move_that_pays_makes_no_other_running_job_move():
    p = two_running(third=False)
    exchanged = on(p, A="v", B="t")
    assert pays(p, exchanged, 0)
    assert not pays(p, exchanged, 1)
    assert movers(p, without_idle_moves(p, exchanged)) == []
    alone = on(p, A="t", B="v")
    assert movers(p, without_idle_moves(p, alone)) == []


def test_a_job_moves_to_make_room_for_one_that_waits():
    p = two_running(third=True)
    s = without_idle_moves(p, on(p, B="t", C="v"))
    assert movers(p, s) == [1]
    assert s.nodes_of(p, 2).tolist() == [p.node_names.index("v")]


def test_a_starting_job_takes_another_configuration_rather_than_make_others_move():
    """C was given B's place, but costs only a little more on the free node."""
    jobs = [
        running("B", "v", 1000, {"V100": [1100], "T4": [9000]}),
        {"name": "C", "tardiness_weight": 0, "times_s": {"V100": [900], "T4": [1000]}},
    ]
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": TWO_NODES, "jobs": jobs}))
    s = without_idle_moves(p, on(p, B="t", C="v"))
    assert movers(p, s) == []
    assert s.nodes_of(p, 1).tolist() == [p.node_names.index("t")]


@pytest.mark.long
@MANY
@given(problems(most_jobs=6, most_nodes=4))
def test_filled_leaves_nothing_that_fits(p):
    s = filled(p, Exact().solve(p, np.random.default_rng(0)).best)
    check(p, s)
    free = p.node_gpus - used_gpus(p, s)
    for j in np.flatnonzero((s.choice == POSTPONED) & (p.stay < 0)):
        for r in range(p.start[j], p.start[j + 1]):
            assert np.sum((p.node_class == p.klass[r]) & (free >= p.per_node[r])) < p.width[r]


@pytest.mark.long
@MANY
@given(problems(most_jobs=5))
def test_every_policy_keeps_running_jobs_whose_gpus_nobody_takes(p):
    for solver in ("lookahead", "random-greedy", "local-search", "srtf"):
        s = Policy.of(PolicySpec(solver=solver, iterations=20)).decide(p, np.random.default_rng(0))
        check(p, s)
        free = p.node_gpus - used_gpus(p, s)
        for j in np.flatnonzero((p.stay >= 0) & (s.choice == POSTPONED)):
            assert np.any(free[p.nodes_held(j)] < p.per_node[p.stay[j]])


def test_unchanged_is_a_fixed_point():
    from tests.placement.made import crowded_problem

    p = crowded_problem(nodes=4, jobs=6, seed=1)
    s = Schedule.unchanged(p)
    assert without_idle_moves(p, s) is s
    assert without_idle_evictions(p, s) is s
