import base64
import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commonwatt.report.html import render
from commonwatt.report.timeline import timeline
from tests.report.make_records import MEDIUM, SMALL, Size, make, make_record, make_result
from tests.report.pages import HOSTILE, Page, own_part, unpacked

FIGURES = {"cost", "energy", "gpus", "power", "queue", "wait", "jct"}


@pytest.fixture(scope="module")
def medium():
    return make(MEDIUM)


@pytest.fixture(scope="module")
def medium_page(medium):
    return Page(render(*medium))


@pytest.mark.slow
def test_what_is_there(medium, medium_page):
    result, _ = medium
    ids = [attributes["id"] for _, attributes in medium_page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {f"fig-{name}" for name in FIGURES} <= set(ids)
    assert set(medium_page.data["figures"]) == FIGURES
    for i, policy in enumerate(result.policies):
        assert {f"gantt-{i}", f"tab-{i}", f"panel-{i}"} <= set(ids)
        assert f"All numbers of each policy {result.policies[0].policy}" in medium_page.text
        assert f"Ledger of {policy.policy}" in medium_page.text
        assert f"Tenants under {policy.policy}" in medium_page.text
    for fact in (result.scenario, result.workload, result.version, result.input_digest, "600 jobs, 24 nodes, 96 GPUs"):
        assert fact in medium_page.text


def test_cost_figure_has_the_numbers_and_the_bound(medium, medium_page):
    result, _ = medium
    energy, late = medium_page.data["figures"]["cost"]["data"][:2]
    assert energy["x"] == [policy.energy_cost for policy in result.policies]
    assert late["x"] == [policy.tardiness_cost for policy in result.policies]
    (line,) = medium_page.data["figures"]["cost"]["layout"]["shapes"]
    assert line["x0"] == line["x1"] == result.policies[0].lower_bound_cost


def test_bounds_that_differ_are_drawn_at_each_policy():
    result, records = make(SMALL, ("a", "b"))
    policies = tuple(p.model_copy(update={"lower_bound_cost": 0.1 * (i + 1)}) for i, p in enumerate(result.policies))
    page = Page(render(make_result(records, policies=policies), records))
    assert [shape["x0"] for shape in page.data["figures"]["cost"]["layout"]["shapes"]] == [0.1, 0.2]
    assert "lower bound: €0.10 to €0.20" in page.text


def test_drawn_power_has_the_energy_of_the_run(medium, medium_page):
    result, records = medium
    hours = {"hours": 1.0, "days": 24.0}[timeline(records).unit]
    ours = medium_page.data["figures"]["power"]["data"][-1]  # ours last, on top
    assert ours["name"] == result.policies[0].policy
    drawn_kwh = np.sum(np.array(ours["y"][:-1]) * np.diff(ours["x"])) * hours
    assert drawn_kwh == pytest.approx(result.policies[0].energy_kwh, rel=1e-3)


def test_every_stay_is_drawn(medium, medium_page):
    _, records = medium
    for i, record in enumerate(records):
        chart = medium_page.data["gantt"][f"gantt-{i}"]
        assert chart["kind"] == "bars"
        drawn = np.dot(chart["long"], chart["lanes"])
        exact = np.dot(record.segments.to_s - record.segments.from_s, record.segments.gpus) / 86400
        assert drawn == pytest.approx(exact, rel=1e-3)


@pytest.mark.slow
def test_many_nodes_or_stays_become_a_heat_map():
    for size in (
        Size(nodes=61, gpus=2, jobs=70, tenants=2, span_s=5e3, mean_run_s=2e3),
        Size(nodes=10, gpus=4, jobs=5200, tenants=2, span_s=5e5, mean_run_s=1e3),
    ):
        result, records = make(size, ("a",))
        chart = Page(render(result, records)).data["gantt"]["gantt-0"]
        assert chart["kind"] == "heat"
        cells = np.frombuffer(base64.b64decode(chart["percent"]), dtype=np.uint8).reshape(chart["shape"])
        assert cells.max() <= 100
        mean = np.average(cells, axis=1, weights=np.diff(chart["edges"])).mean() / 100
        assert mean == pytest.approx(result.policies[0].gpu_utilization, abs=0.005)


def test_jobs_of_one_tenant_are_told_apart():
    result, records = make(SMALL, ("a",), tenant=("only",) * SMALL.jobs)
    chart = Page(render(result, records)).data["gantt"]["gantt-0"]
    assert not chart["named"]
    assert len(set(chart["rank"])) == SMALL.jobs


def test_a_long_tail_is_left_out_at_first():
    record = make_record(MEDIUM, "easy")
    record.jobs.ended_s[7] += 60 * 86400.0
    page = Page(render(make_result([record]), [record]))
    assert page.text.count("Showing ") == 2
    gpus = page.data["figures"]["gpus"]
    assert gpus["whole"][1] > 60 > 10 > gpus["focus"][1]
    assert "Showing " not in Page(render(*make(SMALL))).text


@pytest.mark.parametrize("column", ["name", "tenant", "why_late"])
def test_text_from_jobs_cannot_break_out(column):
    result, records = make(SMALL, ("a",), **{column: (HOSTILE,) * SMALL.jobs})
    records[0].jobs.ended_s[:] += 1e6  # all late
    text = render(result, records)
    page = Page(text)
    assert len(page.scripts) == 3
    assert "img" not in [tag for tag, _ in page.elements]
    assert HOSTILE in page.text
    assert HOSTILE not in text


def test_text_from_the_result_cannot_break_out():
    result, records = make(SMALL, (HOSTILE, "b"))
    cluster = dataclasses.replace(records[0].cluster, names=(HOSTILE, HOSTILE + "2", HOSTILE + "3"))
    records = [dataclasses.replace(record, cluster=cluster) for record in records]
    result = make_result(records, scenario=HOSTILE, workload=HOSTILE, currency=HOSTILE, version=HOSTILE)
    text = render(result, records)
    page = Page(text)
    assert len(page.scripts) == 3
    assert "img" not in [tag for tag, _ in page.elements]
    assert all("onerror" not in attributes for _, attributes in page.elements)
    assert HOSTILE not in text
    assert HOSTILE in page.text


def test_only_our_scripts_may_run_and_nothing_is_fetched():
    text = render(*make(SMALL))
    page = Page(text)
    (policy,) = [a["content"] for tag, a in page.elements if tag == "meta" and a.get("http-equiv")]
    for script in (unpacked(page.scripts[1]), page.scripts[2]):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "script-src 'sha256-" in policy
    assert "http" not in own_part(text).replace("http-equiv", "")
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith(("#", "data:,"))


def test_unknown_is_said_and_never_drawn_as_zero():
    result, records = make(SMALL, ("a", "b"))
    first = result.policies[0]
    ledger = tuple(row.model_copy(update={"energy_uj": None, "cost_n": None}) for row in first.ledger)
    tenants = tuple(t.model_copy(update={"energy_kwh": None, "energy_cost": None}) for t in first.tenants)
    nothing = {"energy_kwh": None, "energy_cost": None, "carbon_kg": None, "total_cost": None}
    nothing |= {"mean_wait_s": float("nan"), "ledger": ledger, "tenants": tenants}
    policies = (result.policies[0].model_copy(update=nothing), result.policies[1])
    samples = dataclasses.replace(records[0].samples, power_w=np.full(len(records[0].samples.time_s), np.nan))
    records[0] = dataclasses.replace(records[0], samples=samples)
    page = Page(render(make_result(records, policies=policies), records))
    assert "their cost is unknown" in page.text
    assert "jobsunknownunknownunknown" in page.text  # the first row of the ledger
    assert page.data["figures"]["energy"]["data"][0]["x"][0] is None
    assert page.data["figures"]["energy"]["data"][1]["text"][0] == " unknown"
    power = {trace["name"]: trace["y"] for trace in page.data["figures"]["power"]["data"]}
    assert set(power["a"]) == {None}
    assert None not in power["b"]
    assert "nan" not in page.text.lower().split()


def test_jobs_that_never_ended_or_began():
    result, records = make(SMALL, ("a",))
    records[0].jobs.ended_s[3] = np.nan
    records[0].jobs.began_s[3] = np.nan
    page = Page(render(result, records))
    assert page.data["figures"]["jct"]["data"][0]["y"][-1] == 100
    assert None not in page.data["figures"]["jct"]["data"][0]["x"]


def test_one_policy_alone():
    page = Page(render(*make(SMALL, ("alone",))))
    assert "compared with the other policies" not in page.text
    assert "alone ran 8 jobs" in page.text


def test_policies_without_records():
    result, records = make(SMALL, ("a", "b"))
    page = Page(render(result, []))
    assert set(page.data["figures"]) == {"cost", "energy"}
    assert "There is no record of this run" in page.text
    page = Page(render(result, records[1:]))
    assert set(page.data["gantt"]) == {"gantt-1"}


def test_late_jobs_most_costly_first_and_the_others_counted():
    result, records = make(Size(nodes=2, gpus=2, jobs=400, tenants=3, span_s=9e3, mean_run_s=2e3), ("a",))
    jobs = records[0].jobs
    late = np.flatnonzero(jobs.late_s > 0)
    assert len(late) > 210
    page = Page(render(result, records))
    order = late[np.argsort(-jobs.tardiness_cost[late], kind="stable")]
    section = page.text[page.text.index("Late jobs under a") :]
    shown = [name for name in section.replace("team", " team").split() if name.startswith("job-")]
    assert shown[:200] == [jobs.name[i] for i in order[:200]]
    assert f"Not shown: {len(late) - 200} more late jobs" in page.text


def test_no_job_was_late():
    record = make_record(SMALL, "a")
    record.jobs.due_s[:] = np.inf
    assert "No job was late." in Page(render(make_result([record]), [record])).text


@pytest.mark.long
def test_many_policies_and_tenants_stay_small():
    size = Size(nodes=50, gpus=8, jobs=4000, tenants=500, span_s=2e5, mean_run_s=3e3)
    text = render(*make(size, tuple(f"policy {i}" for i in range(12))))
    assert len(own_part(text).encode()) < 3e6
    assert "more late jobs" in text
    assert "tenants with less GPU time" in text


@pytest.mark.long
def test_a_report_of_many_jobs_on_many_nodes_is_small():
    size = Size(nodes=1000, gpus=8, jobs=20_000, tenants=30, span_s=6e5, mean_run_s=6e3)
    assert len(render(*make(size, tuple(f"policy {i}" for i in range(5)))).encode()) < 3e6


@pytest.mark.long
def test_same_input_same_bytes_whatever_the_hash_seed():
    program = (
        "import hashlib; from tests.report.make_records import *; from commonwatt.report.html import render;"
        "print(hashlib.sha256(render(*make(SMALL)).encode()).hexdigest())"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *sys.path])
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path}, capture_output=True, check=True, text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert digests == {hashlib.sha256(render(*make(SMALL)).encode()).hexdigest()}


@pytest.mark.slow
def test_report_is_imported_without_heavy_libraries():
    program = (
        "import sys, commonwatt.report.html, commonwatt.report.plots, commonwatt.report.text;"
        "print([m for m in ('plotly', 'matplotlib', 'rich') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert found.stdout.strip() == "[]"
