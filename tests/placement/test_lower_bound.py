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
from commonwatt.placement._lower_bound import job_bound, load_bound, lower_bound
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


# -- where the price changes

STEP_S = 600.0
ONE_GPU = NodeSpec(name="n", gpu_type="V100", gpus=1, idle_w=100, gpu_w=100)


def priced(values: list[float], *, repeat: bool = False, pue: float = 1.0) -> Electricity:
    points = [ElectricityPoint(from_s=STEP_S * k, price_per_kwh=value) for k, value in enumerate(values)]
    return Electricity(series=points, repeat_s=STEP_S * len(values) if repeat else None, pue=pue)


def brute_force(values: list[float], jobs: list[tuple[int, int, int, float]], power_w: float = 200.0) -> float:
    """Least cost of jobs (submitted, slots, due, weight a slot) on one GPU, slot by slot in every order."""
    slots = max(job[0] for job in jobs) + sum(job[1] for job in jobs) + len(values)
    price = [values[min(k, len(values) - 1)] * power_w * STEP_S / 3.6e6 for k in range(slots)]

    def least(k: int, left: tuple[int, ...]) -> float:
        if not any(left):
            return 0.0
        if k == slots:
            return np.inf
        options = [least(k + 1, left)]
        for j, (submitted, _, due, weight) in enumerate(jobs):
            if left[j] and k >= submitted:
                after = (*left[:j], left[j] - 1, *left[j + 1 :])
                late = weight * max(0, k + 1 - due) if not after[j] else 0.0
                options.append(price[k] + late + least(k + 1, after))
        return min(options)

    from functools import cache

    least = cache(least)
    return least(0, tuple(job[1] for job in jobs))


def table_of(jobs: list[tuple[int, int, int, float]]) -> JobArrays:
    return JobArrays.of(
        job(f"j{i}", a * STEP_S, n * STEP_S, due_s=d * STEP_S, tardiness_weight=w / STEP_S)
        for i, (a, n, d, w) in enumerate(jobs)
    )


prices = st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.8]), min_size=1, max_size=7)
slot_jobs = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 8), st.sampled_from([1e-3, 4e-3, 0.02])).map(
    lambda job: (job[0], job[1], job[0] + job[2], job[3])
)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(values=prices, one=slot_jobs)
def test_a_job_alone_costs_its_bound_in_the_best_slots(values, one):
    alone = job_bound(table_of([one]), Cluster.of([ONE_GPU]), priced(values).tariff())
    assert alone == pytest.approx([brute_force(values, [one])], rel=1e-7, abs=1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(values=prices, several=st.lists(slot_jobs, min_size=2, max_size=3))
def test_jobs_on_one_gpu_cost_no_less_than_the_bounds(values, several):
    table, cluster, tariff = table_of(several), Cluster.of([ONE_GPU]), priced(values).tariff()
    best = brute_force(values, several)
    assert job_bound(table, cluster, tariff).sum() <= best * (1 + 1e-9) + 1e-12
    assert load_bound(table, cluster, tariff) <= best * (1 + 1e-6) + 1e-9


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(
    values=prices, times=st.lists(st.tuples(st.integers(1, 5), st.integers(20, 400)), min_size=2, max_size=3),
    due=st.integers(1, 9), weight=st.sampled_from([1e-3, 4e-3, 0.02]), picks=st.lists(st.integers(0, 3), min_size=16),
)  # fmt: skip
def test_no_mixture_of_configurations_in_any_slots_costs_less(values, times, due, weight, picks):
    """Each slot runs the configuration that is picked for it (0: none), until the work is done."""
    tariff = priced(values).tariff()
    nodes = [
        NodeSpec(name=f"n{k}", gpu_type=f"T{k}", gpus=1, idle_w=0, gpu_w=watts) for k, (_, watts) in enumerate(times)
    ]
    table = JobArrays.of([
        Job("a", "t", 0, due * STEP_S, weight / STEP_S, {f"T{k}": {1: n * STEP_S} for k, (n, _) in enumerate(times)})
    ])  # fmt: skip
    left, cost, end = 1.0, 0.0, 0.0
    for slot in range(200):
        pick = picks[slot] - 1 if slot < len(picks) else 0
        if not 0 <= pick < len(times):
            continue
        part = min(1.0, left * times[pick][0])  # of the slot
        cost += float(tariff.cost(times[pick][1], slot * STEP_S, (slot + part) * STEP_S))
        left, end = left - part / times[pick][0], slot + part
        if left <= 1e-12:
            break
    cost += weight * max(0.0, end - due)
    assert job_bound(table, Cluster.of(nodes), tariff)[0] <= cost * (1 + 1e-9) + 1e-12


def test_the_bound_of_a_day_with_a_cheap_night_by_hand():
    """1 h, submitted at 9:00, cheap from 22:00: due next day it runs at night, due at 22:30 half of it does."""
    day = [ElectricityPoint(from_s=3600.0 * h, price_per_kwh=p) for h, p in ((0, 0.05), (7, 0.5), (22, 0.05))]
    tariff, cluster = Electricity(series=day, repeat_s=86400, pue=1.0).tariff(), Cluster.of([ONE_GPU])
    for due_h, cost in ((33.0, 0.2 * 0.05), (22.5, 0.1 * 0.05 + 0.1 * 0.5), (21.0, 0.2 * 0.5)):
        table = JobArrays.of([job("a", 9 * 3600, 3600, due_s=due_h * 3600, tardiness_weight=1.0)])
        assert job_bound(table, cluster, tariff) == pytest.approx([cost])
        assert load_bound(table, cluster, tariff) == pytest.approx(cost, rel=1e-6)
    many = JobArrays.of([job(f"j{i}", 9 * 3600, 3600, due_s=33 * 3600, tardiness_weight=1.0) for i in range(20)])
    assert load_bound(many, cluster, tariff) == pytest.approx(0.2 * (9 * 0.05 + 11 * 0.5), rel=1e-6)
    assert job_bound(many, cluster, tariff).sum() == pytest.approx(20 * 0.2 * 0.05)


def test_below_zero_a_job_is_free_and_the_cluster_may_earn():
    """All of 200 W is drawn in the first 600 s at most; then the price is 0.1."""
    tariff, cluster = priced([-0.5, 0.1]).tariff(), Cluster.of([ONE_GPU])
    table = JobArrays.of([job("a", 0, 1200.0, due_s=1200.0, tardiness_weight=1.0)])
    kwh = 200 * 600 / 3.6e6
    assert job_bound(table, cluster, tariff) == pytest.approx([kwh * 0.1])
    assert lower_bound(table, cluster, tariff) == pytest.approx(kwh * 0.1 - kwh * 0.5)
    done = simulate(cluster, table, "fifo", world=FREE, electricity=priced([-0.5, 0.1]))
    assert cost_of(done) == pytest.approx(kwh * 0.1 - kwh * 0.5)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000), count=st.integers(1, 10), values=prices, repeat=st.booleans(),
    solver=st.sampled_from(["lookahead", "random-greedy", "easy", "srtf", "edf"]),
)  # fmt: skip
def test_no_simulation_at_any_price_costs_less(seed, count, values, repeat, solver):
    table, tariff = random_jobs(count, seed, gap_s=300.0), priced(values, repeat=repeat)
    done = simulate(cluster_of(), table, solver, world=FREE, seed=seed, electricity=tariff)
    alone = job_bound(table, cluster_of(), tariff.tariff()).sum()
    together = load_bound(table, cluster_of(), tariff.tariff())
    assert alone <= together * (1 + 1e-9) + 1e-12
    assert together <= cost_of(done) * (1 + 1e-6) + 1e-9
