"""Databases and their transactions, the same for SQLite, MariaDB and PostgreSQL; addresses of databases."""

from __future__ import annotations

import json
import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)

from commonwatt.model.errors import InputError, MissingExtraError, StoreDownError, StoreError

__all__ = ["Database", "address", "within_reach"]


def within_reach(path: Path, field: str) -> Path:
    """Return *path*, whether or not it exists.

    Raises ``InputError`` naming *field* if it cannot be accessed: its name is too long or has NUL characters, or it is
    in a folder this process may not enter.
    """
    expected = "a path this process can access"
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        raise InputError(f"{expected} ({error.strerror})", field=field, value=path) from None
    except ValueError:
        raise InputError(f"{expected} (without NUL characters)", field=field, value=path) from None
    return path


_DRIVERS = {
    "sqlite": "sqlite+pysqlite", "mysql": "mariadb+pymysql", "mariadb": "mariadb+pymysql",
    "postgresql": "postgresql+psycopg",
}  # fmt: skip
_TRANSIENT = (OperationalError, InterfaceError, sa.exc.TimeoutError)
_AT_FAULT = frozenset({1054, 1118, 1153, 1292, 1364, 1365, 1411, 1690, 1916, 1918, 4025})
"""Errors of MariaDB that its driver calls operational, although the stored values are at fault."""
_LONGEST_TEXT = 1 << 24  # that MariaDB concatenates; its default is 1024, beyond which it cuts without an error
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def address(text: str, folder: Path) -> URL:
    """Return the address that *text* names: a URL, or a file of SQLite relative to *folder*.

    Environment variables (``$NAME``, ``${NAME}``) are substituted, so that passwords need not be in files; before the
    ``@`` they may contain any character. Raises ``InputError`` on a variable that is not set, on unsupported databases,
    on one in memory, which would be lost, and on a file this process cannot access.
    """
    kind, mark, rest = text.partition("://")
    who, at, where = rest.rpartition("@")
    text = _substitute(kind) + mark + _substitute(who, partial(quote, safe="")) + at + _substitute(where)
    if "://" not in text:
        return URL.create("sqlite+pysqlite", database=_file(folder / text))
    expected = "a file, or an address beginning with sqlite:///, mysql+pymysql:// or postgresql+psycopg://"
    shown = f"{text.partition('://')[0]}://..."
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InputError(expected, field="live.store", value=shown) from None
    backend = url.get_backend_name()
    if backend not in _DRIVERS or not url.database:
        raise InputError(expected, field="live.store", value=shown)
    if backend == "sqlite":
        if ":memory:" in url.database or url.query or url.host:
            raise InputError("a file", field="live.store", value=url.render_as_string(hide_password=True))
        url = url.set(database=_file(folder / url.database))
    return url.set(drivername=_DRIVERS[backend])


def _file(path: Path) -> str:
    return str(within_reach(path.absolute(), "live.store"))


_POLL_MS = 10
"""So long SQLite waits for another process until it is asked again; by itself it would look every 100 ms in the end."""


class Database:
    """Connections to one database. Safe to use from several threads.

    *patience_s* is how long a transaction waits for others to end, and how long to try to connect; *answer_s* is how
    long a server may take for a statement. A server ends a transaction in which nothing was said for *idle_s*: a
    process that is frozen then holds no lock of a row. PostgreSQL knows its connections by the name *sessions*.
    """

    def __init__(
        self, url: URL, *, patience_s: float = 30.0, answer_s: float = 60.0, idle_s: float | None = None
    ) -> None:
        self.url = url
        self.sessions = f"commonwatt {secrets.token_hex(8)}"
        self.backend = url.get_backend_name()
        self._patience_s = patience_s
        self._writing = threading.Lock() if self.backend == "sqlite" else None
        options: dict[str, object] = {"pool_pre_ping": self.backend != "sqlite", "pool_size": 16, "max_overflow": 16}
        options["pool_use_lifo"] = True  # the connection used last has pages of the file in its cache
        options["hide_parameters"] = True  # environments of jobs may be secret, and errors are logged
        options |= {"json_serializer": _as_json, "pool_timeout": patience_s}
        wait_s = max(1, round(patience_s))
        if self.backend == "sqlite":
            options["connect_args"] = {"timeout": patience_s}
        elif self.backend == "mariadb":
            modes = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO"
            options["connect_args"] = {
                "connect_timeout": min(wait_s, 10), "charset": "utf8mb4",
                "read_timeout": round(answer_s) + wait_s, "write_timeout": round(answer_s) + wait_s,
                "init_command": f"SET SESSION sql_mode='{modes}', SESSION innodb_lock_wait_timeout={wait_s}, "
                f"SESSION group_concat_max_len={_LONGEST_TEXT}"
                + ("" if idle_s is None else f", SESSION idle_transaction_timeout={round(idle_s)}"),
            }  # fmt: skip
        else:
            settings = f"-c statement_timeout={round(1000 * answer_s)} -c lock_timeout={wait_s * 1000}"
            settings += "" if idle_s is None else f" -c idle_in_transaction_session_timeout={round(1000 * idle_s)}"
            options["connect_args"] = {
                "connect_timeout": max(2, min(wait_s, 10)), "options": settings, "client_encoding": "utf8",
                "application_name": self.sessions, "tcp_user_timeout": 20_000, "keepalives_idle": 5,
                "keepalives_interval": 5, "keepalives_count": 3,
            }  # fmt: skip
        if self.backend != "sqlite":
            options["isolation_level"] = "READ COMMITTED"
        try:
            self.engine = sa.create_engine(url, **options)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            extra = "postgresql" if self.backend == "postgresql" else "mariadb"
            raise MissingExtraError(str(getattr(error, "name", None) or error), extra) from None
        if self.backend == "sqlite":
            event.listen(self.engine, "connect", partial(_prepare_sqlite, patience_s=patience_s))
            event.listen(self.engine, "begin", partial(_begin_sqlite, patience_s=patience_s))

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def transaction(self, *, what: str = "transaction") -> Iterator[sa.Connection]:
        """Do all or nothing; raises ``StoreError`` saying *what* failed, with nothing done."""
        with self.raising(what), self._turn(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for other threads here: in their order, and without polling."""
        taken = self._writing is not None and self._writing.acquire(timeout=self._patience_s)
        try:
            yield
        finally:
            if self._writing is not None and taken:
                self._writing.release()

    @contextmanager
    def reading(self, *, what: str = "query", snapshot: bool = False) -> Iterator[sa.Connection]:
        """Read; with *snapshot*, all queries see the same state."""
        options: dict[str, object] = {"commonwatt_read": True}
        if snapshot and self.backend != "sqlite":  # which always does
            options["isolation_level"] = "REPEATABLE READ"
        with self.raising(what), self.engine.connect() as connection:
            yield connection.execution_options(**options)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def raising(self, what: str) -> Iterator[None]:
        """Turn errors of the database into ``StoreError`` (``StoreDownError``) that say *what* failed."""
        try:
            yield
        except SQLAlchemyError as error:
            cause = str(error.orig) if isinstance(error, DBAPIError) else str(error)
            kind = StoreDownError if _transient(error) else StoreError
            raise kind(f"{what}: the database {self} says: {_first_line(cause)}") from error
        except (UnicodeEncodeError, OverflowError) as error:  # of SQLite's driver, which does not declare them
            raise StoreError(f"{what}: the database {self} cannot store it: {error}") from error


def _transient(error: SQLAlchemyError) -> bool:
    """Whether a retry may help. Drivers also call errors operational that come again each time."""
    if not isinstance(error, _TRANSIENT):
        return False
    cause = error.orig if isinstance(error, DBAPIError) else None
    if (code := getattr(cause, "sqlite_errorcode", None)) is not None:
        return bool(code & 0xFF != sqlite3.SQLITE_ERROR)  # of the statement, as an integer that overflows
    if str(getattr(cause, "sqlstate", "")).startswith("54"):  # a limit of PostgreSQL's
        return False
    return not (cause is not None and cause.args and cause.args[0] in _AT_FAULT)


def _substitute(text: str, written: Callable[[str], str] = str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise InputError("an environment variable that is set", field="live.store", value=name)
        return written(os.environ[name])

    return _VARIABLE.sub(value, text)


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:  # PostgreSQL's driver calls this and would let it through
        raise StoreError(f"not a JSON value: {error}") from None


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "nothing")


def _prepare_sqlite(connection: sqlite3.Connection, record: object, *, patience_s: float) -> None:  # noqa: ARG001
    connection.isolation_level = None  # transactions begin where we say
    _write_ahead(connection, patience_s)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _write_ahead(connection: sqlite3.Connection, patience_s: float) -> None:
    """Switch the file to its write-ahead log. SQLite itself does not wait where another process is switching it."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_sqlite(connection: sa.Connection, *, patience_s: float) -> None:
    if connection.get_execution_options().get("commonwatt_read", False):
        connection.exec_driver_sql("BEGIN")
        return
    raw, until_s = connection.connection.dbapi_connection, time.monotonic() + patience_s
    assert isinstance(raw, sqlite3.Connection)
    raw.execute(f"PRAGMA busy_timeout={_POLL_MS}")
    try:
        while time.monotonic() < until_s:
            try:
                raw.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                    break
            else:
                return
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # whose error says what is wrong
    finally:
        raw.execute(f"PRAGMA busy_timeout={round(1000 * patience_s)}")
