"""What a look at a whole store finds, and that it finds nothing where all is well."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from commonwatt.store import migrate, tables
from commonwatt.store.check import check
from commonwatt.store.claim import claim_store
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import JobStatus
from tests.engines.waiting import until
from tests.store.made import SERVERS_SLOW, event, file, intent, spent


@pytest.fixture
def jobs(store, ticks):
    """One that waits, one that runs, one of each way to end; with what the controller writes of them."""
    made = [store.submit("ada", file(f"j{k}"), 1.0)[0].id for k in range(5)]
    runs, ended = made[1], made[2:]
    tick = Tick(requests=[r.id for r in ticks.requests()])
    tick.change(runs, status=JobStatus.RUNNING, nodes=["n1"], gpus_per_node=1, attempts=1, started_s=2.0, began_s=2.0)
    tick.events = [event(j, 1.0, "submitted", ()) for j in made] + [event(runs, 2.0)]
    for job, status in zip(ended, (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED), strict=True):
        tick.change(job, status=status, ended_s=3.0, attempts=1, settled=1)
        tick.events.append(event(job, 3.0, str(status), ()))
    tick.ledger = {("job", ended[0]): spent(1, 2, 3, 4), ("idle", 0): spent(5, 5, None, 5)}
    tick.ledger[("meter", 0)] = spent(16, 17, None, 19)
    tick.segments = {runs: spent(10, 10, 10, 10)}
    ticks.intend([intent(runs)])
    ticks.write(tick)
    ticks.write(Tick(intents=[intent(runs, outcome="done")]))
    return made


def found(database):
    return [(p.table, p.job) for p in check(database).problems]


def test_all_is_well(store, jobs):
    seen = check(store.database)
    assert seen.problems == ()
    assert (seen.ledger_exact, seen.open_intents, seen.controller, seen.revision) == (True, 0, False, migrate.head())
    assert seen.jobs == {"waiting": 1, "running": 1, "completed": 1, "failed": 1, "cancelled": 1}
    assert (seen.rows["jobs"], seen.rows["events"], seen.rows["ledger"]) == (5, 9, 4)


def test_an_empty_store_is_well(database):
    assert check(database).problems == ()


def test_an_open_command_is_a_problem_only_without_a_controller(store, ticks, jobs):
    ticks.intend([intent(jobs[1], 2)])
    assert found(store.database) == [("intents", None)]
    with claim_store(store.database):
        seen = check(store.database)
    assert (seen.controller, seen.open_intents, seen.problems) == (True, 1, ())
    until(lambda: not check(store.database).controller)  # a server ends the session of a closed connection later


@pytest.mark.slow
@pytest.mark.parametrize("backend", SERVERS_SLOW, indirect=True)
@pytest.mark.parametrize("column", ["energy_uj", "cost_n", "carbon_ug", "gpu_us"])
@pytest.mark.parametrize("row", ["job", "segment", "idle", "meter"])
def test_a_single_unit_too_many_in_the_ledger(store, jobs, row, column):
    t = tables.ledger.c
    with store.database.transaction() as c:
        value = c.scalar(tables.ledger.select().with_only_columns(t[column]).where(t.row == row))
        other = 7 if value is None else value + 1
        c.execute(tables.ledger.update().where(t.row == row).values({column: other}))
    unknown_elsewhere = column == "carbon_ug" and row not in ("meter", "idle")
    wrong = ([] if unknown_elsewhere else ["ledger"]) + ([] if row == "segment" else ["totals"])
    assert found(store.database) == [(what, None) for what in wrong]
    assert check(store.database).ledger_exact == (not wrong)


BAD_JOBS = {
    "runs nowhere": (1, {"nodes": []}),
    "waits on nodes": (0, {"nodes": ["n1"]}),
    "runs without GPUs": (1, {"gpus_per_node": 0}),
    "runs, never started": (1, {"attempts": 0}),
    "ended, but not when": (2, {"ended_s": None}),
    "waits, but ended": (0, {"ended_s": 5.0}),
    "settled more than started": (2, {"settled": 2}),
    "kept more than there is": (0, {"kept_epochs": 7.0}),
    "no job file": (0, {"file": {"name": "x"}}),
}


@pytest.mark.parametrize("backend", SERVERS_SLOW, indirect=True)
@pytest.mark.parametrize("what", BAD_JOBS)
def test_jobs_that_cannot_be(store, jobs, what):
    which, columns = BAD_JOBS[what]
    with store.database.transaction() as c:
        c.execute(tables.jobs.update().where(tables.jobs.c.id == jobs[which]).values(**columns))
    assert found(store.database) == [("jobs", jobs[which])]


BAD_EVENTS = {
    "an end of what runs": (1, "completed"),
    "an end of what waits": (0, "failed"),
    "ended twice": (2, "completed"),
    "something after the end": (3, "started"),
}


@pytest.mark.parametrize("what", BAD_EVENTS)
def test_events_that_cannot_be(store, ticks, jobs, what):
    which, kind = BAD_EVENTS[what]
    ticks.write(Tick(events=[event(jobs[which], 9.0, kind, ())]))
    assert found(store.database) == [("events", jobs[which])]


def test_an_end_of_another_kind_or_of_none(store, jobs):
    t = tables.events
    with store.database.transaction() as c:
        c.execute(t.update().where(t.c.job == jobs[2], t.c.kind == "completed").values(kind="failed"))
        c.execute(t.delete().where(t.c.job == jobs[4], t.c.kind == "cancelled"))
    assert found(store.database) == [("events", jobs[2]), ("events", jobs[4])]


def test_pruned_events_are_not_missed(store, ticks, jobs):
    assert ticks.prune(4.0) > 0
    assert check(store.database).problems == ()


def test_rows_of_jobs_there_are_not(store, ticks, jobs):
    ticks.write(Tick(events=[event(99_999)], ledger={("job", 99_998): spent(0, 0, 0, 0)}))
    assert found(store.database) == [("events", 99_999), ("ledger", 99_998)]
