"""Opening a database and its transactions, the same for SQLite, MariaDB and PostgreSQL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from commonwatt.model.errors import InputError, MissingExtraError, StoreError

__all__ = ["Database", "address"]

_KNOWN = {"sqlite": "pysqlite", "mysql": "pymysql", "mariadb": "pymysql", "postgresql": "psycopg"}
_BUSY_S = 30.0


def address(text: str, folder: Path) -> URL:
    """Return the address *text* stands for: a URL, or a file of SQLite relative to *folder*.

    Environment variables (``$NAME``, ``${NAME}``) are put in, so that passwords need not stand in files.
    Raises ``InputError`` on one that is not set and on databases we do not know.
    """
    for name in re.findall(r"\$\{?(\w+)\}?", text):
        if name not in os.environ:
            raise InputError("an environment variable that is set", field="live.store", value=name)
    text = os.path.expandvars(text)
    if "://" not in text:
        return URL.create("sqlite", database=str((folder / text).absolute()))
    expected = "a file, or an address beginning with sqlite://, mysql+pymysql:// or postgresql+psycopg://"
    try:
        url = make_url(text)
    except ArgumentError:
        raise InputError(expected, field="live.store", value=text.partition("://")[0] + "://...") from None
    backend = url.get_backend_name()
    if backend not in _KNOWN:
        raise InputError(expected, field="live.store", value=f"{backend}://...")
    return url.set(drivername=f"{backend}+{_KNOWN[backend]}")


class Database:
    """Connections to one database. Safe to use from several threads."""

    def __init__(self, url: URL) -> None:
        self.url = url
        options: dict[str, object] = {"pool_pre_ping": True}
        if url.get_backend_name() == "sqlite":
            options |= {"connect_args": {"timeout": _BUSY_S}, "pool_size": 16, "max_overflow": 16}
        else:
            options |= {"isolation_level": "READ COMMITTED", "pool_size": 16, "max_overflow": 16}
        try:
            self.engine = sa.create_engine(url, **options)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            raise MissingExtraError(str(getattr(error, "name", None) or error), "live") from None
        if url.get_backend_name() == "sqlite":
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    @contextmanager
    def transaction(self, *, what: str = "transaction") -> Iterator[sa.Connection]:
        """Do all or nothing; raises ``StoreError`` saying *what* failed, with nothing of it done."""
        with self._told(what), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self, *, what: str = "query") -> Iterator[sa.Connection]:
        """Read one consistent state."""
        with self._told(what), self.engine.connect().execution_options(commonwatt_read=True) as connection:
            yield connection

    def prepare(self) -> None:
        """Make the tables of a new database."""
        from commonwatt.store.tables import metadata

        with self._told("prepare the database"):
            metadata.create_all(self.engine)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = str(error.orig) if isinstance(error, DBAPIError) else str(error)
            msg = f"{what}: the database {self.url.render_as_string(hide_password=True)} says: {cause.splitlines()[0]}"
            raise StoreError(msg) from error


def _prepare_sqlite(connection: object, record: object) -> None:  # noqa: ARG001
    connection.isolation_level = None  # type: ignore[attr-defined]  # transactions begin where we say
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("commonwatt_read", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
