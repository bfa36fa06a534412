"""Jobs a changed configuration has no place for: what became of them is found out, and a dry run leaves them alone."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Start, Stop
from commonwatt.controlplane.supervisor import Pace
from commonwatt.controlplane.wiring import open_live
from commonwatt.model.job_file import JobFile
from commonwatt.store.check import check
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import JobStatus, RequestKind
from tests.controlplane.bench import ENDED, Bench, node
from tests.controlplane.chaos import config_in
from tests.controlplane.test_reconciler import change, commanded
from tests.controlplane.test_terminating import Halting

BEFORE, AFTER = [node("n", count=2), node("m", "A100")], [node("n", count=2), node("m", "H100")]


@pytest.fixture
def bench(tmp_path, opened):
    return lambda kind=Bench, **changes: opened(kind(tmp_path, **changes))


def dry(b: Bench) -> None:
    b.ask(RequestKind.MODE, value="dry-run")
    b.look()


def live_again(b: Bench) -> None:
    """As the supervisor goes on: a reconciler that is outgrown is replaced."""
    b.ask(RequestKind.MODE, value="live")
    b.look()
    assert b.reconciler.outgrown()
    b.supervisor._write(b.reconciler.finish())
    b.begin()
    b.settle()


def without_place(b: Bench) -> int:
    """A job that runs, and whose type of GPUs there is none of any more."""
    job = b.submit(1000.0, times_s={"A100": {1: 1000.0}})
    b.look()
    b.advance(10.0)
    b.settle()
    return job


def fails(b: Bench, job: int) -> None:
    b.engine.apply([Stop(job)])
    change = JobEnded(job, b.clock(), Outcome.FAILED, "exit code 1")
    b.engine._changes.append(change)
    b.engine._ends[job] = change


@pytest.fixture
def left_alone(bench):
    """A dry run, and a job that runs where there is no place for it any more."""
    b = bench(nodes=BEFORE)
    job = without_place(b)
    dry(b)
    change(b, nodes=AFTER)
    b.settle()
    return b, job


@pytest.mark.long
@pytest.mark.parametrize("mode", ["live", "dry-run"])
@pytest.mark.parametrize("how", ["completed", "failed"])
def test_a_job_that_ended_before_has_ended_as_the_engine_says(bench, mode, how):
    b = bench(nodes=BEFORE)
    job = without_place(b)
    if mode == "dry-run":
        dry(b)
    if how == "completed":
        b.advance(1001.0)
    else:
        fails(b, job)
    change(b, nodes=AFTER)
    b.settle()
    row = b.row(job)
    assert (row.status, b.kinds(job)) == (JobStatus(how), ["submitted", "started", how])
    assert row.sentence == ("j completed" if how == "completed" else "j failed: exit code 1")
    assert (row.done_epochs == 10.0, row.nodes) == (how == "completed", ())
    assert not b.reconciler.outgrown()
    assert check(b.live.database).problems == ()
    assert b.live.store.account(job)["gpu_us"] == (1_000_000_000 if how == "completed" else 10_000_000)


@pytest.mark.parametrize("how", ["completed", "failed"])
def test_a_job_that_ends_in_the_dry_run_has_ended_as_the_engine_says(left_alone, how):
    b, job = left_alone
    assert b.status(job) is JobStatus.RUNNING
    if how == "completed":
        b.advance(1001.0)
    else:
        fails(b, job)
    b.advance(11.0)
    b.settle()
    assert (b.status(job), b.kinds(job)) == (JobStatus(how), ["submitted", "started", how])
    b.ask(RequestKind.MODE, value="live")
    b.settle()
    assert b.kinds(job) == ["submitted", "started", how]
    assert check(b.live.database).problems == ()
    assert not any(row["row"] == "segment" for row in b.live.store.ledger())


def test_an_end_that_was_taken_account_of_before_is_none(bench):
    """It was interrupted, waited, and has no place now."""
    b = bench(nodes=BEFORE)
    job = without_place(b)
    b.engine.apply([Stop(job)])
    b.engine._changes.append(JobInterrupted(job, b.clock(), 0.0, "its node went away"))
    b.ask(RequestKind.HOLD, job=job)
    b.settle()
    assert b.status(job) is JobStatus.WAITING
    b.engine._ends[job] = JobEnded(job, b.clock(), Outcome.FAILED, "exit code 1")
    change(b, nodes=AFTER)
    b.settle()
    assert (b.status(job), b.row(job).reason) == (JobStatus.FAILED, "never-fits")


@pytest.mark.parametrize("mode", ["live", "dry-run"])
def test_a_job_that_failed_before_its_start_was_written_down_has_failed(bench, mode):
    class Killed(BaseException):
        pass

    def die(tick):
        raise Killed

    b = bench(nodes=BEFORE)
    job = b.submit(1000.0, times_s={"A100": {1: 1000.0}})
    write, b.supervisor._store.write = b.supervisor._store.write, die
    with pytest.raises(Killed):
        b.look()
    b.supervisor._store.write = write
    if mode == "dry-run":
        b.supervisor._write(Tick(settings={"mode": "dry-run"}))
    fails(b, job)
    change(b, nodes=AFTER)
    b.settle()
    assert (b.status(job), b.row(job).sentence) == (JobStatus.FAILED, "j failed: exit code 1")


@pytest.mark.slow
def test_a_job_that_is_interrupted_in_a_dry_run_waits_and_goes_on_when_its_place_is_back(left_alone):
    b, job = left_alone
    (stopped,) = b.engine.apply([Stop(job)])
    b.engine._changes.append(JobInterrupted(job, b.clock(), stopped.lost_s, "its node went away"))
    b.advance(11.0)
    b.settle()
    row = b.row(job)
    assert (row.status, row.nodes, row.settled) == (JobStatus.WAITING, (), 1)
    assert row.sentence.startswith("j was interrupted: its node went away")
    assert b.kinds(job).count("interrupted") == 1
    change(b, nodes=BEFORE)
    b.ask(RequestKind.MODE, value="live")
    b.settle()
    assert b.status(job) is JobStatus.RUNNING
    assert b.kinds(job).count("interrupted") == 1
    assert check(b.live.database).problems == ()


def test_a_job_whose_place_is_back_is_not_said_to_have_none(left_alone):
    b, job = left_alone
    assert b.row(job).reason == "never-fits"
    change(b, nodes=BEFORE)
    b.settle()
    assert (b.status(job), b.row(job).sentence) == (JobStatus.RUNNING, "j still runs")


def test_a_job_that_completed_before_it_was_cancelled_is_completed(left_alone):
    b, job = left_alone
    b.advance(1001.0)
    b.reconciler.engine.look()
    b.ask(RequestKind.CANCEL, job=job)
    b.look()
    assert (b.status(job), b.kinds(job)[-1]) == (JobStatus.COMPLETED, "completed")


@pytest.mark.long
@pytest.mark.parametrize("waits", [True, False])
def test_a_job_without_a_place_can_be_cancelled_and_held_in_a_dry_run(bench, waits):
    b = bench(nodes=BEFORE)
    job = b.submit(times_s={"A100": {1: 1000.0}}) if waits else without_place(b)
    dry(b)
    change(b, nodes=AFTER)
    told = commanded(b)
    b.ask(RequestKind.HOLD, job=job)
    b.settle()
    assert b.row(job).held
    b.ask(RequestKind.CANCEL, job=job, value={"by": "operator"})
    b.settle()
    assert b.status(job) is JobStatus.CANCELLED
    assert [kind for kind in b.kinds(job) if kind in ENDED] == ["cancelled"]
    assert b.live.store.events(job=job)[-1].sentence == "cancelled by an operator"
    assert (b.engine._running, told) == ({}, [Stop(job)])
    b.ask(RequestKind.MODE, value="live")
    b.settle()
    assert b.status(job) is JobStatus.CANCELLED
    assert check(b.live.database).problems == ()


@pytest.fixture
def misplaced(bench):
    """A dry run, and a job that runs with more GPUs than it may get by now."""

    def make(kind=Bench):
        b = bench(kind, nodes=[node("n", count=2, gpus=4)])
        job = b.submit(1000.0, times_s={"V100": {1: 1000.0, 2: 600.0}}, due_in_s=620.0, tardiness_weight=1.0)
        other = b.submit(5000.0)
        b.settle()
        assert b.row(job).gpus == 2
        dry(b)
        b.supervisor._write(Tick(jobs={job: {"times": [row for row in b.row(job).times if row["gpus"] == 1]}}))
        change(b, nodes=[node("n", count=2, gpus=1)])
        b.settle()
        return b, job, other

    return make


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["GPU", "node"])
def test_a_dry_run_leaves_alone_what_runs_where_there_is_no_place_any_more(tmp_path, missing):
    def begin(*nodes):
        path = config_in(tmp_path, engine="local", nodes=[node(name, gpus=gpus) for name, gpus in nodes])
        live = open_live(path)
        live.supervisor._claimed()
        live.supervisor._pace = Pace(beat_s=0.0, requests_s=0.0, rest=0.0)
        return live, *live.supervisor._begin()

    def look(rounds=1):
        for _ in range(rounds):
            live.supervisor._go_on(reconciler, builder)

    def ask(kind, **more):
        live.store.ask(kind, time.time(), **more)
        look()

    before, after = [("m", 1), ("n", 2)], [("m", 1), ("n", 1)]
    if missing == "node":
        before, after = [("n", 2), ("m", 1)], [("n", 2)]
    live, reconciler, builder = begin(*before)
    file = JobFile(name="j", command=("sleep", "600"), gpus=1, times_s={"V100": {1: 600.0}})
    jobs = [live.store.submit("a", file, time.time())[0].id for _ in range(3)]
    look()
    assert {live.store.job(job).status for job in jobs} == {JobStatus.RUNNING}
    while not all(run.folder.processes() for run in reconciler.engine.inner._runs.values()):
        time.sleep(0.01)
    ask(RequestKind.MODE, value="dry-run")
    reconciler.engine.inner.close()
    live.database.close()
    live, reconciler, builder = begin(*after)
    engine = reconciler.engine.inner
    try:
        look(2)
        assert sorted(engine._runs) == jobs
        assert {live.store.job(job).status for job in jobs} == {JobStatus.RUNNING}
        (out,) = engine.evict_unplaced(dry=True)
        assert [event.kind for event in live.store.events(job=out)] == ["submitted", "started"]
        ask(RequestKind.MODE, value="live")
        assert reconciler.outgrown()
        live.supervisor._write(reconciler.finish())
        engine.close()
        reconciler, builder = live.supervisor._begin()
        engine = reconciler.engine.inner
        look(2)
        assert sorted(engine._runs) == [job for job in jobs if job != out]
        assert live.store.job(out).status is JobStatus.WAITING
        kinds = [event.kind for event in live.store.events(job=out)]
        assert kinds[:3] == ["submitted", "started", "interrupted"]
        assert check(live.database).problems == ()
    finally:
        engine.apply([Stop(job) for job in list(engine._runs)])
        engine.close()
        live.database.close()


def test_a_job_that_runs_as_it_must_not_would_not_be_started(misplaced):
    b, job, _ = misplaced()
    assert "would-start" not in b.kinds(job)
    assert b.reconciler.controller._gpus[b.reconciler.engine.handle_of(job)] == 2


def test_a_job_that_runs_as_it_must_not_can_be_cancelled_in_a_dry_run(misplaced):
    b, job, other = misplaced()
    b.ask(RequestKind.CANCEL, job=job)
    b.settle()
    assert b.status(job) is JobStatus.CANCELLED
    assert list(b.engine._running) == [other]


@pytest.mark.slow
def test_a_job_that_runs_as_it_must_not_is_started_anew_as_it_may_when_the_dry_run_is_over(misplaced):
    b, job, _ = misplaced()
    told = commanded(b)
    b.advance(50.0)
    live_again(b)
    assert next(command for command in told if command.handle == job) == Stop(job)
    assert b.kinds(job)[:4] == ["submitted", "started", "interrupted", "resumed"]
    assert (b.status(job), b.row(job).gpus) == (JobStatus.RUNNING, 1)
    assert check(b.live.database).problems == ()


@pytest.mark.slow
def test_it_fails_once_though_others_are_leaving_when_the_dry_run_is_over(misplaced):
    b, job, other = misplaced(Halting)
    b.ask(RequestKind.CANCEL, job=other)
    b.settle()
    assert b.reconciler.engine.unsettled()
    told = commanded(b)
    b.ask(RequestKind.MODE, value="live")
    b.look()
    assert b.reconciler.outgrown()
    assert not [command for command in told if isinstance(command, Start)]
    fails(b, job)
    b.supervisor._write(b.reconciler.finish())
    b.begin()
    b.settle()
    assert b.status(job) is JobStatus.FAILED
    assert [kind for kind in b.kinds(job) if kind in ENDED] == ["failed"]


@pytest.mark.slow
def test_a_job_that_was_to_be_resized_when_the_controller_died_runs_as_it_did(bench):
    b = bench(nodes=[node("n-1")])
    job = b.submit(1000.0, epochs=1000)
    b.settle()
    b.supervisor._write(Tick(jobs={job: {"gpus_per_node": 2}}))
    b.begin()
    b.settle()
    assert (b.row(job).gpus, b.kinds(job)[-1]) == (1, "resized")


@pytest.mark.slow
def test_a_job_that_was_to_move_when_the_controller_died_is_where_it_is(bench):
    b = bench(Halting, nodes=[node("n-1"), node("n-2")])
    job = b.submit(1000.0, gpus=2, epochs=1000)
    b.settle()
    (there,) = b.engine.runs()[job]
    b.supervisor._write(Tick(jobs={job: {"nodes": [f"n-{2 - there}"]}}))
    b.begin()
    b.settle()
    assert b.row(job).nodes == (f"n-{there + 1}",)
    assert b.kinds(job)[-1] == "migrated"
