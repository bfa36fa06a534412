"""Metrics, settings and status: for the operator alone."""

from __future__ import annotations

import logging

import pytest

from commonwatt.model.histogram import Histogram
from commonwatt.serving.keys import Keys
from commonwatt.serving.rejections import BoundedFilter, BoundedLog
from tests.serving.fake import ANN, OPERATOR, FakeBackend, Served
from tests.serving.wire import Wire, x

ROUTES = [("GET", "/metrics"), ("GET", "/v2/commonwatt/settings"), ("PATCH", "/v2/commonwatt/settings"),
          ("GET", "/v2/commonwatt/status")]  # fmt: skip


@pytest.fixture
def operator(served):
    with Wire(served.at.rest, OPERATOR) as wire:
        yield wire


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("key", [None, ANN, "something"])
def test_nobody_else_gets_in(served, route, key):
    with Wire(served.at.rest, key) as wire:
        status, answer, headers = wire.ask(*route, {})
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert "operator's key" in answer["error"]


def test_the_operator_is_no_tenant(operator):
    assert "unknown key" in operator.error("double", x(), status=401)


def test_metrics(operator):
    parser = pytest.importorskip("prometheus_client.parser")
    status, page, headers = operator.ask("GET", "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    rows = {}
    for family in parser.text_string_to_metric_families(page.decode()):
        assert family.documentation
        for sample in family.samples:
            rows[sample.name.removeprefix("commonwatt_timeslice_"), *sorted(sample.labels.values())] = sample.value
    expected = {
        ("info", "etf", "modelled"): 1, ("phi_ratio",): 0.7, ("idle_seconds_total",): 2,
        ("idle_joules_total", "modelled"): 10, ("device_seconds_total", "ann"): 1.5,
        ("energy_joules_total", "ann", "modelled"): 20, ("time_share_ratio", "ann"): 0.75,
        ("energy_share_ratio", "ann"): 0.5, ("entitlement_ratio", "ann"): 0.5, ("guaranteed_share_ratio", "ann"): 0.35,
        ("queue_length", "ann"): 3, ("requests_total", "ann", "ok"): 7, ("requests_total", "ann", "refused"): 1,
        ("requests_total", "ann", "cancelled"): 0, ("request_duration_seconds_count", "ann"): 1,
        ("request_duration_seconds_sum", "ann"): 0.003, ("request_duration_seconds_bucket", "0.0025", "ann"): 0,
        ("request_duration_seconds_bucket", "0.005", "ann"): 1, ("request_duration_seconds_bucket", "+Inf", "ann"): 1,
        ("device_seconds_total", 'b"o\nb'): 0.5,
    }  # fmt: skip
    assert {name: rows.get(name) for name in expected} == expected


def test_settings(operator):
    assert operator.ask("GET", "/v2/commonwatt/settings")[1]["phi"] == 0.7
    status, answer, _ = operator.ask("PATCH", "/v2/commonwatt/settings", {"phi": 0.5})
    assert (status, answer["phi"], answer["policy"]) == (200, 0.5, "etf")
    status, answer, _ = operator.ask("PATCH", "/v2/commonwatt/settings", {"colour": 1, "phi": 0.1})
    assert (status, answer["error"]) == (400, "field 'colour': expected one of policy, phi, quantum_s, tenants")
    assert operator.ask("PATCH", "/v2/commonwatt/settings", b"{")[0] == 400
    assert operator.ask("PATCH", "/v2/commonwatt/settings", b" " * 1_000_001)[0] == 413
    assert operator.ask("GET", "/v2/commonwatt/settings")[1]["phi"] == 0.5


def test_status(operator):
    assert operator.ask("GET", "/v2/commonwatt/status")[1] == {"tenants": {"ann": {"time_s": 1.5}}}


@pytest.mark.slow
def test_without_any_key_loopback_may_do_all():
    backend = FakeBackend()
    with Served(Keys.without("ann"), backend, grpc_port=None) as server, Wire(server.at.rest) as wire:
        assert server.at.grpc is None
        assert wire.infer("double", x())[0] == 200
        assert wire.ask("GET", "/metrics")[0] == 200
        forged = {"X-Forwarded-For": "10.0.0.1"}
        assert wire.ask("GET", "/v2/commonwatt/status", headers=forged)[0] == 200
        backend.is_ready = False
        status, answer, _ = wire.ask("GET", "/v2/health/ready")
        assert (status, answer) == (503, {"ready": False})
        assert wire.ask("GET", "/v2/health/live")[0] == 200


def test_keys_and_details_are_not_logged_and_lines_are_few(served, caplog):
    with caplog.at_level(logging.DEBUG), Wire(served.at.rest, "a-wrong-key-nobody-has") as wire:
        for _ in range(30):
            wire.infer("double", x())
        wire.key = ANN
        wire.infer("broken", x())
    ours = [record.getMessage() for record in caplog.records if record.name == "commonwatt.serving"]
    assert 1 <= len(ours) <= 6
    assert any("unexpected ZeroDivisionError" in line for line in ours)
    assert "a-wrong-key-nobody-has" not in caplog.text
    assert ANN not in caplog.text


def test_a_bounded_log(caplog):
    now = [0.0]
    log = BoundedLog(logging.getLogger("bounded"), clock=lambda: now[0])
    for _ in range(5):
        log.warning("no")
    now[0] = 1.5
    log.warning("no again")
    assert [record.getMessage() for record in caplog.records] == ["no", "no again (4 more suppressed before this)"]


def test_warnings_of_others_are_bounded_and_errors_are_not():
    now = [0.0]
    passes = BoundedFilter(clock=lambda: now[0]).filter
    warning, error = ({"levelno": level} for level in (logging.WARNING, logging.ERROR))
    assert [passes(logging.makeLogRecord(row)) for row in (warning, warning, error)] == [True, False, True]
    now[0] = 1.0
    assert passes(logging.makeLogRecord(warning))


def test_a_histogram():
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 9):
        histogram.observe(value)
    copied = histogram.copy()
    histogram.observe(2)
    assert copied.buckets() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert (copied.sum, histogram.sum) == (12, 14)
