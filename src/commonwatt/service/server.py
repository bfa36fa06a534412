"""Runs the application in this process until a signal stops it: over TCP, perhaps with TLS, and a Unix socket."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from commonwatt.data.certificates import Certificates
from commonwatt.model.errors import InputError
from commonwatt.service.connections import ACCEPTED_AT_ONCE, AcceptErrors, Connections

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["LocalSocket", "bound", "get_ready", "run_server", "served", "shown_address", "signals_end_only_the_server"]

_log = logging.getLogger("commonwatt.service")

_GRACE_S = 5
_AGAIN_S = 1.0
_MOST = 500
_QUEUED = 1024
_DESCRIBED_S = 5.0
_TURN_S = 5e-4
"""Switch interval of the interpreter: a request changes threads several times, and with Python's default would wait
5 ms each time while the controller decides."""


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens on *host* and *port* (0: any free port); raises ``InputError`` if that fails."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_QUEUED)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"an address of this machine with a free port ({error})", field="live.server", value=f"{host}:{port}"
        ) from None
    return listening


@dataclass
class LocalSocket:
    """A Unix socket that listens on *path*, and a lock that keeps a second server from it.

    Raises ``InputError`` if the path is taken, or its folder is open to others: they could replace the socket.
    """

    path: Path
    listening: socket.socket = field(init=False)
    _lock: int = field(init=False)
    _inode: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._check_folder()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._lock = os.open(f"{self.path}.lock", flags, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise self._refused("another server uses it; a second one here needs --socket PATH") from None
        except OSError as error:
            raise self._refused(error.strerror or str(error)) from None
        try:
            self._clear()
            self.open()
        except OSError as error:
            os.close(self._lock)
            raise self._refused(error.strerror or str(error)) from None
        except InputError:
            os.close(self._lock)
            raise

    def _refused(self, why: str) -> InputError:
        return InputError(f"a free path for a socket ({why})", field="live.server.socket.path", value=self.path)

    def _check_folder(self) -> None:
        try:
            folder = self.path.parent.stat()
        except OSError as error:
            raise self._refused(f"its folder: {error.strerror}") from None
        if folder.st_uid not in (0, os.geteuid()):
            raise self._refused("its folder belongs to another user")
        if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
            raise self._refused("others may write to its folder, and so replace it")

    def _clear(self) -> None:
        """Remove the socket of a server that has died."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            raise self._refused("there is something else, or another user's socket")
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(1.0)
            try:
                tried.connect(str(self.path))
            except ConnectionRefusedError:
                self.path.unlink()
                return
            except OSError as error:
                raise self._refused(error.strerror or str(error)) from None
        raise self._refused("something listens on it")

    def open(self) -> None:
        """Listen, open to every user of the machine: the kernel says who connects."""
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(str(self.path))
            self.path.chmod(0o666)
            listening.listen(_QUEUED)
        except OSError:
            listening.close()
            raise
        self.listening, self._inode = listening, self.path.lstat().st_ino

    def again(self) -> None:
        """Listen again if the socket was closed."""
        if self.listening.fileno() < 0:
            self._clear()
            self.open()

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        self.listening.close()
        with suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        os.close(self._lock)


def run_server(
    app: FastAPI, listening: socket.socket, on_ready: Callable[[str], None] = lambda _: None,
    connections: Connections | None = None, *, certificates: Certificates | None = None,
    local: LocalSocket | None = None,
) -> None:  # fmt: skip
    """Serve *app* on *listening* until SIGTERM or SIGINT; *on_ready* is called with its URL once it answers.

    With *certificates*, it speaks TLS there; on *local* it never does. When the server itself fails, it begins anew:
    the controller in another thread goes on meanwhile.
    """
    host, port = listening.getsockname()[:2]
    url = shown_address(listening, encrypted=certificates is not None)
    connections = Connections(_MOST) if connections is None else connections  # an empty one is false
    get_ready(app, connections, certificates)
    with signals_end_only_the_server():
        while True:
            sockets = [listening] if local is None else [listening, local.listening]
            if served(app, sockets, partial(on_ready, url), connections, certificates):
                return
            time.sleep(_AGAIN_S)
            on_ready, listening = _quiet, bound(host, port) if listening.fileno() < 0 else listening
            if local is not None:
                local.again()


def shown_address(listening: socket.socket, *, encrypted: bool) -> str:
    """Return the URL of a server on *listening*."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if encrypted else ''}://{shown}:{port}"


def get_ready(app: FastAPI, connections: Connections, certificates: Certificates | None) -> None:
    """Let threads of this process take turns more often; describe the API soon, which a first request may wait for."""
    connections.tls = certificates
    describe = threading.Timer(_DESCRIBED_S, app.openapi)
    describe.daemon = True
    describe.start()
    sys.setswitchinterval(_TURN_S)


def served(
    app: FastAPI, sockets: list[socket.socket], ready: Callable[[], None], connections: Connections,
    certificates: Certificates | None,
) -> bool:  # fmt: skip
    """Serve *app* on *sockets* until a signal (returns ``True``) or a failure; *ready* once it answers."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE_S, lifespan="off",
        http=connections.protocol,  # type: ignore[arg-type]
        ws="none", backlog=ACCEPTED_AT_ONCE,
    )  # fmt: skip
    server = _Server(config, connections, ready, certificates)
    try:
        server.run(sockets=sockets)
    except Exception:
        if server.should_exit:
            raise
        _log.exception("the API failed and restarts; the controller keeps running")
        return False
    return True


def _quiet(_: str) -> None:
    """Announce nothing: the address is known."""


@contextmanager
def signals_end_only_the_server() -> Iterator[None]:
    """Keep uvicorn from raising its signal again when it ends, so that the caller can clean up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, connections: Connections, ready: Callable[[], None],
        certificates: Certificates | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config)
        self._limits, self._ready, self._certificates = connections, ready, certificates
        self._watches: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(AcceptErrors())
        self._watches.append(loop.create_task(self._limits.watch()))
        if self._certificates is not None:
            self._watches.append(loop.create_task(self._certificates.watch()))
        await super().startup(sockets)
        if self.started:
            for listening in sockets or ():
                listening.listen(_QUEUED)  # in the kernel: uvicorn has set it to the number accepted at once
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for watch in self._watches:
            watch.cancel()
        self._limits.drop_handshakes()
        await super().shutdown(sockets)
