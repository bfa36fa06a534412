"""What a controller finds when it comes back: runs of jobs that are over, commands of which nobody knows, meters."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from commonwatt.control.engine import MeterMark, Start, Stop
from commonwatt.controlplane.engines import Marks
from commonwatt.controlplane.supervisor import SteadyClock
from commonwatt.controlplane.wiring import open_live
from commonwatt.engines.local.engine import LocalEngine
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.store import tables
from commonwatt.store.check import check
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import EventRow, JobStatus, RequestKind
from tests.controlplane.bench import ENDED, Bench, Hand, node
from tests.controlplane.chaos import config_in, ledger_problems


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Bench:
        return opened(Bench(tmp_path, **{"nodes": [node("n")], **changes}))

    return make


def test_what_is_proven_here_is_proven_at_the_first_try(request):
    """A test of what is lost or done twice that fails now and then has found something."""
    again = [item for item in request.session.items if item.get_closest_marker("flaky")]
    assert [item.nodeid for item in again if not item.get_closest_marker("browser")] == []


def commands(b: Bench) -> list[tuple[str, int, int, str | None]]:
    """Every command that was written down: its kind, job, attempt and outcome."""
    t = tables.intents.c
    with b.live.database.reading() as c:
        rows = c.execute(sa.select(t.kind, t.job, t.attempt, t.outcome).order_by(t.at_s, t.kind))
        return [tuple(row) for row in rows]


class Killed(BaseException):
    """The controller was killed."""


def killed(b: Bench, kind: type, *, given: bool) -> None:
    """Have the controller die as it gives its engine a command of a kind, before the engine has it or after."""
    apply = b.engine.apply

    def die(orders):
        if not any(isinstance(order, kind) for order in orders):
            return apply(orders)
        b.engine.apply = apply
        if given:
            apply(orders)
        raise Killed

    b.engine.apply = die
    with pytest.raises(Killed):
        b.look()


@pytest.mark.slow
@pytest.mark.parametrize("status", ENDED)
def test_what_runs_of_a_job_that_is_over_is_stopped_and_its_gpus_are_anothers(bench, status):
    b = bench()
    over = b.submit(10_000.0, gpus=2)
    b.settle()
    b.advance(10.0)
    b.settle()
    ended = {"status": status, "ended_s": b.clock(), "nodes": [], "gpu_type": None, "gpus_per_node": 0}
    b.supervisor._write(Tick(jobs={over: ended}, events=[EventRow(0, b.clock(), status, over, ("n",), 2, "", "")]))
    other = b.submit(100.0, gpus=2)
    b.begin()
    assert b.engine._running == {}
    b.settle()
    assert list(b.engine._running) == [other]
    b.advance(101.0)
    b.settle()
    assert (b.status(over), b.status(other)) == (status, JobStatus.COMPLETED)
    assert b.kinds(over) == ["submitted", "started", status]
    assert check(b.live.database).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize(("given", "outcome"), [(True, "done"), (False, "void")])
def test_a_start_of_which_nobody_knows_is_settled_by_what_the_engine_says(bench, given, outcome):
    b = bench()
    job = b.submit(100.0, gpus=2)
    killed(b, Start, given=given)
    assert commands(b) == [("start", job, 1, None)]
    began_s = b.clock()
    b.advance(50.0)
    b.begin()
    assert b.reconciler.store.open_intents() == []
    assert commands(b) == [("start", job, 1, outcome)]
    assert b.row(job).began_s == (began_s if given else None)
    b.settle()
    assert b.kinds(job) == ["submitted", "started"]
    assert b.row(job).attempts == b.engine.attempts(job) == 1
    b.advance(51.0)
    b.settle()
    assert b.status(job) is (JobStatus.COMPLETED if given else JobStatus.RUNNING)
    assert {outcome for *_, outcome in commands(b)} <= {"done", "void"}


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
def test_a_stop_of_which_nobody_knows_is_settled_and_cancelled_after_all(bench, given):
    b = bench()
    job = b.submit(1000.0, gpus=2)
    b.settle()
    b.advance(50.0)
    b.ask(RequestKind.CANCEL, job=job)
    killed(b, Stop, given=given)
    assert commands(b) == [("start", job, 1, "done"), ("stop", job, 1, None)]
    b.begin()
    b.settle()
    assert commands(b) == [("start", job, 1, "done")] + [("stop", job, 1, "done")] * (1 if given else 2)
    assert b.status(job) is JobStatus.CANCELLED
    assert b.engine._running == {}
    assert b.reconciler.store.open_intents() == b.reconciler.store.requests() == []
    b.advance(10.0)
    b.settle()
    assert check(b.live.database).problems == ()


@pytest.mark.slow
def test_a_start_that_was_left_behind_by_a_later_one_is_no_start_of_the_later(bench):
    """The engine's count says what was carried out: the second start was, the third was not."""
    b = bench()
    job = b.submit(1000.0, gpus=2)
    for given in (True, False):
        b.settle()
        b.engine.apply([Stop(job)])
        b.begin()
        b.advance(61.0)
        killed(b, Start, given=given)
        b.begin()
    assert [outcome for *_, outcome in commands(b)] == ["done", "done", "void"]
    b.settle()
    assert (b.status(job), b.row(job).attempts) == (JobStatus.RUNNING, 3)


@pytest.mark.slow
def test_what_was_drawn_while_no_controller_ran_is_metered_from_where_it_was_written_down(tmp_path, monkeypatch):
    hand = Hand()
    monkeypatch.setattr("commonwatt.controlplane.engines.LocalEngine", partial(LocalEngine, steady_s=hand))
    clock = SteadyClock(hand, hand)
    path = config_in(tmp_path, engine="local")  # 2 nodes of 2 GPUs and 100 W
    for _ in range(2):  # the second controller comes 100 s after the first
        with closing(open_live(path, clock=clock)) as live:
            reconciler, builder = live.supervisor._begin()
            reconciler.engine.inner.wait = lambda seconds, waker=-1: None
            for _ in range(2):
                live.supervisor._go_on(reconciler, builder)
                hand.time_s += 50.0
            live.supervisor._write(reconciler.finish())
            hand.time_s += 100.0
            rows = {row["row"]: row for row in live.store.ledger()}
            reconciler.engine.inner.close()
    assert rows["meter"]["gpu_us"] == rows["idle"]["gpu_us"] == 4 * 300 * 10**6
    assert rows["meter"]["energy_uj"] == 2 * 100 * 300 * 10**6
    assert ledger_problems(live.store) == []


def test_what_meters_said_is_kept_by_the_names_of_nodes(bench):
    """In the order of another configuration, and without those that are not there any more."""
    b = bench(nodes=[node("a"), node("b"), node("gone")])
    engine = SimpleNamespace(
        marks=lambda: {0: MeterMark(10.0), 1: MeterMark(20.0, 7.5, asleep=True), 2: MeterMark(30.0, 1.0)}
    )
    b.supervisor._write(Tick(settings={"metered": Marks(b.live.cluster).of(engine)()}))
    now = Cluster.of([NodeSpec(**node(name)) for name in ("new", "b", "a")])
    assert Marks(now).stored(b.reconciler.store) == {1: MeterMark(20.0, 7.5, asleep=True), 2: MeterMark(10.0)}


LIMITS = {"reserve_after_s": 100.0, "min_run_s": 200.0}


@pytest.mark.slow
@pytest.mark.parametrize("remembers", [True, False])
def test_a_job_that_was_the_oldest_is_not_stopped_by_another_controller_either(bench, remembers):
    b = bench(nodes=[node("n"), node("m")], policies=[{"solver": "srtf", "limits": LIMITS}])
    first = b.submit(300.0, gpus=2)
    b.settle()
    gang = b.submit(times_s={"V100": {4: 10_000.0}}, gpus=4)
    b.advance(150.0)
    b.settle()
    reserved = b.reconciler.controller.limits.by_name()["reserved"]
    assert reserved["nodes"] == ["m", "n"] or reserved["nodes"] == ["n", "m"]
    b.begin()
    b.advance(1.0)
    assert b.reconciler.controller.limits.by_name()["reserved"] == reserved
    b.advance(150.0)
    b.settle()
    assert (b.status(first), b.status(gang)) == (JobStatus.COMPLETED, JobStatus.RUNNING)
    b.advance(250.0)  # beyond min_run_s
    b.settle()
    if not remembers:
        b.supervisor._write(Tick(settings={"limits": {}}))
    b.begin()
    short = b.submit(10.0, gpus=2)
    b.settle()
    assert (b.status(gang) is JobStatus.RUNNING) == remembers
    assert (b.status(short) is JobStatus.RUNNING) != remembers
