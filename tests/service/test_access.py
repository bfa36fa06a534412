"""Who may do what: every route, as everybody, from the table of routes, so that a new one cannot be forgotten."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from commonwatt.control.usage import TenantShare
from commonwatt.model.errors import StoreError
from commonwatt.service.app import make_app
from commonwatt.service.auth import AuditedRoute
from commonwatt.store import api_store as store
from tests.service.conftest import Caller
from tests.service.made import StandIn, job

# What nobody, a tenant, another tenant, an operator and a revoked token are answered; {job} is the first tenant's.
EVERYBODY = (200, 200, 200, 200, 200)
MEMBERS = (401, 200, 200, 200, 401)
OPERATORS = (401, 403, 403, 200, 401)
OWNERS = (401, 200, 404, 200, 401)
ASKED = (401, 202, 404, 202, 401)
ACCESS = {
    "GET /": EVERYBODY,
    "GET /static/{name}": EVERYBODY,
    "GET /healthz": EVERYBODY,
    "GET /livez": EVERYBODY,
    "GET /readyz": EVERYBODY,
    "GET /metrics": (200, 403, 403, 200, 401),  # nobody: from this machine only
    "GET /api/v1/openapi.json": EVERYBODY,
    "GET /api/v1/whoami": MEMBERS,
    "GET /api/v1/login": (404, 404, 404, 404, 404),  # there is no identity provider here
    "GET /api/v1/jobs": MEMBERS,
    "POST /api/v1/jobs": (401, 201, 201, 422, 401),
    "GET /api/v1/jobs/ended": MEMBERS,
    "GET /api/v1/jobs/{job}": OWNERS,
    "GET /api/v1/jobs/{job}/explain": OWNERS,
    "GET /api/v1/jobs/{job}/events": OWNERS,
    "GET /api/v1/jobs/{job}/log": OWNERS,
    "POST /api/v1/jobs/{job}/cancel": ASKED,
    "POST /api/v1/jobs/{job}/hold": ASKED,
    "POST /api/v1/jobs/{job}/release": ASKED,
    "GET /api/v1/tenants": MEMBERS,
    "GET /api/v1/tenants/{tenant}": OWNERS,
    "PUT /api/v1/tenants/{tenant}": OPERATORS,
    "GET /api/v1/cluster": MEMBERS,
    "GET /api/v1/nodes": MEMBERS,
    "GET /api/v1/capacity": OPERATORS,
    "GET /api/v1/services": MEMBERS,
    "POST /api/v1/phi": (401, 403, 403, 409, 401),  # there are no services here
    "POST /api/v1/fairness": (401, 403, 403, 409, 401),  # the policy has none
    "POST /api/v1/nodes/{node}/drain": (401, 403, 403, 202, 401),
    "POST /api/v1/nodes/{node}/undrain": (401, 403, 403, 202, 401),
    "POST /api/v1/mode": (401, 403, 403, 202, 401),
    "GET /api/v1/events": MEMBERS,
    "GET /api/v1/samples": MEMBERS,
    "GET /api/v1/ledger": MEMBERS,
    "GET /api/v1/tokens": OPERATORS,
    "POST /api/v1/tokens": (401, 403, 403, 201, 401),
    "DELETE /api/v1/tokens/{token}": (401, 403, 403, 204, 401),
    "GET /api/v1/audit": OPERATORS,
    "GET /api/v1/stream": MEMBERS,
    "GET /sign-in": (404,) * 5,  # there is no provider
    "GET /sign-in/back": (404,) * 5,
    "POST /sign-in/token": (200,) * 5,
    "POST /sign-in/out": (404,) * 5,
}
BODIES = {
    "POST /api/v1/jobs": job(), "PUT /api/v1/tenants/{tenant}": {"weight": 2.0}, "POST /api/v1/mode": {"mode": "live"},
    "POST /api/v1/phi": {"phi": 0.5},
    "POST /api/v1/fairness": {"phi": 0.5},
    "POST /api/v1/tokens": {"tenant": "bob"},
}  # fmt: skip
ENDLESS = {"GET /api/v1/stream"}
CALLERS = (None, "ada", "bob", "operator", "revoked")


def routes_of(app):
    """Names of all routes with full paths, as the server matches them."""
    found = {}
    for route in app.routes:
        contexts = getattr(route, "effective_route_contexts", None)
        for each in contexts() if contexts is not None else [route]:
            for method in each.methods or ():
                if method != "HEAD":
                    found[f"{method} {each.path}"] = each
    return found


def test_every_route_is_in_the_table(app):
    assert set(routes_of(app)) == set(ACCESS)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One control plane for all routes."""
    service = StandIn(tmp_path_factory.mktemp("shared"), engine="local")
    yield service, make_app(service.context)
    service.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ACCESS))
def test_access(shared, name):
    service, app = shared
    ada = Caller(app, service.tokens["ada"])
    number = ada.post("/jobs", json=job()).json()["id"]
    log = service.folder / "state" / "runs" / f"{number}-0"
    log.mkdir(parents=True)
    (log / "output.log").write_text("hello")
    spare = service.store.owner(service.store.add_token("bob", "spare", 1.0)).token
    method, template = name.split()
    values = {"job": number, "tenant": "ada", "node": "t", "token": spare, "name": "index.html"}
    if template.startswith("/static"):
        values["name"] = re.search(r"/static/([\w.-]+\.js)", ada("GET", "http://127.0.0.1/").text)[1]
    path = "http://127.0.0.1" + template.format(**values)
    body = {"json": BODIES[name]} if name in BODIES else {}
    for who, status in zip(CALLERS, ACCESS[name], strict=True):
        if name in ENDLESS and status == 200:
            continue
        done = Caller(app, None if who is None else service.tokens[who])(method, path, **body)
        assert done.status_code == status, who


@pytest.mark.slow
def test_answers_have_the_form_that_is_promised(as_, app, service):
    """Most are made without the models of their routes, which describe them to clients."""
    numbers = [as_("ada").post("/jobs", json=job(name=f"job{k}", due="2027-01-01")).json()["id"] for k in range(4)]
    service.obey()
    service.run(numbers[1], "v-1", energy_uj=7, cost_n=2**70)
    as_("ada").post(f"/jobs/{numbers[2]}/cancel")
    as_("ada").post(f"/jobs/{numbers[3]}/hold")
    service.obey()
    checked = set()
    for name, route in routes_of(app).items():
        model = getattr(route, "response_model", None)
        if model is None or not name.startswith("GET "):
            continue
        for number in numbers if "{job}" in name else numbers[:1]:
            for who in ("ada", "operator"):
                answer = as_(who).get("http://127.0.0.1" + route.path.format(job=number, tenant="ada"))
                if answer.status_code == 200:
                    assert model.model_validate_json(answer.content).model_dump(mode="json") == answer.json(), name
                    checked.add(name)
    assert {f"GET /api/v1/{path}" for path in ("jobs", "jobs/{job}", "ledger", "samples", "nodes")} <= checked
    assert len(checked) >= 15


def test_every_changing_route_is_audited(app):
    changing = {name: route for name, route in routes_of(app).items() if not name.startswith("GET ")}
    kinds = {name: type(getattr(route, "original_route", route)) for name, route in changing.items()}
    own = {"POST /sign-in/token", "POST /sign-in/out"}  # of the person's own browser; they change nothing here
    assert {name for name, kind in kinds.items() if not issubclass(kind, AuditedRoute)} == own


@pytest.mark.slow
def test_a_tenant_sees_only_its_own(as_, service):
    ada, bob, operator = as_("ada"), as_("bob"), as_("operator")
    mine = ada.post("/jobs", json=job(name="mine")).json()["id"]
    service.obey()
    assert "mine" not in bob.get("/jobs").text
    assert bob.get("/events").json()["events"] == []
    assert [event["job"] for event in ada.get("/events").json()["events"]] == [mine]
    assert [event["job"] for event in operator.get("/events").json()["events"]] == [mine]
    assert [tenant["name"] for tenant in bob.get("/tenants").json()["tenants"]] == ["bob"]
    assert [tenant["name"] for tenant in operator.get("/tenants").json()["tenants"]] == ["ada", "bob"]
    assert bob.get("/jobs", params={"tenant": "ada"}).status_code == 403
    service.run(mine, "v-1", energy_uj=5_000_000)
    assert {row["tenant"] for row in bob.get("/ledger").json()["ledger"]} == set()
    assert {row["tenant"] for row in ada.get("/ledger").json()["ledger"]} == {"ada"}
    seen = {who: [node["jobs"] for node in as_(who).get("/nodes").json()["nodes"]] for who in ("ada", "bob")}
    assert seen == {"ada": [[mine], [], []], "bob": [[], [], []]}
    assert bob.get("/cluster").json()["nodes"][0]["jobs"] == []
    assert ada.get("/tenants/ada").json()["energy_j"] == 5.0
    assert ada.get(f"/jobs/{mine}").json()["energy_j"] == 5.0


def test_a_tenant_sees_only_its_own_share(as_, app, service):
    assert [tenant["fairness"] for tenant in as_("operator").get("/tenants").json()["tenants"]] == [None, None]
    shares = (
        TenantShare("ada", 4.0, 1.5, 7200.0, 1.0, 0.5, -3600.0), TenantShare("bob", 0.0, 2.5, 0.0, 0.0, 0.5, 3600.0)
    )  # fmt: skip
    service.now = replace(service.now, shares=shares)
    own = {
        "held_gpus": 0, "entitled_gpus": 2.5, "used_gpu_s": 0, "used_share": 0, "entitled_share": 0.5,
        "debt_gpu_s": 3600,
    }  # fmt: skip
    bob, operator = as_("bob"), as_("operator")
    assert bob.get("/tenants/bob").json()["fairness"] == own
    assert bob.get("/tenants/ada").status_code == 404
    app.state.cache.forget()
    assert [tenant["fairness"] for tenant in bob.get("/tenants").json()["tenants"]] == [own]
    debts = [tenant["fairness"]["debt_gpu_s"] for tenant in operator.get("/tenants").json()["tenants"]]
    assert debts == [-3600, 3600]


def test_of_the_cluster_a_tenant_sees_the_nodes_and_counts_its_own_jobs(as_, service):
    ada, operator = as_("ada"), as_("operator")
    numbers = [as_(who).post("/jobs", json=job()).json()["id"] for who in ("ada", "ada", "bob")]
    service.obey()
    service.run(numbers[2], "v-1")
    by_tenant = Counter((row.tenant, str(row.status)) for row in map(service.store.job, numbers))
    service.now = replace(
        service.now, by_tenant=by_tenant, running=1, waiting=2, busy_gpus=1, saved={"cost": 1.0, "jobs": 3.0}
    )
    seen = {who: as_(who).get("/cluster").json() for who in ("ada", "bob", "operator")}
    assert {who: (state["running"], state["waiting"], state["saved"]) for who, state in seen.items()} == {
        "ada": (0, 2, None), "bob": (1, 0, None), "operator": (1, 2, {"cost": 1.0, "jobs": 3.0})
    }  # fmt: skip
    assert {(state["busy_gpus"], state["total_gpus"], state["power_w"]) for state in seen.values()} == {(1, 9, 420.0)}
    (hers,), (all_,) = (each.get("/samples").json()["samples"] for each in (ada, operator))
    assert (all_["running"], all_["waiting"], all_["wanted_gpus"]) == (0, 1, 1)
    assert hers == all_ | {"running": None, "waiting": None, "wanted_gpus": None}


def test_tokens_are_shown_once_and_can_be_revoked(as_, service):
    operator = as_("operator")
    made = operator.post("/tokens", json={"tenant": "ada", "label": "laptop"}).json()
    assert as_(made["token"]).get("/whoami").json() == {
        "token": made["id"], "label": "laptop", "tenant": "ada", "operator": False, "role": None,
        "via": "token",
    }  # fmt: skip
    assert made["token"] not in operator.get("/tokens").text
    assert operator("DELETE", f"/tokens/{made['id']}").status_code == 204
    assert as_(made["token"]).get("/whoami").status_code == 401  # at once, where it was revoked
    assert operator("DELETE", f"/tokens/{made['id']}").status_code == 404
    assert operator.post("/tokens", json={"tenant": "eve"}).status_code == 404
    with service.database.reading() as c:
        stored = c.exec_driver_sql("SELECT * FROM tokens").fetchall()
    assert made["token"] not in str(stored)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic {}", "Bearer {}x", "Bearer x{}", "bearer", "Bearer {} {}", "Bearer \xff"]
)
def test_what_is_no_token(as_, service, header):
    text = header.replace("{}", service.tokens["ada"]).encode("latin-1")
    done = as_(None).get("/jobs", headers={"Authorization": text})
    assert (done.status_code, done.headers["content-type"]) == (401, "application/problem+json")
    assert done.headers["www-authenticate"].startswith("Bearer")
    assert service.tokens["ada"] not in done.text


def test_requests_are_limited_by_token(tmp_path):
    service = StandIn(tmp_path, server={"requests_per_s": 0.001})
    app = make_app(service.context)
    app.state.authenticator.clock = lambda: 100.0
    ada, bob = (Caller(app, service.tokens[name]) for name in ("ada", "bob"))
    assert ada.get("/whoami").status_code == 200
    refused = ada.get("/whoami")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1000")
    assert bob.get("/whoami").status_code == 200
    app.state.authenticator.clock = lambda: 1101.0
    assert ada.get("/whoami").status_code == 200
    service.close()


@pytest.mark.slow
def test_what_was_changed_is_written_down(as_, service):
    ada, operator = as_("ada"), as_("operator")
    secret = job(environment={"PASSWORD": "hunter2"})
    number = ada.post("/jobs", json=secret).json()["id"]
    ada.post("/jobs", json=secret | {"gpus": 99})
    as_("bob").post(f"/jobs/{number}/cancel")
    ada.post("/nodes/t/drain")
    operator.post("/mode", json={"mode": "dry-run"})
    made = operator.post("/tokens", json={"tenant": "ada"}).json()
    lines = operator.get("/audit").json()["audit"]
    told = [(line["actor"], line["action"], line["target"], line["outcome"]) for line in lines]
    assert told == [
        ("tenant ada, token 1", "submit", f"job {number}", "done"),
        ("tenant ada, token 1", "submit", "job train", "refused 422"),
        ("tenant bob, token 2", "cancel", f"job {number}", "refused 404"),
        ("tenant ada, token 1", "drain", "node t", "refused 403"),
        ("operator, token 3", "mode", "mode dry-run", "done"),
        ("operator, token 3", "add_token", f"token {made['id']}", "done"),
    ]
    assert "hunter2" not in str(lines)
    assert made["token"] not in str(lines)
    after = lines[2]["id"]
    assert [line["id"] for line in operator.get("/audit", params={"after": after, "limit": 2}).json()["audit"]] == [
        after + 1, after + 2
    ]  # fmt: skip


@pytest.mark.slow
def test_a_submission_and_its_line_are_written_together_or_not_at_all(as_, service, monkeypatch):
    ada, operator = as_("ada"), as_("operator")

    def full(*_):
        msg = "the disk is full"
        raise StoreError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_note", full)
        assert ada.post("/jobs", json=job()).status_code == 503
    assert ada.get("/jobs").json()["jobs"] == []
    headers = {"Idempotency-Key": "k"}
    numbers = {ada.post("/jobs", json=job(), headers=headers).json()["id"] for _ in range(2)}
    lines = operator.get("/audit").json()["audit"]
    assert [(line["outcome"], line["detail"]["new"], line["target"]) for line in lines] == [
        ("done", new, f"job {number}") for number in numbers for new in (True, False)
    ]


@pytest.mark.parametrize(("name", "status"), [("%2E", 422), ("%2E%2E", 422), ("...", 200), (".a", 200), ("..a", 200)])
def test_a_tenant_no_address_can_hold_is_not_entered(as_, service, name, status):
    assert as_("operator")("PUT", f"/tenants/{name}", json={"weight": 1.0}).status_code == status
    assert not {".", ".."} & service.store.tenants().keys()
    assert as_("operator").get("/tenants/ada").status_code == 200
