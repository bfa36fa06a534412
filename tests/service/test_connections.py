"""Limits of connections, over real sockets: slow heads, slow bodies, answers nobody reads, and too many of them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest
import uvicorn

from commonwatt.model.live import ServerSpec
from commonwatt.service import server as serving
from commonwatt.service.connections import ACCEPTED_AT_ONCE, AcceptErrors, Connections, _Connection, limits_of
from commonwatt.service.server import bound, run_server

HEAD = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
POST = b"POST /api/v1/jobs HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"


class Running:
    """The service on a free port, with limits of its own."""

    def __init__(self, app, connections: Connections) -> None:
        self.connections, listening = connections, bound("127.0.0.1", 0)
        self.address = listening.getsockname()
        config = uvicorn.Config(
            app, log_config=None, lifespan="off", http=connections.protocol, ws="none", backlog=ACCEPTED_AT_ONCE
        )
        self._server = serving._Server(config, connections, lambda: None)
        serve = self._server.serve(sockets=[listening])
        self._thread = threading.Thread(target=lambda: asyncio.run(serve), daemon=True)
        self._thread.start()
        until(lambda: self._server.started)

    def open(self, first: bytes = b"") -> socket.socket:
        one = socket.create_connection(self.address, timeout=30)
        one.sendall(first)
        return one

    def get(self, path: str = "/healthz") -> int:
        return httpx.get(f"http://127.0.0.1:{self.address[1]}{path}", timeout=30).status_code

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()


def until(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def answer(one: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
    found = b""
    with one, suppress(ConnectionResetError):
        while part := one.recv(65_536):
            found += part
    return found


@pytest.fixture
def start(app, monkeypatch):
    made = []
    watch = Connections.watch
    monkeypatch.setattr(Connections, "watch", lambda self: watch(self, every_s=0.05))

    def run(most: int = 50, **limits: float) -> Running:
        made.append(Running(app, Connections(most, **limits)))
        return made[-1]

    yield run
    for one in made:
        one.close()


def drip(one: socket.socket, byte: bytes = b"x") -> bytes:
    """Send a byte now and then until the server ends the connection; returns its answer."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.02):
            try:
                one.sendall(byte)
            except OSError:
                return

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        return answer(one)
    finally:
        over.set()
        sender.join(10)


@pytest.mark.slow
def test_a_head_that_takes_too_long_ends_its_connection(start):
    running = start(head_s=0.3)
    assert drip(running.open(b"GET / HTTP/1.1\r\nX: ")).startswith(b"HTTP/1.1 408 ")
    assert drip(running.open(HEAD + b"GET / HTTP/1.1\r\nX: ")).count(b"HTTP/1.1") == 2  # the second one of two
    assert answer(running.open()) == b""  # not a byte came
    until(lambda: len(running.connections) == 0)
    assert running.get() == 200


@pytest.mark.slow
def test_a_body_that_takes_too_long_ends_its_connection(start):
    running = start(body_s=0.3)
    assert drip(running.open(POST + b"\r\n"))[:13] in {b"HTTP/1.1 401 ", b""}  # answered before the body has come
    cancel = b"POST /nowhere HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"404" in drip(running.open(cancel), b"1\r\nx\r\n")
    until(lambda: len(running.connections) == 0)


@pytest.mark.slow
def test_an_answer_that_nobody_reads_ends_its_connection(start):
    running = start(write_s=0.3)
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(running.address)
    one.settimeout(30)
    many = b"".join([b"GET /static/plotly.js HTTP/1.1\r\nHost: here\r\n\r\n"] * 3)  # megabytes
    one.sendall(many)
    until(lambda: len(running.connections) == 1)
    until(lambda: len(running.connections) == 0)
    one.close()


@pytest.mark.slow
def test_who_reads_nothing_and_begins_another_request_is_counted_until_the_end(start, monkeypatch):
    lost = []
    monkeypatch.setattr(_Connection, "connection_lost", lambda self, error, own=_Connection.connection_lost:
                        (lost.append(1), own(self, error)))  # fmt: skip
    running = start(head_s=0.2, write_s=0.5)
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(running.address)
    one.sendall(b"GET /static/plotly.js HTTP/1.1\r\nHost: here\r\n\r\nGET / HTTP/1.1\r\nX: ")
    until(lambda: len(running.connections) == 1)
    until(lambda: len(running.connections) == 0)
    assert lost  # its descriptor is free
    one.close()


@pytest.mark.slow
def test_slow_ones_make_room_for_those_that_say_what_they_want(start):
    running = start(most=10)
    slow = [running.open(b"GET / HTTP/1.1\r\n") for _ in range(100)]
    for _ in range(20):
        assert running.get() == 200
        assert len(running.connections) <= 10
    assert answer(slow[0]) == b""
    for one in slow[1:]:
        one.close()


def test_where_all_are_at_work_another_is_refused(start, service):
    running = start(most=2)
    stream = b"GET /api/v1/stream HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer %s\r\n\r\n"
    streams = [running.open(stream % service.tokens["ada"].encode()) for _ in range(2)]
    for one in streams:
        assert one.recv(20).startswith(b"HTTP/1.1 200")
    refused = answer(running.open(HEAD))
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"too many connections" in refused
    streams[0].close()
    until(lambda: len(running.connections) == 1)
    assert running.get() == 200
    streams[1].close()


def test_connections_get_half_of_the_descriptors_at_most(monkeypatch):
    for descriptors, asked, most in ((1024, 500, 500), (256, 500, 128), (1, 500, 1), (-1, 700, 700)):
        monkeypatch.setattr("resource.getrlimit", lambda _, found=descriptors: (found, found))
        assert limits_of(ServerSpec(connections=asked)).most == most


def test_accept_errors_are_logged_once_a_minute(caplog):
    now_s = [0.0]
    handler, loop = AcceptErrors(lambda: now_s[0]), asyncio.new_event_loop()
    context = {"message": "", "exception": OSError(errno.EMFILE, "Too many open files"), "socket": None}
    with caplog.at_level(logging.ERROR):
        for _ in range(5000):
            handler(loop, context)
        assert [record.times for record in caplog.records] == [1]
        now_s[0] = 61.0
        handler(loop, context)
        assert [record.times for record in caplog.records] == [1, 5000]
        handler(loop, {"message": "something else"})
        assert "something else" in caplog.text
    loop.close()


@pytest.mark.slow
def test_an_api_that_fails_begins_anew(app, monkeypatch):
    listening = bound("127.0.0.1", 0)
    address = listening.getsockname()
    failed, servers, said = [], [], []
    main_loop = serving._Server.main_loop

    async def fails_first(self) -> None:
        servers.append(self)
        if not failed:
            failed.append(True)
            raise RuntimeError("broken")
        await main_loop(self)

    monkeypatch.setattr(serving._Server, "main_loop", fails_first)
    monkeypatch.setattr(serving, "_AGAIN_S", 0.05)
    thread = threading.Thread(target=run_server, args=(app, listening, said.append), daemon=True)
    thread.start()
    until(lambda: len(servers) == 2)
    assert httpx.get(f"http://127.0.0.1:{address[1]}/healthz", timeout=30).status_code == 200
    assert len(said) == 1
    servers[1].should_exit = True
    thread.join(30)
    assert not thread.is_alive()
