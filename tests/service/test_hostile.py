"""What people send who mean no good: it is refused or stored as it is, and never seen in a log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from dataclasses import replace

import pytest

from commonwatt.controlplane.logs import configure
from commonwatt.model.errors import StoreError
from commonwatt.service.app import make_app
from commonwatt.service.middleware import LARGEST_BODY
from tests.service.conftest import API, Caller, httpx
from tests.service.made import job

NASTY = (
    "'; DROP TABLE jobs; --", '" OR 1=1 --', "{{7*7}}${7*7}<%= 7*7 %>", "<img src=x onerror=alert(1)>", "%s%n{0}",
    "../../etc/passwd", "$(reboot)`reboot`", "\u202e\u0007\x1b[31m", "😀" * 20, "a\r\nSet-Cookie: x=1",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("text", NASTY)
def test_text_is_stored_as_it_is(as_, service, text):
    ada = as_("ada")
    done = ada.post("/jobs", json=job(command=["echo", text], kind=text, environment={"X": text}))
    assert done.status_code == 201, done.text
    seen = ada.get(f"/jobs/{done.json()['id']}").json()
    assert (seen["command"], seen["kind"]) == (["echo", text], text)
    assert service.store.job(done.json()["id"]).file.environment == {"X": text}
    assert len(service.store.jobs()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("text", [*NASTY, "\0", "a" * 200, "..", "%2e%2e%2f", "1 OR 1=1"])
@pytest.mark.parametrize("path", ["/jobs/{}", "/jobs/{}/log", "/tenants/{}"])
def test_names_in_addresses_find_nothing(as_, path, text):
    from urllib.parse import quote

    done = as_("ada").get(path.format(quote(text, safe="")))
    assert done.status_code in {404, 422}
    assert done.headers["content-type"] == "application/problem+json"
    assert "set-cookie" not in done.headers


@pytest.mark.slow
@pytest.mark.parametrize("text", NASTY)
def test_tenants_and_labels_of_any_text(as_, service, text):
    from urllib.parse import quote

    operator = as_("operator")
    done = operator("PUT", f"/tenants/{quote(text, safe='')}", json={"weight": 1.0})
    if "/" in text or any(ord(c) < 32 for c in text):
        assert done.status_code in {404, 422}
    else:
        assert (done.status_code, done.json()["name"]) == (200, text)
        assert operator.post("/tokens", json={"tenant": text, "label": text}).json()["tenant"] == text
        assert operator.get("/tenants").status_code == 200
    assert set(service.store.tenants()) >= {"ada", "bob"}


@pytest.mark.long
@pytest.mark.parametrize("params", [{"cursor": -1}, {"limit": 0}, {"limit": 10**9}, {"cursor": 2**63}, {"stauts": "x"},
                                    {"status": "waiting' OR '1'='1"}, {"limit": "1; DROP TABLE jobs"}])  # fmt: skip
def test_parameters_that_are_none(as_, params):
    done = as_("operator").get("/jobs", params=params)
    assert (done.status_code, done.json()["field"].split(".")[0]) == (422, next(iter(params)))


@pytest.mark.parametrize("key", ["", " ", "a b", "a\tb", "x" * 129, "\xe9"])
def test_keys_that_are_none(as_, key):
    done = as_("ada").post("/jobs", json=job(), headers={"Idempotency-Key": key.encode("latin-1")})
    assert done.status_code == 422


def test_what_is_not_there(as_):
    for method, path, status in (("GET", "/nothing", 404), ("DELETE", "/jobs", 405), ("PATCH", "/jobs/1", 405),
                                 ("GET", "/jobs/", 404), ("POST", "/cluster", 405)):  # fmt: skip
        done = as_("ada")(method, path)
        assert (done.status_code, done.headers["content-type"]) == (status, "application/problem+json")
        assert done.json()["status"] == status
    assert set(as_("ada")("DELETE", "/jobs").headers["allow"].split(", ")) == {"GET", "POST"}


def test_every_answer_has_its_headers_and_lets_no_other_page_in(as_):
    for path in ("http://127.0.0.1/", "/jobs", "/nothing"):
        done = as_("ada")("GET", path, headers={"Origin": "http://evil.example"})
        assert "script-src 'self'" in done.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in done.headers["content-security-policy"]
        assert done.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in done.headers if name.startswith("access-control-")]
    assert as_("ada").get("/jobs").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/jobs", "/jobs/1/cancel", "/nothing"])
def test_bodies_that_are_too_large_or_never_end(as_, service, path):
    async def endless():
        for _ in range(10):
            yield b" " * (LARGEST_BODY // 5)

    headers = {"Content-Type": "application/json"}
    given = as_("ada").post(path, content=b" " * (LARGEST_BODY + 1), headers=headers)
    assert (given.status_code, given.headers["content-type"]) == (413, "application/problem+json")
    if path == "/jobs":
        assert as_("ada").post(path, content=endless(), headers=headers).status_code == 413
    assert as_("ada").get("/jobs", params={"tenant": "x" * 9000}).status_code == 414
    assert service.store.jobs() == []


def test_a_database_that_is_away(as_, service, monkeypatch):
    def fails(*_, **__):
        raise StoreError("jobs: the database mysql://user@db/x says: gone")

    assert as_("ada").get("/whoami").status_code == 200
    monkeypatch.setattr(service.store, "page", fails)
    done = as_("ada").get("/jobs")
    assert (done.status_code, done.headers["retry-after"]) == (503, "5")
    assert "mysql" not in done.text
    monkeypatch.setattr(service.store, "submit", fails)
    monkeypatch.setattr(service.store, "note", fails)
    assert as_("ada").post("/jobs", json=job()).status_code == 503
    monkeypatch.setattr(service.store, "owner", fails)
    assert as_("bob").get("/jobs").status_code == 503
    monkeypatch.setattr(service.store, "setting", fails)
    assert as_(None)("GET", "http://127.0.0.1/readyz").status_code == 503
    assert as_(None)("GET", "http://127.0.0.1/livez").status_code == 200  # a restart would not bring it back


@pytest.mark.parametrize("alive", [True, False])
def test_an_engine_that_is_down_is_no_reason_to_restart(service, alive):
    service.now = replace(service.now, healthy=False, trouble="the engine does not answer")
    ask = Caller(make_app(replace(service.context, alive=lambda: alive)), None)
    assert ask.get("http://127.0.0.1/healthz").status_code == 503
    assert ask.get("http://127.0.0.1/readyz").status_code == 200
    answer = ask.get("http://127.0.0.1/livez")
    assert (answer.status_code, answer.json()["status"]) == ((200, "ok") if alive else (503, "failing"))


def test_a_defect_of_ours_tells_nothing(as_, service, monkeypatch, caplog):
    def fails(*_, **__):
        raise RuntimeError("password=hunter2 in /srv/secret.py")

    monkeypatch.setattr(service.store, "page", fails)
    done = as_("ada").get("/jobs")
    assert (done.status_code, done.headers["content-type"]) == (500, "application/problem+json")
    assert "hunter2" not in done.text
    assert "secret.py" not in done.text
    assert "script-src" in done.headers["content-security-policy"]
    assert any("failed" in record.getMessage() for record in caplog.records)


@pytest.mark.slow
def test_secrets_are_in_no_log(as_, service):
    stream = io.StringIO()
    root, level = logging.getLogger(), logging.getLogger().level
    before = list(root.handlers)
    configure("json", logging.DEBUG, stream)
    try:
        ada, token = as_("ada"), service.tokens["ada"]
        ada.post("/jobs", json=job(environment={"PASSWORD": "hunter2"}))
        ada.post("/jobs", json=job(environment={"PASSWORD": "hunter2"}, gpus=99))
        ada.get("/jobs", params={"token": token})
        ada.get(f"/jobs/{token}")
        as_(token + "x").get("/jobs")
        made = as_("operator").post("/tokens", json={"tenant": "ada"}).json()["token"]
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.captureWarnings(capture=False)
    text = stream.getvalue()
    lines = [json.loads(line) for line in text.splitlines()]
    requests = [line for line in lines if line["logger"] == "commonwatt.access"]
    assert [line["status"] for line in requests] == [201, 422, 422, 422, 401, 201]
    assert requests[0]["caller"] == "tenant ada, token 1"
    assert requests[0]["path"] == "/api/v1/jobs"
    for secret in (token, made, "hunter2"):
        assert secret not in text


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_address_adds_nothing_to_the_line_it_is_in(as_, form):
    stream, root = io.StringIO(), logging.getLogger()
    before, level = list(root.handlers), root.level
    configure(form, logging.INFO, stream)
    try:
        as_(None).get("/x%20status=200%0A2026-01-01T00:00:00.000Z%20info%20%20%20%20request%1B%5B2J%C3%A9")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.captureWarnings(capture=False)
    (line,) = stream.getvalue().splitlines()
    assert "/x%20status=200%0A2026-01-01T00:00:00.000Z%20info%20%20%20%20request%1B[2J" in line
    assert ("status=404" if form == "text" else '"status": 404') in line


@pytest.mark.slow
def test_one_key_is_one_job_however_many_send_it_at_once(app, service):
    async def go():
        transport = httpx.ASGITransport(app)
        headers = {"Authorization": f"Bearer {service.tokens['ada']}", "Idempotency-Key": "once"}
        async with httpx.AsyncClient(transport=transport, timeout=120) as client:
            sent = [client.post(f"{API}/jobs", json=job(), headers=headers) for _ in range(20)]
            return await asyncio.gather(*sent)

    answers = asyncio.run(go())
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["id"] for answer in answers}) == len(service.store.jobs()) == 1
