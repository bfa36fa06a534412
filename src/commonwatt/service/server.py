"""Runs the application in this process until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from fastapi import FastAPI

from commonwatt.model.errors import InputError
from commonwatt.service.connections import ACCEPTED_AT_ONCE, AcceptErrors, Connections

__all__ = ["bound", "run_server"]

_log = logging.getLogger("commonwatt.service")

_GRACE_S = 5
_AGAIN_S = 1.0
_MOST = 500
_QUEUED = 1024
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


def run_server(
    app: FastAPI, listening: socket.socket, on_ready: Callable[[str], None] = lambda _: None,
    connections: Connections | None = None,
) -> None:  # fmt: skip
    """Serve *app* on *listening* until SIGTERM or SIGINT; *on_ready* is called with its URL once it answers.

    When the server itself fails, it begins anew: the controller in another thread goes on meanwhile.
    """
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    connections = connections or Connections(_MOST)
    app.openapi()  # built now, as the first request would wait for it
    sys.setswitchinterval(_TURN_S)
    url = f"http://{shown}:{port}"
    with _signals_end_only_the_server():
        while not _served(app, listening, partial(on_ready, url), connections):
            time.sleep(_AGAIN_S)
            on_ready, listening = _quiet, bound(host, port) if listening.fileno() < 0 else listening


def _served(app: FastAPI, listening: socket.socket, ready: Callable[[], None], connections: Connections) -> bool:
    """Serve until a signal (returns ``True``) or a failure of the server."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE_S, lifespan="off",
        http=connections.protocol,  # type: ignore[arg-type]
        ws="none", backlog=ACCEPTED_AT_ONCE,
    )  # fmt: skip
    server = _Server(config, connections, ready)
    try:
        server.run(sockets=[listening])
    except Exception:
        if server.should_exit:
            raise
        _log.exception("the API failed and restarts; the controller goes on")
        return False
    return True


def _quiet(_: str) -> None:
    """Announce nothing: the address is known."""


@contextmanager
def _signals_end_only_the_server() -> Iterator[None]:
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
    def __init__(self, config: uvicorn.Config, connections: Connections, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._limits, self._ready = connections, ready
        self._watch: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(AcceptErrors())
        self._watch = loop.create_task(self._limits.watch())
        await super().startup(sockets)
        if self.started:
            for listening in sockets or ():
                listening.listen(_QUEUED)  # in the kernel: uvicorn has set it to the number accepted at once
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await super().shutdown(sockets)
