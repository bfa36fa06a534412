"""Pools and a power budget in the controller: demand of each pool, who waits for power, and until when."""

from dataclasses import replace

import numpy as np
import pytest

from commonwatt.capacity import CapacityPlanner
from commonwatt.capacity._demand_forecasters import LastValueForecaster
from commonwatt.control.capacity import Capacity
from commonwatt.control.controller import Controller
from commonwatt.control.job_registry import Rules
from commonwatt.control.policy import Policy
from commonwatt.engines.clocks import VirtualClock, run
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.electricity import Electricity, StepIntegral
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.model.pools import Pools
from commonwatt.model.scenario import PolicySpec
from commonwatt.simulation.run_setup import TableSource
from tests.control.worlds import cluster_of, job, random_jobs, trace

SLEEP = PowerState(name="sleep", power_w=20, enter_s=10, wake_s=60)


def controlled(table, cluster, spec, cap_w: StepIntegral | None = None) -> Controller:
    forecasters = [LastValueForecaster(cluster.total_gpus) for _ in Pools.of(spec, cluster).names]
    capacity = Capacity(CapacityPlanner(cluster, forecasters, spec, cap_w))
    engine = SimulatedEngine(cluster, table, World(unused_state=None))
    controller = Controller(
        cluster=cluster, engine=engine, policy=Policy.of(PolicySpec(solver="easy")), rules=Rules(),
        tariff=replace(Electricity().tariff(), cap_w=cap_w), rng=np.random.default_rng(0), capacity=capacity,
    )  # fmt: skip
    capacity.announced_jobs = source = TableSource(table, capacity.pools_of)
    run(controller, VirtualClock(engine), source)
    return controller


def two_types(count: int = 1) -> Cluster:
    return Cluster.of([
        NodeSpec(name=name, count=count, gpu_type=kind, gpus=2, idle_w=100, gpu_w=100, states=(SLEEP,))
        for name, kind in (("v", "V100"), ("a", "A100"))
    ])  # fmt: skip


def on_a100(name: str, submit_s: float, time_s: float, gpus: int = 2) -> Job:
    return replace(job(name, submit_s, time_s, gpus), times_s={"A100": {gpus: time_s}})


def test_every_pool_counts_its_own_jobs():
    """A V100 job of 1 GPU from 0, an A100 job of 2 from 100: nodes of the right type stay on for them."""
    table = JobArrays.of([job("v", 0.0, 1_000.0), on_a100("a", 100.0, 500.0)])
    controller = controlled(table, two_types(2), CapacitySpec(policy="last-value", pools="gpu_type"))
    samples = controller.samples
    assert all(sum(sample.wanted_by_pool.values()) == sample.wanted_gpus for sample in samples)
    at = {sample.time_s: sample.wanted_by_pool for sample in samples}
    assert at[0.0] == {"V100": 1, "A100": 0}
    assert at[100.0] == {"V100": 1, "A100": 2}
    assert controller.capacity is not None
    assert controller.capacity.counters.delays_s == {1: 60.0}  # nobody expected the second job


def test_demand_of_one_type_keeps_no_node_of_the_other_on():
    """Two jobs need both A100 nodes; no job needs a V100 node, and both of those sleep."""
    table = JobArrays.of([on_a100("a", 0.0, 1_000.0), on_a100("b", 0.0, 1_000.0)])
    apart = controlled(table, two_types(2), CapacitySpec(policy="last-value", pools="gpu_type"))
    assert [sample.on_gpus for sample in apart.samples if 0 < sample.time_s < 1_000][:1] == [4]
    assert (apart.engine.nodes().power_state[:2] >= 0).all()


def test_a_job_waits_for_power_until_another_ends_and_says_so():
    """Three nodes, of which one may be on (300 W and two asleep): the second job waits for the first, 900 s."""
    table = JobArrays.of([job("a", 0.0, 1_000.0, gpus=2), job("b", 100.0, 500.0, gpus=2)])
    controller = controlled(table, cluster_of(3, states=(SLEEP,)), CapacitySpec(policy="last-value", power_kw=0.35))
    assert trace(controller) == [
        (0, "submitted", "a", ()), (0, "started", "a", (0,)), (100, "submitted", "b", ()), (100, "waits", "b", ()),
        (1_000, "completed", "a", (0,)), (1_000, "started", "b", (0,)), (1_500, "completed", "b", (0,)),
    ]  # fmt: skip
    (why,) = [event for event in controller.log.since(0) if event.kind == "waits"]
    assert why.reason == "power-cap"
    assert why.sentence == "b waits: with 2 GPUs more, the nodes would draw more than their power cap allows"
    assert controller.capacity is not None
    assert controller.capacity.counters.power_delays_s == {1: 900.0}
    assert controller.capacity.counters.bound > 0


def test_an_idle_node_sleeps_for_one_that_a_waiting_job_needs():
    """One of the two nodes may be on. The V100 node is free at 1,000 s, sleeps from the plan of 1,020 s on, and the

    A100 node wakes with the next plan: 60 s later its job works.
    """
    table = JobArrays.of([job("v", 0.0, 1_000.0, gpus=2), on_a100("a", 100.0, 500.0)])
    controller = controlled(table, two_types(), CapacitySpec(policy="last-value", power_kw=0.33))
    assert trace(controller)[-2:] == [(1_080, "started", "a", (1,)), (1_640, "completed", "a", (1,))]
    assert controller.capacity is not None
    assert controller.capacity.counters.power_delays_s == {1: 980.0}
    assert controller.capacity.counters.delays_s == {1: 60.0}


@pytest.mark.slow
def test_no_more_is_drawn_than_the_budget_allows_and_a_budget_that_never_binds_changes_nothing():
    table, cluster = random_jobs(12, 0), cluster_of(4, states=(SLEEP,))
    free = controlled(table, cluster, CapacitySpec(policy="last-value"))
    ample = controlled(table, cluster, CapacitySpec(policy="last-value", power_kw=1.2))
    assert trace(free) == trace(ample)
    assert free.ledger.meter == ample.ledger.meter
    bound = controlled(table, cluster, CapacitySpec(policy="last-value", power_kw=0.65))  # two on, two asleep
    assert not bound.registry.active
    drawn_w = [sample.power_w for sample in bound.samples if sample.time_s > 10.0]
    assert max(drawn_w) <= 650.0
    assert max(sample.power_w for sample in free.samples) > 650.0
    over_time = controlled(
        table, cluster, CapacitySpec(policy="last-value"), StepIntegral.of([0.0, 3_000.0], [1_200.0, 650.0])
    )
    assert not over_time.registry.active
    assert max(sample.power_w for sample in over_time.samples if sample.time_s >= 3_000.0) <= 650.0
