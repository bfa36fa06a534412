"""The log's own starts, ends and places, through the ledger of the policies."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonwatt.data import third_party
from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.as_logged import replay_log
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare
from tests.simulation.made import node

FIXED = {"profiles": "law", "malleable": False, "other_types": False, "due_dates": "none", "logged_gpu_type": "V100"}
COLUMNS = ("job", "submit_s", "start_s", "end_s", "gpus", "gpu_type", "nodes")


def prepared(folder: Path, rows, nodes=None, types=None, **workload):
    """Rows: (submission, start, end, GPUs, GPU type, nodes), in seconds."""
    lines = [";".join(COLUMNS)] + [";".join(map(str, (f"j{i}", *row))) for i, row in enumerate(rows)]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    document = {
        "workload": {"source": "csv", "path": "log.csv", "days": 400, **FIXED, **workload},
        "nodes": nodes or [node("v", count=2)],
        "electricity": {"price_per_kwh": 0.2, "pue": 1.0, "carbon_g_per_kwh": 400},
        "policies": [{"solver": "easy"}],
        "gpu_types": types or {},
    }
    return prepare(validate(document, Scenario), folder, 0)


def other(name, gpu_type):
    return {"name": name, "gpu_type": gpu_type, "gpus": 2, "idle_w": 100, "gpu_w": 400}


def replay(*arguments, **more):
    return replay_log(prepared(*arguments, **more), 0.0)


def places(found):
    record = found.record
    by_job = {}
    for job, n, gpus in zip(record.segments.job, record.segments.node, record.segments.gpus, strict=True):
        by_job.setdefault(record.jobs.name[job], {})[record.cluster.names[n]] = gpus
    return by_job


def test_by_hand(tmp_path):
    rows = [(0, 0, 100, 1, "V100", ""), (10, 40, 90, 2, "V100", ""), (50, 60, 160, 1, "V100", "")]
    problem = prepared(tmp_path, rows)
    found = replay_log(problem, 0.0)
    result, jobs = found.record.result, found.record.jobs
    assert (jobs.began_s - jobs.submit_s).tolist() == [0, 30, 10]
    assert jobs.ended_s.tolist() == [100, 90, 160]
    assert places(found) == {"j0": {"v-1": 1}, "j1": {"v-2": 2}, "j2": {"v-1": 1}}
    assert found.treatments == {}
    assert result.energy_kwh * 3.6e6 == pytest.approx(2 * 150 * 160 + sum(gpu_energy_j(problem)))
    assert (result.policy, result.migrations, result.preemptions, result.most_starts) == ("as logged", 0, 0, 1)
    assert result.longest_wait_s == 30
    assert result.tail_s == 110
    assert result.gpu_utilization == pytest.approx((100 + 2 * 50 + 100) / (4 * 160))


def gpu_energy_j(problem):
    """Energy of each job beyond idle power: its only configuration is what it ran on."""
    table, log = problem.table, problem.log
    assert np.diff(table.start).max() == 1
    watts = np.where(np.isnan(table.config_gpu_w), 250.0, table.config_gpu_w)
    return (watts * log.gpus * log.duration_s).tolist()


def test_the_nodes_the_log_names(tmp_path):
    nodes = [node("v", count=3), node("t", "T4", 4)]
    rows = [
        (0, 0, 100, 2, "V100", "v-3"),
        (0, 0, 100, 4, "V100", "v-[1-2]"),
        (5, 10, 60, 2, "T4", "t"),
        (6, 110, 200, 1, "V100", "gone"),
        (7, 110, 200, 1, "T4", "v-2"),
    ]
    found = replay(tmp_path, rows, nodes)
    assert places(found) == {
        "j0": {"v-3": 2}, "j1": {"v-1": 2, "v-2": 2}, "j2": {"t": 2}, "j3": {"v-1": 1}, "j4": {"t": 1},
    }  # fmt: skip
    assert found.treatments == {"named nodes that the cluster lacks or that had no room: on others": 2}


def test_more_jobs_than_gpus(tmp_path):
    """A job of two GPUs takes one of each node; beyond the cluster, extra nodes draw power only while in use."""
    rows = [(0, 0, 100, 1, "V100", "v-1"), (0, 0, 100, 1, "V100", "v-2"), (1, 1, 50, 2, "V100", ""),
            (2, 2, 30, 4, "V100", ""), (3, 40, 60, 1, "V100", "")]  # fmt: skip
    found = replay(tmp_path, rows)
    assert places(found)["j2"] == {"v-1": 1, "v-2": 1}
    assert places(found)["j3"] == {"extra-1": 2, "extra-2": 2}
    assert places(found)["j4"] == {"extra-1": 1}
    assert found.extra_nodes == 2
    fits = "did not fit at their logged start: on extra nodes, which draw power only while in use"
    assert found.treatments == {fits: 2}
    jobs = found.record.jobs
    idle = next(row for row in found.record.result.ledger if row.row == "idle")
    assert idle.gpu_us == (4 * 100 - 100 - 100 - 2 * 49 + 20) * 1e6  # an extra GPU is idle beside j4
    assert jobs.gpu_s.tolist() == [100, 100, 98, 112, 20]


def test_a_type_the_cluster_lacks(tmp_path):
    found = replay(tmp_path, [(0, 0, 100, 1, "T4", ""), (1, 2, 50, 1, "", "")])
    counts = {how: number for how, number in found.treatments.items() if number}
    assert counts == {
        "ran on a GPU type the cluster lacks: on any type": 1,
        "ran on a GPU type the cluster lacks: on another, for as long as logged": 1,
    }
    assert found.record.jobs.ended_s.tolist() == [100, 50]


def test_declared_types_are_matched_as_the_workload_matches_them(tmp_path):
    nodes = [node("v", count=2), other("x", "X9"), other("h", "H100")]
    rows = [(0, 0, 100, 1, "nvidia_x9_80gb", ""), (1, 2, 50, 1, "NVIDIA H100 80GB HBM3", "h"), (2, 3, 40, 2, "", "")]
    types = {"X9": {"speed": 2.0, "relative_to": "V100", "gpu_w": 500}}
    found = replay(tmp_path, rows, nodes, types)
    assert places(found) == {"j0": {"x": 1}, "j1": {"h": 1}, "j2": {"v-1": 2}}
    assert found.treatments == {}
    assert found.record.jobs.gpu_s.tolist() == [100, 48, 74]


def test_a_node_with_two_types_is_named_by_its_host(tmp_path):
    mixed = {"name": "m", "count": 2, "gpus": {"V100": 2, "T4": 2}, "idle_w": 200, "gpu_w": {"V100": 250, "T4": 60}}
    rows = [(0, 0, 100, 1, "T4", "m-2"), (1, 2, 50, 2, "V100", "m-2"), (2, 3, 40, 1, "T4", "m-1")]
    found = replay(tmp_path, rows, [mixed])
    assert places(found) == {"j0": {"m-2:T4": 1}, "j1": {"m-2:V100": 2}, "j2": {"m-1:T4": 1}}
    assert found.treatments == {}


def test_one_type_of_unknown_speed(tmp_path):
    """Run times without a type are of the cluster's one."""
    found = replay(
        tmp_path, [(0, 0, 100, 1, "", ""), (1, 2, 50, 1, "Zeta", "")], [other("q", "Q7")], logged_gpu_type=None
    )
    counts = {how: number for how, number in found.treatments.items() if number}
    assert counts == {
        "ran on a GPU type the cluster lacks: on any type": 1,
        "ran on a GPU type the cluster lacks: on another, for as long as logged": 1,
    }


def test_a_period_of_a_log(tmp_path):
    """Jobs that began before the period begin with it, and have waited in it for nothing."""
    day = 86400
    rows = [(0, 10, 2 * day, 1, "V100", ""), (100, day + 50, day + 80, 1, "V100", ""),
            (day + 5, day + 9, day + 20, 1, "V100", ""), (3 * day, 3 * day, 3 * day + 5, 1, "V100", "")]  # fmt: skip
    found = replay(tmp_path, rows, begin=str(day), days=1)
    jobs = found.record.jobs
    assert jobs.name == ("j0", "j1", "j2")
    assert (jobs.began_s - jobs.submit_s).tolist() == [0, 50, 4]
    assert jobs.ended_s.tolist() == [day, 80, 20]
    assert found.treatments == {"carried in from before the period: with the run time they had left": 2}


@st.composite
def logs(draw):
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        submit_s, wait_s, run_s = (draw(st.integers(0, 300)), draw(st.integers(0, 90)), draw(st.integers(1, 200)))
        named = draw(st.sampled_from(["", "v-1", "v-[1-2]", "t", "elsewhere"]))
        gpu_type = draw(st.sampled_from(["V100", "T4", ""]))
        rows.append(
            (submit_s, submit_s + wait_s, submit_s + wait_s + run_s, draw(st.sampled_from([1, 2, 4])), gpu_type, named)
        )
    return rows


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logs())
def test_conserved(rows):
    nodes = [node("v", count=2), node("w", "V100", 4, idle_w=99), node("t", "T4", 4)]
    with TemporaryDirectory() as folder:
        problem = prepared(Path(folder), rows, nodes)
        found = replay_log(problem, 0.0)
    record, log = found.record, problem.log
    assert np.array_equal(record.jobs.began_s - record.jobs.submit_s, log.start_s - log.submit_s)
    assert np.array_equal(record.jobs.ended_s - record.jobs.began_s, log.duration_s)
    table = {row.row: row for row in record.result.ledger}
    for name in ("energy_uj", "cost_n", "carbon_ug", "gpu_us"):
        assert sum(getattr(row, name) for key, row in table.items() if key != "total") == getattr(table["total"], name)
    assert record.jobs.gpu_s.tolist() == pytest.approx((log.gpus * log.duration_s).tolist())
    gpus = record.cluster.gpus
    for time_s, busy in zip(record.samples.time_s, record.samples.busy_gpus, strict=True):
        now = (record.segments.from_s <= time_s) & (time_s < record.segments.to_s)
        used = np.bincount(record.segments.node[now], record.segments.gpus[now], len(gpus))
        assert (used <= gpus).all()
        assert used.sum() == busy
    assert set(record.segments.job.tolist()) == set(range(len(rows)))
    first_s = float(record.samples.time_s[0])
    drawn_j = float((record.samples.power_w[:-1] * np.diff(record.samples.time_s)).sum())
    idle_w = sum(problem.cluster.classes[k].idle_w for k in problem.cluster.klass)
    assert table["total"].energy_uj / 1e6 == pytest.approx(drawn_j + idle_w * first_s, rel=1e-9, abs=1e-3)
    # a policy and the log have the window in common
    ran = run_seeds([problem])[0][0].policies[0]
    submit_s = problem.table.submit_s
    assert ran.makespan_s - ran.tail_s == pytest.approx(float(np.ptp(submit_s)))
    assert record.result.makespan_s - record.result.tail_s == pytest.approx(float(np.ptp(submit_s)))


def test_philly_as_published(tmp_path):
    """Waits are those of the log: first attempt's start less submission."""
    jobs = [
        {
            "jobid": f"application_{i}", "vc": f"vc{i % 2}", "submitted_time": f"2017-10-09 0{i}:00:00",
            "attempts": [{"start_time": f"2017-10-09 0{i}:{wait:02}:00", "end_time": f"2017-10-09 0{i + 2}:00:00",
                          "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}],
        }
        for i, wait in enumerate([0, 30, 5])
    ]  # fmt: skip
    (tmp_path / "log.json").write_text(json.dumps(jobs))
    workload = {"source": "philly", "path": "log.json", "days": 3, **FIXED}
    document = {"workload": workload, "nodes": [node("v")], "policies": [{"solver": "easy"}]}
    record = replay_log(prepare(validate(document, Scenario), tmp_path, 0)).record
    assert (record.jobs.began_s - record.jobs.submit_s).tolist() == [0, 1800, 300]
    assert record.result.lower_bound_cost > 0


@pytest.mark.slow
@pytest.mark.data
def test_public_logs():
    """Alibaba tells starts: waits equal the log's. The tidied Philly table tells none."""
    if third_party.find("alibaba_jobs.csv.gz") is None or third_party.find("philly_jobs.csv.gz") is None:
        pytest.skip("no traces")
    nodes = [node("v", "V100", 8, count=6)]

    def of(**workload):
        document = {"workload": {**FIXED, **workload}, "nodes": nodes, "policies": [{"solver": "easy"}]}
        return prepare(validate(document, Scenario), Path(), 0)

    problem = of(source="alibaba", begin="11000000", days=3)
    record = replay_log(problem).record
    waits_s = np.fmax(problem.log.start_s, problem.log.submit_s) - problem.log.submit_s
    assert np.array_equal(record.jobs.began_s - record.jobs.submit_s, waits_s)
    assert waits_s.max() > 0
    with pytest.raises(InputError, match="a log with start times"):
        replay_log(of(source="philly", begin="2017-10-10", days=0.2))


def test_what_cannot_be_replayed(tmp_path):
    (tmp_path / "log.csv").write_text("submit_s,duration_s,gpus\n0,10,1\n5,10,1\n")
    workload = {"source": "csv", "path": "log.csv", **FIXED}
    document = {"workload": workload, "nodes": [node("v")], "policies": [{"solver": "easy"}]}
    with pytest.raises(InputError, match=r"log\.csv: field 'start_s': got 'none', expected a log with start times"):
        replay_log(prepare(validate(document, Scenario), tmp_path, 0))
    document["workload"] = {"source": "week", "days": 0.01}
    with pytest.raises(InputError, match=r"field 'workload\.source': got 'week', expected the log of a cluster"):
        replay_log(prepare(validate(document, Scenario), tmp_path, 0))
