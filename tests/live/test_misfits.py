"""Jobs a changed configuration has no place for: what became of them is found out, and a dry run leaves them alone."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Start, Stop
from commonwatt.store.check import check
from commonwatt.store.records import JobStatus, RequestKind
from commonwatt.store.ticks import Tick
from tests.live.bench import ENDED, Bench, node
from tests.live.test_leaving import Halting
from tests.live.test_session import change, commanded

BEFORE, AFTER = [node("n", count=2), node("m", "A100")], [node("n", count=2), node("m", "H100")]


@pytest.fixture
def bench(tmp_path, opened):
    return lambda kind=Bench, **changes: opened(kind(tmp_path, **changes))


def dry(b: Bench) -> None:
    b.ask(RequestKind.MODE, value="dry-run")
    b.look()


def live_again(b: Bench) -> None:
    """As the keeper goes on: a session that is outgrown is replaced."""
    b.ask(RequestKind.MODE, value="live")
    b.look()
    assert b.session.outgrown()
    b.keeper._write(b.session.finish())
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
    assert row.sentence == ("j is completed" if how == "completed" else "j failed: exit code 1")
    assert (row.done_epochs == 10.0, row.nodes) == (how == "completed", ())
    assert not b.session.outgrown()
    assert check(b.live.database).problems == ()
    assert b.live.store.account(job)["gpu_us"] == (1_000_000_000 if how == "completed" else 10_000_000)


@pytest.mark.parametrize("how", ["completed", "failed"])
def test_a_job_that_ends_in_the_dry_run_has_ended_as_the_engine_says(bench, how):
    b = bench(nodes=BEFORE)
    job = without_place(b)
    dry(b)
    change(b, nodes=AFTER)
    b.settle()
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
    b.ask(RequestKind.CANCEL, job=job)
    b.settle()
    assert b.status(job) is JobStatus.CANCELLED
    assert [kind for kind in b.kinds(job) if kind in ENDED] == ["cancelled"]
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
        b.keeper._write(Tick(jobs={job: {"times": [row for row in b.row(job).times if row["gpus"] == 1]}}))
        change(b, nodes=[node("n", count=2, gpus=1)])
        b.settle()
        return b, job, other

    return make


def test_a_job_that_runs_as_it_must_not_would_not_be_started(misplaced):
    b, job, _ = misplaced()
    assert "would-start" not in b.kinds(job)
    assert b.session.controller._held[b.session.durable.handle_of(job)] == 2


def test_a_job_that_runs_as_it_must_not_can_be_cancelled_in_a_dry_run(misplaced):
    b, job, other = misplaced()
    b.ask(RequestKind.CANCEL, job=job)
    b.settle()
    assert b.status(job) is JobStatus.CANCELLED
    assert list(b.engine._running) == [other]


def test_a_job_that_runs_as_it_must_not_is_started_anew_as_it_may_when_the_dry_run_is_over(misplaced):
    b, job, _ = misplaced()
    told = commanded(b)
    b.advance(50.0)
    live_again(b)
    assert next(command for command in told if command.handle == job) == Stop(job)
    assert b.kinds(job)[:4] == ["submitted", "started", "interrupted", "resumed"]
    assert (b.status(job), b.row(job).gpus) == (JobStatus.RUNNING, 1)
    assert check(b.live.database).problems == ()


def test_it_fails_once_though_others_are_leaving_when_the_dry_run_is_over(misplaced):
    b, job, other = misplaced(Halting)
    b.ask(RequestKind.CANCEL, job=other)
    b.settle()
    assert b.session.durable.unsettled()
    told = commanded(b)
    b.ask(RequestKind.MODE, value="live")
    b.look()
    assert b.session.outgrown()
    assert not [command for command in told if isinstance(command, Start)]
    fails(b, job)
    b.keeper._write(b.session.finish())
    b.begin()
    b.settle()
    assert b.status(job) is JobStatus.FAILED
    assert [kind for kind in b.kinds(job) if kind in ENDED] == ["failed"]


def test_a_job_that_was_to_move_when_the_controller_died_is_where_it_is(bench):
    b = bench(Halting, nodes=[node("n-1"), node("n-2")])
    job = b.submit(1000.0, gpus=2, epochs=1000)
    b.settle()
    (there,) = b.engine.runs()[job]
    b.keeper._write(Tick(jobs={job: {"nodes": [f"n-{2 - there}"]}}))
    b.begin()
    b.settle()
    assert b.row(job).nodes == (f"n-{there + 1}",)
    assert b.kinds(job)[-1] == "migrated"
