"""One controller at a time on a store: an exclusive claim that ends with its process.

On a server a claim can be a *lease*: the server itself frees the lock of a connection that was silent for ``LEASE_S``,
so a standby gets it when the holder died, is frozen, or cannot reach the database. No clocks are compared:

- a holder renews every ``RENEW_S`` and gives no command later than ``_ACT_S`` after the last renewal that succeeded;
- who gets the lock replaces the token at once, so the former holder writes no more, and waits ``_HANDOVER_S`` before it
  gives commands, unless the former holder has released the claim or its process is surely gone.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import sqlalchemy as sa

from commonwatt.model.errors import ClaimLostError, StoreError
from commonwatt.store.database import Database
from commonwatt.store.settings import get_setting, put_setting

__all__ = ["LEASE_S", "RENEW_S", "Claim", "claim_store", "claimed", "holder_of", "try_claim"]

LEASE_S, RENEW_S = 5, 1.0
"""After how long without a word from its holder a server ends a lease; how often the holder renews it. Seconds."""
_ACT_S, _HANDOVER_S = 3.0, 3.5

_KEY = 0x636F6D6D6F6E7774  # "commonwt": PostgreSQL names its locks by number
_IDLE_S = 1800
_SETTING = "claim"


class Claim:
    """A store claimed by this process.

    The lock (a file beside SQLite's, ``GET_LOCK``, an advisory lock of PostgreSQL) ends with its process or its
    connection. A controller that did not notice that its connection broke is kept from writing by the token in the
    table ``settings``: the next claim replaces it.

    Attributes
    ----------
    settle_s
        How long to wait before the first command: another process may have held the claim until a moment ago.
    """

    def __init__(
        self, database: Database, token: str, lock: _Lock, *, lease: bool = False, settle_s: float = 0.0,
        renewed_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.database, self.token, self.settle_s = database, token, settle_s
        self._lock, self._lease, self._renewed_s = lock, lease, renewed_s

    def holds_lock(self) -> bool:
        """Whether the lock is still ours; asking renews a lease, and keeps the server from ending the connection."""
        began_s = _now_s()
        alive = self._lock.alive()
        if alive:
            self._renewed_s = max(self._renewed_s, began_s)
        return alive

    def may_act(self) -> bool:
        """Whether no other process can hold the claim now, as far as time tells: always, if it is no lease."""
        return not self._lease or _now_s() < self._renewed_s + _ACT_S

    def check_may_act(self) -> None:
        """Raise ``ClaimLostError`` unless ``may_act``: for the moment before a command that no transaction guards."""
        if not self.may_act() and not (self.holds_lock() and self.may_act()):
            raise ClaimLostError("this controller has not renewed its claim on the store in time: it gives no command")

    def check(self, c: sa.Connection) -> None:
        """Check, within a transaction, that nobody else has claimed the store; raises ``ClaimLostError``.

        If only the lock was lost (the server was restarted), it is taken again.
        """
        value = get_setting(c, _SETTING, lock=True)
        if value is None or value.get("token") != self.token:
            who = "somebody" if value is None else _holder(value)
            raise ClaimLostError(f"this controller has lost its claim on the store: {who} has taken it over")
        if not self.holds_lock():
            self._lock.release()
            began_s, lock = _now_s(), _lock(self.database, lease=self._lease)
            if lock is None:
                raise ClaimLostError("this controller has lost its claim on the store: another one is taking it over")
            self._lock, self._renewed_s = lock, began_s

    def release(self) -> None:
        """Release the store for another controller."""
        self._lock.release()

    def hand_over(self) -> None:
        """Release the store, and note that this process gives no more commands: the next one need not wait."""
        with suppress(StoreError), self.database.transaction(what="claim") as c:
            value = get_setting(c, _SETTING, lock=True)
            if value is not None and value.get("token") == self.token:
                put_setting(c, _SETTING, {**value, "released": True})
        self.release()

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
    claim = try_claim(database)
    if claim is None:
        raise StoreError(f"{holder_of(database)} already runs on the store {database}")
    return claim


def holder_of(database: Database) -> str:
    """Return who claimed *database* last, in words."""
    with database.reading(what="claim") as c:
        value = get_setting(c, _SETTING)
    return "another controller" if value is None else f"another controller, {_holder(value)},"


def try_claim(database: Database, *, lease: bool = False) -> Claim | None:
    """Claim *database* as ``claim_store`` does, or as a *lease*; ``None`` if another controller has it."""
    lease = lease and database.backend != "sqlite"
    began_s, lock = _now_s(), _lock(database, lease=lease)
    if lock is None:
        return None
    token = secrets.token_hex(16)
    try:
        value = {
            "token": token, "pid": os.getpid(), "host": socket.gethostname(), "process": _process(os.getpid()),
            "lease": lease, "sessions": database.sessions,
        }  # fmt: skip
        _end_sessions_before(database)
        with database.transaction(what="claim") as c:
            before = get_setting(c, _SETTING, lock=True)
            put_setting(c, _SETTING, value)
    except BaseException:
        lock.release()
        raise
    leased = before is not None and (lease or before.get("lease", False))
    settle_s = _HANDOVER_S if leased and not _gone(before) else 0.0
    return Claim(database, token, lock, lease=lease, settle_s=settle_s, renewed_s=began_s)


def _end_sessions_before(database: Database) -> None:
    """End the connections of the former holder, whose lock we have.

    PostgreSQL does not time out a transaction of which it waits for the rest of a command, as it does where the network
    was cut in between; its row locks would keep us from the store until TCP gives up.
    """
    if database.backend != "postgresql":
        return
    with database.reading(what="claim") as c:
        before = get_setting(c, _SETTING)
        sessions = None if before is None or before.get("released") else before.get("sessions")
        if sessions not in (None, database.sessions):
            activity = sa.table("pg_stat_activity", sa.column("pid"), sa.column("application_name"))
            end = sa.select(sa.func.pg_terminate_backend(activity.c.pid))
            c.execute(end.where(activity.c.application_name == sessions))


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
        query = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND classid::bigint << 32 | objid::bigint = :key"
        )
        return bool(c.scalar(sa.text(query), {"key": _KEY}))


def _claim_file(database: Database) -> Path:
    return Path(f"{Path(str(database.url.database)).resolve()}.claim")


def _lock_name(database: Database) -> str:
    return f"commonwatt.claim.{database.url.database}"[:64]


def _holder(value: Mapping[str, object]) -> str:
    return f"process {value.get('pid')} on {value.get('host')}"


def _gone(value: Mapping[str, Any]) -> bool:
    """Whether who wrote *value* surely gives no more commands."""
    before = value.get("process")
    if value.get("released"):
        return True
    own = _process(os.getpid())
    here = before is not None and own is not None and before[:2] == own[:2]
    return here and _process(int(value["pid"])) != before


def _process(pid: int) -> list[str] | None:
    """Return what identifies a process: the machine's boot, the namespace of its number, and when it started."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        state = fields[0].decode()
        if state in "ZX":
            return None
        return [boot, str(Path("/proc/self/ns/pid").readlink()), fields[19].decode()]
    except OSError:
        return None


def _now_s() -> float:
    """Return a time that also passes while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Lock(NamedTuple):
    alive: Callable[[], bool]
    release: Callable[[], None]


def _lock(database: Database, *, lease: bool = False) -> _Lock | None:
    return _lock_file(database) if database.backend == "sqlite" else _lock_server(database, lease=lease)


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


def _lock_server(database: Database, *, lease: bool) -> _Lock | None:
    if database.backend == "mariadb":
        name = _lock_name(database)
        before = [f"SET SESSION wait_timeout={LEASE_S if lease else _IDLE_S}"]
        locked, holds = sa.select(sa.func.get_lock(name, 0)), sa.select(sa.func.is_used_lock(name))
        mine = sa.select(sa.func.connection_id())
    else:  # a host that vanished is noticed after 30 s
        before = ["SET tcp_keepalives_idle=15", "SET tcp_keepalives_interval=5", "SET tcp_keepalives_count=3"]
        if lease:  # since PostgreSQL 14
            setting = "FROM pg_settings WHERE name = 'idle_session_timeout'"
            before.append(f"SELECT set_config(name, '{LEASE_S}s', false) {setting}")
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
        except Exception:  # a driver raises anything where another thread closes the connection meanwhile
            return False

    def release() -> None:
        with suppress(Exception):  # a connection that broke is as good as closed
            connection.close()
        with suppress(Exception):  # nobody else closes a detached connection that broke
            raw.close()

    return _Lock(alive, release)
