"""A real server on loopback, with the stand-in behind it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
pytest.importorskip("sqlalchemy")
uvicorn = pytest.importorskip("uvicorn")

from commonwatt.service.app import make_app  # noqa: E402
from commonwatt.service.server import bound  # noqa: E402
from tests.service.made import StandIn  # noqa: E402


class Served:
    """The service over HTTP, on a free port; ``obeying`` lets a controller do what is asked, every few milliseconds."""

    def __init__(self, service: StandIn) -> None:
        self.service = service
        listening = bound("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(make_app(service.context), log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve(sockets=[listening])), daemon=True
        )
        self._thread.start()
        until_s = time.monotonic() + 60
        while not self._server.started and time.monotonic() < until_s:
            time.sleep(0.01)
        assert self._server.started

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    service = StandIn(tmp_path_factory.mktemp("served"))
    made = Served(service)
    yield made
    made.close()
    service.close()


@pytest.fixture(autouse=True)
def environment(served, monkeypatch, tmp_path):
    """Commands and clients find the server as a tenant, and no file of the person who runs the tests."""
    monkeypatch.setenv("COMMONWATT_URL", served.url)
    monkeypatch.setenv("COMMONWATT_TOKEN", served.service.tokens["ada"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
