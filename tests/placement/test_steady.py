"""Plans in which waiting has a price."""

import numpy as np
import pytest
from hypothesis import assume, given, settings

from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._arrays import prepare, reset
from commonwatt.placement._construct import DISPLACE_LAST
from commonwatt.placement._list_schedule import Plan, efforts
from commonwatt.placement._lookahead import Lookahead, _gpu_time
from commonwatt.placement._needless_moves import drop_needless_moves
from commonwatt.placement._objective import check
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement._solvers import make_solver
from commonwatt.placement._steady import _clearing_prices, flow_cost
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
    plan = Plan(np.arange(3), 0.0, DISPLACE_LAST, np.full(3, -np.inf), fill=False, align=False)
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
            flow_cost(
                c, Plan(np.arange(2), 0.0, DISPLACE_LAST, np.full(2, -np.inf), fill=False, align=False), effort, value
            )
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


@pytest.mark.slow
@settings(deadline=None)
@given(problems(most_jobs=6, most_nodes=4))
def test_every_start_can_be_carried_out(p):
    start(p, 0.05)


@pytest.mark.long
@settings(deadline=None)
@given(place_files(most_jobs=5, most_nodes=4, running=False))
def test_what_equal_nodes_are_called_changes_no_cost(file):
    """The same state with its nodes in another order: ties fall elsewhere, and cost the same."""
    assume(len({node.gpu_type for node in file.nodes}) == 1)
    turned = file.model_copy(update={"nodes": file.nodes[::-1]})
    for solver in (Lookahead(slowdown_price=0.05), make_solver("fifo"), make_solver("srtf")):
        costs = [solver.solve(PlacementProblem.of(one), np.random.default_rng(0)).cost for one in (file, turned)]
        assert costs[0] == pytest.approx(costs[1], rel=1e-9, abs=1e-12)


def beside(left_s: float) -> PlacementProblem:
    """Two nodes of 8 GPUs and 400 W, with a job of 1 GPU on each; restarted, they take 60 s more."""
    node = {"name": "n", "count": 2, "gpu_type": "V100", "gpus": 8, "idle_w": 400, "gpu_w": 200}
    jobs = [
        job(f"j{k}", left_s + 60, current={"nodes": [f"n-{k}"], "gpus": 1, "remaining_s": left_s}, requested_gpus=1)
        for k in (1, 2)
    ]
    return PlacementProblem.of(PlaceFile.model_validate({"nodes": [node], "jobs": jobs}))


@pytest.mark.parametrize(("left_s", "together"), [(100_000.0, True), (300.0, False)])
def test_jobs_come_together_where_that_saves_more_than_a_move_costs(left_s, together):
    """The other node's 400 W for as long as a job runs, against 10 restarts of 60 s at 250 W: level at 375 s."""
    p = beside(left_s)
    found = drop_needless_moves(p, start(p, 1e-6), planned=True)
    assert (len(set(found.nodes.tolist()) - {-1}) == 1) == together
    assert found.choice[0] == p.stay[0] or found.choice[1] == p.stay[1]


def test_a_job_goes_to_the_node_that_is_on_for_longest():
    """Best fit would take the node with one GPU left, which is off again in 100 s."""
    node = {"name": "n", "count": 2, "gpu_type": "V100", "gpus": 4, "idle_w": 400, "gpu_w": 200}
    jobs = [
        {"name": "short", "current": {"nodes": ["n-1"], "gpus": 3, "remaining_s": 100}, "times_s": {"V100": {3: 160}}},
        {"name": "long", "current": {"nodes": ["n-2"], "gpus": 1, "remaining_s": 9000}, "times_s": {"V100": {1: 9060}}},
        {"name": "new", "times_s": {"V100": {1: 5000}}},
    ]
    file = {"nodes": [node], "jobs": [{"tardiness_weight": 0, **each} for each in jobs]}
    p = PlacementProblem.of(PlaceFile.model_validate(file))
    found = start(p, 0.05)
    assert [p.node_names[n] for n in found.nodes_of(p, 2)] == ["n-2"]


def test_prices_of_gpu_time_clear_by_hand():
    """Both want the GPU of type A. Without it, one takes 100 s of 100 W more, one 1,000 s: who gains more gets it.

    So a second of A costs between what the two would pay for it: .1 and 1 times 100 W.
    """
    node = {"gpus": 1, "idle_w": 0, "gpu_w": 100}
    nodes = [{"name": "a", "gpu_type": "A", **node}, {"name": "b", "gpu_type": "B", **node}]
    jobs = [
        {"name": name, "tardiness_weight": 0, "times_s": {"A": [1000], "B": [b_s]}}
        for name, b_s in (("little", 1100), ("much", 2000))
    ]
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
    c, (_, value) = prepare(p), _gpu_time(p)
    price = _clearing_prices(p, c, efforts(p, c, value)) / (100 * MONEY)
    assert 0.1 <= price[0] <= 1.0
    assert price[1] == pytest.approx(0.0, abs=1e-12)
    found = start(p, 1e-6)
    assert [p.node_names[int(n)] for n in found.nodes] == ["b", "a"]


@pytest.mark.parametrize("name", ["lookahead", "srtf", "fifo", "edf", "priority", "easy", "fair-share"])
@pytest.mark.parametrize("seed", range(4))
def test_in_which_order_jobs_came_to_be_known_changes_nothing(name, seed):
    """Jobs whose times all differ get the same in whatever order they are listed."""
    rng = np.random.default_rng(seed)
    jobs = []
    for k in range(10):
        work_s = float(rng.uniform(300, 9000))
        times = {str(t): [work_s * f, work_s * f * 0.6] for t, f in (("V100", 1.0), ("P100", 1.7))}
        jobs.append({
            "name": f"j{k}", "submit_s": float(rng.uniform(0, 90)), "due_s": float(rng.uniform(500, 20_000)),
            "tardiness_weight": float(rng.uniform(1e-4, 1e-3)), "times_s": times, "requested_gpus": 1,
        })  # fmt: skip
    for k in range(3):
        jobs[k]["current"] = {"nodes": ["n" if k < 2 else "m"], "gpus": 1, "remaining_s": 100.0 + 10 * k}
    nodes = [
        {"name": "n", "gpu_type": "V100", "gpus": 4, "idle_w": 400, "gpu_w": 200},
        {"name": "m", "gpu_type": "P100", "gpus": 3, "idle_w": 400, "gpu_w": 160},
    ]
    results = []
    for order in (list(range(10)), list(range(9, -1, -1)), rng.permutation(10).tolist()):
        file = {"now_s": 100, "nodes": nodes, "jobs": [jobs[k] for k in order]}
        p = PlacementProblem.of(PlaceFile.model_validate(file))
        more = {"slowdown_price": 0.05} if name == "lookahead" else {}
        found = make_solver(name, **more).solve(p, np.random.default_rng(0)).best
        got = {}
        for j in range(10):
            row = int(found.choice[j])
            size = 0 if row == POSTPONED else p.gpus_of(row)
            got[p.job_names[j]] = size, [p.node_names[n] for n in found.nodes_of(p, j)]
        results.append(got)
    assert results[0] == results[1] == results[2]
