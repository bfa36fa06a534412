"""Plans in which waiting has a price."""

import numpy as np
import pytest
from hypothesis import given, settings

from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._arrays import prepare, reset
from commonwatt.placement._construct import DISPLACE_LAST
from commonwatt.placement._list_schedule import Plan, efforts
from commonwatt.placement._lookahead import Lookahead, _gpu_time
from commonwatt.placement._objective import check
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement._solvers import make_solver
from commonwatt.placement._steady import flow_cost
from tests.placement.made import crowded_problem
from tests.strategies import place_files, problems

MONEY = 0.172 * 1.33 / 3.6e6


def problem(*jobs: dict, gpus: int = 1, idle_w: float = 0.0) -> PlacementProblem:
    node = {"name": "n", "gpu_type": "V100", "gpus": gpus, "idle_w": idle_w, "gpu_w": 100}
    return PlacementProblem.of(PlaceFile.model_validate({"nodes": [node], "jobs": [*jobs]}))


def job(name: str, *times_s: float, **fields: object) -> dict:
    return {"name": name, "tardiness_weight": 0, "times_s": {"V100": list(times_s)}, **fields}


def start(p: PlacementProblem, slowdown_price: float) -> Schedule:
    found = Lookahead(slowdown_price=slowdown_price).solve(p, np.random.default_rng(0)).best
    check(p, found)
    return found


def test_without_a_price_nothing_is_different():
    assert make_solver("lookahead") == Lookahead()
    p = crowded_problem(nodes=4, jobs=16, seed=3)
    plain, priced = start(p, 0.0), Lookahead().solve(p, np.random.default_rng(0)).best
    assert np.array_equal(plain.choice, priced.choice)
    assert np.array_equal(plain.nodes, priced.nodes)


def test_the_price_buys_time_with_energy():
    """Two GPUs take 700 s and .14 MJ, one 1,000 s and .1 MJ: level where 300 s of 700 s cost what .04 MJ do."""
    p = problem(job("a", 1000, 700), gpus=2)
    level = 0.04e6 * MONEY * 700 / 300
    gpus = [p.gpus_of(int(start(p, level * factor).choice[0])) for factor in (0.01, 0.9, 1.1, 100.0)]
    assert gpus == [1, 1, 2, 2]


def test_cost_of_those_who_wait_by_hand():
    """On one GPU, free in 500 s: each ends when it and those before it are served, the last half as if beside them."""
    current = {"nodes": ["n"], "gpus": 1, "remaining_s": 500}
    p = problem(job("runs", 560, current=current), job("b", 1000), job("c", 2000))
    c, (_, value) = prepare(p), _gpu_time(p)
    effort = efforts(p, c, value)
    effort["delay_cost_s"] = 1.0
    c.jobs["choice"] = [c.jobs["stay"][0], -1, -1]
    plan = Plan(np.arange(3), 0.0, DISPLACE_LAST, np.full(3, -np.inf), fill=False)
    energy = 3000 * 100 * MONEY
    assert flow_cost(c, plan, effort, value) == pytest.approx(energy + (500 + 1000) + (500 + 3000))


def test_nodes_that_no_job_can_come_to_count_as_free():
    node = {"name": "n", "count": 60, "gpu_type": "V100", "gpus": 1, "idle_w": 0, "gpu_w": 100}
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": [node], "jobs": [job("a", 1000), job("b", 2000)]}))
    _, value = _gpu_time(p)
    costs = []
    for reachable in (False, True):
        c = prepare(p, reachable=reachable)
        effort = efforts(p, c, value)
        effort["delay_cost_s"] = 1.0
        reset(c)
        costs.append(
            flow_cost(c, Plan(np.arange(2), 0.0, DISPLACE_LAST, np.full(2, -np.inf), fill=False), effort, value)
        )
    assert len(prepare(p, reachable=True).nodes) < 60
    assert costs[0] == costs[1]


@pytest.mark.parametrize(("left_s", "stays"), [(200_000, False), (2000, True)])
def test_only_a_much_shorter_job_takes_the_gpu_of_a_running_one(left_s, stays):
    current = {"nodes": ["n"], "gpus": 1, "remaining_s": left_s}
    p = problem(job("runs", left_s + 60, current=current), job("new", 600))
    schedule = start(p, 1.0)
    assert (schedule.choice[0] == p.stay[0]) == stays
    assert (schedule.choice[1] == POSTPONED) == stays


@settings(deadline=None)
@given(problems(most_jobs=6, most_nodes=4))
def test_every_start_can_be_carried_out(p):
    start(p, 0.05)


@settings(deadline=None)
@given(place_files(most_jobs=5, most_nodes=4))
def test_what_equal_nodes_are_called_changes_no_cost(file):
    """The same state with its nodes in another order: ties fall elsewhere, and cost the same."""
    turned = file.model_copy(update={"nodes": file.nodes[::-1]})
    for solver in (Lookahead(slowdown_price=0.05), make_solver("fifo"), make_solver("srtf")):
        costs = [
            solver.solve(PlacementProblem.of(one), np.random.default_rng(0)).cost
            for one in (file, turned)
            if len({node.gpu_type for node in file.nodes}) == 1 and not any(j.current for j in file.jobs)
        ]
        assert len(costs) in {0, 2}
        if costs:
            assert costs[0] == pytest.approx(costs[1], rel=1e-9, abs=1e-12)
