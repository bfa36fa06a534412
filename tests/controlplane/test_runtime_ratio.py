"""How long jobs that have ended really took."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import JobEnded, Outcome
from commonwatt.controlplane.savings import Stay, estimate, jobs_for_estimate, runtime_ratio, runtime_ratios, stays_of
from commonwatt.model.nodes import Cluster
from commonwatt.store.queries import events_of, worked_gpu_s
from commonwatt.store.records import EventRow, JobStatus, RequestKind
from tests.controlplane.bench import Bench, node

BOTH = [node("v", count=2), node("a", "A100")]
TIMES = {"V100": {1: 1000.0, 2: 600.0}, "A100": {1: 500.0}}


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Bench:
        return opened(Bench(tmp_path, **changes))

    return make


def end(b: Bench, job: int, outcome: Outcome = Outcome.COMPLETED) -> None:
    """Have the work of a job come to its end now, whatever was planned."""
    run = b.engine._running[job]
    b.engine._catch_up()
    b.engine._vacate(run)
    over = JobEnded(job, b.engine.now_s, outcome)
    b.engine._changes.append(over)
    b.engine._ends[job] = over
    b.settle()


def lasted(b: Bench) -> dict[int, float]:
    return runtime_ratios(b.live.store.jobs(limit=1000), Cluster.of(b.live.config.nodes), b.live.database)


@pytest.mark.long
def test_the_estimate_takes_jobs_that_ended_for_what_they_were(bench):
    """They report nothing, so each is planned by its time limit, a day, and ends after a minute."""
    b = bench(
        nodes=[node("n")], policies=[{"solver": "fifo"}], knowledge="user-limit", live={"default_time_limit_s": 86_400}
    )
    jobs = []
    for outcome in (Outcome.COMPLETED, Outcome.FAILED, Outcome.COMPLETED):
        jobs.append(b.submit(times_s=None))
        b.settle()
        b.advance(60.0)
        end(b, jobs[-1], outcome)
    goes_on = b.submit(times_s=None)
    b.settle()
    b.advance(300.0)
    b.settle()
    assert [str(b.status(job)) for job in (*jobs, goes_on)] == ["completed", "failed", "completed", "running"]
    assert lasted(b) == dict.fromkeys(jobs, pytest.approx(60.0 / 86_400.0))
    made, period_s = jobs_for_estimate(b.live.store.jobs(limit=10), b.live.maker, b.clock(), (), lasted(b))
    assert [job.times_s["V100"][1] for job in made] == [pytest.approx(60.0)] * 3 + [86_400.0]
    (meter,) = (row for row in b.live.store.ledger() if row["row"] == "meter")
    saved = b.live.estimator.look()
    assert saved == estimate(b.live.config, made, period_s, 0)
    assert saved["baseline_energy_kwh"] == pytest.approx(meter["energy_uj"] / 3.6e12, rel=1e-3)


def test_all_configurations_take_as_many_times_as_long(bench):
    b = bench(nodes=BOTH)
    job = b.submit(times_s=TIMES)
    b.settle()
    row = b.row(job)
    planned_s = TIMES[row.gpu_type][row.gpus]
    b.advance(planned_s / 4)
    end(b, job)
    assert lasted(b) == {job: pytest.approx(0.25)}
    made, _ = jobs_for_estimate(b.live.store.jobs(limit=10), b.live.maker, b.clock(), (), lasted(b))
    assert made[0].times_s["V100"] == {1: pytest.approx(250.0), 2: pytest.approx(150.0)}
    assert made[0].times_s["A100"] == {1: pytest.approx(125.0)}


def test_a_job_that_never_ran_counts_for_nothing(bench):
    b = bench(nodes=[node("n")])
    b.ask(RequestKind.DRAIN, node="n")
    b.settle()
    gone, waits = b.submit(), b.submit()
    b.settle()
    rows = [
        replace(row, status=JobStatus.FAILED, ended_s=b.clock()) if row.id == gone else row
        for row in b.live.store.jobs(limit=10)
    ]
    found = runtime_ratios(rows, Cluster.of(b.live.config.nodes), b.live.database)
    assert found == {gone: 0.0}
    made, _ = jobs_for_estimate(rows, b.live.maker, b.clock() + 10.0, (), found)
    assert [job.name for job in made] == [f"{waits}-j"]


def test_where_a_job_was_is_read_from_its_events():
    def event(time_s: float, kind: str, nodes: tuple[str, ...] = (), gpus: int = 0, lost_s=None) -> EventRow:
        return EventRow(0, time_s, kind, 1, nodes, gpus, "", "", lost_s)

    happened = [
        event(10.0, "started", ("v-1",), 1),
        event(30.0, "interrupted", ("v-1",), 1),
        event(40.0, "resumed", ("v-2",), 1),
        event(45.0, "not-started", ("v-2",), 1),
        event(50.0, "resumed", ("v-1", "v-2"), 4),
        event(90.0, "migrated", ("a",), 2),
        event(95.0, "preempted", ("a",), 2, 4.0),
        event(96.0, "resumed", ("v-1",), 1),
        event(99.0, "completed", ("v-1",), 1),
    ]
    assert stays_of(happened) == [
        Stay(("v-1",), 1, 20.0, None),
        Stay(("v-1", "v-2"), 4, 40.0, None),
        Stay(("a",), 2, 5.0, 4.0),
        Stay(("v-1",), 1, 3.0, 0.0),
    ]
    assert stays_of([]) == []


def test_each_stay_counts_by_what_was_planned_there(bench):
    b = bench(nodes=BOTH)
    job = b.submit(times_s=TIMES)
    b.settle()
    row, cluster = b.row(job), Cluster.of(b.live.config.nodes)
    half = [Stay(("v-1",), 1, 500.0), Stay(("a",), 1, 250.0)]  # half the job each
    assert runtime_ratio(row, 750.0, half, cluster) == pytest.approx(1.0)
    assert runtime_ratio(row, 375.0, half, cluster) == pytest.approx(0.5)  # the other half was starting, or lost
    elsewhere = Stay(("gone",), 1, 100.0)
    assert runtime_ratio(row, 750.0, [*half, elsewhere], cluster) == pytest.approx(1.0)
    alike = (1 / 1000 + 1 / 1200 + 1 / 500) / 3
    assert runtime_ratio(row, 100.0, [elsewhere], cluster) == pytest.approx(100.0 * alike)
    assert runtime_ratio(row, 100.0, [], cluster) == pytest.approx(100.0 * alike)
    assert runtime_ratio(replace(row, times=None), 100.0, half, cluster) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("stays", "worked_gpu_s", "lasted"),
    [
        ([("v-1", 1, 900.0, 900.0), ("a", 1, 500.0, 0.0)], 500.0, 1.0),  # all of the first is lost
        ([("a", 1, 450.0, 450.0), ("v-1", 1, 1000.0, 0.0)], 1000.0, 1.0),
        ([("v-1", 2, 500.0, 500.0), ("v-2", 1, 900.0, 900.0), ("a", 1, 250.0, 0.0)], 250.0, 0.5),
        ([("v-1", 1, 900.0, 400.0), ("a", 1, 250.0, 0.0)], 750.0, 1.0),  # half of the job was kept
        ([("v-1", 2, 400.0, 100.0), ("a", 1, 250.0, 0.0)], 850.0, 1.0),
    ],
)
def test_what_was_lost_in_one_place_counts_there_only(bench, told, stays, worked_gpu_s, lasted):
    b = bench(nodes=BOTH)
    job = b.submit(times_s=TIMES)
    b.settle()
    known = [Stay((name,), gpus, s, lost_s if told or not lost_s else None) for name, gpus, s, lost_s in stays]
    assert runtime_ratio(b.row(job), worked_gpu_s, known, Cluster.of(b.live.config.nodes)) == pytest.approx(lasted)


def test_what_was_told_to_be_lost_is_not_taken_from_where_nothing_was_told(bench):
    b = bench(nodes=BOTH)
    job = b.submit(times_s=TIMES)
    b.settle()
    stays = [Stay(("v-1",), 1, 500.0, None), Stay(("a",), 1, 200.0, 200.0), Stay(("a",), 1, 250.0)]
    cluster = Cluster.of(b.live.config.nodes)
    assert runtime_ratio(b.row(job), 750.0, stays, cluster) == pytest.approx(1.0)
    assert runtime_ratio(b.row(job), 500.0, stays, cluster) == pytest.approx(0.75)  # the rest is missing of the first
    assert runtime_ratio(b.row(job), 0.0, stays, cluster) == 0.0


@pytest.mark.parametrize(
    ("first", "then", "held_s"), [("n", "m", 9000.0), ("m", "n", 900.0)], ids=["slow first", "fast first"]
)
def test_a_job_that_lost_its_work_elsewhere_took_as_long_as_planned(bench, first, then, held_s):
    b = bench(nodes=[{**node("m", "A100"), "gpus": 1}, {**node("n"), "gpus": 1}])
    b.settle()
    b.ask(RequestKind.DRAIN, node=then)
    b.settle()
    job = b.submit(times_s={"V100": {1: 10_000.0}, "A100": {1: 1000.0}}, epochs=1)
    b.settle()
    assert b.row(job).nodes == (first,)
    b.advance(held_s)
    b.settle()
    b.ask(RequestKind.UNDRAIN, node=then)
    b.ask(RequestKind.DRAIN, node=first)
    b.settle()
    b.engine._fail(b.live.cluster.names.index(first))
    b.settle()
    assert b.row(job).nodes == (then,)
    b.advance(20_000.0)
    b.settle()
    assert lasted(b) == {job: pytest.approx(1.0)}
    (event,) = [event for event in b.live.store.events(job=job) if event.kind == "interrupted"]
    lost = f"{held_s:.0f} s of work since the last checkpoint are lost"
    assert event.sentence == f"{job}-j was interrupted: node {first} went down; {lost}"
    assert event.lost_s == held_s


def test_more_jobs_than_a_query_names(bench, monkeypatch):
    monkeypatch.setattr("commonwatt.store.queries._AT_ONCE", 2)
    b = bench(nodes=[node("n", count=5)])
    jobs = [b.submit(100.0) for _ in range(5)]
    b.settle()
    b.advance(200.0)
    b.settle()
    assert worked_gpu_s(b.live.database, jobs) == dict.fromkeys(jobs, pytest.approx(100.0))
    events = list(events_of(b.live.database, jobs, ("started", "completed")))
    assert [event.job for event in events] == [job for job in jobs for _ in range(2)]
    assert [event.kind for event in events] == ["started", "completed"] * 5
    assert lasted(b) == dict.fromkeys(jobs, pytest.approx(1.0))
