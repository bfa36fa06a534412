"""Pools, a power budget and dependencies known ahead in the control plane."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.capacity._demand_forecasters import CalibratedForecaster, LastValueForecaster
from commonwatt.controlplane.capacity import live_capacity
from commonwatt.controlplane.savings import past_of
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.planning.capacity import FitCache, demand_of_samples
from commonwatt.service.metrics import _capacity
from commonwatt.store.records import JobStatus, RequestKind, SampleRow
from tests.controlplane.bench import Bench, node
from tests.controlplane.test_capacity import asleep, go_on

STATES = [{"name": "off", "power_w": 5, "enter_s": 10, "wake_s": 30}]
NODES = [node("v", count=2, states=STATES), node("a", "A100", count=2, states=STATES)]
PLAN = {"policy": "last-value", "step_s": 60, "pools": "gpu_type"}
A100 = {"times_s": {"A100": {2: 500.0}}, "gpus": 2}


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Bench:
        return opened(Bench(tmp_path, nodes=NODES, **changes))

    return make


def gauges(b: Bench) -> dict:
    rows = {}
    for family in _capacity(b.snapshot()):
        for one in family.samples:
            rows[one.name.removeprefix("commonwatt_"), *one.labels.values()] = one.value
    return rows


@pytest.mark.slow
def test_each_pool_keeps_its_nodes_on_and_its_demand_is_recorded(bench):
    b = bench(capacity=PLAN)
    b.settle()
    go_on(b, 120)
    assert asleep(b) == [True] * 4
    job = b.submit(**A100)
    go_on(b, 100)
    assert b.row(job).nodes[0].startswith("a-")
    assert asleep(b)[:2] == [True, True]
    last = b.live.store.samples(0.0)[-1]
    assert last.wanted_by_pool == {"V100": 0, "A100": 2}
    assert last.wanted_gpus == 2
    found = gauges(b)
    assert found["capacity_gpus", "A100", "wanted"] == 2.0
    assert found["capacity_gpus", "V100", "on"] == 0.0
    assert found["capacity_promise_kept", "V100"] == 1.0
    assert not any(name[0].startswith("capacity_power") for name in found)
    past = past_of(b.live.config.model_copy(update={"capacity": CapacitySpec(**{**PLAN, "policy": "cuff"})}),
                   b.live.store, b.live.folder, b.clock() + 1)  # fmt: skip
    (demand,) = past.pools["gpu_type", "A100"].demands.values()
    assert demand.gpus.tolist()[-1] == 2.0
    b.close()
    b.open()  # another process goes on with what the store has
    b.settle()
    go_on(b, 60)
    assert b.status(job) is JobStatus.RUNNING
    assert asleep(b)[:2] == [True, True]


@pytest.mark.slow
def test_a_job_waits_for_power_until_another_is_cancelled(bench):
    """One node of 500 W may be on beside three of 5 W."""
    b = bench(capacity={**PLAN, "power_kw": 0.55})
    b.settle()
    go_on(b, 120)
    first = b.submit(500.0, gpus=2)
    go_on(b, 60)
    second = b.submit(**A100)
    go_on(b, 120)
    assert (b.status(first), b.status(second)) == (JobStatus.RUNNING, JobStatus.WAITING)
    waiting = b.snapshot().jobs[second]
    assert (waiting.reason, waiting.expected_start_s) == ("power-cap", None)  # sleeping nodes are no free GPUs
    found = gauges(b)
    assert found["capacity_power_limit_watts",] == 550.0
    assert found["capacity_power_counted_watts",] == 515.0
    assert found["capacity_nodes_without_power",] == 1.0
    b.ask(RequestKind.CANCEL, job=first)
    go_on(b, 240)
    assert b.status(second) is JobStatus.RUNNING
    assert asleep(b).count(False) == 1


@pytest.mark.slow
def test_a_job_that_waits_for_another_is_known_to_come_when_that_ends(bench):
    """It takes over the 2 GPUs of the one it waits for: 2 of its 4 are new."""
    b = bench(capacity=PLAN)
    b.settle()
    first = b.submit(600.0, gpus=2)
    go_on(b, 60)
    b.submit(100.0, gpus=4, after={first: "afterok"})
    b.submit(100.0, gpus=2, after={first: "afternotok"})
    go_on(b, 20)
    known = b.reconciler.controller.capacity.announced_jobs
    times_s, gpus, pools = known.coming(b.clock(), b.clock() + 1_000.0)
    assert gpus.tolist() == [2]
    assert pools.tolist() == [0]
    assert times_s.tolist() == pytest.approx([b.row(first).expected_end_s])
    assert len(known.coming(b.clock(), b.clock() + 60.0)[0]) == 0
    go_on(b, times_s[0] - b.clock() - 15.0)
    assert asleep(b) == [False, False, True, True]  # the other V100 node is awake before the first job has ended
    assert b.status(first) is JobStatus.RUNNING


def sample(time_s: float, wanted: dict[str, int] | None) -> SampleRow:
    return SampleRow(time_s, 0, None, 0, 0, 8, sum((wanted or {"": 0}).values()), 0.01, wanted)


def test_samples_from_before_there_were_pools_say_nothing_of_them():
    samples = [sample(30.0 * k, None) for k in range(10)]
    assert demand_of_samples(samples, 60.0, "V100") is None
    samples += [sample(300.0 + 30.0 * k, {"V100": k, "A100": 1}) for k in range(7)]
    assert demand_of_samples(samples, 60.0, "V100").gpus.tolist() == [1.0, 3.0, 5.0]
    assert demand_of_samples(samples, 60.0, "A100").gpus.tolist() == [1.0, 1.0, 1.0]
    assert demand_of_samples(samples, 60.0, "H100") is None


def test_a_pool_without_a_record_follows_present_demand_until_it_has_one(tmp_path):
    cluster = Cluster.of([NodeSpec.model_validate(one) for one in NODES])
    plan = CapacitySpec(policy="cuff", pools="gpu_type", target=0.9)
    many = [sample(60.0 * k, {"A100": k % 3}) for k in range(800)]
    made = live_capacity(plan, cluster, many, tmp_path, 0, 48_000.0, FitCache())
    kinds = [type(forecaster) for forecaster in made._planner._forecasters]
    assert kinds == [LastValueForecaster, CalibratedForecaster]
    assert made.targets == (None, 0.9)
    assert made.renew_s == 48_000.0 + 3_600.0


def test_pools_that_come_to_one_learn_from_all_demand(tmp_path):
    cluster = Cluster.of([NodeSpec.model_validate(NODES[0])])
    many = [sample(60.0 * k, None) for k in range(800)]
    made = live_capacity(
        CapacitySpec(policy="cuff", pools="gpu_type", target=0.9), cluster, many, tmp_path, 0, 48_000.0, FitCache()
    )
    assert [type(forecaster) for forecaster in made._planner._forecasters] == [CalibratedForecaster]
