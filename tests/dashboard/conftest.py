from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
pytest.importorskip("sse_starlette")
pytest.importorskip("sqlalchemy")

from commonwatt.service.app import make_app  # noqa: E402
from tests.dashboard.made import MadeService  # noqa: E402

PATIENCE_MS = 60_000


class Served:
    """An application on a free port of this machine, in a thread."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", port))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        end = time.monotonic() + 60
        while not self.server.started and time.monotonic() < end:
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        self.socket.close()


@pytest.fixture
def service(tmp_path):
    made = MadeService(tmp_path)
    yield made
    made.close()


@pytest.fixture
def serve():
    """Serve what a service has to show; all servers are stopped afterwards."""
    servers: list[Served] = []

    def begin(service: MadeService, port: int = 0) -> Served:
        servers.append(Served(make_app(service.context), port))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture
def served(serve, service):
    return serve(service)


@dataclass
class Visit:
    """An open page, and what it complained about or asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # complaints a test provokes
    elsewhere: tuple[str, ...] = ()  # where else it has to go


@pytest.fixture
def visit(chromium, serve):
    """Open the dashboard and sign in; afterwards nothing may have gone wrong, and nothing come from elsewhere."""
    visits: list[tuple[Visit, str, Any]] = []

    def open_(
        url: str, token: str | None, *, width: int = 1440, height: int = 900, charts: bool = False, **options: Any
    ) -> Visit:
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        seen = Visit(page)
        visits.append((seen, url, context))
        page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.complaints.append(f"error: {error}"))
        page.on("request", lambda request: seen.requests.append(request.url))
        if not charts:  # several megabytes a browser has to read anew for every test
            page.route("**/plotly.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
        page.goto(f"{url}/")
        if token is not None:
            page.fill("#token", token)
            page.keyboard.press("Enter")
            page.wait_for_selector("html[data-ready=true]")
        return seen

    yield open_
    for _, _, context in visits:
        context.close()
    for seen, url, _ in visits:
        unexpected = [text for text in seen.complaints if not any(part in text for part in seen.expected)]
        assert unexpected == []
        good = (url, "data:", "blob:", *seen.elsewhere)
        assert [asked for asked in seen.requests if not asked.startswith(good)] == []
