"""A capacity plan in the control plane: nodes sleep and wake, and it learns from what was wanted so far."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.live.capacity import demand_of_samples
from commonwatt.model.errors import InputError
from commonwatt.store.records import JobStatus, RequestKind, SampleRow
from commonwatt.store.ticks import Tick
from tests.live.bench import Bench

NODES = [
    {
        "name": "n", "count": 3, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200,
        "states": [{"name": "off", "power_w": 5, "enter_s": 10, "wake_s": 30}],
    }
]  # fmt: skip
PLAN = {"policy": "cuff", "forecaster": "last-value", "step_s": 60, "floor_gpus": 2}


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Bench:
        return opened(Bench(tmp_path, nodes=NODES, **changes))

    return make


def go_on(b: Bench, seconds: float, step_s: float = 10.0) -> None:
    for _ in range(int(seconds / step_s)):
        b.advance(step_s)
        b.look()


def sample(time_s: float, wanted: int) -> SampleRow:
    return SampleRow(time_s, wanted, None, 0, 0, 6, wanted, 0.01)


def test_nodes_nobody_wants_sleep_and_are_woken_for_a_job(bench):
    b = bench(capacity={**PLAN, "policy": "last-value"})
    b.settle()
    go_on(b, 120)
    assert b.session.controller.engine.nodes().power_state.tolist().count(0) == 2
    jobs = [b.submit(500.0, gpus=2) for _ in range(3)]
    go_on(b, 200)
    assert {b.status(job) for job in jobs} == {JobStatus.RUNNING}
    assert b.session.controller.engine.nodes().power_state.tolist() == [-1, -1, -1]


def test_a_plan_goes_on_while_there_are_no_jobs(bench):
    b = bench(capacity={**PLAN, "policy": "last-value", "floor_gpus": 0, "hold_s": 600})
    b.settle()
    for _ in range(3):
        b.submit(500.0, gpus=2)
    go_on(b, 700)
    assert b.session.controller.engine.nodes().power_state.tolist() == [-1, -1, -1]  # what was promised is held
    go_on(b, 1000)
    assert b.session.controller.engine.nodes().power_state.tolist() == [0, 0, 0]


def test_in_a_dry_run_nodes_are_left_as_they_are(bench):
    b = bench(capacity={**PLAN, "policy": "last-value"}, live={"mode": "dry-run", "default_time_limit_s": 5})
    b.settle()
    go_on(b, 120)
    assert b.session.controller.engine.nodes().power_state.tolist() == [-1, -1, -1]


def asleep(b: Bench) -> list[bool]:
    return (b.session.controller.engine.nodes().power_state >= 0).tolist()


def test_a_drained_node_is_not_woken_for_a_job_that_may_not_begin_there(bench):
    b = bench(capacity={**PLAN, "policy": "last-value", "floor_gpus": 0})
    b.settle()
    for name in ("n-1", "n-2"):
        b.ask(RequestKind.DRAIN, node=name)
    b.settle()
    assert asleep(b) == [True, True, True]
    job = b.submit(500.0, gpus=2)
    go_on(b, 100)
    assert asleep(b) == [True, True, False]
    assert b.row(job).nodes == ("n-3",)
    gang = b.submit(500.0, gpus=2)  # there is no more room than that
    go_on(b, 100)
    assert asleep(b) == [True, True, False]
    assert b.status(gang) is JobStatus.WAITING


def test_no_node_is_on_for_a_job_on_hold(bench):
    b = bench(capacity={**PLAN, "policy": "last-value", "floor_gpus": 0})
    b.settle()
    go_on(b, 120)
    assert asleep(b) == [True, True, True]
    job = b.submit(500.0, gpus=2)
    b.ask(RequestKind.HOLD, job=job)
    go_on(b, 200)
    assert b.status(job) is JobStatus.WAITING
    assert asleep(b) == [True, True, True]
    b.ask(RequestKind.RELEASE, job=job)
    go_on(b, 60)
    assert b.status(job) is JobStatus.RUNNING
    b.ask(RequestKind.HOLD, job=b.submit(500.0, gpus=2))
    go_on(b, 200)
    assert asleep(b).count(False) == 1  # what runs is wanted


def test_what_is_always_on_are_nodes_that_jobs_may_have(bench):
    """Neither drained ones nor those set aside for measurements, which are left as they are."""
    b = bench(
        capacity={**PLAN, "policy": "last-value"},
        live={"default_time_limit_s": 5, "profiling": {"nodes": ["n-1"], "epochs": 1}},
    )
    b.settle()
    assert asleep(b) == [False, False, True]
    b.ask(RequestKind.DRAIN, node="n-2")
    b.settle()
    b.submit(5000.0, gpus=2)
    go_on(b, 100)
    assert asleep(b) == [False, False, False]


def test_with_too_little_history_what_is_wanted_stays_on_until_there_is_more(bench):
    b = bench(capacity=PLAN)
    b.settle()
    assert b.session.controller.capacity.renew_s == pytest.approx(b.clock() + 3600.0, abs=1.0)
    go_on(b, 120)
    assert b.session.controller.engine.nodes().power_state.tolist().count(0) == 2
    began_s = b.clock()
    for k in range(300):
        b.keeper._write(Tick(sample=sample(began_s + 60.0 * k, k % 5)))
    assert not b.session.outgrown()
    b.advance(60.0 * 300)
    assert b.session.outgrown()
    b.begin()
    assert b.session.controller.capacity.renew_s == math.inf
    go_on(b, 120)


def test_a_plan_that_needs_the_future_is_refused(bench):
    with pytest.raises(InputError, match="needs no future"):
        bench(capacity={**PLAN, "policy": "foresight"})


def test_demand_is_the_most_that_was_wanted_in_each_step():
    assert demand_of_samples([], 60.0) is None
    assert demand_of_samples([sample(0.0, 1), sample(59.0, 2)], 60.0) is None
    series = demand_of_samples([sample(50.0, 3), sample(70.0, 5), sample(80.0, 1), sample(250.0, 2)], 60.0)
    assert (series.start_s, series.step_s, series.gpus.tolist()) == (60.0, 60.0, [5.0, 1.0, 1.0])
