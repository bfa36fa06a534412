"""FIFO, EDF, priority, SRTF, EASY backfill and fair share on cases worked out by hand."""

import numpy as np
import pytest

from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._backfill import Backfill, fair_share_factor
from commonwatt.placement._priority_order import PriorityOrder
from commonwatt.placement._problem import PlacementProblem
from commonwatt.placement._solvers import make_solver

NODE = {"name": "n", "gpus": 4, "gpu_type": "V100", "idle_w": 100, "gpu_w": 100}


def run(solver, jobs, nodes=(NODE,), **more):
    p = PlacementProblem.of(PlaceFile.model_validate({"now_s": 100, "nodes": list(nodes), "jobs": jobs, **more}))
    return {a.job for a in solver.solve(p, np.random.default_rng(0)).best.assignments(p)}


def job(name, gpus, time_s=1000.0, **more):
    base = {"name": name, "tardiness_weight": 1, "times_s": {"V100": {gpus: time_s}}, "requested_gpus": gpus}
    return {**base, **more}


def running(name, gpus, remaining_s, **more):
    return job(name, gpus, current={"nodes": ["n"], "gpus": gpus, "remaining_s": remaining_s}, **more)


@pytest.mark.parametrize(
    ("order", "first"), [("fifo", "early"), ("edf", "urgent"), ("priority", "dear"), ("srtf", "short")]
)
def test_order_of_each_scheduler(order, first):
    jobs = [
        job("early", 4, submit_s=1, due_s=9000),
        job("urgent", 4, submit_s=4, due_s=500),
        job("dear", 4, submit_s=3, due_s=9000, tardiness_weight=5),
        job("short", 4, submit_s=2, due_s=9000, time_s=900),
    ]
    assert run(PriorityOrder(order), jobs) == {first}


def test_only_srtf_preempts():
    jobs = [running("old", 4, 800, submit_s=5), job("new", 4, 100, submit_s=1, due_s=150, tardiness_weight=9)]
    for order in ("fifo", "edf", "priority"):
        assert run(PriorityOrder(order), jobs) == {"old"}
    assert run(PriorityOrder("srtf"), jobs) == {"new"}


def test_a_job_takes_the_cheapest_configuration_in_time_else_the_fastest():
    both = {"times_s": {"V100": [1000, 600]}, "tardiness_weight": 1}
    p = PlacementProblem.of(
        PlaceFile.model_validate(
            {
                "nodes": [NODE],
                "jobs": [{"name": "calm", "due_s": 5000, **both}, {"name": "late", "due_s": 10, **both}],
            }
        )
    )
    s = PriorityOrder("fifo").solve(p, np.random.default_rng(0)).best
    # 600 s at 300 W costs less than 1000 s at 200 W
    assert {a.job: a.gpus for a in s.assignments(p)} == {"calm": 2, "late": 2}


def test_backfill_starts_a_short_job_behind_the_one_that_waits():
    jobs = [
        running("big", 3, 500),
        job("head", 4, submit_s=1),
        job("fits before", 1, 400, submit_s=2),
    ]
    assert run(Backfill(), jobs) == {"big", "fits before"}


def test_backfill_does_not_delay_the_reservation():
    jobs = [running("big", 3, 500), job("head", 4, submit_s=1), job("too long", 1, 600, submit_s=2)]
    assert run(Backfill(), jobs) == {"big"}


def test_backfill_lets_a_long_job_use_what_the_reservation_leaves():
    jobs = [running("big", 2, 500), job("head", 3, submit_s=1), job("long", 1, 9000, submit_s=2)]
    assert run(Backfill(), jobs) == {"big", "long"}
    jobs.append(job("second long", 1, 9000, submit_s=3))
    assert run(Backfill(), jobs) == {"big", "long"}


def test_backfill_plans_with_the_declared_limit():
    head = job("head", 4, submit_s=1)
    jobs = [running("big", 3, 500), head, job("says 900", 1, 400, submit_s=2, time_limit_s=900)]
    assert run(Backfill(), jobs) == {"big"}
    jobs = [running("big", 3, 500, time_limit_s=1000), head, job("says 900", 1, 400, submit_s=2, time_limit_s=900)]
    assert run(Backfill(), jobs) == {"big", "says 900"}


def test_backfill_gives_what_was_asked_for():
    jobs = [{"name": "a", "tardiness_weight": 1, "times_s": {"V100": [1000, 600, 500, 450]}, "requested_gpus": 3}]
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": [NODE], "jobs": jobs}))
    assert [a.gpus for a in Backfill().solve(p, np.random.default_rng(0)).best.assignments(p)] == [3]


def test_backfill_gives_the_fastest_type_that_is_free():
    """Not the cheapest in time: nobody who runs a plain batch queue looks at energy."""
    nodes = [{**NODE, "name": "quick"}, {**NODE, "name": "slow", "gpu_type": "T4", "idle_w": 1, "gpu_w": 1}]
    times = {"V100": [1000], "T4": [3000]}
    jobs = [{"name": n, "tardiness_weight": 0, "times_s": times, "requested_gpus": 1} for n in "abcde"]
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
    placed = Backfill().solve(p, np.random.default_rng(0)).best.assignments(p)
    assert [a.nodes[0] for a in placed] == ["quick"] * 4 + ["slow"]


def test_backfill_reserves_whole_gangs():
    nodes = [{**NODE, "name": "a"}, {**NODE, "name": "b"}]
    jobs = [
        job("holds a", 4, current={"nodes": ["a"], "gpus": 4, "remaining_s": 500}),
        job("gang", 8, submit_s=1),
        job("short", 2, 400, submit_s=2),
        job("long", 2, 600, submit_s=3),
    ]
    assert run(Backfill(), jobs, nodes) == {"holds a", "short"}


def test_fair_share_puts_the_tenant_first_that_has_used_least_of_its_share():
    jobs = [job("of heavy", 4, submit_s=1, tenant="heavy"), job("of light", 4, submit_s=2, tenant="light")]
    tenants = [
        {"name": "heavy", "weight": 1, "usage_gpu_s": 1000},
        {"name": "light", "weight": 1, "usage_gpu_s": 10},
    ]
    assert run(Backfill(), jobs, tenants=tenants) == {"of heavy"}
    assert run(Backfill(fair_share_weight=2), jobs, tenants=tenants) == {"of light"}


def test_fair_share_factor_is_two_to_minus_usage_over_entitlement():
    factor = fair_share_factor(np.array([30.0, 10.0, 0.0]), np.array([2.0, 1.0, 1.0]))
    assert factor == pytest.approx([2 ** -(0.75 / 0.5), 2 ** -(0.25 / 0.25), 1.0])
    assert fair_share_factor(np.zeros(2), np.ones(2)).tolist() == [1.0, 1.0]


def mixed(**t4):
    """A cluster of two types, one job a letter, of a size that every type has."""
    nodes = [{**NODE, "name": "quick"}, {**NODE, "name": "slow", "gpu_type": "T4", "idle_w": 10, "gpu_w": 30, **t4}]
    times = {"V100": [1000, 600], "T4": [2000, 1200]}
    jobs = [{"name": n, "tardiness_weight": 0, "times_s": times, "requested_gpus": 1} for n in "abcde"]
    return PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))


def test_thrifty_backfill_gives_the_free_type_with_the_least_energy_for_the_requested_size():
    p = mixed()
    placed = Backfill(thrifty=True).solve(p, np.random.default_rng(0)).best.assignments(p)
    assert [(a.nodes[0], a.gpus) for a in placed] == [("slow", 1)] * 4 + [("quick", 1)]
    p = mixed(gpu_w=80)  # 80 W for twice as long is more than 100 W
    placed = Backfill(thrifty=True).solve(p, np.random.default_rng(0)).best.assignments(p)
    assert [a.nodes[0] for a in placed] == ["quick"] * 4 + ["slow"]


def test_thrifty_backfill_passes_over_the_type_that_was_asked_for_but_not_the_size():
    nodes = [{**NODE, "name": "quick"}, {**NODE, "name": "slow", "gpu_type": "T4", "idle_w": 10, "gpu_w": 10}]
    asked = {"requested_gpus": 2, "requested_gpu_type": "V100"}
    jobs = [{"name": "a", "tardiness_weight": 0, "times_s": {"V100": [1000, 600], "T4": [2000, 1900]}, **asked}]
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
    for thrifty, place in ((False, ("quick", 2)), (True, ("slow", 2))):
        (a,) = Backfill(thrifty=thrifty).solve(p, np.random.default_rng(0)).best.assignments(p)
        assert (a.nodes[0], a.gpus) == place


def test_idle_power_that_is_sunk_costs_nothing():
    p = mixed()
    sunk = p.with_sunk_idle_power()
    assert not sunk.class_idle_cost_s.any()
    busy_w = np.where(sunk.klass == 0, 100.0, 30.0) * sunk.per_node
    price = p.class_idle_cost_s[0] / 100.0  # currency for a watt second
    assert sunk.node_cost == pytest.approx(busy_w * sunk.time_s * price)
    assert np.array_equal(sunk.time_s, p.time_s)


def test_a_work_conserving_plan_leaves_no_job_waiting_for_a_thrifty_type():
    """Without due dates, a plan that may wait lets jobs wait for the thrifty type for ever."""
    p = mixed(gpu_w=1)
    started = {}
    for conserving in (False, True):
        solver = make_solver("lookahead", work_conserving=conserving)
        started[conserving] = solver.solve(p, np.random.default_rng(0)).best.assignments(p)
    assert len(started[True]) == len(p)
    assert len(started[False]) < len(p)
