"""In a dry run nothing is done, whatever else is asked for: no job starts, moves or stops, no node sleeps or wakes."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.store.records import JobStatus, RequestKind
from tests.controlplane.bench import Bench, node

PLAN = {"policy": "last-value", "forecaster": "last-value", "step_s": 60, "floor_gpus": 0}
OFF = {"name": "off", "power_w": 5, "enter_s": 10, "wake_s": 30}


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Bench:
        return opened(Bench(tmp_path, **{"nodes": [node("n-1"), node("n-2")], **changes}))

    return make


def watched(b: Bench) -> list:
    """Every command its engine is given from now on."""
    given, apply = [], b.engine.apply
    b.engine.apply = lambda orders: given.extend(orders) or apply(orders)
    return given


@pytest.mark.slow
@pytest.mark.parametrize("drained", [(), ("n-2",), ("n-1", "n-2")])
def test_nothing_starts_also_while_nodes_are_drained(bench, drained):
    b = bench()
    given = watched(b)
    b.ask(RequestKind.MODE, value="dry-run")
    for name in drained:
        b.ask(RequestKind.DRAIN, node=name)
    jobs = [b.submit(100.0, gpus=2) for _ in range(2)]
    for _ in range(4):
        b.settle()
        b.advance(60.0)
    assert given == []
    assert {b.status(job) for job in jobs} == {JobStatus.WAITING}
    said = [event.nodes for job in jobs for event in b.live.store.events(job=job) if event.kind == "would-start"]
    assert sorted(said) == [(name,) for name in ("n-1", "n-2") if name not in drained]


def test_nobody_makes_way_also_while_nodes_are_drained_and_nothing_is_said_to_begin_there(bench):
    """An urgent job would have the place of another, which runs on a drained node."""
    b = bench(nodes=[node("n-1")])
    runs = b.submit(10_000.0, gpus=2, epochs=1000, tardiness_weight=0.0)
    b.settle()
    given = watched(b)
    b.ask(RequestKind.MODE, value="dry-run")
    b.settle()
    b.ask(RequestKind.DRAIN, node="n-1")
    urgent = b.submit(50.0, gpus=2, due_in_s=60.0, tardiness_weight=1000.0)
    for _ in range(3):
        b.settle()
        b.advance(60.0)
    assert given == []
    assert (b.status(runs), b.status(urgent)) == (JobStatus.RUNNING, JobStatus.WAITING)
    assert "would-start" not in b.kinds(urgent)
    b.ask(RequestKind.UNDRAIN, node="n-1")
    b.settle()
    assert b.kinds(urgent)[-1] == "would-start"
    assert given == []


@pytest.mark.slow
def test_no_node_is_woken_for_a_job_nor_put_to_sleep(bench):
    b = bench(nodes=[node("n", states=[OFF])], capacity=PLAN)

    def asleep() -> bool:
        return bool(b.engine.nodes().power_state[0] >= 0)

    b.settle()
    assert asleep()
    given = watched(b)
    b.ask(RequestKind.MODE, value="dry-run")
    job = b.submit(500.0, gpus=2)
    for _ in range(20):
        b.settle(1)
        b.advance(10.0)
    assert given == []
    assert asleep()
    b.ask(RequestKind.MODE, value="live")
    b.settle()
    assert not asleep()
    for _ in range(5):
        b.advance(10.0)
        b.settle(1)
    assert b.status(job) is JobStatus.RUNNING
