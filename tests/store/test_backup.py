"""Backups: from every database into every database."""

from __future__ import annotations

import gzip
import itertools
import json
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

import sqlalchemy as sa

from commonwatt.model.errors import InputError, StoreError
from commonwatt.store import backup
from commonwatt.store.api_store import ApiStore
from commonwatt.store.backup import back_up, check_backup, restore
from commonwatt.store.claim import claim_store
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import prepare
from commonwatt.store.records import RequestKind
from tests.store.made import event, everything, file, intent, sample
from tests.store.test_controller_store import full

KINDS = ["sqlite", "mariadb", "postgresql"]
USUAL = {("sqlite", "postgresql"), ("postgresql", "mariadb"), ("mariadb", "sqlite")}
MOVES = [
    pytest.param(*move, marks=() if move in USUAL else pytest.mark.long) for move in itertools.product(KINDS, KINDS)
]


def filled(store, ticks):
    """Rows in every table, with odd texts and extreme numbers."""
    store.add_tenant("it's \U0001f680 ", 0.1 + 0.2, 1e9 + 1 / 3)
    store.add_token("ada", "x", 1.0)
    store.revoke(store.tokens()[0]["id"], 5.0)
    store.add_token(None, "operator", 1.0)
    store.submit("ada", file(environment={"A": "\u2028\n\x1f"}, times_s={"V100": {1: 5.5}}), 1.0, due_s=1e15, key="k ")
    store.note(1.0, "ada", "submit", "1", "ok", {"a": [1, None, "ü"]})
    store.ask(RequestKind.DRAIN, 3.0, node="n1")
    ticks.write(full(store, ticks))
    ticks.write(Tick(ledger={("meter", 0): dict.fromkeys(("energy_uj", "cost_n", "carbon_ug", "gpu_us"), 10**30 + 1)}))
    return everything(store.database)


def target(kind, request, tmp_path):
    where = str(tmp_path / "target.db") if kind == "sqlite" else request.getfixturevalue(kind).database()
    database = Database(address(where, tmp_path))
    prepare(database)
    return database


@pytest.mark.parametrize(("backend", "to"), MOVES, indirect=["backend"])
def test_from_every_database_into_every_other(store, ticks, to, request, tmp_path):
    wanted = filled(store, ticks)
    saved = back_up(store.database, tmp_path / "b.gz", "1.2.3")
    assert everything(store.database) == wanted
    database = target(to, request, tmp_path)
    assert restore(database, tmp_path / "b.gz") == saved == {name: len(rows) for name, rows in wanted.items()}
    assert everything(database) == wanted
    again = back_up(database, tmp_path / "again.gz", "1.2.3")
    assert again == saved
    first, second = (
        gzip.decompress((tmp_path / name).read_bytes()).splitlines()[1:-1] for name in ("b.gz", "again.gz")
    )
    assert first == second  # to the byte, but for the head
    moved, last = ApiStore(database), max(job.id for job in store.jobs())
    job, new = moved.submit("ada", file("next"), 2.0)
    assert new
    assert job.id > last
    ControllerStore(database).write(Tick(events=[event(job.id)]))
    database.close()


@pytest.mark.parametrize(("backend", "to"), MOVES, indirect=["backend"])
def test_numbers_are_not_given_again_after_a_move(store, ticks, to, request, tmp_path):
    """The newest events were pruned before the backup; who saw them asks for what came after."""
    ticks.write(Tick(events=[event(None, nodes=())] * 5))
    last = store.events()[-1].id
    ticks.prune(100.0)
    back_up(store.database, tmp_path / "b.gz", "1")
    database = target(to, request, tmp_path)
    restore(database, tmp_path / "b.gz")
    ControllerStore(database).write(Tick(events=[event(None, nodes=())]))
    assert ApiStore(database).events(after=last)[0].id > last
    database.close()


def test_a_backup_is_a_snapshot(store, ticks, again, tmp_path, monkeypatch):
    """What is written while it is read is not in it, in no table."""
    wanted = filled(store, ticks)
    other = ApiStore(again())
    written = []

    def dumps(document, **how):
        if isinstance(document, dict) and document.get("table") == "events":
            written.append(other.add_tenant("late", 1.0, 1.0))
            written.append(other.submit("late", file(), 1.0))
        return json.dumps(document, **how)

    monkeypatch.setattr(backup, "json", SimpleNamespace(dumps=dumps, loads=json.loads))
    rows = back_up(store.database, tmp_path / "b.gz", "1")
    assert written
    assert rows == {name: len(found) for name, found in wanted.items()}
    assert "late" in store.tenants()


def test_only_its_owner_may_read_a_backup_or_a_store(store, tmp_path):
    back_up(store.database, tmp_path / "b.gz", "1")
    assert stat.S_IMODE((tmp_path / "b.gz").stat().st_mode) == 0o600
    if store.database.backend == "sqlite":
        assert stat.S_IMODE(Path(store.database.url.database).stat().st_mode) == 0o600


def test_an_older_backup_is_not_replaced_unless_asked(store, tmp_path):
    path = tmp_path / "b.gz"
    path.write_text("mine")
    with pytest.raises(InputError, match="does not exist yet"):
        back_up(store.database, path, "1")
    assert path.read_text() == "mine"
    back_up(store.database, path, "1", overwrite=True)
    check_backup(path)
    with pytest.raises(InputError, match="a file that can be written"):
        back_up(store.database, tmp_path / "none" / "b.gz", "1")
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("store.db")) == ["b.gz"]


def test_a_store_with_something_in_it_is_not_overwritten_unless_asked(store, ticks, tmp_path):
    wanted = filled(store, ticks)
    back_up(store.database, tmp_path / "b.gz", "1")
    store.add_tenant("more", 1.0, 1.0)
    now = everything(store.database)
    with pytest.raises(InputError, match="an empty store"):
        restore(store.database, tmp_path / "b.gz")
    assert everything(store.database) == now
    restore(store.database, tmp_path / "b.gz", overwrite=True)
    assert everything(store.database) == wanted


def test_a_token_that_was_revoked_stays_so(store, tmp_path):
    """Going back to a backup must not let in again who had to go."""
    leaked, kept = store.add_token("ada", "leaked", 1.0), store.add_token(None, "kept", 1.0)
    back_up(store.database, tmp_path / "b.gz", "1")
    store.revoke(store.owner(leaked).token, 5.0)
    later = store.add_token("ada", "later", 6.0)
    restore(store.database, tmp_path / "b.gz", overwrite=True)
    assert [token["revoked_s"] for token in store.tokens()] == [5.0, None]
    assert store.owner(leaked) is store.owner(later) is None
    assert store.owner(kept) is not None
    store.revoke(store.owner(kept).token, 7.0)
    back_up(store.database, tmp_path / "c.gz", "1")
    restore(store.database, tmp_path / "c.gz", overwrite=True)
    restore(store.database, tmp_path / "b.gz", overwrite=True)
    assert [token["revoked_s"] for token in store.tokens()] == [5.0, 7.0]


def test_not_while_a_controller_runs(store, ticks, again, tmp_path):
    filled(store, ticks)
    back_up(store.database, tmp_path / "b.gz", "1")
    with claim_store(again()), pytest.raises(StoreError, match="another controller"):
        restore(store.database, tmp_path / "b.gz", overwrite=True)


def test_who_ran_before_a_store_was_replaced_writes_no_more(store, ticks, again, tmp_path):
    filled(store, ticks)
    back_up(store.database, tmp_path / "b.gz", "1")
    claim = claim_store(again())
    claim._lock.release()  # its connection broke
    restore(store.database, tmp_path / "b.gz", overwrite=True)
    with pytest.raises(StoreError, match="lost its claim"):
        ControllerStore(store.database, claim).write(Tick())


def broken_ones(whole: bytes) -> dict[str, bytes]:
    lines = gzip.decompress(whole).splitlines(keepends=True)
    row = next(k for k, line in enumerate(lines) if line.startswith(b"["))
    head = json.loads(lines[0])

    def packed(*parts: bytes) -> bytes:
        return gzip.compress(b"".join(parts))

    def headed(**changes) -> bytes:
        return packed(json.dumps(head | changes).encode() + b"\n", *lines[1:])

    return {
        "nothing": b"",
        "no gzip": b"".join(lines),
        "cut short": whole[: len(whole) // 2],
        "cut short by a little": whole[:-4],
        "one byte another": whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:],
        "no foot": packed(*lines[:-1]),
        "a row less": packed(*lines[:row], *lines[row + 1 :]),
        "a row twice": packed(*lines[: row + 1], *lines[row:]),
        "another value": packed(*lines[:row], lines[row].replace(b"1", b"2"), *lines[row + 1 :]),
        "a line more": packed(*lines, b"[]\n"),
        "no JSON": packed(lines[0], b"what?\n", *lines[1:]),
        "JSON of another kind": packed(lines[0], b"7\n", *lines[1:]),
        "deep": packed(lines[0], b"[" * 100_000 + b"\n"),
        "another table": packed(lines[0], b'{"table":"x","columns":[]}\n', *lines[2:]),
        "not ours": packed(b'{"a":1}\n'),
        "another format": headed(**{"commonwatt store": 2}),
        "a later revision": headed(revision="9999"),
        "odd numbers": headed(numbers={"jobs": "1; DROP TABLE jobs"}),
        "numbers of what is no table": headed(numbers={"jobs; DROP TABLE jobs": 1}),
        "no numbers": headed(numbers=None),
    }


@pytest.mark.slow
def test_what_is_no_whole_backup_is_refused_and_changes_nothing(store, ticks, tmp_path):
    filled(store, ticks)
    back_up(store.database, tmp_path / "b.gz", "1")
    before = everything(store.database)
    path = tmp_path / "broken.gz"
    for what, content in broken_ones((tmp_path / "b.gz").read_bytes()).items():
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            restore(store.database, path, overwrite=True)
        assert caught.value.file == path, what
        assert everything(store.database) == before, what
    with pytest.raises(InputError, match="a file that can be read"):
        restore(store.database, tmp_path / "none.gz", overwrite=True)


def test_a_restore_that_fails_in_the_middle_changes_nothing(store, ticks, tmp_path):
    filled(store, ticks)
    back_up(store.database, tmp_path / "b.gz", "1")
    before = everything(store.database)
    count = iter(range(10**6))

    def breaks(connection, cursor, text, parameters, context, many):
        if "jobs" in text and text.startswith("INSERT") and next(count) == 0:
            raise sa.exc.OperationalError(text, None, Exception("the line is dead"))

    sa.event.listen(store.database.engine, "before_cursor_execute", breaks)
    with pytest.raises(StoreError, match="the line is dead"):
        restore(store.database, tmp_path / "b.gz", overwrite=True)
    sa.event.remove(store.database.engine, "before_cursor_execute", breaks)
    assert everything(store.database) == before


@pytest.mark.slow
def test_many_rows(store, ticks, tmp_path):
    """More than are read or written at once."""
    jobs = [store.submit("ada", file(f"j{k}"), 1.0)[0].id for k in range(3)]
    ticks.write(Tick(events=[event(jobs[k % 3], float(k)) for k in range(2500)]))
    ticks.write(Tick(sample=sample()))
    ticks.intend([intent(jobs[0], k) for k in range(1000)])
    wanted = everything(store.database)
    back_up(store.database, tmp_path / "b.gz", "1")
    restore(store.database, tmp_path / "b.gz", overwrite=True)
    assert everything(store.database) == wanted
