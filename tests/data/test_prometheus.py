"""Range queries against a server that speaks Prometheus' protocol and, where it is installed, Prometheus itself."""

import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from commonwatt.data.prometheus import query_range
from commonwatt.model.errors import InputError
from tests.machine import which


def series(values, **labels):
    return {"metric": labels, "values": values}


@contextmanager
def serving(answer, sent_on=None):
    """A server on a free port; *answer* gets the form and returns status and document (or bytes).

    It sends on to the address *sent_on*, where one is given.
    """
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = dict(urllib.parse.parse_qsl(text))
            asked.append((self.path, form, self.headers.get("Authorization")))
            status, document = answer(form)
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            if sent_on is not None:
                self.send_header("Location", sent_on)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            asked.append((self.path, {}, self.headers.get("Authorization")))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(matrix(series([[60, "3"]]))).encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def matrix(*result):
    return {"status": "success", "data": {"resultType": "matrix", "result": list(result)}}


def every_step(form):
    begin, end, step = (float(form[name]) for name in ("start", "end", "step"))
    times = np.arange(begin, end + step / 2, step)
    assert len(times) <= 11_000  # Prometheus refuses more
    return 200, matrix(series([[t, str(t / step % 50)] for t in times.tolist()]))


@pytest.mark.slow
def test_a_series_in_several_pieces():
    with serving(every_step) as (url, asked):
        found = query_range(url, "sum(gpus)", 6000.0, 6000.0 + 60 * 25_000, 60.0)
    assert len(asked) == 3
    assert found.gpus.tolist() == [(100 + i) % 50 for i in range(25_000)]
    path, form, token = asked[0]
    assert (path, form["query"], token) == ("/api/v1/query_range", "sum(gpus)", None)


@pytest.mark.slow
def test_missing_samples_are_unknown():
    with serving(lambda form: (200, matrix(series([[60, "3"], [180, "5"], [240, "NaN"]])))) as (url, _):
        found = query_range(url, "x", 0.0, 300.0)
    assert np.array_equal(found.gpus, [np.nan, 3, np.nan, 5, np.nan], equal_nan=True)


@pytest.mark.slow
def test_a_token_is_sent(monkeypatch):
    monkeypatch.setenv("COMMONWATT_PROMETHEUS_TOKEN", "secret")
    with serving(every_step) as (url, asked):
        query_range(url, "x", 0.0, 300.0)
    assert asked[0][2] == "Bearer secret"


@pytest.mark.slow
@pytest.mark.parametrize("status", [302, 308])
def test_a_token_goes_nowhere_else(monkeypatch, status):
    monkeypatch.setenv("COMMONWATT_PROMETHEUS_TOKEN", "secret")
    with serving(every_step) as (other, heard):
        where = other.replace("127.0.0.1", "localhost") + "/"
        sending_on = serving(lambda form: (status, b""), sent_on=where)
        with sending_on as (url, asked), pytest.raises(InputError, match=f"sent on to {where}"):
            query_range(url, "x", 0.0, 300.0)
    assert ([token for *_, token in asked], heard) == (["Bearer secret"], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "document", "said"),
    [
        (400, {"status": "error", "errorType": "bad_data", "error": "parse error: unexpected x"}, "parse error: unexp"),
        (503, b"busy", "HTTP 503"),
        (200, b"<html>", "an answer of Prometheus"),
        (200, [], "an answer of Prometheus"),
        (200, {"status": "success", "data": {"resultType": "vector", "result": []}}, "a matrix"),
        (200, matrix(), "at least one value"),
        (200, matrix(series([[60, "1"]], node="a"), series([[60, "1"]], node="b")), "one series.*differ by node"),
        (200, matrix(series([[60, "-1"]])), "0 or more"),
        (200, matrix(series([[60, "+Inf"]])), "0 or more"),
        (200, matrix(series([[75, "1"]])), "on the grid"),
        (200, matrix(series([[60]])), "pairs"),
    ],
)
def test_what_it_answers_badly(status, document, said):
    with serving(lambda form: (status, document)) as (url, _), pytest.raises(InputError, match=said):
        query_range(url, "x", 0.0, 300.0)


@pytest.mark.parametrize(
    ("url", "period", "said"),
    [
        ("ftp://here", (0, 300, 60), "http://"),
        ("http://127.0.0.1:9", (0, 300, 60), "a Prometheus that answers"),
        ("http://127.0.0.1:9", (300, 0, 60), "a period"),
        ("http://127.0.0.1:9", (0, float("nan"), 60), "a period"),
        ("http://127.0.0.1:9", (0, 300, 0), "above 0"),
    ],
)
def test_what_cannot_be_asked(url, period, said):
    with pytest.raises(InputError, match=said):
        query_range(url, "x", *map(float, period))


@pytest.mark.long
@pytest.mark.skipif(which("prometheus", "prometheus") is None, reason="Prometheus itself is not installed")
def test_prometheus_itself(tmp_path):
    """It scrapes itself; ``vector(42)`` is known at every step, ``up`` only since it began."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    (tmp_path / "p.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: own, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
    )
    command = [
        "prometheus", f"--config.file={tmp_path / 'p.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        now = float(int(time.time()))
        wait_for(lambda: query_range(url, "sum(up)", now, now + 60, 1.0))
        begin = float(int(time.time()) - 60 * 12_000)
        assert (query_range(url, "vector(42)", begin, begin + 60 * 12_000).gpus == 42).all()
        known = query_range(url, "sum(up)", now - 600, now + 60, 1.0)
        assert np.isnan(known.gpus[0])
        assert (known.gpus[known.has_value] == 1).all()
        with pytest.raises(InputError, match="parse error"):
            query_range(url, "sum(", begin, begin + 600)
        with pytest.raises(InputError, match="one series"):
            query_range(url, "up or vector(1)", now, now + 60, 1.0)
    finally:
        process.terminate()
        process.wait(timeout=120)


def wait_for(ask, seconds=120.0):
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except InputError:
            if time.monotonic() > until:
                raise
            time.sleep(0.3)
