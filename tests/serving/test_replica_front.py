"""The front of a live fleet's services: which replica a request goes to, and what is counted."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import unquote

import pytest

pytest.importorskip("httpx")
pytest.importorskip("starlette")

import httpx

from commonwatt.serving.replica_front import COUNTS, ReplicaFront

EASY, NEVER = 1e9, -1.0  # latency targets that every answer meets, or none


def routes(folder, **services):
    """Write routes: by service the latency target, and (address, milli) of replicas."""
    document = {
        name: {"latency_s": latency_s, "replicas": [{"address": a, "key": f"key-{a}", "milli": m} for a, m in replicas]}
        for name, (latency_s, replicas) in services.items()
    }
    path = folder / "routes.json"
    new = path.with_name("new.json")
    new.write_text(json.dumps({"services": document}))
    new.replace(path)  # another file each time
    return path


def test_with_a_key_nobody_else_is_answered_or_counted(tmp_path):
    path = routes(tmp_path, vision=(EASY, [("a:1", 500)]))
    own = front(path, lambda _: httpx.Response(200, json={"outputs": []}))
    document = json.loads(path.read_text())
    path.with_name("new.json").write_text(json.dumps({**document, "key": "a-key-of-the-site"}))
    path.with_name("new.json").replace(path)

    async def each(*keys):
        transport = httpx.ASGITransport(own.application())
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            headers = [{} if key is None else {"authorization": key} for key in keys]
            infers = [(await client.post(INFER, content=b"{}", headers=one)).status_code for one in headers]
            told = await client.get(COUNTS, headers=headers[-1])
            closed, health = await client.get(COUNTS), await client.get("/v2/health/ready")
            return infers, told.json(), closed.status_code, health.status_code

    keys = (None, "Bearer wrong", "Basic a-key-of-the-site", "Bearer", "Bearer a-key-of-the-site")
    infers, told, closed, health = asyncio.run(each(*keys))
    assert infers == [401, 401, 401, 401, 200]
    assert told["services"]["vision"]["requests"] == 1
    assert (closed, health) == (401, 200)


def front(path, handler):
    return ReplicaFront(path, httpx.AsyncClient(transport=httpx.MockTransport(handler)))


def ask(own, *paths, method="POST"):
    """Send requests one after another; returns status and text of each."""

    async def all_of_them():
        transport = httpx.ASGITransport(own.application())
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            replies = [await client.request(method, path, content=b"{}") for path in paths]
        return [(reply.status_code, reply.text) for reply in replies]

    return asyncio.run(all_of_them())


INFER = "/v2/models/vision/infer"


def counts(own, service="vision"):
    ((_, text),) = ask(own, COUNTS, method="GET")
    told = json.loads(text)["services"][service]
    assert sum(told["buckets"]) == told["served"]
    return {name: told[name] for name in ("requests", "served", "late", "unanswered")}


def test_requests_go_to_a_replica_with_its_key_and_are_counted(tmp_path):
    seen = []

    def handler(request):
        seen.append((request.url.host, request.headers["authorization"], request.url.path, request.content))
        return httpx.Response(200, json={"outputs": []})

    own = front(routes(tmp_path, vision=(EASY, [("a:1", 500)]), text=(NEVER, [("b:2", 100)])), handler)
    assert [status for status, _ in ask(own, INFER, "/v2/models/text/infer")] == [200, 200]
    assert seen == [("a", "Bearer key-a:1", INFER, b"{}"), ("b", "Bearer key-b:2", "/v2/models/text/infer", b"{}")]
    assert counts(own) == {"requests": 1, "served": 1, "late": 0, "unanswered": 0}
    assert counts(own, "text") == {"requests": 1, "served": 1, "late": 1, "unanswered": 0}
    ask(own, "/v2/models/vision", "/v2/models/vision/ready", method="GET")
    assert counts(own)["requests"] == 1, "only inferences are requests"


def test_the_replica_with_the_fewest_requests_for_its_part_is_chosen(tmp_path):
    """Of 12 at once, three times as many on three times the part."""
    at = {"a": 0, "b": 0}

    async def handler(request):
        at[request.url.host] += 1
        await asyncio.sleep(0.05)
        return httpx.Response(200, json={})

    own = front(routes(tmp_path, vision=(EASY, [("a:1", 600), ("b:2", 200)])), handler)

    async def at_once():
        transport = httpx.ASGITransport(own.application())
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            await asyncio.gather(*(client.post(INFER, content=b"{}") for _ in range(12)))

    asyncio.run(at_once())
    assert at == {"a": 9, "b": 3}


@pytest.mark.parametrize("how", ["gone", "stopping", "unloaded"])
def test_another_replica_is_tried(tmp_path, how):
    def handler(request):
        if request.url.host == "b":
            return httpx.Response(200, json={"by": "b"})
        if how == "gone":
            raise httpx.ConnectError("refused")
        if how == "stopping":
            return httpx.Response(503, json={"error": "the server is stopping"})
        return httpx.Response(400, json={"error": "model 'vision' is not ready: unloading"})

    own = front(routes(tmp_path, vision=(EASY, [("a:1", 900), ("b:2", 100)])), handler)
    ((status, text),) = ask(own, INFER)
    assert (status, json.loads(text)) == (200, {"by": "b"})
    assert counts(own) == {"requests": 1, "served": 1, "late": 0, "unanswered": 0}


def test_what_nobody_answers_is_late(tmp_path):
    def handler(request):
        raise httpx.ConnectError("refused")

    own = front(routes(tmp_path, vision=(EASY, [("a:1", 900)]), text=(EASY, [])), handler)
    assert [status for status, _ in ask(own, INFER, "/v2/models/text/infer")] == [502, 503]
    assert counts(own) == {"requests": 1, "served": 0, "late": 1, "unanswered": 1}
    assert counts(own, "text") == {"requests": 1, "served": 0, "late": 1, "unanswered": 1}


@pytest.mark.parametrize(("status", "late"), [(400, 0), (429, 1), (500, 1)])
def test_a_bad_request_is_not_late_and_a_full_queue_is(tmp_path, status, late):
    own = front(routes(tmp_path, vision=(EASY, [("a:1", 1)])), lambda _: httpx.Response(status, json={"error": "no"}))
    assert ask(own, INFER)[0][0] == status
    assert counts(own) == {"requests": 1, "served": 0, "late": late, "unanswered": late}


def test_routes_are_read_again_and_kept_while_they_cannot_be(tmp_path):
    path = routes(tmp_path, vision=(EASY, []))
    own = front(path, lambda request: httpx.Response(200, json={}))
    ready = "/v2/health/ready"
    assert ask(own, ready, method="GET")[0][0] == 503
    assert ask(own, "/v2/models/new/infer")[0][0] == 404
    routes(tmp_path, vision=(EASY, [("a:1", 1)]), new=(EASY, [("a:1", 1)]))
    assert ask(own, ready, method="GET")[0][0] == 200
    assert ask(own, "/v2/models/new/infer")[0][0] == 200
    path.write_text("{")
    assert ask(own, INFER, "/v2/models/new/infer") == [(200, "{}"), (200, "{}")]
    path.unlink()
    assert ask(own, INFER)[0][0] == 200
    assert counts(own, "new")["requests"] == 2


def test_large_bodies_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("commonwatt.serving.replica_front.LARGEST_BYTES", 1)
    own = front(routes(tmp_path, vision=(EASY, [("a:1", 1)])), lambda _: httpx.Response(200, json={}))
    assert ask(own, INFER)[0][0] == 413


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/vision/../../repository/models/vision/unload",
        "/v2/models/vision/%2e%2e/%2e%2e/repository/models/vision/unload",
        "/v2/models/vision/versions/../infer",
        "/v2/models/vision/versions/2/infer",
        "/v2/repository/models/vision/unload",
        "/v2/commonwatt/settings",
    ],
)
def test_only_inferences_and_metadata_pass(tmp_path, path):
    """Clients without a key reach what replicas do with the service's key."""
    seen = []

    def handler(request):
        seen.append(request.url.path)
        return httpx.Response(200, json={})

    own = front(routes(tmp_path, vision=(EASY, [("a:1", 1)])), handler)

    async def raw():
        scope = {
            "type": "http", "method": "POST", "path": unquote(path), "raw_path": path.encode(), "query_string": b"",
            "headers": [], "http_version": "1.1", "scheme": "http", "server": ("front", 80), "client": ("a", 1),
            "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message):
            sent.append(message)

        await own.application()(scope, receive, send)
        return sent[0]["status"]

    assert asyncio.run(raw()) in (404, 405)
    assert seen == []


def test_metadata_and_versions_pass(tmp_path):
    seen = []

    def handler(request):
        seen.append(request.url.path)
        return httpx.Response(200, json={})

    own = front(routes(tmp_path, vision=(EASY, [("a:1", 1)])), handler)
    ask(own, "/v2/models/vision", "/v2/models/vision/ready", "/v2/models/vision/versions/1/ready", method="GET")
    ask(own, "/v2/models/vision/versions/1/infer?a=b")
    model = "/v2/models/vision"
    assert seen == [model, f"{model}/ready", f"{model}/ready", f"{model}/infer"]
