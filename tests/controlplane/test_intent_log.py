"""Ends and refusals at odd moments: each run's end is its own, and what a job cannot help is not its fault."""

from __future__ import annotations

import itertools
import os
import signal
import time

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Start, Stop
from commonwatt.controlplane.intent_log import WriteAheadEngine
from commonwatt.controlplane.jobs import TrackedJob
from commonwatt.engines.local import run
from commonwatt.engines.local.engine import LocalEngine
from commonwatt.engines.local.run import PATIENCE_S
from commonwatt.engines.run_spec import JobWork
from commonwatt.model.errors import EngineError
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.store.records import JobStatus, RequestKind
from commonwatt.testing.engine_contract import contract_cluster
from tests.controlplane.bench import Bench, node


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Bench:
        return opened(Bench(tmp_path, **{"nodes": [node("n-1"), node("n-2")], **changes}))

    return make


@pytest.mark.parametrize("begun", [True, False], ids=["its runner was killed", "before its runner listens"])
def test_a_run_that_ends_just_before_it_is_stopped_is_not_taken_for_the_next(tmp_path, begun):
    engine = LocalEngine(contract_cluster(), tmp_path, lambda _: JobWork(("sleep", "600")), grace_s=2.0)
    durable = WriteAheadEngine(engine, lambda intents: None, time.time, 0, engine._cluster.names)
    durable.register(TrackedJob(7, "a"))
    durable.apply([Start(0, "a", (0,), 1)])
    if begun:
        while not (there := engine._runs[7].folder.processes()):
            time.sleep(0.01)
        os.kill(there.runner.pid, signal.SIGKILL)
        while engine._runs[7].ended() is None:
            time.sleep(0.01)
    try:
        durable.apply([Stop(0)])
        durable.apply([Start(0, "a", (1,), 1)])
        assert durable.poll() == []
        assert engine._runs[7].spec.attempt == 2
        assert (durable.jobs[0].attempts, durable.jobs[0].settled, durable.jobs[0].failures) == (2, 1, 0)
    finally:
        engine.apply([Stop(7)])
        engine.close()


def test_an_end_that_was_taken_account_of_is_not_told_again_unless_all_is_done(tmp_path):
    engine = LocalEngine(contract_cluster(), tmp_path, lambda _: JobWork(("true",)), grace_s=2.0)
    durable = WriteAheadEngine(engine, lambda intents: None, time.time, 3, engine._cluster.names)
    durable.register(TrackedJob(7, "a", attempts=2, settled=2))
    told = [JobEnded(7, 1.0, Outcome.FAILED, "exit code 3"), JobInterrupted(7, 1.0, 0.0, "killed")]
    engine._changes += told  # as after a restart: it was measured then, and is to run again
    assert durable.poll() == []
    engine._changes.append(JobEnded(7, 1.0, Outcome.COMPLETED))
    assert [change.outcome for change in durable.poll()] == [Outcome.COMPLETED]
    durable.jobs[0].attempts = 3
    engine._changes.append(told[0])
    assert [change.outcome for change in durable.poll()] == [Outcome.FAILED]


@pytest.mark.long
def test_starts_that_are_refused_are_tried_until_they_are_not(bench):
    b = bench(live={"retries": 1, "default_time_limit_s": 5})
    apply, tries = b.engine.apply, []

    def refuse(commands):
        if any(isinstance(command, Start) for command in commands):
            tries.append(b.hand.time_s)
            msg = "the partition is drained"
            raise EngineError(msg)
        return apply(commands)

    b.engine.apply = refuse
    job = b.submit(10_000.0, epochs=1)
    for _ in range(600):
        b.advance(1.0)
        b.look()
    assert b.status(job) is JobStatus.WAITING
    assert b.row(job).sentence.endswith("did not start: the partition is drained")
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(60.0, abs=2.0)
    b.engine.apply = apply
    b.advance(61.0)
    b.settle()
    assert b.status(job) is JobStatus.RUNNING
    for blamed in (False, False, True, True):  # what it does itself counts
        apply([Stop(job)])
        b.engine._changes.append(JobInterrupted(job, b.clock(), 0.0, "killed", blamed=blamed))
        b.settle()
        b.advance(61.0)
        b.settle()
    assert b.status(job) is JobStatus.FAILED
    assert "given up after 2 interruptions" in b.row(job).sentence


def test_the_local_engine_says_whether_a_run_had_begun(tmp_path):
    gone = tmp_path / "home"
    engine = LocalEngine(contract_cluster(), tmp_path / "state", lambda _: JobWork(("sleep", "600"), gone), grace_s=2.0)
    gone.mkdir()
    ends = []
    for wait in (False, True):
        engine.apply([Start(1, "a", (0,), 1)])
        run = engine._runs[1]
        while wait and not run.folder.processes():
            time.sleep(0.01)
        os.kill(run.child, signal.SIGKILL)
        while not (changes := engine.poll()):
            time.sleep(0.01)
        ends += changes
    assert [(type(change), change.begun) for change in ends] == [(JobInterrupted, False), (JobInterrupted, True)]
    engine.close()


def test_a_submission_is_told_once_whenever_the_controller_dies(bench):
    b = bench()
    job = b.submit(100.0)
    for _ in range(2):
        b.begin()  # which takes it in, and dies
    assert b.kinds(job) == []
    b.settle()
    assert b.kinds(job) == ["submitted", "started"]
    b.begin()
    b.settle()
    assert b.kinds(job) == ["submitted", "started"]


def test_a_run_is_followed_though_the_engine_counts_from_one_again(bench):
    """Its state was deleted while the job waited; then the controller died between a start and its tick."""
    b = bench()
    job = b.submit(1000.0)
    b.settle()
    store = b.live.store
    with store.database.transaction() as c:
        c.exec_driver_sql("UPDATE jobs SET attempts = 3, settled = 3")
    b.begin()
    b.settle()
    assert b.status(job) is JobStatus.RUNNING
    b.engine.apply([Stop(job)])
    b.engine._changes.append(JobInterrupted(job, b.clock(), 0.0, "killed"))
    b.settle()
    assert b.kinds(job)[-2:] == ["interrupted", "resumed"]


@pytest.mark.slow
@pytest.mark.parametrize("patient", [True, False], ids=["told", "by command"])
def test_a_job_that_comes_to_its_end_as_it_is_to_move_is_not_begun_again(tmp_path, patient, monkeypatch):
    """It ignores SIGTERM once all is done, which it says before it exits."""
    said = '{"done_epochs": 2, "kept_epochs": 2}'
    script = f"trap '' TERM; echo '{said}' > $COMMONWATT_PROGRESS; sleep 0.3"
    engine = LocalEngine(contract_cluster(), tmp_path, lambda _: JobWork(("sh", "-c", script), epochs=2), grace_s=9.0)
    durable = WriteAheadEngine(engine, lambda intents: None, time.time, 3, engine._cluster.names)
    if not patient:
        monkeypatch.setattr(engine, "request_stop", lambda handles: [])
    durable.register(TrackedJob(7, "a"))
    durable.apply([Start(0, "a", (0,), 1)])
    while not durable.progress(np.array([0])).done_epochs[0]:
        time.sleep(0.01)
    durable.apply([Stop(0), Start(0, "a", (1,), 1)])
    changes = list(durable.poll())
    assert [(type(change), change.outcome) for change in changes] == [(JobEnded, Outcome.COMPLETED)]
    assert engine._runs == {}
    assert [(intent.kind, intent.outcome) for intent in durable.take_intents()][-2:] in (
        [("stop", "done"), ("start", "void")], [("start", "void"), ("stop", "done")],
    )  # fmt: skip
    engine.close()


def test_gpus_of_what_cannot_be_killed_are_nobody_elses(tmp_path):
    engine = LocalEngine(contract_cluster(), tmp_path, lambda _: JobWork(("sleep", "600")), grace_s=2.0)
    engine.apply([Start(7, "a", (0, 1), 1)])
    told = engine._runs[7]
    try:
        assert engine.nodes().usable_gpus.tolist() == [2, 2]
        told.asked_s = time.monotonic() - 2.0 - 1.5 * PATIENCE_S  # it may be gone at any moment
        assert engine.nodes().usable_gpus.tolist() == [2, 2]
        told.asked_s = time.monotonic() - 2.0 - 2.5 * PATIENCE_S
        assert engine.nodes().usable_gpus.tolist() == [1, 1]
    finally:
        told.asked_s = None
        engine.apply([Stop(7)])
    assert engine.nodes().usable_gpus.tolist() == [2, 2]
    engine.close()


@pytest.mark.slow
def test_a_job_that_does_not_stop_holds_nobody_up(bench):
    b = bench()
    hard, other = b.submit(10_000.0, gpus=2), b.submit(100.0, gpus=2)
    b.settle()
    apply = b.engine.apply
    b.cannot_stop(hard)
    b.ask(RequestKind.CANCEL, job=hard)
    b.settle()
    new = b.submit(100.0, gpus=2)
    b.advance(101.0)
    b.settle()
    assert (b.status(hard), b.status(other)) == (JobStatus.CANCELLED, JobStatus.COMPLETED)
    assert b.status(new) in {JobStatus.WAITING, JobStatus.RUNNING}
    assert hard in b.engine._running
    b.engine.apply = apply
    b.engine.apply([Stop(hard)])
    b.engine._changes.append(JobInterrupted(hard, b.clock(), 0.0, "killed"))
    b.advance(61.0)
    b.settle()
    assert b.status(new) is JobStatus.RUNNING
    assert not b.reconciler.engine.unsettled()
    assert b.reconciler.store.open_intents() == []


@pytest.mark.slow
def test_starts_in_vain_that_left_a_record_are_counted_as_the_engine_counts(bench):
    """Else the end of a run that was preempted would be told again after a restart, as an interruption."""
    b = bench(live={"retries": 0, "default_time_limit_s": 5}, nodes=[node("n")])
    apply, refused = b.engine.apply, [2]

    def refuse(commands):
        for command in commands:
            if isinstance(command, Start) and refused[0]:
                refused[0] -= 1
                b.engine._attempts[command.handle] = b.engine._attempts.get(command.handle, 0) + 1
                msg = "sbatch: error"
                raise EngineError(msg)
        return apply(commands)

    b.engine.apply = refuse
    job = b.submit(10_000.0, epochs=1)
    for _ in range(10):
        b.advance(61.0)
        b.settle()
    assert (b.status(job), b.engine.attempts(job)) == (JobStatus.RUNNING, 3)
    b.ask(RequestKind.HOLD, job=job)
    b.ask(RequestKind.DRAIN, node="n")
    b.settle()
    b.reconciler.controller.stop_probe(0, b.clock(), ("preempted", "to make room"))
    b.advance(61.0)
    b.settle()
    row = b.row(job)
    assert (row.status, row.attempts, row.settled) == (JobStatus.WAITING, 3, 3)
    b.begin()
    b.settle()
    assert b.status(job) is JobStatus.WAITING
    assert b.kinds(job)[-1] != "failed"


@pytest.mark.slow
def test_what_cannot_be_killed_and_has_no_place_any_more_does_not_keep_an_engine_from_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "PATIENCE_S", 0.2)
    first = LocalEngine(contract_cluster(), tmp_path, lambda _: JobWork(("sleep", "600")), grace_s=0.1)
    first.apply([Start(7, "a", (0,), 1)])
    while not (there := first._runs[7].folder.processes()):
        time.sleep(0.01)
    with monkeypatch.context() as patch:
        for name in ("end_marked", "none_marked"):
            patch.setattr(run, name, lambda _: False)  # as if it hung in a driver
        os.kill(there.runner.pid, signal.SIGKILL)
        first.close()
        elsewhere = Cluster.of([NodeSpec(name="m", count=2, gpu_type="V100", gpus=2, idle_w=100, gpu_w=50)])
        second = LocalEngine(elsewhere, tmp_path, lambda _: JobWork(("sleep", "600")), grace_s=0.1)
        assert list(second.evict_unplaced(dry=False)) == [7]
        assert second.poll() == []
        assert list(second._runs) == [7]
    second._runs[7].again_s = 0.0
    assert [(type(change), change.handle) for change in second.poll()] == [(JobInterrupted, 7)]
    second.close()
