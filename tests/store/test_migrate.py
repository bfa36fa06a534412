"""Versions of the store, and its creation by several at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from commonwatt.model.errors import InputError, StoreError
from commonwatt.store import migrate
from commonwatt.store.api_store import ApiStore
from commonwatt.store.claim import claim_store
from commonwatt.store.database import Database, address
from commonwatt.store.tables import metadata
from tests.engines.waiting import until
from tests.store.made import SERVERS_SLOW


def differences(database):
    """What its tables have otherwise than they are declared."""
    with database.reading() as c:
        options = {"version_table": migrate.VERSION_TABLE}
        return compare_metadata(MigrationContext.configure(c, opts=options), metadata)


def test_the_newest_revision_is_alembics():
    from alembic.script import ScriptDirectory

    assert ScriptDirectory.from_config(migrate._config()).get_heads() == [migrate.head()]


def at_first(opened):
    """A database of the first version."""
    database, first = opened(), migrate._config()
    with database.transaction() as c:
        first.attributes["connection"] = c
        command.upgrade(first, "0001")
    return database


def test_the_migrations_lead_to_the_tables_the_code_knows(database):
    with database.reading() as c:
        options = {"version_table": migrate.VERSION_TABLE, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(c, opts=options), metadata) == []
        assert migrate.revision(c) == migrate.head()


def test_texts_of_mariadb_are_unicode_whatever_the_server_is_set_to(database, backend):
    if backend != "mariadb":
        pytest.skip("a question of MariaDB")
    query = (
        "SELECT table_name, column_name, collation_name FROM information_schema.columns "
        "WHERE table_schema = database() AND collation_name IS NOT NULL AND table_name <> 'commonwatt_version' "
        "AND collation_name NOT IN ('utf8mb4_nopad_bin', 'utf8mb4_bin')"
    )
    with database.reading() as c:
        assert c.execute(sa.text(query)).all() == []


def test_preparing_again_changes_nothing(database, store):
    migrate.prepare(database)
    assert store.tenants() == {"ada": 1.0}
    assert migrate.upgrade(database) == (migrate.head(), migrate.head())


def set_revision(database, text):
    with database.transaction() as c:
        c.execute(sa.table(migrate.VERSION_TABLE, sa.column("version_num")).update().values(version_num=text))


def test_a_newer_store_is_refused(opened):
    database = opened()
    migrate.prepare(database)
    set_revision(database, "9999")
    for call in (migrate.prepare, migrate.upgrade):
        with pytest.raises(InputError, match=r"'live.store': got 'revision 9999 in .* expected a store of this versi"):
            call(database)


def test_an_older_store_is_refused_until_it_is_upgraded(opened, tmp_path, monkeypatch, backend):
    """A later version is made of this one, with a column more."""
    import shutil
    from pathlib import Path

    folder = tmp_path / "migrations with 100% 'odd' names"
    shutil.copytree(Path(migrate.__file__).parent / "migrations", folder)
    database = opened()
    migrate.prepare(database)
    ApiStore(database).add_tenant("ada", 2.0, 0.0)
    now = migrate.head()
    (folder / "versions" / "r9999_purse.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision, down_revision, branch_labels, depends_on = '9999', '{now}', None, None\n"
        "def upgrade():\n    op.add_column('tenants', sa.Column('purse', sa.Double(), nullable=True))\n"
    )
    monkeypatch.setattr(migrate, "_MIGRATIONS", folder)
    with pytest.raises(InputError, match='"commonwatt store upgrade CONFIG"'):
        migrate.prepare(database)
    assert migrate.upgrade(database) == (now, "9999")
    migrate.prepare(database)
    assert ApiStore(database).tenants() == {"ada": 2.0}
    with database.reading() as c:
        assert "purse" in {column["name"] for column in sa.inspect(c).get_columns("tenants")}


@pytest.mark.slow
def test_a_store_of_the_first_version_is_brought_to_this_one_with_what_is_in_it(opened):
    database = at_first(opened)
    ApiStore(database).add_tenant("ada", 2.0, 0.0)
    with pytest.raises(InputError, match='"commonwatt store upgrade CONFIG"'):
        migrate.prepare(database)
    assert migrate.upgrade(database) == ("0001", migrate.head())
    assert ApiStore(database).tenants() == {"ada": 2.0}
    assert differences(database) == []


def test_an_upgrade_that_was_interrupted_is_done_again(opened):
    """As MariaDB leaves it: one of its indexes is there."""
    database = at_first(opened)
    with database.transaction() as c:
        c.exec_driver_sql("CREATE INDEX ix_jobs_ended_s_id ON jobs (ended_s, id)")
    assert migrate.upgrade(database) == ("0001", migrate.head())
    assert differences(database) == []


def test_a_database_with_somebody_elses_tables_is_refused(opened):
    database = opened()
    with database.transaction() as c:
        c.exec_driver_sql("CREATE TABLE jobs (id INTEGER)")
    for call in (migrate.prepare, migrate.upgrade):
        with pytest.raises(InputError, match="expected an empty database"):
            call(database)
    with database.reading() as c:
        assert sa.inspect(c).get_table_names() == ["jobs"]


@pytest.mark.slow
@pytest.mark.parametrize("gone", [1, 7])
def test_a_creation_that_was_interrupted_is_done_again(opened, gone):
    """As MariaDB leaves it: no version yet, and only some of the tables."""
    database = opened()
    migrate.prepare(database)
    with database.transaction() as c:
        c.execute(sa.table(migrate.VERSION_TABLE).delete())
        metadata.drop_all(c, tables=list(metadata.sorted_tables)[-gone:])
    migrate.prepare(database)
    assert differences(database) == []


@pytest.mark.long
@pytest.mark.parametrize("backend", SERVERS_SLOW, indirect=True)
def test_several_processes_may_create_it_at_once(empty, opened):
    code = (
        "import sys; from pathlib import Path; from commonwatt.store.database import Database, address\n"
        "from commonwatt.store.migrate import prepare\n"
        "d = Database(address(sys.argv[1], Path('/'))); sys.stdin.read(); prepare(d); prepare(d)"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, empty], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in running:
        process.stdin.close()
        process.stdin = None
    for process in running:
        _, said = process.communicate(timeout=300)
        assert (process.returncode, said.decode()) == (0, "")
    migrate.prepare(opened())


def test_postgresql_must_be_unicode(postgresql, tmp_path):
    from commonwatt.store.database import Database, address

    made = postgresql.database("SQL_ASCII")
    database = Database(address(made, tmp_path))
    with pytest.raises(InputError, match="encoding is UTF8"):
        migrate.prepare(database)
    database.close()
    postgresql.drop(made)


def test_a_new_version_waits_for_the_old_controller_and_then_upgrades(opened):
    """The claim is what an earlier version holds: both are the same. A second upgrade has nothing to do."""
    database, said = at_first(opened), []
    ApiStore(database).add_tenant("ada", 2.0, 0.0)
    claim = claim_store(opened())
    waiting = threading.Thread(target=migrate.upgrade_when_free, args=(opened(), said.append))
    waiting.start()
    time.sleep(1.2)
    assert waiting.is_alive()
    assert len(said) == 1
    assert said[0].startswith(f"the store has revision 0001: it is upgraded to {migrate.head()} once ")
    assert ApiStore(database).tenants() == {"ada": 2.0}  # the old one goes on
    claim.hand_over()
    waiting.join(60)
    assert said[1].endswith(f": revision 0001 -> revision {migrate.head()}")
    migrate.upgrade_when_free(opened(), said.append)
    assert len(said) == 2
    assert differences(database) == []


def test_nothing_is_waited_for_in_a_new_store_and_a_newer_one_is_refused(opened):
    database, said = opened(), []
    migrate.upgrade_when_free(database, said.append)
    migrate.prepare(database)
    set_revision(database, "9999")
    with pytest.raises(InputError, match="a store of this version"):
        migrate.upgrade_when_free(database, said.append)
    assert said == []


def test_two_new_versions_that_wait_do_not_wait_for_each_other(opened):
    """The first that upgrades the store serves it; to the other, that is no controller of an earlier version."""
    at_first(opened)
    old, said = claim_store(opened()), []
    waiting = threading.Thread(target=migrate.upgrade_when_free, args=(opened(), said.append))
    waiting.start()
    until(lambda: said)
    other = opened()
    old.hand_over()
    with suppress(StoreError):  # whoever is first
        migrate.upgrade(other)
    served = claim_store(opened())
    waiting.join(30)
    assert not waiting.is_alive()
    served.release()


def test_a_new_file_is_its_owners_alone(tmp_path):
    database = Database(address("new.db", tmp_path))
    migrate.upgrade_when_free(database, print)
    database.close()
    assert (tmp_path / "new.db").stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="a file in an existing folder"):
        migrate.upgrade_when_free(Database(address("none/new.db", tmp_path)), print)
