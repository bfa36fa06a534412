"""The server: runs REST and gRPC in one event loop, from binding the ports to the last response."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonwatt.data.certificates import Certificates
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_file import ModelServerSpec
from commonwatt.serving import Foreign, import_extra
from commonwatt.serving.backend import Backend
from commonwatt.serving.frontend import Front
from commonwatt.serving.grpc_front import credentials, grpc_server
from commonwatt.serving.keys import Keys
from commonwatt.serving.metrics import metrics_page
from commonwatt.serving.openai_rest import openai_routes
from commonwatt.serving.rejections import BoundedFilter
from commonwatt.serving.rest import rest_application

__all__ = ["Addresses", "check_host", "listening", "serve"]

LAST_WORDS_S = 2.0  # for responses still being written when the server stops
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Addresses:
    """Where a server listens."""

    host: str
    rest_port: int
    grpc_port: int | None
    tls: bool = False

    @property
    def rest(self) -> str:
        """``host:port`` of REST, as ``tritonclient.http`` takes it."""
        return _joined(self.host, self.rest_port)

    @property
    def grpc(self) -> str | None:
        """``host:port`` of gRPC, as ``tritonclient.grpc`` takes it."""
        return None if self.grpc_port is None else _joined(self.host, self.grpc_port)


@dataclass(frozen=True)
class _Stops:
    """Requests to stop: after all accepted requests are answered, or at once."""

    gently: asyncio.Event
    at_once: asyncio.Event


async def serve(
    backend: Backend,
    keys: Keys,
    spec: ModelServerSpec,
    *,
    on_ready: Callable[[Addresses], None],
    stop: asyncio.Event | None = None,
    folder: Path = Path(),
) -> None:
    """Serve *backend* until a request to stop, then finish the accepted requests.

    Parameters
    ----------
    on_ready
        Called once both ports accept requests.
    stop
        Event that stops the server (set it from another thread by ``loop.call_soon_threadsafe(stop.set)``). Without it,
        in the main thread, the first SIGTERM or SIGINT drains the server and the second stops it at once.
    folder
        Folder that the paths of certificates are relative to.

    Raises
    ------
    InputError
        If a port is in use, the host is another machine, or a certificate or its key cannot be used.
    MissingExtraError
        If the ``serve`` extra is not installed.
    """
    front = Front(backend, keys)
    largest = int(spec.largest_request_mb * 1e6)
    certificates = None if spec.tls is None else Certificates(spec.tls, folder, "server.tls")
    application = rest_application(front, largest, metrics_page(backend.measurements), openai_routes(front, largest))
    rest = _uvicorn(application, certificates)
    serving: asyncio.Task[None] | None = None
    with _stops(stop) as stops, _few_warnings(), contextlib.closing(listening(spec.host, spec.rest_port)) as listener:
        rpc = None if spec.grpc_port is None else grpc_server(front, largest)
        watch = None if certificates is None else asyncio.create_task(certificates.watch())
        try:
            rpc_port = None if rpc is None else _bind_grpc(rpc, spec, certificates)
            if rpc is not None:
                await rpc.start()
            serving = asyncio.create_task(rest.serve(sockets=[listener]))
            await _started(rest, serving)
            on_ready(Addresses(spec.host, listener.getsockname()[1], rpc_port, certificates is not None))
            await _first(stops.gently, serving)
            await front.drain(spec.drain_s, stops.at_once)
        finally:
            if watch is not None:
                watch.cancel()
            await _finish(rest, serving, rpc, at_once=stops.at_once.is_set())


def check_host(host: str) -> None:
    """Raise ``InputError`` unless *host* is a name or an address of this machine."""
    try:
        family, kind, protocol, _, (address, _, *more) = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind((address, 0, *more))
    except (OSError, UnicodeError):
        raise InputError("a host name or address of this machine", field="server.host", value=host) from None


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; asyncio sends what it is given at once, as the protocol is stated.

    Raises ``InputError`` if the port is in use or the host is another machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise InputError("a host name or address of this machine", field="server.host", value=host) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.settimeout(0)
    except OSError as error:
        listener.close()
        raise InputError(f"a free port on {host} ({error.strerror})", field="server.rest_port", value=port) from None
    return listener


def _bind_grpc(server: Foreign, spec: ModelServerSpec, certificates: Certificates | None) -> int:
    where = _joined(spec.host, spec.grpc_port or 0)
    try:
        if certificates is None:
            port = int(server.add_insecure_port(where))
        else:
            port = int(server.add_secure_port(where, credentials(certificates.pem)))
    except RuntimeError:
        port = 0
    if not port:
        kinds = "" if certificates is None else ", and a certificate that gRPC takes (RSA, P-256 or P-384)"
        raise InputError(f"a free port on {spec.host}{kinds}", field="server.grpc_port", value=spec.grpc_port)
    return port


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _uvicorn(application: Foreign, certificates: Certificates | None) -> Foreign:
    """Return uvicorn's server without its signal handlers, access log and trust in proxies."""
    uvicorn = import_extra("uvicorn")
    config = uvicorn.Config(
        application, log_config=None, log_level=logging.WARNING, access_log=False, lifespan="off", ws="none",
        proxy_headers=False, server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=int(LAST_WORDS_S),
    )  # fmt: skip
    config.load()
    config.ssl = None if certificates is None else certificates.following()
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    return server


@contextlib.contextmanager
def _stops(stop: asyncio.Event | None) -> Iterator[_Stops]:
    stops = _Stops(stop or asyncio.Event(), asyncio.Event())
    if stop is not None or threading.current_thread() is not threading.main_thread():
        yield stops
        return

    def signalled() -> None:
        (stops.at_once if stops.gently.is_set() else stops.gently).set()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, signalled)
    try:
        yield stops
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _few_warnings() -> Iterator[None]:
    """Limit the rate of uvicorn's warnings about requests that are not HTTP."""
    log, bound = logging.getLogger("uvicorn.error"), BoundedFilter()
    log.addFilter(bound)
    try:
        yield
    finally:
        log.removeFilter(bound)


async def _started(rest: Foreign, serving: asyncio.Task[None]) -> None:
    while not rest.started and not serving.done():
        await asyncio.sleep(0.005)
    if serving.done():
        serving.result()


async def _first(stop: asyncio.Event, serving: asyncio.Task[None]) -> None:
    """Wait for *stop*; raises the error of a server that ends by itself."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if serving.done():
        serving.result()


async def _finish(rest: Foreign, serving: asyncio.Task[None] | None, rpc: Foreign, *, at_once: bool) -> None:
    rest.should_exit = True
    rest.force_exit = at_once
    ends: list[Any] = [] if serving is None else [serving]
    if rpc is not None:
        ends.append(rpc.stop(0.1 if at_once else LAST_WORDS_S))
    await asyncio.gather(*ends, return_exceptions=True)
    for connection in list(rest.server_state.connections):  # of clients that do not read their responses
        connection.transport.abort()
    await asyncio.sleep(0)  # until they are closed
