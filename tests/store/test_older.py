"""A store that version 0.1.0 wrote (``older_store.py``): upgraded in place, and restored from its backup."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

import sqlalchemy as sa
from alembic import command

from commonwatt.store import migrate
from commonwatt.store.api_store import ApiStore
from commonwatt.store.backup import back_up, check_backup, restore
from commonwatt.store.check import check
from commonwatt.store.database import Database, address
from commonwatt.store.tables import metadata
from tests.store.made import everything

WRITTEN = (Path(__file__).parent / "store_0002.jsonl").read_bytes()
STATUS = dict(enumerate(("running", "running", "completed", "cancelled", "waiting", "waiting"), start=1))


def fill_as_it_was(database) -> None:
    """Make the tables of revision 0002, with the rows that were written."""
    config = migrate._config()
    with database.transaction() as c:
        config.attributes["connection"] = c
        command.upgrade(config, "0002")
        for line in WRITTEN.splitlines()[1:-1]:
            row = json.loads(line)
            if isinstance(row, dict):
                types = metadata.tables[row["table"]].c
                table = sa.table(row["table"], *(sa.column(name, types[name].type) for name in row["columns"]))
            else:
                c.execute(table.insert().values(dict(zip(table.c.keys(), row, strict=True))))


def said(database) -> tuple[list, list]:
    store = ApiStore(database)
    return store.events(), store.jobs()


@pytest.mark.slow
def test_an_upgrade_keeps_everything_and_fills_the_columns_that_sentences_stood_for(opened):
    database = opened()
    fill_as_it_was(database)
    assert migrate.upgrade(database) == ("0002", migrate.head())
    events, jobs = said(database)
    assert {job.id: str(job.status) for job in jobs} == STATUS
    assert {e.id: e.lost_s for e in events if e.lost_s is not None} == {
        e.id: float(e.sentence.split("; ")[-1].partition(" ")[0]) for e in events if e.sentence.endswith("are lost")
    }
    assert [(e.kind, e.lost_s) for e in events if e.lost_s is not None] == [("interrupted", 95.0), ("preempted", 45.0)]
    assert [(e.reason, e.requester) for e in events if e.kind == "cancelled"] == [("cancelled", None)]
    found = check(database)
    assert (found.problems, found.ledger_exact) == ((), True)
    with database.transaction() as c:
        migrate.later_steps("0002")[0].fill(c)  # as after an interruption: nothing changes
    assert said(database) == (events, jobs)


@pytest.mark.slow
def test_its_backup_is_restored_to_the_same(opened, tmp_path, backend):
    path = tmp_path / "b.gz"
    path.write_bytes(gzip.compress(WRITTEN))
    check_backup(path)
    database = opened()
    migrate.prepare(database)
    rows = restore(database, path)
    assert rows == json.loads(WRITTEN.splitlines()[-1])["end"]
    upgraded = Database(address(str(tmp_path / "upgraded.db"), tmp_path))
    fill_as_it_was(upgraded)
    migrate.upgrade(upgraded)
    assert everything(database) == everything(upgraded)
    upgraded.close()
    back_up(database, tmp_path / "again.gz", "1")
    restore(database, tmp_path / "again.gz", overwrite=True)
    assert said(database)[0][4].lost_s == 95.0


@pytest.mark.slow
def test_a_controller_takes_its_jobs_up(tmp_path):
    """The work itself is gone with the machine: running jobs are started again, what was asked for still holds."""
    from tests.controlplane.bench import Bench, node

    bench = Bench(tmp_path, nodes=[node("n1"), node("n2")], interval_s=10)
    bench.close()
    place = Path(bench.live.database.url.database)
    for file in place.parent.glob(f"{place.name}*"):
        file.unlink()
    database = Database(address(str(place), tmp_path))
    fill_as_it_was(database)
    migrate.upgrade(database)
    database.close()
    bench.virtual = None
    bench.hand.time_s += 1000.0
    bench.open()
    bench.settle()
    assert bench.reconciler.drains.names == ("n2",)
    for _ in range(5):
        bench.advance(1500.0)
        bench.settle()
    ended = {job: str(bench.status(job)) for job in STATUS}
    assert ended == dict.fromkeys(STATUS, "completed") | {4: "cancelled", 5: "waiting"}
    assert bench.row(5).held
    assert check(bench.live.database).problems == ()
    bench.close()
