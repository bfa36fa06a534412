"""A metrics page on a port of its own, and a real Prometheus that reads it."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.machine import which

PATIENCE_S = 120.0


@contextmanager
def served(page: Callable[[], tuple[bytes, str]]) -> Iterator[int]:
    """Serve a metrics page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body, kind = page()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self.port = port

    def query(self, expression: str) -> list[dict]:
        """Evaluate *expression* now; raises ``ValueError`` if it cannot be read, nothing while nobody answers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query"
        data = urllib.parse.urlencode({"query": expression}).encode()
        try:
            with urllib.request.urlopen(url, data, timeout=30) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:  # it is still starting
                    return []
                raise ValueError(error.read().decode()) from None
        except OSError:
            return []

    def await_result(self, expression: str) -> list[dict]:
        """Evaluate *expression* until there is something."""
        until = time.monotonic() + PATIENCE_S
        while not (found := self.query(expression)) and time.monotonic() < until:
            time.sleep(0.1)
        return found


@contextmanager
def prometheus(folder: Path, target: str, path: str = "/metrics") -> Iterator[Prometheus]:
    """Read *target* every second."""
    if which("prometheus", "prometheus") is None:
        pytest.skip("prometheus is missing (Debian: prometheus)")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    job = {"job_name": "commonwatt", "metrics_path": path, "static_configs": [{"targets": [target]}]}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}), encoding="utf-8")
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as running:
        try:
            yield Prometheus(port)
        finally:
            running.terminate()
