"""Runs the application in this process until a signal stops it."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from commonwatt.model.errors import InputError

__all__ = ["bound", "run_server"]

_GRACE_S = 5
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
        listening.listen(1024)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"an address of this machine with a free port ({error})", field="live.server", value=f"{host}:{port}"
        ) from None
    return listening


def run_server(app: FastAPI, listening: socket.socket, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve *app* on *listening* until SIGTERM or SIGINT; *on_ready* is called with its URL once it answers."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE_S, lifespan="off"
    )
    server = _Server(config, lambda: on_ready(f"http://{shown}:{port}"))
    app.openapi()  # built now, as the first request would wait for it
    sys.setswitchinterval(_TURN_S)
    with _signals_end_only_the_server():
        server.run(sockets=[listening])


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
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()
