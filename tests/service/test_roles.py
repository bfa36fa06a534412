"""Roles and ends of tokens: a viewer changes nothing, an admin reaches no other tenant, what expired is unknown."""

from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from commonwatt.model.live_results import TokenOrder
from tests.service.conftest import Caller
from tests.service.made import job
from tests.service.test_access import ACCESS, BODIES

CHANGES = sorted(name for name in ACCESS if not name.startswith(("GET", "POST /sign-in/")))


@pytest.fixture
def made(service, app):
    """Make a caller with a token of its own."""

    def make(tenant, role=None, **more) -> Caller:
        return Caller(app, service.store.add_token(tenant, "of the test", 1.0, role=role, **more))

    return make


@pytest.mark.slow
@pytest.mark.parametrize("tenant", ["ada", None])
def test_a_viewer_sees_what_others_see_and_changes_nothing(made, as_, tenant):
    viewer = made(tenant, "viewer")
    number = as_("ada").post("/jobs", json=job()).json()["id"]
    assert viewer.get("/whoami").json()["role"] == "viewer"
    assert [found["id"] for found in viewer.get("/jobs").json()["jobs"]] == [number]
    assert viewer.get(f"/jobs/{number}").status_code == 200
    assert viewer.get("/audit").status_code == (403 if tenant else 200)
    for name in CHANGES:
        method, template = name.split()
        path = "http://127.0.0.1" + template.format(job=number, tenant="ada", node="t", token=1)
        answer = viewer(method, path, **({"json": BODIES[name]} if name in BODIES else {}))
        assert (answer.status_code, answer.json()["detail"]) == (403, "this token may only read (role viewer)"), name
    assert as_("ada").get(f"/jobs/{number}").json()["status"] == "waiting"


def test_a_tenants_admin_manages_the_tokens_of_its_tenant_and_no_others(made, as_, service):
    admin, spare = made("ada", "admin"), service.store.owner(service.tokens["bob"]).token
    new = admin.post("/tokens", json={"tenant": "ada", "label": "new", "expires_in_s": 1000})
    assert (new.status_code, new.json()["role"]) == (201, None)
    assert new.json()["expires_s"] == pytest.approx(time.time() + 1000, abs=600)
    assert as_(new.json()["token"]).get("/whoami").json()["tenant"] == "ada"
    for tenant in ("bob", None):
        assert admin.post("/tokens", json={"tenant": tenant}).status_code == 403
    assert {row["tenant"] for row in admin.get("/tokens").json()["tokens"]} == {"ada"}
    assert admin("DELETE", f"/tokens/{spare}").status_code == 404
    assert as_("bob").get("/whoami").status_code == 200
    assert admin("DELETE", f"/tokens/{new.json()['id']}").status_code == 204
    assert as_(new.json()["token"]).get("/whoami").status_code == 401
    assert admin.post("/mode", json={"mode": "live"}).status_code == 403
    assert as_("ada").get("/tokens").status_code == 403


def test_an_expired_token_is_unknown(made, as_):
    assert made("ada", expires_s=time.time() - 1.0).get("/whoami").status_code == 401
    assert made("ada", expires_s=time.time() + 1e6).get("/whoami").status_code == 200
    listed = as_("operator").get("/tokens").json()["tokens"]
    assert [row["expires_s"] is None for row in listed[-2:]] == [False, False]


def test_roles_that_make_no_sense_are_refused(as_):
    for order in (
        {"tenant": None, "role": "admin"},
        {"tenant": "ada", "role": "king"},
        {"tenant": "ada", "expires_in_s": 0},
    ):
        with pytest.raises(ValidationError):
            TokenOrder.model_validate(order)
        assert as_("operator").post("/tokens", json=order).status_code == 422
