"""Who may read /metrics."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from commonwatt.service.app import make_app
from tests.service.made import StandIn


@pytest.fixture
def stand_in(tmp_path):
    made = StandIn(tmp_path)
    yield made
    made.database.close()


def client(stand_in, host="127.0.0.1", at="127.0.0.1"):
    return TestClient(make_app(stand_in.context), base_url=f"http://{at}:8470", client=(host, 5000))


@pytest.mark.slow
def test_from_this_machine_no_token_is_needed(stand_in):
    here = client(stand_in)
    assert here.get("/readyz").status_code == 200
    assert here.get("/nowhere").status_code == 404
    answer = here.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "commonwatt_gpus 9.0\n" in answer.text
    counted = 'commonwatt_http_request_duration_seconds_count{method="GET",route="/readyz",status="200"} 1.0'
    assert counted in answer.text
    assert 'route="unknown",status="404"' in answer.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "at", "forwarded"),
    [("10.0.0.7", "127.0.0.1", {}), ("127.0.0.1", "evil.example", {}),
     ("127.0.0.1", "127.0.0.1", {"X-Forwarded-For": "10.0.0.7"}), ("127.0.0.1", "127.0.0.1", {"Forwarded": "for=x"})],
)  # fmt: skip
def test_from_elsewhere_it_takes_an_operator(host, at, forwarded, stand_in):
    there = client(stand_in, host, at)

    def status(name=None):
        token = {} if name is None else {"Authorization": f"Bearer {stand_in.tokens[name]}"}
        return there.get("/metrics", headers={**forwarded, **token}).status_code

    assert (status(), status("ada"), status("revoked"), status("operator")) == (401, 403, 401, 200)


def test_a_wrong_token_is_refused_even_here(stand_in):
    answer = client(stand_in).get("/metrics", headers={"Authorization": "Bearer cw_" + "x" * 40})
    assert answer.status_code == 401
