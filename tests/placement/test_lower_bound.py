"""Bounds are below everything that can be done, and as sharp as said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.job_registry import Rules
from commonwatt.engines.simulated.engine import World
from commonwatt.model.electricity import Electricity, ElectricityPoint
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.placement._lower_bound import job_bound, load_bound
from tests.control.worlds import cluster_of, job, random_jobs, simulate

FREE = World(lose_work=False)
MONEY = 0.172 * 1.33 / 3.6e6
TARIFF = Electricity().tariff()


def cost_of(controller) -> float:
    late_s = np.maximum(0.0, controller.registry.job("ended_s") - controller.registry.job("due_s"))
    return controller.ledger.meter.cost_n / 1e9 + float(np.sum(controller.registry.job("weight") * late_s))


def test_one_configuration_by_hand():
    """1 of 2 GPUs: its own 100 W and half of 100 W idle."""
    table = JobArrays.of([job("a", 0, 1000, due_s=900, tardiness_weight=0.01)])
    assert job_bound(table, cluster_of(), TARIFF) == pytest.approx([1000 * 150 * MONEY + 0.01 * 100])


def test_a_mixture_of_configurations_that_just_meets_the_due_date():
    """Cheap and slow for 2000 s, or dear and fast for 1000 s; due at 1500 s: half of each."""
    slow = NodeSpec(name="s", gpu_type="T4", gpus=1, idle_w=0, gpu_w=50)
    fast = NodeSpec(name="f", gpu_type="V100", gpus=1, idle_w=0, gpu_w=200)
    table = JobArrays.of([Job("a", "t", 0, 1500, 1.0, {"T4": {1: 2000.0}, "V100": {1: 1000.0}})])
    half = (50 * 2000 + 200 * 1000) / 2 * MONEY
    assert job_bound(table, Cluster.of([slow, fast]), TARIFF) == pytest.approx([half])


def test_the_best_price_still_to_come_counts():
    points = (ElectricityPoint(from_s=0, price_per_kwh=0.4), ElectricityPoint(from_s=5000, price_per_kwh=0.1))
    tariff = Electricity(series=points, pue=1.0).tariff()
    table = JobArrays.of([job("a", 0, 1000)])
    assert job_bound(table, cluster_of(), tariff) == pytest.approx([1000 * 150 * 0.1 / 3.6e6])


def test_every_job_on_its_own_cheapest_configuration_is_no_bound():
    """Two jobs on one node share its idle power: the schedule costs less than both alone."""
    table = JobArrays.of([job("a", 0, 1000), job("b", 0, 1000)])
    real = cost_of(simulate(cluster_of(nodes=1), table, "fifo", world=FREE))
    alone = 2 * 1000 * 200 * MONEY
    assert real < 0.8 * alone
    assert real == pytest.approx(job_bound(table, cluster_of(nodes=1), TARIFF).sum())


def test_where_load_makes_lateness_unavoidable_the_load_bound_sees_it():
    """Ten jobs of 1000 s due at 1000 s on one GPU: the last ends at 10,000 s at best."""
    table = JobArrays.of([job(f"j{i}", 0, 1000, due_s=1000) for i in range(10)])
    cluster = cluster_of(nodes=1, gpus=1)
    energy = 10 * 1000 * 200 * MONEY
    best = energy + 1e-3 * sum(1000 * i for i in range(10))
    alone = float(job_bound(table, cluster, TARIFF).sum())
    together = load_bound(table, cluster, TARIFF, intervals=200)
    assert alone == pytest.approx(energy)
    assert 0.9 * best < together <= best * (1 + 1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 14),
    gap_s=st.sampled_from([50.0, 400.0, 2000.0]),
    solver=st.sampled_from(["lookahead", "random-greedy", "easy", "srtf", "edf"]),
    restart_s=st.sampled_from([0.0, 60.0]),
)
def test_no_simulation_costs_less(seed, count, gap_s, solver, restart_s):
    table = random_jobs(count, seed, gap_s=gap_s)
    world = FREE if restart_s == 0 else World(restart_s=restart_s)
    done = simulate(cluster_of(), table, solver, rules=Rules(restart_s=restart_s), world=world, seed=seed)
    alone, together = job_bound(table, cluster_of(), TARIFF).sum(), load_bound(table, cluster_of(), TARIFF)
    assert alone <= together * (1 + 1e-9)
    assert together <= cost_of(done) * (1 + 1e-6)


def test_slowdown_is_part_of_the_bound():
    table = JobArrays.of([job("a", 0, 1000)])
    twice = job_bound(table, cluster_of(), TARIFF, np.array([2.0]))
    assert twice == pytest.approx(2 * job_bound(table, cluster_of(), TARIFF))


def test_gangs():
    table = JobArrays.of([job("gang", 0, 1000, gpus=4)])
    assert job_bound(table, cluster_of(), TARIFF) == pytest.approx([1000 * 4 * 150 * MONEY])
    assert load_bound(table, cluster_of(), TARIFF) == pytest.approx(1000 * 4 * 150 * MONEY)
