"""One controller at a time on a store: an exclusive claim that ends with its process."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import sqlalchemy as sa

from commonwatt.model.errors import ClaimLostError, StoreError
from commonwatt.store.database import Database
from commonwatt.store.settings import get_setting, put_setting

__all__ = ["Claim", "claim_store", "claimed"]

_KEY = 0x636F6D6D6F6E7774  # "commonwt": PostgreSQL names its locks by number
_IDLE_S = 1800
_SETTING = "claim"


class Claim:
    """A store claimed by this process.

    The lock (a file beside SQLite's, ``GET_LOCK``, an advisory lock of PostgreSQL) ends with its process or its
    connection. A controller that did not notice that its connection broke is kept from writing by the token in the
    table ``settings``: the next claim replaces it.
    """

    def __init__(self, database: Database, token: str, lock: _Lock) -> None:
        self.database, self.token = database, token
        self._lock = lock

    def held(self) -> bool:
        """Whether the lock is still ours; asking also keeps the server from ending an idle connection (30 minutes)."""
        return self._lock.alive()

    def check(self, c: sa.Connection) -> None:
        """Check, within a transaction, that nobody else has claimed the store; raises ``ClaimLostError``.

        If only the lock was lost (the server was restarted), it is taken again.
        """
        value = get_setting(c, _SETTING, lock=True)
        if value is None or value.get("token") != self.token:
            who = "somebody" if value is None else _holder(value)
            raise ClaimLostError(f"this controller has lost its claim on the store: {who} has taken it over")
        if not self.held():
            self.release()
            lock = _lock(self.database)
            if lock is None:
                raise ClaimLostError("this controller has lost its claim on the store: another one is taking it over")
            self._lock = lock

    def release(self) -> None:
        """Release the store for another controller."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def claim_store(database: Database) -> Claim:
    """Claim *database* for one controller, until the claim is released or this process ends.

    Raises ``StoreError`` if another controller runs on it.
    """
    lock = _lock(database)
    if lock is None:
        with database.reading(what="claim") as c:
            value = get_setting(c, _SETTING)
        who = "another controller" if value is None else f"another controller, {_holder(value)},"
        raise StoreError(f"{who} already runs on the store {database}")
    token = secrets.token_hex(16)
    try:
        value = {"token": token, "pid": os.getpid(), "host": socket.gethostname()}
        with database.transaction(what="claim") as c:
            put_setting(c, _SETTING, value)
    except BaseException:
        lock.release()
        raise
    return Claim(database, token, lock)


def claimed(database: Database) -> bool:
    """Whether a controller runs on *database* now."""
    if database.backend == "sqlite":
        try:
            with _claim_file(database).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no such file: nobody ever claimed it
            return False
        return False
    with database.reading(what="claim") as c:
        if database.backend == "mariadb":
            return c.scalar(sa.select(sa.func.is_used_lock(_lock_name(database)))) is not None
        held = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND classid::bigint << 32 | objid::bigint = :key"
        )
        return bool(c.scalar(sa.text(held), {"key": _KEY}))


def _claim_file(database: Database) -> Path:
    return Path(f"{Path(str(database.url.database)).resolve()}.claim")


def _lock_name(database: Database) -> str:
    return f"commonwatt.claim.{database.url.database}"[:64]


def _holder(value: Mapping[str, object]) -> str:
    return f"process {value.get('pid')} on {value.get('host')}"


class _Lock(NamedTuple):
    alive: Callable[[], bool]
    release: Callable[[], None]


def _lock(database: Database) -> _Lock | None:
    return _lock_file(database) if database.backend == "sqlite" else _lock_server(database)


def _lock_file(database: Database) -> _Lock | None:
    path = _claim_file(database)
    try:
        path.touch(mode=0o600)
        file = path.open("ab")  # closed in children that execute another program
    except OSError as error:
        raise StoreError(f"claim: {path}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            return None
        raise StoreError(f"claim: {path}: {error.strerror}") from None
    return _Lock(lambda: not file.closed, file.close)


def _lock_server(database: Database) -> _Lock | None:
    if database.backend == "mariadb":
        name = _lock_name(database)
        before = [f"SET SESSION wait_timeout={_IDLE_S}"]
        locked, holds = sa.select(sa.func.get_lock(name, 0)), sa.select(sa.func.is_used_lock(name))
        mine = sa.select(sa.func.connection_id())
    else:  # a host that vanished is noticed after 30 s
        before = ["SET tcp_keepalives_idle=15", "SET tcp_keepalives_interval=5", "SET tcp_keepalives_count=3"]
        locked = holds = sa.select(sa.func.pg_try_advisory_lock(_KEY))
        mine = sa.select(sa.literal(1))
    with database.raising("claim"):
        connection = database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        raw: Any = connection.connection.driver_connection
        connection.detach()  # never goes back to the pool: closing it frees the lock
        try:
            for statement in before:
                connection.exec_driver_sql(statement)
            if connection.scalar(locked) not in (1, True):
                connection.close()
                return None
        except BaseException:
            connection.close()
            raise

    asking = threading.Lock()  # one thread at a time may use a connection

    def alive() -> bool:
        try:
            with asking:
                if connection.closed or connection.invalidated:
                    return False
                if database.backend == "mariadb":
                    return bool(connection.scalar(holds) == connection.scalar(mine))
                return bool(connection.scalar(mine) == 1)
        except sa.exc.SQLAlchemyError:
            return False

    def release() -> None:
        with suppress(Exception):  # a connection that broke is as good as closed
            connection.close()
        with suppress(Exception):  # nobody else closes a detached connection that broke
            raw.close()

    return _Lock(alive, release)
