"""What people do to the store, on all three databases."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonwatt.model.errors import InputError, ServiceError
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import (
    JobStatus,
    Packed,
    RequestKind,
    TokenOwner,
    packed,
    parts_of,
    unpacked,
    with_changes,
)  # fmt: skip
from tests.store.made import SERVERS_SLOW, event, file, sample, spent

# Texts a database may have its own idea of: case, accents, blanks at the end, quotes, wildcards, SQL, emoji.
ODD = [
    "ADA", "Ada", "ada ", " ada", "adä", "ada\u0308", "a%", "a_a", "it's", 'say "x"', "`ada`", "back\\slash",
    "'; DROP TABLE jobs; --", "1 OR 1=1", ":ada", "%(ada)s", "%s", "{ada}", "$ada", "\U0001f680 rocket", "\u202eada",
    "new\nline", "tab\t", "x" * 128, "\U0001f680" * 128, "NULL", "\x1b[31m", "\uffff",
]  # fmt: skip
UNSTORABLE = ["nul\0", "\ud800 half", "x" * 129, ""]
slow_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


def test_tenants(store):
    store.add_tenant("bob", 2.0, 5.0)
    store.add_tenant("ada", 3.0, 9.0)
    assert store.tenants() == {"ada": 3.0, "bob": 2.0}


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_are_numbers_above_zero(store, weight):
    with pytest.raises(InputError, match="'weight'"):
        store.add_tenant("bob", weight, 0.0)
    assert store.tenants() == {"ada": 1.0}


@pytest.mark.slow
def test_every_text_is_kept_as_it_is_or_refused_at_the_door(store):
    for k, text in enumerate(ODD):
        store.add_tenant(text, 1.0 + k, 0.0)
    assert store.tenants() == {"ada": 1.0} | {text: 1.0 + k for k, text in enumerate(ODD)}
    for text in ODD:
        token = store.add_token(text, text, 1.0)
        assert store.owner(token) == TokenOwner(store.tokens()[-1]["id"], text, text)
        job, new = store.submit(text, file(kind=text[:100], environment={"X": text}), 2.0, key=text)
        assert (new, job.tenant, job.file.kind) == (True, text, text[:100])
        again, new = store.submit(text, file(kind=text[:100], environment={"X": text}), 3.0, key=text)
        assert (new, again) == (False, job)
        assert store.jobs(tenant=text) == [job] == [store.job(job.id)]
        assert store.counts(text)["waiting"] == 1
        store.ask(RequestKind.DRAIN, 4.0, node=text, value=text)
        store.note(5.0, text, "submit", text, "ok", {text: text})
    assert [(r.node, r.value) for r in ControllerStore(store.database).requests() if r.node] == [(t, t) for t in ODD]
    assert [(a["actor"], a["target"], a["detail"]) for a in store.audit()] == [(t, t, {t: t}) for t in ODD]
    assert store.counts()["waiting"] == len(ODD)
    assert store.counts_by_tenant() == {tenant: store.counts(tenant) for tenant in ("ada", *ODD)}


@pytest.mark.parametrize("text", UNSTORABLE, ids=ascii)
def test_what_cannot_be_stored_is_refused_with_one_line(store, text):
    before = store.tenants()
    for call in (
        lambda: store.add_tenant(text, 1.0, 0.0),
        lambda: store.add_token(text, "x", 0.0),
        lambda: store.add_token(None, text, 0.0),
        lambda: store.submit(text, file(), 0.0),
        lambda: store.submit("ada", file(), 0.0, key=text),
        lambda: store.ask(RequestKind.DRAIN, 0.0, node=text),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert "\0" not in str(caught.value)
        str(caught.value).encode()
    assert (store.tenants(), store.tokens(), store.jobs()) == (before, [], [])
    assert store.jobs(tenant=text) == []
    assert set(store.counts(text).values()) == {0}
    assert store.owner(text) is None
    store.note(1.0, text, text, text, text, {text: [text, float("nan")]})  # what happened is noted in any case
    (line,) = store.audit()
    assert len(line["actor"]) <= 128
    assert "\0" not in line["actor"]


def test_a_file_with_odd_characters_where_none_is_excluded(store):
    odd = file(kind="nul \0", gpu_type="\0")
    job, _ = store.submit("ada", odd, 0.0)
    assert store.job(job.id).file == odd


def test_tokens_are_worth_something_until_they_are_revoked(store):
    mine, operators = store.add_token("ada", "laptop", 1.0), store.add_token(None, "ops", 2.0)
    first, second = store.tokens()
    assert mine.startswith("cw_")
    assert store.owner(mine) == TokenOwner(first["id"], "laptop", "ada")
    assert store.owner(operators) == TokenOwner(second["id"], "ops", None)
    assert [store.owner(t) for t in ("", "x", mine[:-1], mine + " ", mine.swapcase(), "\ud800")] == [None] * 6
    assert mine not in repr(store.tokens())
    assert store.revoke(first["id"], 3.0)
    assert not store.revoke(first["id"], 4.0)
    assert not store.revoke(10**30, 4.0)
    assert store.owner(mine) is None
    assert [t["revoked_s"] for t in store.tokens()] == [3.0, None]


def test_tokens_are_kept_as_digests_only(store):
    from tests.store.made import everything

    token = store.add_token("ada", "laptop", 1.0)
    assert token not in repr(everything(store.database))
    assert token[3:] not in repr(everything(store.database))


def test_a_submitted_job(store):
    wanted = file(epochs=3, times_s={"V100": {1: 5.5, 4: 0.1}}, due="2030-01-01", environment={"A": "b"})
    job, new = store.submit("ada", wanted, 10.5, due_s=99.25, key="k")
    assert new
    assert (job.name, job.tenant, job.file, job.status) == ("train", "ada", wanted, JobStatus.WAITING)
    assert (job.submit_s, job.due_s, job.nodes, job.gpus) == (10.5, 99.25, (), 0)
    assert (job.attempts, job.settled, job.failures, job.done_epochs, job.kept_epochs) == (0, 0, 0, 0.0, 0.0)
    unknown = (job.began_s, job.started_s, job.ended_s, job.gpu_type, job.times, job.reason, job.expected_end_s)
    assert unknown == (None,) * 7
    assert store.job(job.id) == job
    (request,) = ControllerStore(store.database).requests()
    assert (request.kind, request.job, request.at_s) == (RequestKind.SUBMIT, job.id, 10.5)


def test_the_same_key_means_the_same_job(store):
    store.add_tenant("bob", 1.0, 0.0)
    first, _ = store.submit("ada", file(), 1.0, key="k")
    assert store.submit("ada", file(), 2.0, key="k") == (first, False)
    assert store.submit("bob", file(), 2.0, key="k")[1]  # keys are a tenant's own
    assert store.submit("ada", file(), 2.0, key="K")[1]
    assert store.submit("ada", file(), 2.0)[1]
    with pytest.raises(ServiceError, match="key 'k' was used for job") as caught:
        store.submit("ada", file(epochs=2), 3.0, key="k")
    assert caught.value.status == 409
    assert store.counts()["waiting"] == 4
    assert len(ControllerStore(store.database).requests()) == 4


@pytest.mark.slow
@slow_fixture
@given(keys=st.lists(st.sampled_from(["a", "A", "a ", "b", None, "é", "e\u0301"]), max_size=12))
def test_one_job_for_each_key_in_whatever_order(backend, keys, request):
    store = request.getfixturevalue("store")
    before = store.counts()["waiting"]
    known = {k for k in set(keys) if k and any(not new for _, new in [_peek(store, k)])}
    results = [store.submit("ada", file(), 1.0, key=key) for key in keys]
    by_key = {}
    for key, (job, _) in zip(keys, results, strict=True):
        if key is not None:
            assert by_key.setdefault(key, job.id) == job.id
    fresh = len({k for k in keys if k} - known) + keys.count(None)
    assert sum(new for _, new in results) == fresh
    assert store.counts()["waiting"] == before + fresh


def _peek(store, key):
    with store.database.reading() as c:
        return None, store._submitted(c, "ada", key) is None


def test_threads_that_race_with_one_key_get_one_job(store):
    results, errors = [], []
    together = threading.Barrier(8)

    def submit():
        together.wait()
        try:
            results.append(store.submit("ada", file(), 1.0, key="race"))
        except Exception as error:  # shown below
            errors.append(error)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len({job.id for job, _ in results}) == 1
    assert sum(new for _, new in results) == 1
    assert len(ControllerStore(store.database).requests()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", SERVERS_SLOW, indirect=True)
def test_processes_that_race_with_one_key_get_one_job(store, place):
    code = (
        "import sys; from pathlib import Path; from commonwatt.store.database import Database, address\n"
        "from commonwatt.store.api_store import ApiStore; from tests.store.made import file\n"
        "store = ApiStore(Database(address(sys.argv[1], Path('/')))); sys.stdin.read()\n"
        "for k in range(20): print(*(x := store.submit('ada', file(), 1.0, key=f'k{k}'))[1:], x[0].id)\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in running:
        process.stdin.close()
        process.stdin = None
    lines = [process.communicate(timeout=300)[0].splitlines() for process in running]
    ids = [[line.split()[1] for line in said] for said in lines]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 20
    assert sum(line.startswith("True") for said in lines for line in said) == 20
    assert store.counts()["waiting"] == 20


@pytest.mark.long
def test_pages_hold_every_job_once(store):
    store.add_tenant("bob", 1.0, 0.0)
    made = [store.submit("ada" if k % 3 else "bob", file(f"j{k}"), float(k))[0] for k in range(23)]
    tick = Tick()
    for job in made[::2]:
        tick.change(job.id, status=JobStatus.RUNNING, nodes=["n"])
    ControllerStore(store.database).write(tick)
    known = {job.id: store.job(job.id) for job in made[::3]}
    for tenant in (None, "ada", "bob"):
        for status in ((), (JobStatus.WAITING,), (JobStatus.WAITING, JobStatus.RUNNING), (JobStatus.FAILED,)):
            wanted = [
                job.id for k, job in enumerate(made)
                if (tenant is None or job.tenant == tenant)
                and (not status or (JobStatus.RUNNING if k % 2 == 0 else JobStatus.WAITING) in status)
            ]  # fmt: skip
            for limit in (1, 4, 100):
                for newest_first in (False, True):
                    seen, after = [], 0
                    given = {"tenant": tenant, "status": status, "limit": limit, "newest_first": newest_first}
                    while page := store.jobs(after=after, **given):
                        assert store.page(known, after=after, **given) == page
                        assert len(page) <= limit
                        seen += [job.id for job in page]
                        after = seen[-1]
                    assert seen == (wanted[::-1] if newest_first else wanted)
    assert store.page({}, after=10**6) == []
    assert all(row is known[row.id] for row in store.page(known, limit=100) if row.id in known)
    assert store.counts() == {"waiting": 11, "running": 12, "completed": 0, "failed": 0, "cancelled": 0}
    assert store.counts("bob") == {"waiting": 4, "running": 4, "completed": 0, "failed": 0, "cancelled": 0}


@pytest.mark.parametrize("limit", [0, -1, 10**8, 10**30])
def test_pages_have_a_size(store, limit):
    calls = [store.jobs, store.events, store.audit, lambda limit: store.samples(0.0, limit=limit)]
    for call in calls:
        with pytest.raises(InputError, match="'limit'"):
            call(limit=limit)


@pytest.mark.parametrize("number", [0, -1, 10**30, -(10**30)])
def test_numbers_no_row_has(store, number):
    assert store.job(number) is None
    assert store.jobs(after=number) == []
    assert store.events(after=number, job=number) == []
    assert store.audit(after=number) == []
    assert store.account(number) == spent(0, 0, 0, 0)


def test_requests_in_their_order_with_any_value(store):
    values = [None, "live", {"a": [1, 2.5, None, True]}, 7]
    numbers = [store.ask(RequestKind.MODE, float(k), value=value) for k, value in enumerate(values)]
    ticks = ControllerStore(store.database)
    assert [(r.id, r.value) for r in ticks.requests()] == list(zip(numbers, values, strict=True))
    ticks.write(Tick(requests=numbers[:3]))
    assert [r.id for r in ticks.requests()] == numbers[3:]


def test_settings_events_and_samples(store):
    ticks = ControllerStore(store.database)
    assert store.setting("mode", "live") == "live"
    ticks.write(Tick(settings={"mode": "dry-run", "drained": ["n1"]}, events=[event(1), event(2), event(1)]))
    ticks.write(Tick(settings={"mode": "live"}, sample=sample(1.5), events=[event(None, 2.0, nodes=())]))
    ticks.write(Tick(sample=sample(2.5, None)))
    ticks.write(Tick(sample=sample(2.5, 7.0)))
    assert (store.setting("mode"), store.setting("drained"), store.setting("none")) == ("live", ["n1"], None)
    assert {"mode": "live", "drained": ["n1"]}.items() <= ticks.settings().items()
    events = store.events()
    assert [e.job for e in events] == [1, 2, 1, None]
    assert events[3].nodes == ()
    assert [e.id for e in store.events(job=1)] == [events[0].id, events[2].id]
    assert [e.id for e in store.events(after=events[1].id, limit=1)] == [events[2].id]
    assert store.samples(0.0) == [sample(1.5), sample(2.5, 7.0)]
    assert store.samples(1.5) == [sample(2.5, 7.0)]
    assert store.samples(0.0, limit=1) == [sample(2.5, 7.0)]


@slow_fixture
@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_to_the_last_bit(backend, number, request):
    store = request.getfixturevalue("store")
    if abs(number) < 1e-300 and backend == "mariadb":
        return  # it has no subnormal numbers
    job, _ = store.submit("ada", file(), number, due_s=number)
    assert (job.submit_s, store.job(job.id).due_s) == (number, number)


def test_a_row_that_no_version_of_ours_wrote_is_said_to_be_one(store):
    from commonwatt.model.errors import StoreError
    from commonwatt.store.tables import jobs

    job, _ = store.submit("ada", file(), 1.0)
    with store.database.transaction() as c:
        c.execute(jobs.update().values(file={"name": "x", "color": "red"}))
    with pytest.raises(StoreError, match=f"job {job.id} cannot be read by this version"):
        store.jobs()


def test_jobs_are_found_by_a_part_of_their_name_and_by_their_number(store):
    names = ["ResNet-50", "resnet-101", "wide_resnet", "wideXresnet", "bert"]
    numbers = {name: store.submit("ada", file(name), 1.0)[0].id for name in names}

    def found(find, **more):
        return [row.name for row in store.page({}, find=find, **more)]

    assert found("resnet") == found("RESNET") == names[:4]
    assert found("resnet", newest_first=True, limit=1) == ["wideXresnet"]
    assert found("resnet", after=numbers["wide_resnet"], status=(JobStatus.WAITING,)) == ["wideXresnet"]
    assert found("e_r") == ["wide_resnet"]  # no wildcards
    assert found("%") == []
    assert found(str(numbers["bert"])) == [name for name in names if str(numbers["bert"]) in name or name == "bert"]
    assert found("²") == found("9" * 100) == found("resnet", status=(JobStatus.RUNNING,)) == []
    assert found("resnet", tenant="bob") == []
    tick = Tick()
    tick.change(numbers["bert"], held=True)
    ControllerStore(store.database).write(tick)
    assert found(None, held=True) == ["bert"]
    assert found(None, held=False) == names[:4]


def test_a_page_of_several_statuses_walks_through_no_more_than_it_shows(store, backend):
    """A tenant with many jobs that have ended asks for its active ones: each status is found by its own index."""
    if backend != "sqlite":
        pytest.skip("SQLite's way of saying how it looks")
    asked = []
    listening = sa.event.listens_for(store.database.engine, "before_cursor_execute")
    listening(lambda c, cursor, statement, given, *_: asked.append((statement, given)))
    active, everything = (JobStatus.WAITING, JobStatus.RUNNING), tuple(JobStatus)
    for tenant in (None, "ada"):
        for status in ((), active, everything[1:], everything):
            for after in (0, 7):
                for newest_first in (False, True):
                    asked.clear()
                    store.page({}, tenant=tenant, status=status, after=after, newest_first=newest_first)
                    ((statement, given),) = [one for one in asked if one[0].startswith("SELECT")]
                    apart = status in (active, everything[1:])
                    where = "ix_jobs_tenant_" if tenant else "ix_jobs_" if apart else "PRIMARY KEY"
                    found = [(inside, how) for inside, how in _plan(store, statement, given) if "jobs" in how]
                    sorted_inside = {inside for inside, how in _plan(store, statement, given) if "B-TREE" in how}
                    assert len(found) == (len(status) if apart else 1)
                    for inside, how in found:
                        assert f"{where}{'status' if apart else 'id' if tenant else ''}" in how or how == "SCAN jobs"
                        assert (how == "SCAN jobs") == (not (tenant or apart or after))  # by number, from the first
                        assert how.count("=?") == (tenant is not None) + apart
                        assert inside not in sorted_inside  # it ends when there are enough


def test_a_row_and_its_file_are_the_same_as_bytes_and_back(store):
    wanted = file(
        epochs=3, times_s={"V100": {1: 5.5, 4: 0.1}}, due="2030-01-01", environment={"A": "b"},
        batch={"script": "#!/bin/sh", "submit_folder": "/"}, after={7: "afterok"},
    )  # fmt: skip
    row = replace(store.submit("ada", wanted, 10.5)[0], times=[{"gpus": 1}], facts={"reason": "no-room"}, nodes=("n",))
    other = replace(row, id=2, status=JobStatus.RUNNING)
    parts, made = {1: packed(row), 2: packed(other)}, {}
    rows = Packed(parts, made)
    assert dict(rows) == {1: row, 2: other}
    assert 2 in rows
    assert rows.get(3) is None
    assert rows[2].status is JobStatus.RUNNING
    assert rows[1] is rows[1]
    again = unpacked(packed(wanted))
    assert (again, again.model_fields_set) == (wanted, wanted.model_fields_set)
    assert rows[1].file.model_dump() == wanted.model_dump()
    assert parts_of(rows) is parts
    assert unpacked(row) is row
    parts[1] = packed(other)  # it has changed
    assert rows[1] == other
    for k in range(2000):
        parts[k] = parts[1]
        assert rows[k] == other
    assert len(made) <= 1000  # what is not asked for again is forgotten


def test_a_changed_row(store):
    row = store.submit("ada", file(), 10.5)[0]
    assert row.changed({"no_column": 1}) is row
    part = packed(row)
    for k in range(12):
        part, row = with_changes(part, {"kept_epochs": float(k), "nodes": ["n"]}), replace(row, kept_epochs=float(k))
        assert unpacked(part) == replace(row, nodes=("n",))
        assert isinstance(part, bytes) or len(part) <= 5
    changed = row.changed({"nodes": ["n"], "gpus_per_node": 2, "no_column": 1})
    assert changed == replace(row, nodes=("n",), gpus_per_node=2)
    assert row.nodes == ()


def _plan(store, statement, given):
    """What is done, each step with the one it is a part of."""
    with store.database.reading() as c:
        return [(row[1], row[3]) for row in c.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given)]


def test_a_known_row_of_another_status_is_read_anew(store, ticks):
    jobs = [store.submit("ada", file(f"j{k}"), float(k))[0] for k in range(3)]
    known = {job.id: store.job(job.id) for job in jobs}
    tick = Tick()
    tick.change(jobs[1].id, status=JobStatus.CANCELLED, ended_s=5.0)
    ticks.write(tick)  # and nobody was told yet
    (found,) = store.page(known, status=(JobStatus.CANCELLED,))
    assert (found.id, found.status) == (jobs[1].id, JobStatus.CANCELLED)
    waiting = store.page(known, status=(JobStatus.WAITING,))
    assert [row.id for row in waiting] == [jobs[0].id, jobs[2].id]


def test_pages_are_whole_on_a_server_that_cuts_long_texts(store, database, backend, again):
    if backend != "mariadb":
        pytest.skip("a question of MariaDB")
    with database.transaction() as c:
        c.exec_driver_sql("SET GLOBAL group_concat_max_len = 1024")
    try:
        made = [store.submit("ada", file(f"j{k}"), float(k))[0].id for k in range(400)]
        assert [row.id for row in ApiStore(again()).page({}, tenant="ada", limit=1000)] == made
    finally:
        with database.transaction() as c:
            c.exec_driver_sql("SET GLOBAL group_concat_max_len = DEFAULT")


def test_the_second_look_holds_the_tenant_too(store, monkeypatch):
    """Whatever numbers the first look finds, no job of another tenant is shown."""
    store.add_tenant("bob", 1.0, 0.0)
    mine, theirs = store.submit("ada", file(), 1.0)[0].id, store.submit("bob", file(), 2.0)[0].id
    monkeypatch.setattr("sqlalchemy.Connection.scalar", lambda *_: f"{mine},{theirs}")
    assert [row.id for row in store.page({}, tenant="ada")] == [mine]
