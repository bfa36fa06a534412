"""Jobs that end, or leave, while others are being stopped: each is heard of, and nobody is waited for in vain."""

from __future__ import annotations

import sys
import time

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import JobEnded, JobInterrupted, JobLeft, Outcome, Stop, Stopped
from commonwatt.controlplane.intent_log import WriteAheadEngine
from commonwatt.controlplane.jobs import TrackedJob
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.engines.slurm.settings import SlurmSettings
from commonwatt.testing.engine_contract import contract_cluster
from tests.controlplane.bench import node
from tests.controlplane.test_terminating import Halting, Slow
from tests.engines.slurm.test_attach import Pretended
from tests.engines.slurm.test_slurm import sleeper
from tests.engines.slurm.test_stopping import clock  # noqa: F401

SETTINGS = SlurmSettings(python=sys.executable, grace_s=3.0, lag_s=1.0, look_s=0.2, runner_look_s=0.2)


class Pending(Pretended):
    """Jobs that cannot be told, as they pend; cancelled, they take their time to leave."""

    def __init__(self, folder, told, leave_s):
        super().__init__(folder, j1="PENDING", j2="PENDING")
        self.clock, self.folder, self.leave_s, self.cancelled = told, folder, leave_s, {}

    def cancel(self, jobs):
        for job in jobs:
            self.cancelled.setdefault(job - 100, self.clock.at_s)
            self.states[f"j{job - 100}"] = "COMPLETING"

    def jobs(self, user=None, *, plain=False):
        for job, at_s in self.cancelled.items():
            if self.clock.at_s > at_s + self.leave_s and self.states[f"j{job}"] == "COMPLETING":
                self.states[f"j{job}"] = "CANCELLED"
                end = End(-15, stopped=True, at_s=time.time(), cause="SIGTERM", ran_s=1.0)
                RunFolder(self.folder / "runs" / f"{job}-1").finish(end)
        return super().jobs(user)


@pytest.mark.parametrize("leave_s", [2.0, 2.5, 3.0, 4.0])
def test_a_job_that_leaves_while_the_next_is_stopped_has_left(tmp_path, clock, leave_s):  # noqa: F811
    for job in (1, 2):
        order = RunSpec(job, 1, "j", (0,), 1, ((),), time.time() - 1.0, 0.0, ("x",), "/", {}, 1.0, epochs=1.0)
        RunFolder.create(tmp_path / "runs", order)
    slurm = Pending(tmp_path, clock, leave_s)
    over = SlurmEngine(contract_cluster(), tmp_path, lambda name: sleeper(), slurm=slurm, settings=SETTINGS)
    durable = WriteAheadEngine(over, lambda intents: None, time.time, 3, names=("n-1", "n-2"))
    handles = [durable.register(TrackedJob(job, "j", attempts=1, nodes=(0,), gpus_per_node=1)) for job in (1, 2)]
    durable.apply([Stop(handle) for handle in handles])
    heard = []
    for _ in range(4):
        clock.at_s += 5.0
        heard += durable.poll()
    assert sorted(change.handle for change in heard) == handles
    assert {type(change) for change in heard} == {JobLeft}
    assert not durable.unsettled()
    assert [intent.outcome for intent in durable.take_intents()] == ["done", "done"]


class Hasty(Slow):
    """While one job is told to stop, something becomes of another."""

    meanwhile = None

    def request_stop(self, handles):
        told = super().request_stop([handle for handle in handles if handle not in self._changed()])
        if self.meanwhile is not None:
            job, change = self.meanwhile
            self.apply([Stop(job)])
            self._changes.append(change)
            told = [handle for handle in told if handle != job]
        return told

    def _changed(self):
        return {change.handle for change in self._changes}

    def apply(self, commands):
        for command in commands:
            assert not isinstance(command, Stop) or command.handle in self._running, "it is not running"
        return super().apply(commands)


class Racing(Halting):
    work = Hasty

    def begin(self):
        super().begin()
        self.reconciler.engine._terminating._at_once_s = 1.0

    def stops(self, *jobs):
        durable = self.reconciler.engine
        ticking = iter(range(100_000))
        durable._terminating._steady_s = lambda: self.steady_s + 0.1 * next(ticking)
        return durable.apply([Stop(durable.handle_of(job)) for job in jobs])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["completed", "interrupted"])
@pytest.mark.parametrize("when", ["while the other is told", "before"])
def test_a_job_that_is_over_need_not_be_stopped(tmp_path, opened, how, when):
    b = opened(Racing(tmp_path, nodes=[node("n-1"), node("n-2")]))
    slow, quick = b.submit(1000.0), b.submit(1000.0)
    b.settle()
    durable = b.reconciler.engine
    if how == "completed":
        change = JobEnded(quick, b.clock(), Outcome.COMPLETED)
    else:
        change = JobInterrupted(quick, b.clock(), 3.0, "its node went away")
    b.engine.meanwhile = quick, change
    if when == "before":
        b.engine.request_stop([])
        b.engine.meanwhile = None
        durable.look()
    stopped = b.stops(slow, quick)
    lost_s = 3.0 if how == "interrupted" else 0.0
    assert stopped == [
        Stopped(durable.handle_of(slow), 0.0, later=True),
        Stopped(durable.handle_of(quick), lost_s),
    ]
    heard = [type(change) for change in durable.waiting_changes() if change.handle == durable.handle_of(quick)]
    assert heard == ([JobEnded] if how == "completed" else [])
    assert [i.outcome for i in durable.take_intents() if i.job == quick] == ["done"]


def test_a_job_that_goes_on_was_not_told_to_stop_before(tmp_path, opened):
    """The controller died before it told it; what happens to it days later is told as it is, and counts."""

    class Killed(BaseException):
        pass

    def die(handles):
        raise Killed

    b = opened(Halting(tmp_path, nodes=[node("n")]))
    job = b.submit(1e6, gpus=2, epochs=1000)
    b.settle()
    b.advance(10.5)
    b.settle()
    request_stop, b.engine.request_stop = b.engine.request_stop, die
    with pytest.raises(Killed):
        b.reconciler.engine.apply([Stop(b.reconciler.engine.handle_of(job))])
    b.engine.request_stop = request_stop
    b.begin()
    b.settle()
    b.advance(3600.0)
    b.settle()
    assert b.reconciler.store.open_intents() == []
    (stopped,) = b.engine.apply([Stop(job)])
    b.engine._changes.append(JobInterrupted(job, b.clock(), stopped.lost_s, "a node of it failed"))
    b.look()
    (sentence,) = [event.sentence for event in b.live.store.events(job=job) if event.kind == "interrupted"]
    assert sentence.startswith(f"{job}-j was interrupted: a node of it failed")
    assert b.row(job).failures == 1
