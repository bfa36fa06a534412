"""How long jobs that have ended really took."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.engine import JobEnded, Outcome
from commonwatt.live.lasted import Stay, factor, factors, stays_of
from commonwatt.live.savings import estimate, jobs_for_estimate
from commonwatt.model.nodes import Cluster
from commonwatt.store.records import EventRow, JobStatus, RequestKind
from commonwatt.store.runs import events_of, worked_gpu_s
from tests.live.bench import Bench, node

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
    return factors(b.live.store.jobs(limit=1000), Cluster.of(b.live.config.nodes), b.live.database)


def test_the_estimate_takes_jobs_that_ended_for_what_they_were(bench):
    """They report nothing, so each is planned by its time limit, a day, and ends after a minute."""
    b = bench(nodes=[node("n")], policies=[{"solver": "fifo"}], live={"default_time_limit_s": 86_400})
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
    found = factors(rows, Cluster.of(b.live.config.nodes), b.live.database)
    assert found == {gone: 0.0}
    made, _ = jobs_for_estimate(rows, b.live.maker, b.clock() + 10.0, (), found)
    assert [job.name for job in made] == [f"{waits}-j"]


def test_where_a_job_was_is_read_from_its_events():
    def event(time_s: float, kind: str, nodes: tuple[str, ...] = (), gpus: int = 0) -> EventRow:
        return EventRow(0, time_s, kind, 1, nodes, gpus, "", "")

    happened = [
        event(10.0, "started", ("v-1",), 1),
        event(30.0, "interrupted", ("v-1",), 1),
        event(40.0, "resumed", ("v-2",), 1),
        event(45.0, "not-started", ("v-2",), 1),
        event(50.0, "resumed", ("v-1", "v-2"), 4),
        event(90.0, "migrated", ("a",), 2),
        event(95.0, "completed", ("a",), 2),
    ]
    assert stays_of(happened) == [
        Stay(("v-1",), 1, 20.0),
        Stay(("v-1", "v-2"), 4, 40.0),
        Stay(("a",), 2, 5.0),
    ]
    assert stays_of([]) == []


def test_each_stay_counts_by_what_was_planned_there(bench):
    b = bench(nodes=BOTH)
    job = b.submit(times_s=TIMES)
    b.settle()
    row, cluster = b.row(job), Cluster.of(b.live.config.nodes)
    half = [Stay(("v-1",), 1, 500.0), Stay(("a",), 1, 250.0)]  # half the job each
    assert factor(row, 750.0, half, cluster) == pytest.approx(1.0)
    assert factor(row, 375.0, half, cluster) == pytest.approx(0.5)  # the other half was starting, or lost
    elsewhere = Stay(("gone",), 1, 100.0)
    assert factor(row, 750.0, [*half, elsewhere], cluster) == pytest.approx(1.0)
    alike = (1 / 1000 + 1 / 1200 + 1 / 500) / 3
    assert factor(row, 100.0, [elsewhere], cluster) == pytest.approx(100.0 * alike)
    assert factor(row, 100.0, [], cluster) == pytest.approx(100.0 * alike)
    assert factor(replace(row, times=None), 100.0, half, cluster) == 0.0


def test_more_jobs_than_a_query_names(bench, monkeypatch):
    monkeypatch.setattr("commonwatt.store.runs._AT_ONCE", 2)
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
