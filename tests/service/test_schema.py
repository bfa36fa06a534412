"""The API keeps its own description, whatever is sent: schemathesis over the OpenAPI document."""

from __future__ import annotations

import pytest

from commonwatt.service.app import make_app
from tests.service.conftest import Caller
from tests.service.made import StandIn, job

EXAMPLES = {"operator": 12, "ada": 12, None: 2}  # of each operation


@pytest.fixture
def served(tmp_path):
    service = StandIn(tmp_path, server={"requests_per_s": 1e6})
    app = make_app(service.context)
    app.state.authenticator.guess_s = lambda: 0.0  # unknown tokens are put off, too: see test_admission
    for k in range(3):
        Caller(app, service.tokens["ada"]).post("/jobs", json=job(name=f"j{k}"))
    service.obey()
    yield service, app
    service.close()


@pytest.mark.slow
def test_the_description_is_complete(served):
    _, app = served
    document = Caller(app, None).get("/openapi.json").json()
    assert document["info"]["title"] == "commonwatt"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], (method, path)
            if path.startswith("/api/") and path != "/api/v1/login":  # which nobody can have a token for yet
                assert operation["security"], (method, path)
                assert {"401", "422", "429", "500", "503"} <= set(operation["responses"]), (method, path)
    text = str(document)
    references = {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}
    assert references <= set(document["components"]["schemas"])
    for name, schema in document["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            assert described.get("description") or "$ref" in described, (name, field)


def checked(schemathesis, operation, headers, seen, examples):
    """Return a test of one operation, with requests as described and others."""
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    # a schema cannot say which GPU types there are, that an operator names a tenant, or that a tenant's role needs one
    theirs = ("POST /api/v1/jobs", "POST /api/v1/tokens")
    excluded = [positive_data_acceptance] if operation.label in theirs else []
    good, bad = (operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)

    @given(case=good | bad)
    @settings(
        max_examples=examples, derandomize=True, deadline=None, database=None,
        phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def check(case):
        response = case.call_and_validate(headers=headers, excluded_checks=excluded)
        seen[response.status_code] = seen.get(response.status_code, 0) + 1

    return check


@pytest.mark.long
@pytest.mark.parametrize("who", ["operator", "ada", None])
def test_schemathesis(served, who):
    schemathesis = pytest.importorskip("schemathesis")
    service, app = served
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)
    headers = {} if who is None else {"Authorization": f"Bearer {service.tokens[who]}"}
    seen: dict[int, int] = {}
    failures = []
    operations = [result.ok() for result in schema.get_all_operations()]
    for operation in sorted(operations, key=lambda o: o.method == "delete"):  # may revoke our own token
        try:
            checked(schemathesis, operation, headers, seen, EXAMPLES[who])()
        except Exception as error:
            failures.append(f"{operation.label}: {error}")
    assert not failures, "\n\n".join(failures)
    assert not [status for status in seen if status >= 500]
    assert set(seen) >= ({401} if who is None else {200, 404, 422})
