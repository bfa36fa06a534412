"""Jobs that take their time to stop: nobody else's job waits for that, and nothing is lost or counted twice."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import (
    JobEnded,
    JobInterrupted,
    JobLeft,
    LiveEngine,
    Outcome,
    Start,
    Stop,
    Stopped,
)
from commonwatt.control.scheduling import JobCondition
from commonwatt.controlplane.intent_log import WriteAheadEngine
from commonwatt.controlplane.jobs import TrackedJob
from commonwatt.controlplane.snapshot import why_of
from commonwatt.engines.local.engine import LocalEngine
from commonwatt.engines.run_spec import JobWork
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.model.errors import EngineError
from commonwatt.store.check import check
from commonwatt.store.records import JobStatus, RequestKind
from commonwatt.testing.engine_contract import contract_cluster
from tests.controlplane.bench import Bench, node


class Slow(VirtualWork):
    """Its jobs leave when they are let go."""

    def __init__(self, *how):
        super().__init__(*how)
        self.capabilities = replace(self.capabilities, deferred_stop=True, stop_s=30.0)

    def request_stop(self, handles):
        there = [handle for handle in handles if handle in self._running]
        self.told = [*getattr(self, "told", []), *there]
        return there

    def has_room(self, nodes, gpus_per_node, job=None):
        used = np.zeros(len(self._cluster), dtype=int)
        for run in self._running.values():
            used[list(run.nodes)] += run.gpus_per_node
        return all(self._cluster.gpus[n] - used[n] >= gpus_per_node for n in nodes)

    def let_go(self, job):
        """The job is gone, to its last snapshot."""
        (stopped,) = self.apply([Stop(job)])
        self._changes.append(JobInterrupted(job, self.now_s, stopped.lost_s, "stopped"))

    def runs(self):
        return {job: run.nodes for job, run in self._running.items()}


class Halting(Bench):
    work = Slow

    def begin(self):
        super().begin()
        terminating = self.reconciler.engine._terminating
        terminating._at_once_s, self.steady_s = 0.0, 0.0
        terminating._steady_s = lambda: self.steady_s


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Halting:
        return opened(Halting(tmp_path, **{"nodes": [node("n-1"), node("n-2")], **changes}))

    return make


def total(b, jobs):
    """GPU seconds all rows of the ledger say jobs held."""
    return sum(b.live.store.account(job)["gpu_us"] for job in jobs)


def test_the_stand_in_is_an_engine_whose_stops_need_not_be_waited_for():
    assert LiveEngine in Slow.__mro__
    assert all(name in vars(Slow) for name in ("request_stop", "has_room"))


def test_only_who_gets_its_place_waits_for_a_job_that_is_leaving(bench):
    b = bench()
    assert b.engine.capabilities.deferred_stop
    slow = b.submit(1000.0, gpus=2)
    b.settle()
    (there,) = b.engine.runs()[slow]
    other = b.submit(1000.0, gpus=2)
    b.settle()
    nxt = b.submit(1000.0, gpus=2)
    b.settle()
    assert b.status(nxt) is JobStatus.WAITING
    b.ask(RequestKind.CANCEL, job=slow)
    b.settle()
    assert b.engine.told == [slow]
    assert b.status(slow) is JobStatus.CANCELLED
    assert b.status(nxt) is JobStatus.RUNNING  # as ordered
    assert b.engine.runs() == {slow: (there,), other: (1 - there,)}  # but not yet
    b.advance(10.0)
    b.settle()
    assert nxt not in b.engine.runs()
    assert not b.reconciler.outgrown()
    b.engine.let_go(slow)
    b.settle()
    assert b.engine.runs() == {nxt: (there,), other: (1 - there,)}
    assert [row.attempts for row in (b.row(slow), b.row(nxt))] == [1, 1]
    assert b.reconciler.store.open_intents() == []
    b.advance(100.0)
    b.supervisor._write(b.reconciler.finish())
    assert b.live.store.account(slow)["gpu_us"] == 2 * 10_000_000  # it held them until it was gone
    assert total(b, (nxt,)) == 2 * 100_000_000
    assert b.kinds(slow) == ["submitted", "started", "cancelled"]


@pytest.fixture
def pair(bench):
    """A running job that is told to stop for another to get its place: the bench, and both jobs."""
    b = bench(nodes=[node("n")])
    low = b.submit(1000.0, gpus=2, epochs=1000, tardiness_weight=0.0)
    b.settle()
    b.advance(100.5)
    high = b.submit(50.0, gpus=2, due_in_s=60.0, tardiness_weight=1000.0)
    b.settle(1)
    assert b.engine.told == [low]
    assert (b.status(low), b.status(high)) == (JobStatus.WAITING, JobStatus.RUNNING)
    assert list(b.engine.runs()) == [low]
    return b, low, high


def test_a_preempted_job_leaves_when_it_has_left_and_loses_what_it_lost(pair):
    b, low, high = pair
    assert b.kinds(low)[-1] == "preempted"
    assert b.live.store.events(job=low)[-1].sentence.endswith("it is terminating")
    assert "terminating" not in why_of(b.row(low))[1]
    b.advance(3.0)
    done = float(b.engine.progress(np.array([low])).done_epochs[0])
    b.engine.let_go(low)
    b.settle()
    assert b.engine.runs() == {high: (0,)}
    row = b.row(low)
    assert (row.settled, row.attempts, row.failures) == (1, 1, 0)
    assert row.kept_epochs == np.floor(done)
    lost_s = (done - np.floor(done)) * 1.0
    assert b.live.store.account(low)["gpu_us"] == pytest.approx(2e6 * (103.5 - lost_s), abs=1e4)


def test_it_is_told_again_and_stopped_by_force_when_its_time_is_over(pair):
    b, low, high = pair
    b.steady_s = 1.5
    b.settle()
    assert b.engine.told == [low, low]
    b.steady_s = 31.0
    b.settle()
    assert b.engine.runs() == {high: (0,)}
    assert b.reconciler.store.open_intents() == []


class Stuck(Slow):
    """Its jobs do not even leave when they are killed."""

    refuses = False

    def apply(self, commands):
        answers = []
        for command in commands:
            if isinstance(command, Stop):
                self.killed = [*getattr(self, "killed", []), command.handle]
                if self.refuses:
                    raise EngineError("its processes do not end, even killed")
                answers.append(Stopped(command.handle, 0.0, later=True))
            else:
                answers += super().apply([command])
        return answers

    def nodes(self):
        view, usable = super().nodes(), self._cluster.gpus.copy()
        for job in getattr(self, "killed", []):
            if job in self._running:
                usable[list(self._running[job].nodes)] -= self._running[job].gpus_per_node
        return replace(view, usable_gpus=usable)

    def let_go(self, job):
        (stopped,) = VirtualWork.apply(self, [Stop(job)])
        self._changes.append(JobLeft(job, self.now_s, stopped.lost_s))


@pytest.mark.slow
@pytest.mark.parametrize("refuses", [False, True])
def test_a_job_that_cannot_be_killed_goes_on_leaving_and_nobody_waits_for_it(bench, monkeypatch, refuses, caplog):
    monkeypatch.setattr(Halting, "work", Stuck)
    b = bench()
    b.engine.refuses = refuses
    stuck = b.submit(10_000.0, gpus=2)
    b.settle()
    (there,) = b.engine.runs()[stuck]
    other = b.submit(1000.0, gpus=2)
    b.settle()
    nxt = b.submit(1000.0, gpus=2)
    b.ask(RequestKind.CANCEL, job=stuck)
    b.settle()
    assert (b.status(stuck), b.status(nxt)) == (JobStatus.CANCELLED, JobStatus.RUNNING)
    for _ in range(3):  # of which the first has it killed
        b.steady_s += 31.0
        b.advance(60.0)
        b.settle()
    assert b.engine.killed == [stuck]
    assert b.engine.runs() == {stuck: (there,), other: (1 - there,)}
    assert b.status(nxt) is JobStatus.WAITING  # there is no room for it, after all
    b.advance(1000.0)
    b.settle()
    assert b.engine.runs() == {stuck: (there,), nxt: (1 - there,)}
    assert [record.cause for record in caplog.records if record.name == "commonwatt.terminating"] == [
        "its processes do not end, even killed"
        if refuses
        else "the engine still has it, although it ended or was killed"
    ]
    assert b.snapshot().engine_errors == 0
    began_s = b.row(stuck).started_s
    b.engine.let_go(stuck)
    b.settle()
    assert not b.reconciler.engine.unsettled()
    assert b.reconciler.store.open_intents() == []
    b.supervisor._write(b.reconciler.finish())
    assert b.live.store.account(stuck)["gpu_us"] == pytest.approx(2e6 * (b.clock() - began_s))


def test_what_was_to_come_is_cancelled_before_there_was_room(pair):
    b, low, high = pair
    b.ask(RequestKind.CANCEL, job=high)
    b.settle()
    assert b.status(high) is JobStatus.CANCELLED
    b.engine.let_go(low)
    b.settle()
    assert b.engine.runs() == {low: (0,)}
    assert b.status(low) is JobStatus.RUNNING
    assert b.kinds(low)[-1] == "resumed"
    assert b.reconciler.store.open_intents() == []
    b.advance(2000.0)
    b.settle()
    assert b.status(low) is JobStatus.COMPLETED


def test_a_job_that_ends_while_it_leaves_has_ended(pair):
    b, low, high = pair
    b.engine.let_go(low)
    b.engine._changes[-1] = JobEnded(low, b.clock(), Outcome.COMPLETED)
    b.settle()
    assert b.status(low) is JobStatus.COMPLETED
    assert b.engine.runs() == {high: (0,)}
    assert b.kinds(low).count("completed") == 1


def lost_gpu_s(b):
    """GPU seconds of the ledger's row for lost work."""
    return sum(float(row["gpu_us"]) for row in b.live.store.ledger() if row["row"] == "lost work") / 1e6


@pytest.mark.long
@pytest.mark.parametrize("when", ["while it leaves", "twice", "and it has left then"])
def test_a_controller_that_dies_meanwhile_loses_nothing(pair, when):
    b, low, high = pair
    b.advance(3.0)
    done = float(b.engine.progress(np.array([low])).done_epochs[0])
    if when == "and it has left then":
        b.engine.let_go(low)
    b.begin()
    if when == "twice":
        b.settle()
        b.begin()
    if when != "and it has left then":
        b.settle()
        assert b.engine.told[-1:] == [low]
        assert len(b.engine.told) == (3 if when == "twice" else 2)
        assert list(b.engine.runs()) == [low]
        b.engine.let_go(low)
    b.settle()
    assert b.engine.runs() == {high: (0,)}
    row = b.row(low)
    assert (row.status, row.settled, row.attempts, row.failures) == (JobStatus.WAITING, 1, 1, 0)
    assert "interrupted" not in b.kinds(low)
    b.supervisor._write(b.reconciler.finish())
    assert lost_gpu_s(b) == pytest.approx(2 * (done - np.floor(done)), abs=0.01)
    assert total(b, (low,)) == pytest.approx(2e6 * (103.5 - (done - np.floor(done))), abs=1e4)
    assert b.reconciler.store.open_intents() == []
    for _ in range(30):
        b.advance(200.0)
        b.settle()
        b.steady_s += 40.0
    assert (b.status(low), b.status(high)) == (JobStatus.COMPLETED, JobStatus.COMPLETED)
    for job in (low, high):
        assert b.kinds(job).count("completed") == 1


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_stop_of_which_nothing_was_written_but_the_intent_is_no_interruption_that_counts(bench, times):
    b = bench(nodes=[node("n")])
    job = b.submit(1000.0, gpus=2, epochs=1000)
    b.settle()
    b.advance(10.5)
    b.settle()
    b.reconciler.engine.apply([Stop(b.reconciler.engine.handle_of(job))])  # and then the controller dies
    for _ in range(times):
        b.begin()
        b.settle()
    assert b.status(job) is JobStatus.RUNNING
    b.engine.let_go(job)
    b.look()
    assert b.kinds(job)[-2:] == ["interrupted", "resumed"]
    sentences = [event.sentence for event in b.live.store.events(job=job) if event.kind == "interrupted"]
    assert sentences == ["1-j was interrupted: a stop had been requested"]
    assert (b.row(job).failures, b.row(job).attempts) == (0, 2)
    assert b.reconciler.store.open_intents() == []
    b.engine.let_go(job)
    b.look()
    assert b.row(job).failures == 1  # the next one does


def test_a_job_that_moves_and_is_called_off_while_it_leaves_loses_what_it_lost(bench):
    b = bench(nodes=[node("n-1"), node("n-2")])
    job = b.submit(1000.0, gpus=2, epochs=1000)
    b.settle()
    b.advance(100.5)
    handle, (there,) = b.reconciler.engine.handle_of(job), b.engine.runs()[job]
    controller = b.reconciler.controller
    (stopped,) = controller.engine.apply([Stop(handle)])
    controller._account_for_stop(stopped, 0.0)
    row = controller.registry.row_of(handle, (1 - there,), 2)
    controller.registry.place(handle, row, (1 - there,), b.clock())
    controller.engine.apply([Start(handle, "j", (1 - there,), 2)])
    b.reconciler.engine.cancel_deferred(None, "its node was drained")
    controller.scheduling.mark(handle, JobCondition.HELD)
    controller.absorb()
    assert handle in controller.scheduling.terminating
    assert controller.scheduling.of_job(handle) == JobCondition.HELD | JobCondition.TERMINATING
    b.advance(3.0)
    done = float(b.engine.progress(np.array([job])).done_epochs[0])
    b.engine.let_go(job)
    b.settle()
    b.supervisor._write(b.reconciler.finish())
    assert controller.scheduling.terminating == {}
    assert controller.scheduling.of_job(handle) == JobCondition.HELD
    assert lost_gpu_s(b) == pytest.approx(2 * (done - np.floor(done)), abs=0.01)


def make(folder: Path, **specs) -> tuple[WriteAheadEngine, dict[str, int]]:
    """Return a Durable over local processes, and the handles of jobs."""
    worker = Path(__file__).parents[1] / "engines/worker.py"

    def work(name: str) -> JobWork:
        spec = json.dumps({"epochs": 1000, "unit_s": 1.0, **specs[name.partition("-")[2]]})
        return JobWork((sys.executable, "-I", str(worker), spec), Path("/"), 1000)

    engine = LocalEngine(contract_cluster(), folder, work, grace_s=3.0)
    durable = WriteAheadEngine(engine, lambda intents: None, time.time, 3, names=engine._cluster.names)
    return durable, {name: durable.register(TrackedJob(k + 10, name)) for k, name in enumerate(specs)}


def until(true, limit_s=120.0):
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.long
def test_with_real_processes(tmp_path):
    """One that does not hear SIGTERM is killed after its grace time; meanwhile others stop, start and move."""
    times = {"1": 1000, "2": 1000}
    durable, at = make(
        tmp_path,
        deaf={"times": times, "deaf": True},
        prompt={"times": times},
        nxt={"times": times},
        more={"times": times},
    )
    engine = durable.inner
    try:
        durable.apply([Start(at["deaf"], "", (0,), 2), Start(at["prompt"], "", (1,), 1)])
        until(lambda: all(durable.progress(np.array([at["deaf"], at["prompt"]])).done_epochs > 0))
        stopped = durable.apply(
            [Stop(at["deaf"]), Stop(at["prompt"]), Start(at["nxt"], "", (0,), 2), Start(at["more"], "", (1,), 1)]
        )
        assert [(s.handle, s.later) for s in stopped] == [(at["deaf"], True), (at["prompt"], False)]
        ids = {name: durable.jobs[handle].id for name, handle in at.items()}
        assert set(engine._runs) == {ids["deaf"], ids["more"]}
        durable.apply([Start(at["prompt"], "", (1,), 1)])
        assert set(engine._runs) == {ids["deaf"], ids["more"], ids["prompt"]}

        def there():
            durable.look()
            return ids["nxt"] in engine._runs

        until(there)
        assert ids["deaf"] not in engine._runs
        (left,) = durable.poll()
        assert (left.handle, left.lost_s > 0) == (at["deaf"], True)
        assert not durable.unsettled()
        assert {(i.kind, i.job, i.outcome) for i in durable.take_intents()} == {
            *(("start", job, "done") for job in ids.values()),
            *(("stop", ids[name], "done") for name in ("deaf", "prompt")),
        }
    finally:
        engine.apply([Stop(job) for job in list(engine._runs)])
        engine.close()


@pytest.mark.long
def test_a_start_that_was_put_off_is_taken_back_by_a_stop(tmp_path):
    times = {"1": 1000, "2": 1000}
    durable, at = make(tmp_path, deaf={"times": times, "deaf": True}, nxt={"times": times})
    engine = durable.inner
    try:
        durable.apply([Start(at["deaf"], "", (0,), 2)])
        until(lambda: durable.progress(np.array([at["deaf"]])).done_epochs[0] > 0)
        durable.apply([Stop(at["deaf"]), Start(at["nxt"], "", (0,), 2)])
        assert durable.apply([Stop(at["nxt"])]) == [Stopped(at["nxt"], 0.0, begun=False)]
        until(lambda: durable.look() or durable.waiting_changes())
        assert engine._runs == {}
        assert [i.outcome for i in durable.take_intents() if i.job == 11] == ["void", "done"]
    finally:
        engine.apply([Stop(job) for job in list(engine._runs)])
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dry run", "drained"])
def test_what_was_put_off_is_called_off_where_nothing_new_is_to_begin(pair, how):
    b, low, high = pair
    assert [p for p in check(b.live.store.database).problems if p.table == "jobs"] == []  # though it has not begun
    if how == "drained":
        b.ask(RequestKind.DRAIN, node="n")
    else:
        b.ask(RequestKind.MODE, value="dry-run")
    b.settle(1)
    b.engine.let_go(low)
    b.advance(60.0)
    b.settle()
    assert b.engine.runs() == {}
    assert (b.status(high), b.row(high).failures) == (JobStatus.WAITING, 0)
    assert b.kinds(high).count("not-started") == 1
    assert b.reconciler.store.open_intents() == []
    if how == "drained":
        b.ask(RequestKind.UNDRAIN, node="n")
    else:
        b.ask(RequestKind.MODE, value="live")
    b.settle()
    assert list(b.engine.runs()) == [high]


@pytest.mark.slow
def test_jobs_that_are_cancelled_together_are_told_together(bench):
    b = bench()
    jobs = [b.submit(1000.0) for _ in range(3)]
    b.settle()
    calls, request_stop = [], b.engine.request_stop
    b.engine.request_stop = lambda handles: calls.append(sorted(handles)) or request_stop(handles)
    for job in jobs:
        b.ask(RequestKind.CANCEL, job=job)
    b.look()
    assert calls == [jobs]
    assert {b.status(job) for job in jobs} == {JobStatus.CANCELLED}
