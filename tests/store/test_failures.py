"""Databases that go away, are full or busy: a clear error meanwhile, nothing half-written, then all is well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

import sqlalchemy as sa

from commonwatt.model.errors import StoreDownError, StoreError
from commonwatt.store import tables
from commonwatt.store.api_store import ApiStore
from commonwatt.store.claim import claim_store
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import prepare
from tests.store.made import event, everything, file, intent, spent


@pytest.fixture(params=["mariadb", "postgresql"])
def backend(request):
    """Only servers are restarted."""
    return request.param


@pytest.mark.parametrize("hard", [False, True], ids=["in order", "killed"])
def test_a_server_that_is_restarted(server, store, ticks, hard):
    ticks.intend([intent()])
    ticks.write(Tick(ledger={("idle", 0): spent()}))
    before = everything(store.database)
    claim = claim_store(store.database)
    held = ControllerStore(store.database, claim)
    tick = Tick(events=[event(None, nodes=())], ledger={("idle", 0): spent()})
    server.stop(hard=hard)
    try:
        for call in (
            lambda: held.write(tick),
            lambda: store.submit("ada", file(), 1.0),
            store.jobs,
            ticks.open_intents,
            lambda: prepare(store.database),
            lambda: claim_store(store.database),
        ):
            with pytest.raises(StoreDownError) as caught:
                call()
            assert "\n" not in str(caught.value)
        assert not claim.holds_lock()
    finally:
        server.start()
    assert everything(store.database) == before
    held.write(tick)  # takes its lock again on the way
    assert claim.holds_lock()
    with pytest.raises(StoreError, match="another controller"):
        claim_store(store.database)
    claim.release()
    job, new = store.submit("ada", file(), 1.0)
    assert new
    assert store.job(job.id) == job
    assert store.ledger()[0]["energy_uj"] == 2
    assert len(store.events()) == 1


def test_a_server_that_is_killed_in_the_middle_of_a_transaction(server, store, ticks):
    before = everything(store.database)
    count = iter(range(10**6))

    def kill(connection, cursor, text, parameters, context, many):
        if next(count) == 4:
            server.stop(hard=True)

    sa.event.listen(store.database.engine, "before_cursor_execute", kill)
    tick = Tick(events=[event(None, nodes=())], ledger={("idle", 0): spent()}, settings={"mode": "live", "x": 1})
    try:
        with pytest.raises(StoreDownError):
            ticks.write(tick)
    finally:
        sa.event.remove(store.database.engine, "before_cursor_execute", kill)
        server.start()
    assert everything(store.database) == before
    ticks.write(tick)
    ticks.write(tick)
    assert store.ledger()[0]["energy_uj"] == 1


def test_a_connection_the_server_ended_is_replaced_without_a_word(server, store):
    """As after a long time without use."""
    names = {"mariadb": "SELECT connection_id()", "postgresql": "SELECT pg_backend_pid()"}
    with store.database.reading() as c:
        number = c.scalar(sa.text(names[store.database.backend]))
    with server.connection() as other:
        cursor = other.cursor()
        kill = {"mariadb": f"KILL {number}", "postgresql": f"SELECT pg_terminate_backend({number}, 10000)"}
        cursor.execute(kill[store.database.backend])
    assert store.tenants() == {"ada": 1.0}
    assert store.submit("ada", file(), 1.0)[1]


def test_a_row_somebody_holds(server, again, store):
    """A transaction that waits too long fails; it is nobody's fault and may be tried again."""
    waiting = ApiStore(again(patience_s=1.0))
    with store.database.transaction() as c:
        c.execute(sa.text("UPDATE tenants SET weight = 2"))
        with pytest.raises(StoreDownError):
            waiting.add_tenant("ada", 3.0, 0.0)
    assert store.tenants() == {"ada": 2.0}
    waiting.add_tenant("ada", 3.0, 0.0)
    assert store.tenants() == {"ada": 3.0}


@pytest.mark.parametrize("backend", ["sqlite", "mariadb", "postgresql"], indirect=True)
def test_what_is_stored_is_not_told_in_errors(store, ticks):
    """Not even in the chain of exceptions a log shows."""
    secret = "".join(["hu", "sh"])  # lines of this file are part of a traceback
    values = {"file": {"environment": {"PASSWORD": secret}}, "status": "waiting", "submit_s": 1.0, "nodes": []}
    of_nobody = tables.jobs.insert().values(name="x", tenant="nobody", **values)
    with pytest.raises(StoreError) as caught, store.database.transaction() as c:
        c.execute(of_nobody)
    with pytest.raises(StoreError) as other:
        ticks.write(Tick(settings={"PASSWORD": secret, "x": object()}))
    for error in (caught.value, other.value):
        assert secret not in "".join(traceback.format_exception(error))


# -- SQLite, which is a file


@pytest.fixture
def lite(tmp_path):
    database = Database(address("lite.db", tmp_path), patience_s=0.2)
    prepare(database)
    ApiStore(database).add_tenant("ada", 1.0, 0.0)
    yield database
    database.close()


@pytest.mark.slow
def test_a_locked_file(lite, tmp_path):
    other = Database(address("lite.db", tmp_path))
    store, ticks = ApiStore(lite), ControllerStore(lite)
    with other.transaction() as c:
        c.exec_driver_sql("UPDATE tenants SET weight = 2")
        for call in (lambda: store.submit("ada", file(), 1.0), lambda: ticks.write(Tick(events=[event()]))):
            with pytest.raises(StoreDownError, match="database is locked"):
                call()
        assert store.tenants() == {"ada": 1.0}  # readers do not wait
    other.close()
    assert store.tenants() == {"ada": 2.0}
    assert store.submit("ada", file(), 1.0)[1]
    assert store.events() == []


@pytest.mark.slow
def test_writers_wait_for_each_other(tmp_path):
    database = Database(address("lite.db", tmp_path))
    prepare(database)
    ApiStore(database).add_tenant("ada", 1.0, 0.0)
    errors = []

    def work(k):
        try:
            for n in range(10):
                ApiStore(database).submit("ada", file(f"j{k}-{n}"), 1.0)
                ControllerStore(database).write(Tick(ledger={("idle", 0): spent()}))
        except Exception as error:  # shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert ApiStore(database).counts()["waiting"] == 40
    assert ApiStore(database).ledger()[0]["energy_uj"] == 40
    database.close()


def limit_pages(database):
    """Let the file grow no more, as on a full disk."""
    with database.reading() as c:
        pages = c.scalar(sa.text("PRAGMA page_count"))

    def limit(connection, record, proxy):
        connection.execute(f"PRAGMA max_page_count = {pages}")

    sa.event.listen(database.engine, "checkout", limit)
    return lambda: sa.event.remove(database.engine, "checkout", limit)


def test_a_file_that_can_grow_no_more(lite, tmp_path):
    store, ticks = ApiStore(lite), ControllerStore(lite)
    lift = limit_pages(lite)
    accepted = []

    def fill():
        while True:
            accepted.append(store.submit("ada", file(environment={"X": "x" * 4000}), 1.0)[0].id)

    with pytest.raises(StoreDownError, match="database or disk is full"):
        fill()
    before = everything(lite)
    tick = Tick(events=[event(None, nodes=(), sentence="y" * 10_000)] * 50, ledger={("idle", 0): spent()})
    with pytest.raises(StoreDownError, match="full"):
        ticks.write(tick)
    assert everything(lite) == before
    lift()
    lite.close()
    fresh = Database(address("lite.db", tmp_path))
    assert [job.id for job in ApiStore(fresh).jobs(limit=100_000)] == accepted
    ControllerStore(fresh).write(tick)
    assert store.submit("ada", file(), 1.0)[1]
    with fresh.reading() as c:
        assert c.scalar(sa.text("PRAGMA integrity_check")) == "ok"
    fresh.close()


LIMITED = """
import resource, signal, sys
from pathlib import Path
from commonwatt.model.errors import StoreDownError
from commonwatt.store.database import Database, address
from commonwatt.store.api_store import ApiStore
from tests.store.made import file
database = Database(address(sys.argv[1], Path("/")))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
store, said = ApiStore(database), 0
while said < 3:
    try:
        print(store.submit("ada", file(environment={"X": "x" * 4000}), 1.0)[0].id, flush=True)
    except StoreDownError as error:
        said += 1
        print("full:", error, file=sys.stderr, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.submit("ada", file(), 1.0)[0].id, flush=True)
"""


@pytest.mark.slow
def test_the_system_refuses_to_write_more(lite, tmp_path):
    """The limit is met by writes of the log beside the file, in the middle of a transaction."""
    limit = (tmp_path / "lite.db").stat().st_size + 300_000
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "lite.db", str(limit)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("full:") == 3
    accepted = [int(line) for line in done.stdout.split()]
    assert [job.id for job in ApiStore(lite).jobs(limit=100_000)] == accepted
    assert len(accepted) > 2
    with lite.reading() as c:
        assert c.scalar(sa.text("PRAGMA integrity_check")) == "ok"


SUBMITTING = """
import sys
from pathlib import Path
from commonwatt.store.database import Database, address
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore, Tick
from tests.store.made import event, file, spent
database = Database(address(sys.argv[1], Path("/")))
store, ticks = ApiStore(database), ControllerStore(database)
while True:
    print(store.submit("ada", file(), 1.0)[0].id, flush=True)
    ticks.write(Tick(events=[event(None, nodes=())], ledger={("idle", 0): spent(), ("meter", 0): spent()}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 7, 20])
def test_a_process_that_is_killed_loses_nothing_it_was_told_is_accepted(lite, tmp_path, after):
    process = subprocess.Popen([sys.executable, "-c", SUBMITTING, tmp_path / "lite.db"], stdout=subprocess.PIPE)
    told = [int(process.stdout.readline()) for _ in range(after)]
    os.kill(process.pid, signal.SIGKILL)
    told += [int(line) for line in process.communicate()[0].split()]
    store = ApiStore(lite)
    kept = [job.id for job in store.jobs(limit=100_000)]
    assert kept[: len(told)] == told
    assert len(kept) <= len(told) + 1
    rows = {row["row"]: row["energy_uj"] for row in store.ledger()}
    assert rows.get("idle") == rows.get("meter")
    assert rows.get("idle", 0) == len(store.events())


@pytest.mark.slow
def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "x.db").write_bytes(b"these are not the pages you are looking for" * 100)
    database = Database(address("x.db", tmp_path))
    with pytest.raises(StoreError, match="file is not a database"):
        prepare(database)
    database.close()


def test_a_file_that_is_damaged_under_an_open_connection(lite, tmp_path):
    with lite.transaction() as c:
        c.exec_driver_sql("UPDATE tenants SET weight = 2")
    other = Database(address("lite.db", tmp_path))
    with other.transaction() as c:
        c.exec_driver_sql("UPDATE tenants SET weight = 3")
    with other.reading() as c:
        c.exec_driver_sql("PRAGMA wal_checkpoint(truncate)")
    other.close()
    with (tmp_path / "lite.db").open("r+b") as file:
        file.write(b"these are not the pages you are looking for" * 200)
    with pytest.raises(StoreError, match="file is not a database"), lite.transaction() as c:
        c.exec_driver_sql("UPDATE tenants SET weight = 4")
