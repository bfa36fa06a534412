"""Jobs for which no node has enough beside GPUs: they wait, hold nothing back, and say so as long as that is true."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from hypothesis import given
from hypothesis import strategies as st

from commonwatt.control.engine import NodeRoom
from commonwatt.control.job_registry import JobRegistry, _shortage
from commonwatt.engines.simulated.live import VirtualWork
from tests.controlplane.bench import Bench, node


class Roomy(VirtualWork):
    """Virtual work on nodes with so many CPUs; each job takes what ``asks`` says on each of its nodes."""

    cpus = (8.0, 8.0)
    taken: tuple[float, ...] = (0.0, 0.0)
    asks: dict[int, float] = {}  # noqa: RUF012

    def room(self, jobs):
        most = np.array(self.cpus)[:, None]
        needs = np.array([[self.asks.get(handle, 1.0)] for handle, _, _ in jobs]).reshape(-1, 1)
        return NodeRoom(("cpu",), most - np.array(self.taken)[:, None], needs, most=most)


class RoomyBench(Bench):
    work = Roomy


@pytest.fixture
def bench(tmp_path):
    made = RoomyBench(tmp_path, nodes=[node("a"), node("b")])
    yield made
    made.close()


def shown(bench, job):
    """Reason, sentence and expected start, as the API has them."""
    found = bench.snapshot().jobs[job]
    return *found.why, found.expected_start_s


def test_a_job_too_large_for_every_node_waits_without_a_start_and_holds_nobody_back(bench):
    bench.engine.asks = {1: 16.0}
    huge = bench.submit(gpus=2)
    bench.settle()
    reason, sentence, start_s = shown(bench, huge)
    assert (reason, start_s) == ("cpus-or-memory", None)
    assert sentence.endswith(
        "waits: no node has enough for it, even if it were empty: a has 8 CPUs in all, and it needs 16 CPUs there"
    )
    others = [bench.submit(gpus=2) for _ in range(2)]
    bench.settle()
    assert [bench.status(job) for job in others] == ["running", "running"]
    bench.advance(4 * 86400)  # it is the oldest by far, and would get a reservation
    bench.settle()
    more = [bench.submit(gpus=2) for _ in range(2)]
    bench.settle()
    assert [bench.status(job) for job in more] == ["running", "running"]
    assert bench.kinds(huge) == ["submitted", "waits"]


def test_it_starts_once_there_is_such_a_node(bench):
    bench.engine.asks = {1: 16.0}
    huge = bench.submit(gpus=2)
    bench.settle()
    bench.engine.cpus = (8.0, 16.0)
    bench.advance(60)
    bench.settle()
    assert bench.row(huge).nodes == ("b",)


def test_after_a_restart_it_still_waits_and_says_it_once(bench):
    bench.engine.asks = {1: 16.0}
    huge = bench.submit()
    bench.settle()
    bench.begin()
    bench.settle()
    assert shown(bench, huge)[0] == "cpus-or-memory"
    assert bench.status(huge) == "waiting"


def test_a_job_whose_reason_changes_while_it_waits_shows_the_one_of_now(bench):
    bench.engine.taken = (8.0, 8.0)
    job = bench.submit(gpus=2)
    bench.settle()
    reason, sentence, start_s = shown(bench, job)
    assert (reason, start_s) == ("cpus-or-memory", None)
    assert "a has 0 CPUs left, and it needs 1 CPUs there" in sentence
    bench.engine.taken = (7.5, 8.0)
    bench.advance(60)
    bench.settle()
    assert "a has 0.5 CPUs left" in shown(bench, job)[1]
    assert bench.kinds(job) == ["submitted", "waits"]  # nothing has happened
    bench.engine.nodes = lambda: type(view)(view.usable_gpus * 0, view.wait_s, view.power_state)
    view = VirtualWork.nodes(bench.engine)
    bench.advance(60)
    bench.settle()
    assert shown(bench, job)[0] == "nodes-down"


@given(
    most=st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=1, max_size=5),
    needs=st.lists(st.integers(0, 9), min_size=2, max_size=2),
    width=st.integers(1, 3),
)
def test_a_shortage_is_found_exactly_where_too_few_nodes_hold_it(most, needs, width):
    have = np.array(most, dtype=float)
    room = NodeRoom(("cpu", "memory"), have, np.zeros((0, 2)), most=have)
    nodes = np.arange(len(have))
    found = _shortage(nodes, width, np.array(needs, dtype=float), room)
    enough = sum(all(a >= b for a, b in zip(row, needs, strict=True)) for row in most)
    assert (found is not None) == (len(have) >= width > enough)
    if found is not None:
        at = room.resources.index(found.resource)
        assert found.amount == needs[at] > found.most == most[found.node][at]


def test_an_engine_that_does_not_know_its_nodes_finds_no_shortage(bench):
    bench.submit()
    bench.settle()
    registry: JobRegistry = bench.reconciler.controller.registry
    registry.room = lambda *_: None
    assert registry.without_node(np.array([0])) == {}
