"""Connections that send next to nothing, and hold what the server has: descriptors, tasks, patience."""

from __future__ import annotations

import resource
import selectors
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest

from tests.attacks.site import served, until

pytestmark = pytest.mark.slow


class Flood:
    """Sockets that open a request and send a byte of its head now and then; one that is closed is opened again."""

    FIRST, MORE = b"GET /healthz HTTP/1.1\r\nX: ", b"x"

    def __init__(self, url: str, count: int, every_s: float) -> None:
        parts = urlsplit(url)
        self._address, self._count, self._every_s = (parts.hostname, parts.port), count, every_s
        self.opened, self.closed_by_server = 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        alive: dict[socket.socket, float] = {}
        while not self._over.is_set():
            for _ in range(min(100, self._count - len(alive))):
                one = socket.socket()
                one.settimeout(0.0)
                one.connect_ex(self._address)
                selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE)
                alive[one] = 0.0
                self.opened += 1
            now_s = time.monotonic()
            for key, events in selector.select(0.01):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                try:
                    if events & selectors.EVENT_READ and not one.recv(4096):
                        raise ConnectionError
                    if events & selectors.EVENT_WRITE and now_s >= alive[one]:
                        one.send(self.FIRST if not alive[one] else self.MORE)
                        alive[one] = now_s + self._every_s
                except OSError:
                    self.closed_by_server += 1
                    selector.unregister(one)
                    del alive[one]
                    one.close()
            time.sleep(0.05)
        for one in alive:
            one.close()
        selector.close()


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"this process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
def test_1500_slow_connections_stop_neither_jobs_nor_the_api(tmp_path, many_descriptors):
    with served(tmp_path, descriptors=1024) as site:
        first = site.submit("true")
        until(lambda: site.status(first) == "completed", 120)
        with Flood(site.url, 1500, every_s=10.0) as flood:
            until(lambda: flood.opened >= 1500)
            time.sleep(12)
            ids = []
            for _ in range(10):  # each on a connection of its own
                ids.append(site.submit("true"))
                time.sleep(0.3)
            until(lambda: all(site.status(job) == "completed" for job in ids), 30)
            assert httpx.get(f"{site.url}/healthz", timeout=10).status_code == 200
        log = site.log.read_text()
        assert "the controller failed" not in log
        assert "cannot continue" not in log
        assert len(log) < 200_000
        assert site.process.poll() is None
