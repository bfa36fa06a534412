"""The API in a process of its own: the controller's decisions and requests no longer take turns in one interpreter.

The controller's process (``ApiProcess``) keeps the listening sockets and sends each snapshot as what differs from the
one before; the API's process (``main``) puts it together, and asks to be heard at once by ``WAKE``. All else goes
through the store. Either may die: the API is started again, and ends when the controller's process has ended.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:  # each process loads what it needs, both at the same time
    from sqlalchemy import URL

    from commonwatt.controlplane.feed import TickCounts
    from commonwatt.controlplane.jobs import JobMaker
    from commonwatt.controlplane.logs import LogFormat
    from commonwatt.controlplane.snapshot import Snapshot
    from commonwatt.model.scenario import Scenario

__all__ = ["ApiChild", "ApiProcess", "ApiSetup", "has_own_process", "main"]

_log = logging.getLogger("commonwatt.service")

READY, WAKE = b"ready", b"wake"
_BEAT_S, _SAYS_S = 1.0, 5.0
_FIRST_S = 15.0  # to wait for the first snapshot, at most
_HUNG_S = 120.0
"""An API that says nothing for so long, also at its start, is ended and started again."""
_GRACE_S = 12.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_THRESHOLDS = 10_000, 10, 10
"""Of garbage collection: what a request makes is gone with it, and a collection holds up all others."""
_FROM_NODES = 1000
_CODE = (  # it dies with the controller's process at any moment, stopped or starting: another one may want the port
    "import ctypes, gc, os; ctypes.CDLL(None).prctl(1, 9); os.getppid() == {parent} or os._exit(1); gc.disable(); "
    "from {module} import main; main({descriptor})"
)


def has_own_process(config: Scenario, nodes: int) -> bool:
    """Return whether the API of a cluster of so many *nodes* has a process of its own."""
    wanted = config.live.server.own_process
    return nodes >= _FROM_NODES if wanted is None else wanted


@dataclass(frozen=True)
class ApiSetup:
    """The first message to the API's process: the configuration, and the sockets to listen on.

    Attributes
    ----------
    listening, local
        Descriptors here of sockets that listen; -1: none.
    """

    config: Scenario
    folder: Path
    database: URL
    idle_s: float
    maker: JobMaker
    first: Snapshot
    log: tuple[LogFormat, int]
    listening: int
    local: int = -1


class ApiChild:
    """The API's process: it loads what it needs, and waits for its sockets and its first message."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        code = _CODE.format(parent=os.getpid(), module=__name__, descriptor=theirs.fileno())
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for this process, which ends that one
            )

    def hand_over(self, sockets: list[int]) -> None:
        """Give it the sockets with these descriptors; raises ``OSError``."""
        with socket.fromfd(self.connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as way:
            socket.send_fds(way, [b"s"], sockets)

    def end(self) -> None:
        """Kill it, unless it has ended."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


class ApiProcess:
    """Runs the API in a process of its own until a signal ends this one.

    Parameters
    ----------
    begun
        The process, where it has been started already; the next ones are started here.
    snapshot_after
        Waits for another snapshot than the one given, at most so many seconds, and returns the newest.
    counts, wake, alive
        As in ``ServiceContext``.
    """

    def __init__(
        self, setup: ApiSetup, snapshot_after: Callable[[Snapshot, float], Snapshot],
        counts: Callable[[], TickCounts], wake: Callable[[], None], alive: Callable[[], bool],
        begun: ApiChild | None = None,
    ) -> None:  # fmt: skip
        self._alive, self._begun = alive, begun
        self._setup, self._snapshot_after, self._counts, self._wake = setup, snapshot_after, counts, wake
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False

    def run(self, on_ready: Callable[[], None]) -> None:
        """Run until SIGTERM or SIGINT; *on_ready* is called when the API answers for the first time."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in numbers}
        pause_s = _PAUSE_S
        try:
            while not self._stopping.is_set():
                began_s = time.monotonic()
                how: dict[str, object] = {}
                try:
                    how["exit_code"] = self._run_once(on_ready)
                except OSError as error:  # of descriptors, or of memory, there are none left
                    how["cause"] = error.strerror
                if self._stopping.wait(pause_s):  # a signal to both may have come there first
                    break
                _log.error("the API ended and restarts; the controller keeps running", extra=how)
                stable = time.monotonic() > began_s + _LONGEST_PAUSE_S
                pause_s = _PAUSE_S if stable else min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """End the API, and then ``run``; open requests have some seconds."""
        self._stopping.set()
        if (process := self._process) is not None:
            process.terminate()
            timer = threading.Timer(_GRACE_S, process.kill)
            timer.daemon = True
            timer.start()

    def _run_once(self, on_ready: Callable[[], None]) -> int:
        """Start the API's process; returns its exit code when it has ended."""
        child, self._begun = self._begun or ApiChild(), None
        process = self._process = child.process
        with child.connection as ours:
            if self._stopping.is_set():  # while it was being started
                process.kill()
            try:
                child.hand_over([number for number in (self._setup.listening, self._setup.local) if number >= 0])
            except OSError:
                child.end()
                raise
            threads = [
                threading.Thread(target=target, args=(ours, *more), daemon=True, name=name)
                for name, target, more in (("api-feed", self._feed, ()), ("api-asks", self._hear, (on_ready,)))
            ]
            for thread in threads:
                thread.start()
            ended = process.wait()
            for thread in threads:
                thread.join()
        return ended

    def _feed(self, connection: Connection) -> None:
        """Send snapshots until the other end is gone; nothing while the controller does not go on."""
        from commonwatt.controlplane.feed import changes

        before = replace(self._setup.first)
        with suppress(OSError):
            connection.send(self._setup)
            while True:
                after = self._snapshot_after(before, _BEAT_S)
                if self._alive() or after is not before:
                    for message in changes(before, after, self._counts()):
                        connection.send(message)
                before = after

    def _hear(self, connection: Connection, on_ready: Callable[[], None]) -> None:
        with suppress(OSError, EOFError):
            while connection.poll(_HUNG_S):
                if connection.recv_bytes() == WAKE:
                    self._wake()
                elif not self._answered:
                    self._answered = True
                    on_ready()
            if not self._stopping.is_set() and self._process is not None:
                _log.error("the API hangs, and is ended")
                self._process.kill()


def main(descriptor: int) -> NoReturn:
    """Serve the API of the controller at the other end of a connection until SIGTERM; exits with 0 then."""
    sys.exit(_serve(Connection(descriptor)))


def _serve(connection: Connection) -> int:
    from commonwatt.controlplane.feed import Replica
    from commonwatt.controlplane.logs import configure
    from commonwatt.data.certificates import Certificates
    from commonwatt.service.app import make_app
    from commonwatt.service.connections import limits_of
    from commonwatt.service.context import ServiceContext
    from commonwatt.service.server import get_ready, served, signals_end_only_the_server
    from commonwatt.store.api_store import ApiStore
    from commonwatt.store.database import Database

    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as way:
        sockets = [socket.socket(fileno=number) for number in socket.recv_fds(way, 1, 2)[1]]
    if not sockets:
        return 1  # the controller's process has not come so far
    setup: ApiSetup = connection.recv()
    configure(*setup.log)
    replica, sending = Replica(setup.first), threading.Lock()

    def hear() -> None:
        with suppress(OSError, EOFError):
            while True:
                replica.apply(connection.recv())
        os._exit(1)  # the controller's process is gone

    def say(word: bytes) -> None:
        with suppress(OSError), sending:
            connection.send_bytes(word)

    def beat() -> None:
        """Say that the event loop goes on, now and again."""
        say(READY)
        asyncio.get_running_loop().call_later(_SAYS_S, beat)

    threading.Thread(target=hear, daemon=True, name="replica").start()
    database = Database(setup.database, idle_s=setup.idle_s)
    context = ServiceContext(
        setup.config, setup.folder, ApiStore(database), setup.maker, replica.snapshot, lambda: say(WAKE),
        replica.counts, replica.alive,
    )  # fmt: skip
    server = setup.config.live.server
    certificates = None if server.tls is None else Certificates(server.tls, setup.folder, "live.server.tls")
    app, connections = make_app(context), limits_of(server)
    get_ready(app, connections, certificates)
    replica.filled.wait(_FIRST_S)
    gc.freeze()  # what the program consists of
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    try:
        with signals_end_only_the_server():
            return 0 if served(app, sockets, beat, connections, certificates) else 1
    finally:
        database.close()
