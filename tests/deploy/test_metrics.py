"""What Prometheus reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from commonwatt import __version__
from commonwatt.control.events import EventKind
from commonwatt.model.errors import StoreError
from commonwatt.service.middleware import HttpTimes
from commonwatt.store import tables
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import EventRow
from tests.deploy.metrics_made import FULL, NOW_S, SHARES, account, bare, filled
from tests.deploy.tools import needs_promtool, promtool


@pytest.fixture
def plane(tmp_path):
    made = filled(tmp_path)
    yield made
    made.store.database.close()


@pytest.fixture
def new(tmp_path):
    made = bare(tmp_path)
    yield made
    made.store.database.close()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Value by name and values of labels in order of their names."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("commonwatt_")
    }


def test_every_value_is_what_the_store_and_the_board_hold(plane):
    told = {key: value for key, value in samples(plane.text()).items() if not key[0].endswith("_bucket")}
    assert told == {
        ("commonwatt_build_info", __version__): 1,
        ("commonwatt_controller_info", "local", "live"): 1,
        ("commonwatt_controller_healthy",): 1,
        ("commonwatt_controller_active",): 1,
        ("commonwatt_controller_last_tick_timestamp_seconds",): NOW_S - 5,
        ("commonwatt_gpus",): 10, ("commonwatt_gpus_usable",): 6, ("commonwatt_gpus_held",): 3,
        ("commonwatt_gpus_allocated",): 3,
        ("commonwatt_gpus_free",): 1,
        ("commonwatt_power_watts",): 1020.5,
        ("commonwatt_nodes", "on"): 2, ("commonwatt_nodes", "waking"): 0, ("commonwatt_nodes", "asleep"): 0,
        ("commonwatt_nodes", "down"): 1,
        ("commonwatt_node_up", "a"): 1, ("commonwatt_node_up", "b"): 0, ("commonwatt_node_up", "c"): 1,
        ("commonwatt_node_drained", "a"): 0, ("commonwatt_node_drained", "b"): 0, ("commonwatt_node_drained", "c"): 1,
        ("commonwatt_node_gpus", "V100", "a", "held"): 3, ("commonwatt_node_gpus", "V100", "a", "free"): 1,
        ("commonwatt_node_gpus", "V100", "a", "unusable"): 0, ("commonwatt_node_gpus", "V100", "b", "held"): 0,
        ("commonwatt_node_gpus", "V100", "b", "free"): 0, ("commonwatt_node_gpus", "V100", "b", "unusable"): 4,
        ("commonwatt_node_gpus", "T4", "c", "held"): 0, ("commonwatt_node_gpus", "T4", "c", "free"): 2,
        ("commonwatt_node_gpus", "T4", "c", "unusable"): 0,
        ("commonwatt_node_power_watts", "a"): 900, ("commonwatt_node_power_watts", "c"): 120.5,
        ("commonwatt_saved_energy_joules",): 9e6, ("commonwatt_saved_cost", "EUR"): 0.6,
        ("commonwatt_saved_period_seconds",): 43200,
        ("commonwatt_tick_duration_seconds_count",): 3,
        ("commonwatt_tick_duration_seconds_sum",): pytest.approx(0.222),
        ("commonwatt_ticks_total",): 3,
        ("commonwatt_engine_errors_total",): 2, ("commonwatt_store_errors_total",): 1,
        ("commonwatt_controller_errors_total",): 1,
        ("commonwatt_http_request_duration_seconds_count", "GET", "/api/v1/jobs/{job}", "200"): 1,
        ("commonwatt_http_request_duration_seconds_sum", "GET", "/api/v1/jobs/{job}", "200"): 0.004,
        ("commonwatt_http_request_duration_seconds_count", "POST", "/api/v1/jobs", "201"): 1,
        ("commonwatt_http_request_duration_seconds_sum", "POST", "/api/v1/jobs", "201"): 0.012,
        ("commonwatt_store_up",): 1,
        ("commonwatt_jobs", "waiting"): 3, ("commonwatt_jobs", "running"): 1, ("commonwatt_jobs", "completed"): 1,
        ("commonwatt_jobs", "failed"): 0, ("commonwatt_jobs", "cancelled"): 0,
        ("commonwatt_queue_oldest_wait_seconds",): 900, ("commonwatt_jobs_on_hold",): 1,
        ("commonwatt_requests_pending",): 1, ("commonwatt_intents_open",): 1,
        ("commonwatt_late_jobs",): 1, ("commonwatt_expected_late_jobs",): 3,
        ("commonwatt_tardiness_cost", "EUR"): pytest.approx(1.0),
        ("commonwatt_energy_joules_total", "job", 'te"xt\\'): 3.5, ("commonwatt_energy_joules_total", "idle", ""): 2,
        ("commonwatt_pending_energy_joules", 'te"xt\\'): 1, ("commonwatt_metered_energy_joules_total",): 6.5,
        ("commonwatt_cost_total", "EUR", "job", 'te"xt\\'): 0.25, ("commonwatt_cost_total", "EUR", "idle", ""): 0.1,
        ("commonwatt_pending_cost", "EUR", 'te"xt\\'): 0.05, ("commonwatt_metered_cost_total", "EUR"): 0.4,
        ("commonwatt_carbon_grams_total", "job", 'te"xt\\'): 0.125, ("commonwatt_carbon_grams_total", "idle", ""): 0.05,
        ("commonwatt_pending_carbon_grams", 'te"xt\\'): 0.025, ("commonwatt_metered_carbon_grams_total",): 0.2,
        ("commonwatt_gpu_seconds_total", "job", 'te"xt\\'): 60, ("commonwatt_gpu_seconds_total", "idle", ""): 90,
        ("commonwatt_pending_gpu_seconds", 'te"xt\\'): 30, ("commonwatt_metered_gpu_seconds_total",): 180,
        **{("commonwatt_job_events_total", kind): 0 for kind in EventKind},
        **{("commonwatt_job_events_total", kind): 1
           for kind in ("started", "preempted", "resumed", "migrated", "resized", "completed")},
        ("commonwatt_preemptions_total",): 1, ("commonwatt_migrations_total",): 2,
    }  # fmt: skip


def test_what_is_unknown_is_absent(new):
    before = {key[0] for key in samples(new.text())}
    assert not any("power" in name or "energy" in name for name in before)
    new.snapshot = replace(FULL, power_w=None, saved={"energy_kwh": None, "cost": 0.5})
    ControllerStore(new.store.database).write(Tick(ledger={("meter", 0): account(None, None, None, 5_000_000)}))
    told = samples(new.text())
    names = {key[0] for key in told}
    assert told["commonwatt_metered_gpu_seconds_total",] == 5
    assert not any("joules" in name or "carbon" in name for name in names)
    assert {"commonwatt_metered_cost_total", "commonwatt_power_watts"} & names == set()
    assert told["commonwatt_saved_cost", "EUR"] == 0.5
    assert ("commonwatt_node_power_watts", "b") not in told


def of_tenants(text: str) -> dict[tuple[str, ...], float]:
    return {key: value for key, value in samples(text).items() if key[0].startswith("commonwatt_tenant_")}


def test_shares_of_tenants_are_told_where_something_is_guaranteed(plane):
    assert of_tenants(plane.text()) == {}
    plane.snapshot = replace(FULL, shares=SHARES)
    assert of_tenants(plane.text()) == {
        ("commonwatt_tenant_held_gpus", "vision"): 2, ("commonwatt_tenant_held_gpus", "speech"): 1,
        ("commonwatt_tenant_allocated_gpus", "vision"): 2, ("commonwatt_tenant_allocated_gpus", "speech"): 1,
        ("commonwatt_tenant_entitled_gpus", "vision"): 1.5, ("commonwatt_tenant_entitled_gpus", "speech"): 2.5,
        ("commonwatt_tenant_used_share_ratio", "vision"): 0.75, ("commonwatt_tenant_used_share_ratio", "speech"): 0.25,
        ("commonwatt_tenant_entitled_share_ratio", "vision"): 0.5,
        ("commonwatt_tenant_entitled_share_ratio", "speech"): 0.5,
        ("commonwatt_tenant_decayed_gpu_seconds", "vision"): 7200,
        ("commonwatt_tenant_decayed_gpu_seconds", "speech"): 2400,
        ("commonwatt_tenant_debt_gpu_seconds", "vision"): -2400, ("commonwatt_tenant_debt_gpu_seconds", "speech"): 2400,
    }  # fmt: skip


def test_a_used_share_of_nothing_is_absent(plane):
    new = tuple(replace(share, used_gpu_s=0.0, used_share=None, debt_gpu_s=0.0) for share in SHARES)
    plane.snapshot = replace(FULL, shares=new)
    told = of_tenants(plane.text())
    assert not [key for key in told if key[0] == "commonwatt_tenant_used_share_ratio"]
    assert told["commonwatt_tenant_entitled_gpus", "speech"] == 2.5


def test_of_a_store_that_does_not_answer_nothing_is_told_but_that(plane):
    tables.metadata.drop_all(plane.store.database.engine)
    told = samples(plane.text())
    assert told["commonwatt_store_up",] == 0
    assert told["commonwatt_gpus",] == 10
    assert told["commonwatt_ticks_total",] == 3
    assert not any(key[0].startswith(("commonwatt_jobs", "commonwatt_energy")) for key in told)


def test_totals_go_on_after_a_restart_and_after_old_events_are_removed(plane, tmp_path):
    before = samples(plane.text())
    with plane.store.database.transaction() as c:
        c.execute(tables.events.delete())
    plane.store.database.close()
    again = bare(tmp_path)
    event = EventRow(0, NOW_S, "preempted", 1, (), 1, "", "")
    ControllerStore(again.store.database).write(Tick(events=[event]))
    after = samples(again.text())
    kept = [key for key in before if key[0].endswith("_total") and "error" not in key[0] and "ticks" not in key[0]]
    assert ("commonwatt_preemptions_total",) in kept
    assert [key for key in kept if not after[key] >= before[key]] == []
    assert after["commonwatt_preemptions_total",] == 2
    again.store.database.close()


def test_an_event_that_is_not_written_is_not_counted(new):
    ticks = ControllerStore(new.store.database)
    event = EventRow(0, NOW_S, "started", 1, (), 1, "", "")
    ticks.write(Tick(events=[event, event]))
    with pytest.raises(StoreError):
        ticks.write(Tick(events=[event], settings={"x": object()}))
    assert samples(new.text())["commonwatt_job_events_total", "started"] == 2


@pytest.mark.slow
@needs_promtool
def test_promtool_finds_nothing_to_complain_of(plane, new):
    texts = [plane.text(), new.text()]
    plane.snapshot = replace(plane.snapshot, shares=SHARES)
    texts.append(plane.text())
    assert "commonwatt_tenant_debt_gpu_seconds" in texts[-1]
    for text in texts:
        done = promtool("check", "metrics", given=text)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_requests_are_measured_by_route():
    times = HttpTimes()
    for method, route in [
        ("GET", "/jobs/{job}"),
        ("GET", "/jobs/{job}"),
        ("BREW", "unknown"),
        ("GET", "/api/v1/stream"),
    ]:
        times.observe(method, route, 200, 0.1)
    counted = {labels: sum(times.counts) for labels, times in times.snapshot().items()}
    assert counted == {("GET", "/jobs/{job}", "200"): 2, ("other", "unknown", "200"): 1}


def test_a_board_without_nodes(new):
    told = samples(new.text())
    assert told["commonwatt_gpus",] == 0
    assert not [key for key in told if key[0] == "commonwatt_node_up"]
