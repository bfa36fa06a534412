"""What nobody measured is unknown, in every document, and never zero."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from commonwatt.engines.simulated.engine import SimulatedEngine
from commonwatt.model.errors import InputError
from commonwatt.model.results import SimulationResult
from commonwatt.report.folder import result_json, write_run
from commonwatt.report.html import render
from commonwatt.simulation import run_setup
from commonwatt.simulation.runner import run_seeds, sweep_result
from tests.cli.console import scenario
from tests.simulation.made import prepared


class WithoutMeters(SimulatedEngine):
    """A cluster whose nodes have no power meters."""

    def readings(self, *, up_to_now: bool = False):
        return [replace(reading, energy_uj=None) for reading in super().readings(up_to_now=up_to_now)]

    def power_w(self):
        return None


@pytest.fixture
def unmetered(monkeypatch):
    monkeypatch.setattr(run_setup, "SimulatedEngine", WithoutMeters)
    problem = prepared(scenario())
    (result,), records = run_seeds([problem])
    return problem, result, records


def test_unknown_energy_is_null_and_what_is_known_stays_known(unmetered):
    _, result, _ = unmetered
    for policy in result.policies:
        assert (policy.energy_kwh, policy.energy_cost, policy.carbon_kg, policy.total_cost) == (None, None, None, None)
        assert policy.tardiness_cost >= 0
        assert policy.gpu_utilization > 0
        rows = {row.row: row for row in policy.ledger}
        assert rows["total"].energy_uj is rows["jobs"].energy_uj is None
        assert rows["total"].gpu_us > 0
        assert all(tenant.energy_kwh is None and tenant.energy_cost is None for tenant in policy.tenants)


def test_it_is_null_in_files_and_the_report_opens(unmetered, tmp_path):
    import polars as pl

    problem, result, records = unmetered
    write_run(tmp_path / "out", problem.scenario, tmp_path, [result], records)
    document = json.loads((tmp_path / "out" / "result.json").read_text())
    assert document["policies"][0]["energy_kwh"] is None
    assert SimulationResult.model_validate(document).policies[0].energy_kwh is None
    assert pl.read_parquet(tmp_path / "out" / "jobs.parquet")["energy_j"].null_count() == 6
    assert "NaN" not in render(result, records).split("<script")[0]


def test_a_sweep_over_unknown_numbers_has_no_mean(unmetered):
    _, result, _ = unmetered
    sweep = sweep_result([result, result])
    assert (sweep.policies[0].energy_kwh.mean, sweep.policies[0].energy_kwh.sd) == (None, None)
    assert sweep.policies[0].mean_jct_s.sd == 0
    assert sweep_result([result]).policies[0].mean_jct_s.sd is None
    assert json.loads(result_json(sweep))["runs"][1]["policies"][0]["scheduler_s"] is None


def test_without_due_dates_nothing_is_late_and_no_reason_is_given():
    document = scenario()
    for job in document["workload"]["jobs"]:
        job.pop("due_s", None)
    (result,), records = run_seeds([prepared(document)])
    for policy, record in zip(result.policies, records, strict=True):
        assert (policy.late_jobs, policy.tardiness_cost) == (0, 0)
        assert set(record.jobs.why_late) == {""}


def test_carbon_is_known_only_if_every_point_of_the_series_says_it():
    for last, known in ((300, True), (None, False)):
        series = [
            {"from_s": 0, "price_per_kwh": 0.1, "carbon_g_per_kwh": 100},
            {"from_s": 600, "price_per_kwh": 0.1, "carbon_g_per_kwh": last},
        ]
        (result,), _ = run_seeds([prepared(scenario(electricity={"series": series}))])
        assert (result.policies[0].carbon_kg is not None) == known


def test_prepare_says_what_would_stop_a_run():
    with pytest.raises(InputError, match=r"outages\.node"):
        prepared(scenario(outages=[{"node": "w", "from_s": 0, "to_s": 1}]))
