"""The profiler over work that behaves as it is told to, one look at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import Change, Command, JobEnded, JobInterrupted, JobProgress, Outcome, Start, Stopped
from commonwatt.controlplane import profiler
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import JobArrays
from commonwatt.store.check import check
from commonwatt.store.records import JobStatus, RequestKind
from tests.controlplane.bench import Bench, node
from tests.controlplane.test_terminating import Halting

APART, WORK = 0, 1
MISSING = "could not be started: [Errno 2] No such file or directory: '/no/such/program'"


class Odd(VirtualWork):
    """Jobs take 1,000 s whatever they declare, and tell whatever they like."""

    def __init__(self, *args, **more) -> None:
        self.told: dict[int, float] = {}  # epochs done, by job
        self.refused: set[int] = set()  # nodes
        self.starts: list[int] = []  # first nodes
        super().__init__(*args, **more)

    def add(self, jobs: JobArrays, last_handle: int) -> None:
        super().add(replace(jobs, config_time_s=np.full_like(jobs.config_time_s, 1000.0)), last_handle)

    def progress(self, handles: Ints) -> JobProgress:
        seen = super().progress(handles)
        done = [self.told.get(handle, own) for handle, own in zip(handles.tolist(), seen.done_epochs, strict=True)]
        kept = [0.0 if handle in self.told else own for handle, own in zip(handles, seen.kept_epochs, strict=True)]
        return JobProgress(np.array(done), np.array(kept), seen.until_work_s)

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        for command in commands:
            if isinstance(command, Start):
                self.starts.append(command.nodes[0])
                if command.nodes[0] in self.refused:
                    raise EngineError("the node is not in the partition")
        return super().apply(commands)

    def interrupt(self, job: int, cause: str = "its node went away") -> None:
        self._catch_up()
        self._over(JobInterrupted(job, self.now_s, self._interrupt(self._running[job]), cause))

    def give_back(self, job: int) -> None:
        """As if a scheduler had not begun a job in time."""
        self._catch_up()
        self._vacate(self._running[job])
        self._over(JobInterrupted(job, self.now_s, 0.0, "it was not started within 60 s", begun=False))

    def fail(self, job: int, reason: str = "") -> None:
        self._catch_up()
        self._vacate(self._running[job])
        self._over(JobEnded(job, self.now_s, Outcome.FAILED, "it went wrong", reason))

    def _over(self, change: Change) -> None:
        self._changes.append(change)
        self._ends[change.handle] = change


class OddBench(Bench):
    work = Odd


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(*, profiling=True, gpus=2, **live) -> Bench:
        spec = {"profiling": {"nodes": ["apart"], "epochs": 2, "limit_s": 300.0}} if profiling else {}
        nodes = [node("apart", gpus=gpus), node("work", gpus=gpus)]
        made.append(OddBench(tmp_path, nodes=nodes, live={"default_time_limit_s": 5000, **spec, **live}))
        return made[-1]

    yield make
    for one in made:
        assert check(one.live.database).problems == ()
        one.close()


def pass_by(b: Bench, seconds: float, step_s: float = 50.0) -> None:
    for _ in range(round(seconds / step_s)):
        b.advance(step_s)
        b.look()


def one_and_two(seconds: float = 900.0) -> dict:
    return {"V100": {1: seconds, 2: seconds}}


def reasons(b: Bench, job: int) -> list[tuple[str, str]]:
    return [(event.kind, event.reason) for event in b.live.store.events(job=job)]


@pytest.mark.slow
@pytest.mark.parametrize("profiling", [False, True])
@pytest.mark.parametrize(("declared_s", "epochs"), [(1e-320, 10), (1e-320, 10**9), (1e308, 10)])
def test_whatever_a_job_declares_the_controller_goes_on(bench, profiling, declared_s, epochs):
    b = bench(profiling=profiling)
    job = b.submit(times_s=one_and_two(declared_s), epochs=epochs)
    b.look()
    pass_by(b, 900)
    figures = b.row(job).times
    assert "measured" in {figure["source"] for figure in figures}
    assert all(0 < figure["time_s"] < math.inf for figure in figures)
    assert b.snapshot().trouble is None
    pass_by(b, 300)
    assert b.status(job) is JobStatus.COMPLETED


@pytest.mark.slow
@pytest.mark.parametrize("told", [1e-320, 5e-324, 0.0])
def test_whatever_a_job_tells_while_it_is_measured_the_controller_goes_on(bench, told):
    b = bench()
    job = b.submit(times_s=one_and_two())
    b.look()
    b.engine.told[job] = told
    pass_by(b, 350)
    said = [event.sentence for event in b.live.store.events(job=job) if event.reason == "unprofilable"]
    assert said == ["j could not be measured with 1 V100: it tells no progress"]
    assert b.row(job).nodes == ("work",)


@pytest.mark.slow
def test_a_job_that_cannot_be_started_ends_for_the_reason_its_engine_gave(bench):
    b = bench(retries=2)
    job = b.submit(times_s=one_and_two())
    for _ in range(10):
        b.look()
        if b.status(job) is JobStatus.RUNNING:
            b.engine.interrupt(job, MISSING)
        b.advance(61.0)
    row = b.row(job)
    assert (row.status, row.reason) == (JobStatus.FAILED, "interrupted")
    assert row.sentence.endswith(MISSING)
    assert b.kinds(job)[-1] == "failed"
    assert "unprofilable" not in {reason for _, reason in reasons(b, job)}


def test_of_a_job_that_crashed_while_it_was_measured_and_was_cancelled_nothing_more_is_told(bench):
    b = bench()
    job = b.submit(times_s=one_and_two())
    b.look()
    assert b.row(job).nodes == ("apart",)
    b.engine.fail(job)
    b.ask(RequestKind.CANCEL, job=job)
    b.settle()
    assert b.kinds(job) == ["submitted", "started", "interrupted", "cancelled"]
    assert b.status(job) is JobStatus.CANCELLED


@pytest.mark.slow
def test_a_job_over_its_own_time_limit_has_failed_though_it_was_being_measured(bench):
    b = bench()
    job = b.submit(times_s=one_and_two())
    b.look()
    assert b.row(job).nodes == ("apart",)
    b.engine.fail(job, "time-limit")
    b.settle()
    assert reasons(b, job) == [("submitted", ""), ("started", "profiling"), ("failed", "time-limit")]
    assert b.row(job).sentence == "j failed: it went wrong"


@pytest.mark.slow
def test_a_start_that_was_refused_measures_nothing_elsewhere(bench):
    b = bench()
    b.engine.refused = {APART}
    job = b.submit(times_s=one_and_two())
    b.look()
    assert b.row(job).nodes == ("work",)
    pass_by(b, 500)
    happened = b.kinds(job)
    assert "preempted" not in happened
    assert ("preempted", "measured") not in reasons(b, job)
    assert b.engine.starts == [APART, WORK]
    b.engine.fail(job)  # where it is not measured, that is the end of it
    b.settle()
    assert b.status(job) is JobStatus.FAILED


@pytest.mark.slow
def test_a_start_that_is_taken_back_later_is_not_tried_there_again(bench):
    b = bench()
    job = b.submit(times_s=one_and_two())
    b.look()
    assert b.row(job).nodes == ("apart",)
    b.engine.give_back(job)
    pass_by(b, 300)
    assert b.row(job).nodes == ("work",)
    assert b.engine.starts == [APART, WORK]


@pytest.mark.slow
def test_a_job_that_a_profiling_node_refuses_waits_for_another(bench):
    b = bench(retries=2)
    b.engine.refused = {APART}
    jobs = [b.submit(times_s={"V100": {2: 900.0}}) for _ in range(3)]
    b.look()
    pass_by(b, 800)
    assert [b.status(job) for job in jobs].count(JobStatus.RUNNING) == 1
    assert [b.status(job) for job in jobs].count(JobStatus.WAITING) == 2
    assert b.engine.starts.count(APART) == 3


@pytest.mark.slow
def test_what_could_not_be_measured_is_measured_after_all_once_it_tells_its_speed_at_work(bench):
    b = bench(gpus=4)
    job = b.submit(times_s={"V100": {1: 900.0, 2: 500.0, 4: 300.0}})
    b.look()
    b.engine.told[job] = 0.0
    pass_by(b, 350)
    assert b.row(job).nodes == ("work",)
    at_work = b.row(job).gpus
    pass_by(b, 200)
    b.engine.interrupt(job)
    b.look()
    assert b.row(job).nodes == ("work",)  # it still tells nothing
    del b.engine.told[job]
    pass_by(b, 350)
    b.engine.interrupt(job)
    b.look()
    assert b.row(job).nodes == ("apart",)
    assert b.row(job).gpus == 6 - at_work  # neither what gave nothing nor what is known


@pytest.mark.slow
def test_jobs_with_nothing_left_to_measure_are_not_looked_at_again(bench, monkeypatch):
    b, looked = bench(), []
    first = b.submit(times_s=one_and_two())
    b.look()
    pass_by(b, 600)
    assert b.row(first).nodes == ("work",)  # both were measured
    jobs = [b.submit(times_s={"V100": {2: 900.0}}) for _ in range(5)]
    b.look()
    pass_by(b, 2500)
    assert JobStatus.WAITING in {b.status(job) for job in jobs}
    next_probe = profiler.next_probe
    monkeypatch.setattr(profiler, "next_probe", lambda *args: looked.append(args) or next_probe(*args))
    pass_by(b, 60, 15)
    assert JobStatus.WAITING in {b.status(job) for job in jobs}
    assert looked == []


@pytest.mark.slow
@pytest.mark.parametrize("usable", [0, 1])
def test_a_node_that_others_use_in_part_measures_nothing_meanwhile(bench, usable):
    """What is measured there would not fit, or be of no use; the job is none the worse for it."""
    b = bench()
    nodes, free = b.engine.nodes, [usable]

    def seen():
        view = nodes()
        gpus = view.usable_gpus.copy()
        gpus[APART] = free[0]
        gpus[WORK] = 0
        return replace(view, usable_gpus=gpus)

    b.engine.nodes = seen
    job = b.submit(1000.0, gpus=2)
    for _ in range(20):
        b.advance(10.0)
        b.settle()
    assert (b.status(job), b.engine.starts) == (JobStatus.WAITING, [])
    free[0] = 2
    b.advance(10.0)
    b.settle()
    assert b.engine.starts == [APART]


def test_nothing_is_measured_on_a_drained_node(bench):
    b = bench()
    b.ask(RequestKind.DRAIN, node="apart")
    jobs = [b.submit(times_s={"V100": {2: 900.0}}) for _ in range(2)]
    pass_by(b, 200)
    assert [b.row(job).nodes for job in jobs] == [("work",), ()]
    assert b.engine.starts == [WORK]
    b.ask(RequestKind.UNDRAIN, node="apart")
    b.settle()
    assert b.row(jobs[1]).nodes == ("apart",)
    assert reasons(b, jobs[1])[-1] == ("started", "profiling")


@pytest.mark.slow
def test_a_job_that_is_held_is_not_measured_until_it_is_released(bench):
    b = bench()
    job = b.submit(times_s=one_and_two())
    b.ask(RequestKind.HOLD, job=job)
    pass_by(b, 200)
    b.begin()
    pass_by(b, 200)
    assert (b.status(job), b.engine.starts) == (JobStatus.WAITING, [])
    b.ask(RequestKind.RELEASE, job=job)
    b.settle()
    assert (b.row(job).nodes, b.engine.starts) == (("apart",), [APART])


@pytest.mark.slow
def test_nothing_is_measured_on_a_node_that_another_has_yet_to_leave(tmp_path, opened):
    spec = {"profiling": {"nodes": ["apart"], "epochs": 2, "limit_s": 300.0}, "default_time_limit_s": 5000}
    b = opened(Halting(tmp_path, nodes=[node("apart"), node("work")], live=spec))
    first, second, third = (b.submit(times_s={"V100": {2: 900.0}}) for _ in range(3))
    b.settle()
    assert b.engine.runs() == {first: (APART,), second: (WORK,)}
    b.ask(RequestKind.CANCEL, job=first)
    pass_by(b, 100)
    assert b.engine.told == [first]
    assert b.engine.runs() == {first: (APART,), second: (WORK,)}
    assert (b.status(third), b.kinds(third)) == (JobStatus.WAITING, ["submitted", "waits"])
    b.engine.let_go(first)
    b.settle()
    assert b.engine.runs() == {second: (WORK,), third: (APART,)}
    assert reasons(b, third)[-1] == ("started", "profiling")
    assert check(b.live.database).problems == ()


@pytest.mark.slow
def test_a_job_that_has_yet_to_leave_is_not_measured_elsewhere_meanwhile(tmp_path, opened):
    spec = {"profiling": {"nodes": ["apart", "too"], "epochs": 2, "limit_s": 300.0}, "default_time_limit_s": 5000}
    b = opened(Halting(tmp_path, nodes=[node("apart"), node("work"), node("too")], live=spec))
    b.ask(RequestKind.DRAIN, node="work")
    job = b.submit(times_s=one_and_two())
    b.settle()
    assert b.engine.runs() == {job: (APART,)}
    pass_by(b, 250)
    assert b.engine.told == [job]
    assert b.kinds(job) == ["submitted", "started", "preempted", "waits"]
    b.engine.let_go(job)
    b.settle()
    assert b.status(job) is JobStatus.RUNNING
    assert reasons(b, job)[-1] == ("resumed", "profiling")


@pytest.mark.slow
def test_a_measurement_goes_on_anew_when_the_controller_comes_back(bench):
    b = bench()
    job = b.submit(times_s=one_and_two())
    b.look()
    pass_by(b, 50)
    b.begin()
    pass_by(b, 450)
    assert [reason for _, reason in reasons(b, job)][:4] == ["", "profiling", "measured", "profiling"]
