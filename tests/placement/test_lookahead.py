"""Plans to the end of all known jobs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from commonwatt.model.place_file import PlaceFile
from commonwatt.placement import Background, _lookahead
from commonwatt.placement._arrays import prepare
from commonwatt.placement._construct import DISPLACE
from commonwatt.placement._list_schedule import Plan, Room, efforts, finish, start_now
from commonwatt.placement._lookahead import Lookahead, _gpu_time, _orders
from commonwatt.placement._objective import check
from commonwatt.placement._problem import POSTPONED, PlacementProblem
from tests.control.worlds import cluster_of, random_jobs, simulate
from tests.placement.made import crowded_problem
from tests.strategies import problems

MONEY = 0.172 * 1.33 / 3.6e6
FILL = False


def cost_of_plan(p: PlacementProblem, order: list[int], price: float = 0.0) -> tuple[float, list[int]]:
    c = prepare(p)
    _, value = _gpu_time(p)
    effort, room = efforts(p, c, value), Room.of(c, len(value), p)
    plan = Plan(np.array(order, dtype=np.int64), price, DISPLACE, np.full(len(p), -np.inf), FILL, align=False)
    cost = start_now(c, plan, effort, room) + finish(c, plan, effort, room)
    return cost, [j for j in range(len(p)) if c.jobs["choice"][j] >= 0]


def two_jobs_one_gpu() -> PlacementProblem:
    return PlacementProblem.of(
        PlaceFile.model_validate(
            {
                "nodes": [{"name": "n", "gpu_type": "V100", "gpus": 1, "idle_w": 100, "gpu_w": 100}],
                "jobs": [
                    {"name": "short", "due_s": 100, "tardiness_weight": 1e-3, "times_s": {"V100": [100]}},
                    {"name": "long", "due_s": 100, "tardiness_weight": 1e-3, "times_s": {"V100": [1000]}},
                ],
            }
        )
    )


def test_cost_of_a_plan_by_hand():
    p = two_jobs_one_gpu()
    energy = (100 + 1000) * 200 * MONEY
    cost, started = cost_of_plan(p, [0, 1])
    assert started == [0]
    assert cost == pytest.approx(energy + 1e-3 * (0 + 1000))
    cost, started = cost_of_plan(p, [1, 0])
    assert started == [1]
    assert cost == pytest.approx(energy + 1e-3 * (900 + 1000))


def test_the_short_job_goes_first_although_eq_1_prefers_the_long_one():
    p = two_jobs_one_gpu()
    assert p.postponed_cost[1] > p.postponed_cost[0]
    s = Lookahead().solve(p, np.random.default_rng(0)).best
    assert s.choice[0] != POSTPONED
    assert s.choice[1] == POSTPONED


def test_a_price_on_gpu_time_makes_jobs_smaller():
    p = PlacementProblem.of(
        PlaceFile.model_validate(
            {
                "nodes": [{"name": "n", "gpu_type": "V100", "gpus": 2, "idle_w": 300, "gpu_w": 100}],
                "jobs": [{"name": "a", "tardiness_weight": 0, "times_s": {"V100": [1000, 700]}}],
            }
        )
    )
    a = prepare(p)
    effort = efforts(p, a, np.ones(1))
    room = Room.of(a, 1, p)
    gpus = []
    for price in (0.0, 1.0):
        plan = Plan(np.zeros(1, dtype=np.int64), price, DISPLACE, np.full(1, -np.inf), FILL, align=False)
        start_now(a, plan, effort, room)
        gpus.append(int(a.rows["per_node"][a.jobs["choice"][0]]))
    assert gpus == [2, 1]
    assert effort["gpu_s"][np.argsort(a.rows["origin"])].tolist() == [1000, 1400]


def test_orders_begin_with_pressure_and_end_with_weight_over_gpu_time():
    p = crowded_problem(nodes=4, jobs=12, seed=0)
    gpu_s, _ = _gpu_time(p)
    orders = _orders(p, gpu_s, (0.3, 1e9))
    assert orders[0].tolist() == np.argsort(-p.pressure_s, kind="stable").tolist()
    assert orders[2].tolist() == np.argsort(-p.weight / gpu_s, kind="stable").tolist()
    for order in orders:
        assert sorted(order) == list(range(12))


@pytest.mark.slow
@settings(deadline=None)
@given(problems(most_jobs=6, most_nodes=4))
def test_moves_in_the_order_are_kept_only_where_they_gain(p):
    """With a gain no move can bring, the plan is the one without moves."""
    plain = Lookahead().solve(p, np.random.default_rng(0)).best
    check(p, plain)
    moved = Lookahead(moves=30, least_gain=1.0).solve(p, np.random.default_rng(0)).best
    assert moved.choice.tolist() == plain.choice.tolist()
    assert moved.nodes.tolist() == plain.nodes.tolist()
    check(p, Lookahead(moves=30, least_gain=0.0).solve(p, np.random.default_rng(0)).best)


@pytest.mark.parametrize("seed", range(8))
def test_nodes_that_no_job_can_come_to_change_nothing(seed, monkeypatch):
    """A few jobs on many nodes, some used, some asleep: the same start and cost as with all nodes prepared."""
    rng = np.random.default_rng(seed)
    jobs = [
        {
            "name": f"j{j}", "due_s": float(rng.uniform(500, 9000)), "tardiness_weight": 1e-3,
            "times_s": {"V100": (rng.uniform(500, 5000) / np.arange(1, 5) ** 0.8).tolist(), "A100": [900.0]},
        }
        for j in range(int(rng.integers(1, 4)))
    ]  # fmt: skip
    kinds = {"v": ("V100", 2), "a": ("A100", 4)}
    nodes = [
        {"name": f"{kind}{n}", "gpu_type": gpu_type, "gpus": gpus, "idle_w": 300, "gpu_w": 200}
        for kind, (gpu_type, gpus) in kinds.items()
        for n in range(100)
    ]
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
    taken = rng.integers(0, 5, len(p.node_gpus))
    free = np.maximum(0, p.node_gpus - taken)
    p = replace(
        p, node_gpus=free, node_wait_s=np.where(rng.random(len(free)) < 0.3, 40.0, 0.0),
        background=Background(rng.uniform(0, 900, len(free)) * (taken > 0), p.node_gpus - free, 0.01),
    )  # fmt: skip
    few = prepare(p, reachable=True)
    assert 0 < len(few.nodes) < len(free) / 2
    found = Lookahead(moves=20).solve(p, np.random.default_rng(0))
    monkeypatch.setattr(_lookahead, "prepare", lambda problem, **_: prepare(problem))
    whole = Lookahead(moves=20).solve(p, np.random.default_rng(0))
    assert found.cost == whole.cost
    assert found.best.choice.tolist() == whole.best.choice.tolist()
    assert found.best.nodes.tolist() == whole.best.nodes.tolist()
    check(p, found.best)


def test_moves_find_what_the_orders_miss():
    costs = {}
    for moves in (0, 300):
        least = []
        for seed in range(5):
            p = crowded_problem(nodes=4, jobs=16, seed=seed)
            solver = Lookahead(moves=moves, least_gain=0.0, styles=((np.inf, False),))
            least.append(solver.solve(p, np.random.default_rng(0)).cost)
        costs[moves] = least
    assert all(b <= a for a, b in zip(costs[0], costs[300], strict=True))
    assert sum(b < 0.99 * a for a, b in zip(costs[0], costs[300], strict=True)) >= 3


@pytest.mark.long
def test_it_beats_the_randomized_greedy_under_load():
    """Ten jobs for every two GPUs: the order of jobs decides."""
    totals = {}
    for solver in ("lookahead", "random-greedy"):
        total = 0.0
        for seed in range(3):
            done = simulate(cluster_of(), random_jobs(40, seed, gap_s=200), solver, placements=None)
            late_s = np.maximum(0.0, done.registry.job("ended_s") - done.registry.job("due_s"))
            total += done.ledger.meter.cost_n / 1e9 + float(np.sum(done.registry.job("weight") * late_s))
        totals[solver] = total
    assert totals["lookahead"] < 0.9 * totals["random-greedy"]
