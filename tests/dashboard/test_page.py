"""The page and its files, and the stream over a real connection."""

from __future__ import annotations

import gzip
import json
import re
import time
from functools import partial
from importlib import resources

import pytest

httpx = pytest.importorskip("httpx")
get = partial(httpx.get, timeout=60)

STATIC = resources.files("commonwatt.service").joinpath("static")


def test_the_page_needs_no_token_and_says_what_may_run(served):
    answer = get(served.url + "/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.long
def test_every_file_the_page_and_its_modules_name_is_there(served):
    page = get(served.url + "/").text
    named = set(re.findall(r"(?:src|href)=\"(/static/[^\"]+)\"", page))
    for file in STATIC.iterdir():
        if file.name.endswith(".js"):
            named |= {f"/static/{name}" for name in re.findall(r"from \"\./([^\"]+)\"", file.read_text("utf-8"))}
    assert len(named) > 10
    for path in named:
        answer = get(served.url + path)
        assert answer.status_code == 200, path
        assert answer.headers["etag"]
        again = get(served.url + path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.slow
def test_packed_and_unpacked_are_the_same(served):
    with httpx.stream(
        "GET", served.url + "/static/plotly.js", headers={"Accept-Encoding": "gzip"}, timeout=60
    ) as packed:
        body = b"".join(packed.iter_raw())
    plain = get(served.url + "/static/plotly.js", headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(body) == plain.content
    assert b"plotly.js v" in plain.content[:200]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage.py", "%2e%2e/page.py", "..%5cpage.py", "index.html%00", ""])
def test_nothing_else_can_be_read(served, name):
    assert get(f"{served.url}/static/{name}").status_code in (404, 422)


def test_our_scripts_never_write_markup():
    """Text of users reaches the page as text only: no script of ours has a way to parse markup, or to run text."""
    ways = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "srcdoc",
        "eval(",
        "new Function",
    )
    ways += ("createContextualFragment", "setHTMLUnsafe", "javascript:", "http://", "https://")
    for file in STATIC.iterdir():
        if file.name.endswith((".js", ".css", ".html")):
            text = file.read_text("utf-8")
            assert [way for way in ways if way in text] == [], file.name


def lines(answer):
    """Messages of a stream: name and data; comments as ``("", text)``."""
    name, data = "", []
    for line in answer.iter_lines():
        if line.startswith(":"):
            yield "", line
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].strip())
        elif not line and data:
            yield name, json.loads("\n".join(data))
            name, data = "", []


def test_savings_are_told_by_the_api_too(served, service):
    headers = {"Authorization": f"Bearer {service.tokens['operator']}"}
    answer = get(served.url + "/api/v1/cluster", headers=headers)
    assert (answer.status_code, answer.json()["saved"]["baseline"]) == (200, "fifo")


def listen(served, token, **headers):
    return httpx.stream(
        "GET", served.url + "/api/v1/stream", timeout=60, headers={"Authorization": f"Bearer {token}", **headers}
    )


@pytest.mark.slow
def test_the_stream(served, service, monkeypatch):
    monkeypatch.setattr("commonwatt.service.stream.HEARTBEAT_S", 1)
    with listen(served, service.tokens["ada"]) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        messages = lines(answer)
        name, hello = next(messages)
        assert (name, hello["tenant"], hello["operator"], hello["currency"]) == ("hello", "ada", False, "EUR")
        name, snapshot = next(messages)
        assert (name, snapshot["whole"]) == ("board", True)
        assert {job["tenant"] for job in snapshot["jobs"]} == {"ada"}
        mine = snapshot["jobs"][0]["id"]
        service.change_job(mine, done_epochs=9.75)
        name, snapshot = next(message for message in messages if message[0] == "board")
        assert (snapshot["whole"], [job["done_epochs"] for job in snapshot["jobs"]]) == (False, [9.75])
        assert next(message for message in messages if message[0] == "")[1].startswith(":")  # the heartbeat


@pytest.mark.parametrize("token", ["cw_" + "x" * 43, "x"])
def test_the_stream_needs_a_token(served, token):
    with listen(served, token) as answer:
        assert answer.status_code == 401


def test_a_revoked_token_hears_no_more(served, service, monkeypatch):
    monkeypatch.setattr("commonwatt.service.broadcaster.RECHECK_S", 0.1)
    monkeypatch.setattr("commonwatt.service.auth._CACHED_S", 0.1)
    with listen(served, service.tokens["bob"]) as answer:
        messages = lines(answer)
        assert next(messages)[0] == "hello"
        service.store.revoke(service.store.owner(service.tokens["bob"]).token, time.time())
        for _ in messages:  # until it ends
            pass


@pytest.mark.slow
def test_too_many_listeners(served, service, monkeypatch):
    monkeypatch.setattr("commonwatt.service.stream.MOST_SUBSCRIBERS", 1)
    with listen(served, service.tokens["bob"]) as first:
        messages = lines(first)
        assert [next(messages)[0], next(messages)[0]] == ["hello", "board"]
        with listen(served, service.tokens["ada"]) as second:
            assert (second.status_code, second.headers["retry-after"]) == (503, "30")


@pytest.mark.slow
def test_a_token_has_so_many_streams_and_leaves_room_for_others(served, service, monkeypatch):
    monkeypatch.setattr("commonwatt.service.stream.MOST_OF_A_TOKEN", 2)
    with listen(served, service.tokens["bob"]) as first, listen(served, service.tokens["bob"]) as second:
        assert (first.status_code, second.status_code) == (200, 200)
        with listen(served, service.tokens["bob"]) as third:
            assert (third.status_code, third.headers["retry-after"]) == (429, "30")
            assert third.headers["content-type"] == "application/problem+json"
            told = json.loads(third.read())
            assert told["detail"] == "this token has 2 open streams; close one, or try again later"
        with listen(served, service.tokens["ada"]) as other:
            assert next(lines(other))[0] == "hello"
    while True:  # until the server has seen that they are closed
        with listen(served, service.tokens["bob"]) as again:
            if again.status_code == 200:
                break


@pytest.mark.slow
def test_one_who_reads_nothing_holds_nobody_up(served, service):
    """A listener that stalls: others still hear of every change."""
    with listen(served, service.tokens["operator"]), listen(served, service.tokens["operator"]) as answer:
        messages = lines(answer)
        for k in range(5):
            service.change_job(1, done_epochs=float(k) + 0.5)
            while True:
                name, data = next(messages)
                if name == "board" and any(j["id"] == 1 and j["done_epochs"] == k + 0.5 for j in data["jobs"]):
                    break


@pytest.mark.slow
def test_the_server_stops_although_somebody_listens(served, service):
    with listen(served, service.tokens["operator"]) as answer:
        assert next(lines(answer))[0] == "hello"
        served.stop()
    assert not served.thread.is_alive()
