"""Versions of the store: a new database gets the newest; an older one is upgraded on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import sqlalchemy as sa

from commonwatt.model.errors import InputError, StoreError
from commonwatt.store.claim import claimed, holder_of
from commonwatt.store.database import Database
from commonwatt.store.tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["VERSION_TABLE", "head", "later_steps", "prepare", "revision", "upgrade", "upgrade_when_free"]

VERSION_TABLE = "commonwatt_version"
_MIGRATIONS = Path(__file__).parent / "migrations"
_LONG_S = 86400.0  # a large table may take its time
_KEY = 0x636F6D6D6F6E7773
_ONE_AT_A_TIME = threading.Lock()  # alembic keeps its context in global variables


def head() -> str:
    """Return the newest revision of the tables: migrations are numbered, and their files named after their numbers.

    Alembic, which takes long to import, is needed only to migrate.
    """
    return max(file.name[1:5] for file in (_MIGRATIONS / "versions").glob("r[0-9][0-9][0-9][0-9]_*.py"))


def later_steps(after: object) -> list[ModuleType] | None:
    """Return the migrations that come after the revision *after*, in order; ``None`` if there is no such revision."""
    from alembic.script import ScriptDirectory

    steps: list[ModuleType] = []
    for step in ScriptDirectory.from_config(_config()).walk_revisions():  # the newest first
        if step.revision == after:
            return steps[::-1]
        steps.append(step.module)
    return None


def revision(c: sa.Connection) -> str | None:
    """Return the revision of the tables in a database; ``None`` if it has no store."""
    if not sa.inspect(c).has_table(VERSION_TABLE):
        return None
    version_num: str | None = c.scalar(sa.select(sa.column("version_num")).select_from(sa.table(VERSION_TABLE)))
    return version_num


def prepare(database: Database) -> None:
    """Create the tables of a new database; check that those of an old one are of this version.

    Several processes may call it at once. Raises ``InputError`` on a store of another version, a database with other
    tables, or a missing folder.
    """
    newest = head()
    _make_private(database)
    with database.reading(what="version") as c:
        if revision(c) == newest:
            return
    with _alone(database) as c:
        store_revision = revision(c)
        if store_revision == newest:
            return
        if store_revision is not None:
            _refuse_unknown(database, store_revision)
            where = database.url.database if database.backend == "sqlite" else database
            raise InputError(
                f'revision {newest}; run "commonwatt store upgrade CONFIG", after a backup',
                field="live.store", value=f"revision {store_revision} in {where}",
            )  # fmt: skip
        _migrate(database, c, store_revision)


def upgrade(database: Database) -> tuple[str | None, str]:
    """Upgrade a store to the newest version; returns the revisions before (``None``: it was new) and after.

    Raises ``InputError`` as ``prepare`` does, ``StoreError`` while a controller runs on the store.
    """
    _make_private(database)
    patient = Database(database.url, answer_s=_LONG_S)
    try:
        with _alone(patient) as c:
            store_revision = revision(c)
            if store_revision is not None:
                _refuse_unknown(database, store_revision)
            if store_revision != head():
                if claimed(database):
                    raise StoreError(f"a controller runs on the store {database}: stop it before an upgrade")
                _migrate(database, c, store_revision)
            return store_revision, head()
    finally:
        patient.close()


_FREE_S = 0.5
"""How often to look whether the controller of the earlier version has ended."""


def upgrade_when_free(database: Database, say: Callable[[str], object]) -> None:
    """Upgrade a store to the newest version, once no controller runs on it; a new one is left to ``prepare``.

    *say* is told what is waited for, and what was done. Raises as ``upgrade`` does, but for a controller.
    """
    _make_private(database)

    def current() -> str | None:
        with database.reading(what="version") as c:
            return revision(c)

    before = current()
    if before in {None, head()}:
        return
    _refuse_unknown(database, str(before))
    if claimed(database):
        whose = holder_of(database)
        say(f"the store has revision {before}: it is upgraded to {head()} once {whose} has ended, and served then")
    while True:
        while claimed(database):
            time.sleep(_FREE_S)
            if current() == head():  # by another, which serves it now
                return
        try:
            before, after = upgrade(database)
        except StoreError:
            if not claimed(database):
                raise
        else:
            if before != after:
                say(f"{database}: revision {before} -> revision {after}")
            return


def _make_private(database: Database) -> None:
    """Let only its owner read a new file of SQLite: it has environments of jobs."""
    if database.backend == "sqlite":
        path = Path(str(database.url.database))
        if not path.parent.is_dir():
            raise InputError("a file in an existing folder", field="live.store", value=path)
        with suppress(OSError):  # opening it says why it cannot be made
            path.touch(mode=0o600)


def _refuse_unknown(database: Database, store_revision: str) -> None:
    if later_steps(store_revision) is None:
        raise InputError(
            f"a store of this version of commonwatt, or an older one (newest known revision: {head()})",
            field="live.store", value=f"revision {store_revision} in {database}",
        )  # fmt: skip


def _migrate(database: Database, c: sa.Connection, store_revision: str | None) -> None:
    from alembic import command

    if store_revision is None:
        _check_new(database, c)
    config = _config()
    config.attributes["connection"] = c
    with _ONE_AT_A_TIME:
        command.upgrade(config, "head")


def _check_new(database: Database, c: sa.Connection) -> None:
    """Check that nothing is in the way of new tables."""
    if database.backend == "postgresql" and c.scalar(sa.text("SHOW server_encoding")) != "UTF8":
        raise InputError("a database whose encoding is UTF8", field="live.store", value=str(database))
    there = set(sa.inspect(c).get_table_names())
    ours = [table for table in metadata.sorted_tables if table.name in there]
    if not ours:
        return
    if VERSION_TABLE in there and not any(c.execute(sa.select(sa.literal(1)).select_from(t)).first() for t in ours):
        metadata.drop_all(c, tables=ours)  # a creation that was interrupted: MariaDB cannot undo one
        return
    raise InputError(
        f"an empty database, or one of commonwatt's (this one has a table {ours[0].name!r} of something else)",
        field="live.store", value=str(database),
    )  # fmt: skip


@contextmanager
def _alone(database: Database) -> Iterator[sa.Connection]:
    """Begin a transaction during which nobody else migrates; SQLite's are exclusive anyway.

    MariaDB's lock is another connection's, as it must outlast the commit: who gets it next reads what was committed.
    """
    if database.backend == "mariadb":
        name = f"commonwatt.setup.{database.url.database}"[:64]
        with database.reading(what="version") as connection:
            if connection.scalar(sa.select(sa.func.get_lock(name, 60))) != 1:
                raise InputError("nobody else to migrate it", field="live.store", value=str(database))
            try:
                with database.transaction(what="version") as c:
                    yield c
            finally:
                connection.execute(sa.select(sa.func.release_lock(name)))
        return
    with database.transaction(what="version") as c:
        if database.backend == "postgresql":
            c.execute(sa.select(sa.func.pg_advisory_xact_lock(_KEY)))
        yield c


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
