"""Runs the application in this process until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from commonwatt.model.errors import InputError

__all__ = ["bound", "run_server"]

_GRACE_S = 5


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens on *host* and *port* (0: any free one); raises ``InputError`` if there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(
            f"an address that can be listened on ({error})", field="live.server", value=f"{host}:{port}"
        ) from None
    return listening


def run_server(app: FastAPI, listening: socket.socket, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve *app* on *listening* until SIGTERM or SIGINT; *on_ready* is told its address once it answers."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE_S, lifespan="off"
    )
    server = _Server(config, lambda: on_ready(f"http://{shown}:{port}"))
    server.run(sockets=[listening])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()
