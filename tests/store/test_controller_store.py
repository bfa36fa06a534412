"""What the controller does to the store, on all three databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonwatt.model.errors import StoreError
from commonwatt.store import controller_store as pruning
from commonwatt.store import tables
from commonwatt.store.controller_store import Tick
from commonwatt.store.queries import events_of
from commonwatt.store.records import JobStatus, RequestKind
from tests.store.made import event, everything, file, intent, sample, spent

COLUMNS = ("energy_uj", "cost_n", "carbon_ug", "gpu_us")
same_store = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)


def full(store, ticks) -> Tick:
    """A tick with something of everything."""
    jobs = [store.submit("ada", file(f"j{k}"), 1.0)[0].id for k in range(4)]
    ticks.intend([intent(jobs[0]), intent(jobs[1])])
    tick = Tick(events=[event(jobs[0]), event(jobs[1])], sample=sample(), requests=[ticks.requests()[0].id])
    for job in jobs[:3]:
        tick.change(job, status=JobStatus.RUNNING, nodes=["n1", "n2"], gpus_per_node=2, attempts=1)
    tick.change(jobs[3], times=[{"gpu_type": "V100", "gpus": 1, "time_s": 5.0}], sentence="waits", expected_end_s=7.5)
    tick.ledger = {("job", jobs[0]): spent(), ("idle", 0): spent(10, None, 30, 40)}
    tick.segments = {jobs[1]: spent(5, 6, 7, 8)}
    tick.intents = [intent(jobs[0], outcome="done")]
    tick.settings = {"mode": "dry-run"}
    tick.profiles = [
        {"kind": "bert", "job": jobs[0], "gpu_type": "V100", "gpus": 2, "epoch_s": 1.5, "gpu_w": None, "epochs": 2.0,
         "measured_s": 9.0}
    ]  # fmt: skip
    return tick


def test_events_of_many_jobs_with_what_they_lost(store, ticks):
    jobs = [store.submit("ada", file(f"j{k}"), 1.0)[0].id for k in range(2)]
    kinds = ("started", "interrupted", "resumed", "completed")
    lost_s = {"interrupted": 4.5}
    ticks.write(
        Tick(events=[replace(event(job), kind=kind, lost_s=lost_s.get(kind)) for kind in kinds for job in jobs])
    )
    found = list(events_of(store.database, jobs, ("started", "interrupted")))
    assert [(e.job, e.kind, e.lost_s, e.sentence) for e in found] == [
        row for job in jobs for row in ((job, "started", None, ""), (job, "interrupted", 4.5, ""))
    ]


def test_a_tick_with_something_of_everything(store, ticks):
    tick = full(store, ticks)
    ticks.write(tick)
    jobs = ticks.active_jobs()
    assert [j.status for j in jobs] == [JobStatus.RUNNING] * 3 + [JobStatus.WAITING]
    assert [(j.nodes, j.gpus) for j in jobs] == [(("n1", "n2"), 4)] * 3 + [((), 0)]
    assert (jobs[3].times, jobs[3].sentence, jobs[3].expected_end_s) == (tick.jobs[jobs[3].id]["times"], "waits", 7.5)
    assert [e.job for e in store.events()] == [jobs[0].id, jobs[1].id]
    assert len(ticks.requests()) == 3
    assert ticks.open_intents() == [intent(jobs[1].id)]
    assert ticks.segments() == {jobs[1].id: spent(5, 6, 7, 8)}
    assert store.account(jobs[0].id) == spent()
    assert store.account(jobs[1].id) == spent(5, 6, 7, 8)
    rows = {(row["row"], row["tenant"]): {name: row[name] for name in COLUMNS} for row in store.ledger()}
    wanted = {("idle", None): spent(10, None, 30, 40), ("job", "ada"): spent(), ("segment", "ada"): spent(5, 6, 7, 8)}
    assert rows == wanted
    assert [(p["kind"], p["gpu_w"], p["epoch_s"]) for p in ticks.profiles()] == [("bert", None, 1.5)]
    assert store.samples(0.0) == [sample()]
    assert store.setting("mode") == "dry-run"


def test_a_tick_with_nothing(store, ticks):
    before = everything(store.database)
    ticks.write(Tick())
    ticks.intend([])
    assert everything(store.database) == before


def test_jobs_that_do_not_exist_change_nothing(store, ticks):
    before = everything(store.database)
    ticks.write(Tick(jobs={12345: {"held": True}, 12346: {}}))
    assert everything(store.database) == before
    assert ticks.jobs_by_id([12345, 10**9]) == []
    assert ticks.jobs_by_id([]) == []


def test_many_jobs_by_id(store, ticks):
    made = [store.submit("ada", file(f"j{k}"), 1.0)[0] for k in range(3)]
    asked = [*range(10**6, 10**6 + 1200), *(job.id for job in made)]
    assert ticks.jobs_by_id(asked) == made


FAILURES = {
    "a column there is none of": {"jobs": {1: {"colour": "red"}}},
    "text for a number": {"profiles": [{"kind": "x"}]},
    "a number that is none": {"settings": {"x": float("nan")}},
    "what JSON does not know": {"settings": {"x": object()}},
    "no value where one must be": {"events": [event(sentence="", reason="x", gpus=None)]},
    "a number too large": {"ledger": {("idle", 0): spent(10**38)}},
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_tick_is_written_whole_or_not_at_all(store, ticks, what):
    good = full(store, ticks)
    before = everything(store.database)
    bad = Tick(**(vars(good) | {"token": "another"}))
    for name, value in FAILURES[what].items():
        old = getattr(bad, name)
        setattr(bad, name, {**old, **value} if isinstance(old, dict) else [*old, *value])
    with pytest.raises(StoreError) as caught:
        ticks.write(bad)
    assert "\n" not in str(caught.value)
    assert everything(store.database) == before
    ticks.write(good)
    assert everything(store.database) != before


@pytest.mark.slow
@pytest.mark.parametrize("statement", range(9))
def test_a_connection_that_breaks_anywhere_leaves_nothing_behind(store, ticks, statement):
    """The driver's error is raised in place of the nth statement of the tick."""
    tick = full(store, ticks)
    before = everything(store.database)
    count = iter(range(10**6))

    def breaks(connection, cursor, text, parameters, context, many):
        if next(count) == statement:
            raise sa.exc.OperationalError(text, None, Exception("the line is dead"))

    sa.event.listen(store.database.engine, "before_cursor_execute", breaks)
    try:
        with pytest.raises(StoreError, match="the line is dead"):
            ticks.write(tick)
    finally:
        sa.event.remove(store.database.engine, "before_cursor_execute", breaks)
    assert everything(store.database) == before
    ticks.write(tick)
    written = everything(store.database)
    ticks.write(tick)
    assert everything(store.database) == written


def test_an_answer_that_was_lost_does_not_double_a_tick(store, ticks):
    """The transaction was committed, but the controller was told that the connection broke: it tries again."""
    tick = full(store, ticks)
    lost = []

    def lose(connection):
        if not lost:
            lost.append(True)
            connection.connection.dbapi_connection.commit()
            raise sa.exc.OperationalError("COMMIT", None, Exception("the line is dead"))

    if store.database.backend == "sqlite":

        def lose(connection):
            if not lost:
                lost.append(True)
                connection.connection.dbapi_connection.execute("COMMIT")
                raise sa.exc.OperationalError("COMMIT", None, Exception("the line is dead"))

    sa.event.listen(store.database.engine, "commit", lose)
    with pytest.raises(StoreError, match="the line is dead"):
        ticks.write(tick)
    written = everything(store.database)
    assert len(written["events"]) == 2
    ticks.write(tick)
    assert everything(store.database) == written
    other = Tick(ledger={("idle", 0): spent()})
    ticks.write(other)
    ticks.write(other)
    rows = {row["row"]: row for row in store.ledger()}
    assert (rows["idle"]["energy_uj"], rows["idle"]["cost_n"]) == (11, None)


amounts = st.one_of(st.none(), st.integers(-(10**12), 10**12))
changes = st.fixed_dictionaries(
    {"energy_uj": amounts, "cost_n": amounts, "carbon_ug": amounts, "gpu_us": st.integers(0, 10**12)}
)
keys = st.tuples(st.sampled_from(["job", "idle", "starting", "meter"]), st.integers(0, 3))


@pytest.mark.slow
@same_store
@given(written=st.lists(st.dictionaries(keys, changes, max_size=5), max_size=5))
def test_the_ledger_is_the_sum_of_what_was_added(backend, written, request):
    """Unknown plus anything is unknown."""
    store, ticks = request.getfixturevalue("store"), request.getfixturevalue("ticks")
    with store.database.transaction() as c:
        c.execute(tables.ledger.delete())
        c.execute(tables.totals.delete())
    sums: dict = {}
    for ledger in written:
        ticks.write(Tick(ledger=ledger))
        for key, change in ledger.items():
            sum_ = sums.setdefault(key, dict.fromkeys(COLUMNS, 0))
            for name, value in change.items():
                sum_[name] = None if sum_[name] is None or value is None else sum_[name] + value
    with store.database.reading() as c:
        rows = c.execute(tables.ledger.select()).mappings().all()
    assert {(row["row"], row["job"]): {name: row[name] for name in COLUMNS} for row in rows} == sums
    totals: dict = {}
    for (row, _), values in sums.items():
        total = totals.setdefault(row, dict.fromkeys(COLUMNS, 0))
        for name, value in values.items():
            total[name] = None if total[name] is None or value is None else total[name] + value
    assert {row["row"]: {name: row[name] for name in COLUMNS} for row in store.ledger()} == totals


def test_sums_larger_than_what_fits_in_a_double(store, ticks):
    ticks.write(Tick(ledger={("meter", 0): spent(2**60 + 1), ("idle", 0): spent(2**60)}))
    ticks.write(Tick(ledger={("meter", 0): spent(1)}))
    assert {row["row"]: row["energy_uj"] for row in store.ledger()} == {"meter": 2**60 + 2, "idle": 2**60}


def test_commands_are_written_once(store, ticks):
    first, second = intent(1), intent(1, 2)
    ticks.intend([first])
    with pytest.raises(StoreError):
        ticks.intend([second, first])
    assert ticks.open_intents() == [first]
    ticks.write(Tick(intents=[intent(1, outcome="failed", cause="no \0 and \ud800: " + "x" * 100_000)]))
    assert ticks.open_intents() == []
    with store.database.reading() as c:
        row = c.execute(tables.intents.select()).mappings().one()
    assert row["cause"] == "no \ufffd and ?: " + "x" * 100_000
    assert row["outcome"] == "failed"


def test_what_programs_say_never_stops_the_controller(store, ticks):
    """Reasons and sentences may hold what a job's program printed."""
    job, _ = store.submit("ada", file(), 1.0)
    odd = "exit: '; DROP TABLE jobs; -- \0 \ud800 \U0001f680 " + "y" * 5000
    tick = Tick(events=[event(job.id, reason=odd, sentence=odd)])
    tick.change(job.id, reason=odd, sentence=odd)
    ticks.write(tick)
    kept = odd.replace("\0", "\ufffd").replace("\ud800", "?")
    assert store.job(job.id).sentence == kept
    assert (store.events()[0].sentence, len(store.events()[0].reason)) == (kept, 128)


def test_pruning(store, ticks):
    """Old rows go; what belongs to jobs in work, what is open, jobs and the ledger stay."""
    done, waits = store.submit("ada", file("a"), 1.0)[0].id, store.submit("ada", file("b"), 1.0)[0].id
    ticks.intend([intent(done), intent(done, 2), intent(waits)])
    tick = Tick(
        requests=[ticks.requests()[0].id], intents=[intent(done, outcome="done"), intent(waits, outcome="done")]
    )
    tick.events = [event(j, t) for j in (done, waits, None) for t in (1.0, 100.0)]
    tick.ledger = {("job", done): spent()}
    tick.change(done, status=JobStatus.COMPLETED)
    ticks.write(tick)
    for k in range(7):
        ticks.write(Tick(sample=sample(float(k))))
        store.note(float(k), "ada", "submit", "1", "ok")
    store.ask(RequestKind.CANCEL, 1.0, job=waits)
    assert ticks.prune(5.0, page=2) == 5 + 5 + 1 + 2 + 1
    assert [s.time_s for s in store.samples(-1.0)] == [5.0, 6.0]
    assert [a["at_s"] for a in store.audit()] == [5.0, 6.0]
    assert [(e.job, e.time_s) for e in store.events()] == [(done, 100.0), (waits, 1.0), (waits, 100.0), (None, 100.0)]
    assert [r.kind for r in ticks.requests()] == ["submit", "cancel"]
    assert [i.key for i in ticks.open_intents()] == [f"start-{done}-2"]
    assert store.account(done) == spent()
    assert store.counts() == {"waiting": 1, "running": 0, "completed": 1, "failed": 0, "cancelled": 0}
    assert store.setting("pruned_s") == 5.0
    assert ticks.prune(4.0) == 0
    assert store.setting("pruned_s") == 5.0


def test_what_belongs_to_a_job_is_kept_whole_until_its_end_is_old(store, ticks):
    """However long it ran: what it began with is part of its story."""
    long, short, waits = (store.submit("ada", file(name), 1.0)[0].id for name in "abc")
    ticks.intend([intent(long), intent(short)])
    tick = Tick(requests=[r.id for r in ticks.requests()], intents=[intent(j, outcome="done") for j in (long, short)])
    tick.events = [event(long, float(t)) for t in range(1, 101)]
    tick.events += [event(short, 1.0), event(short, 2.0), event(waits, 1.0), event(None, 1.0, nodes=())]
    measured = {"kind": "", "gpu_type": "V100", "gpus": 1, "epoch_s": 1.0, "gpu_w": None, "epochs": 2.0}
    tick.profiles = [measured | {"job": job, "measured_s": 1.5} for job in (long, short)]
    tick.change(long, status=JobStatus.COMPLETED, ended_s=100.0)
    tick.change(short, status=JobStatus.FAILED, ended_s=2.0)
    ticks.write(tick)

    def kept():
        with store.database.reading() as c:
            return {
                t.name: sorted(row.job for row in c.execute(t.select()) if row.job is not None)
                for t in (tables.intents, tables.profiles)
            }

    assert ticks.prune(2.0) == 3 + 1  # requests, and the event of no job
    assert kept() == {"intents": [long, short], "profiles": [long, short]}
    assert ticks.prune(100.0, page=3) == 2 + 1 + 1
    assert kept() == {"intents": [long], "profiles": [long]}
    assert [len(store.events(job=job)) for job in (long, short, waits)] == [100, 0, 1]
    assert ticks.prune(100.5, page=30) == 100 + 1 + 1
    assert [e.job for e in store.events()] == [waits]


def test_the_time_to_prune_by_goes_on_by_a_day_at_most(store, ticks):
    """A clock that is far ahead for a while is not believed, one that was set back is at once."""
    day_s = 86400.0
    assert ticks.trusted(5.0) == 5.0
    assert ticks.trusted(0.9 * day_s) == 0.9 * day_s
    assert [ticks.trusted(200 * day_s) for _ in range(2)] == [1.9 * day_s, 2.9 * day_s]
    assert ticks.trusted(1.0 * day_s) == 1.0 * day_s
    assert ticks.trusted(200 * day_s) == 2.0 * day_s
    assert store.setting("trusted_s") == 2.0 * day_s


def test_a_store_nothing_was_pruned_in_yet_is_as_old_as_its_oldest_sample(ticks):
    for time_s in (20.0, 10.0):
        ticks.write(Tick(sample=sample(time_s)))
    assert ticks.trusted(1e9) == 10.0 + 86400.0


def test_measurements_of_no_further_use_are_pruned(store, ticks, monkeypatch):
    """Of each kind of jobs some stay, however old; all of jobs in work."""
    monkeypatch.setattr(pruning, "_OF_A_KIND", 2)

    def measured(job, kind, at_s):
        return {"kind": kind, "job": job, "gpu_type": "V100", "gpus": 1, "epoch_s": at_s, "gpu_w": None, "epochs": 2.0,
                "measured_s": at_s}  # fmt: skip

    over, waits = (store.submit("ada", file(name), 1.0)[0].id for name in "ab")
    rows = [(over, kind, float(k)) for kind, count in (("", 4), ("bert", 4), ("rare", 2)) for k in range(1, count + 1)]
    tick = Tick(profiles=[measured(*row) for row in [*rows, (waits, "", 1.5), (waits, "bert", 1.5)]])
    tick.change(over, status=JobStatus.COMPLETED)
    ticks.write(tick)

    def kept():
        return [(p["kind"], p["epoch_s"], p["active"]) for p in ticks.profiles()]

    assert ("", 4.0, False) not in kept()  # of a job of no kind that has ended
    assert ("", 1.5, True) in kept()
    assert ticks.prune(3.5) == 3 + 3
    assert kept() == [
        ("bert", 4.0, False), ("rare", 1.0, False), ("rare", 2.0, False), ("", 1.5, True), ("bert", 1.5, True)
    ]  # fmt: skip
    with store.database.reading() as c:
        assert [p.epoch_s for p in c.execute(tables.profiles.select()) if p.kind == ""] == [4.0, 1.5]


def test_pruning_can_be_ended_and_gone_on_with(store, ticks):
    for k in range(10):
        ticks.write(Tick(sample=sample(float(k))))
    left = iter([True, True, False])
    assert ticks.prune(100.0, page=3, go_on=lambda: next(left, False)) == 6
    assert ticks.prune(100.0, page=3) == 4


def test_numbers_of_rows_are_not_given_again_after_pruning(store, ticks):
    """Those who ask for events beyond the last they saw miss none."""
    ticks.write(Tick(events=[event(None, 1.0, nodes=())] * 3))
    last = store.events()[-1].id
    ticks.prune(10.0)
    assert store.events() == []
    ticks.write(Tick(events=[event(None, 20.0, nodes=())]))
    assert store.events(after=last)[0].id > last
