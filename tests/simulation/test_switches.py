"""Switches of a workload and of a policy, through a whole simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commonwatt.data.files import validate
from commonwatt.model.nodes import GpuTypeSpec
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.runner import _as_before
from commonwatt.simulation.workload import prepare
from tests.simulation.made import node, run

PREEMPTIVE = {"solver": "srtf"}


def week(policies, **switches):
    workload = {"source": "week", "days": 0.1, "jobs_per_day": 400, "profiles": "law", **switches}
    nodes = [node("v", "V100", 8, count=4), node("t", "T4", 4, count=4)]
    return prepare(validate({"workload": workload, "nodes": nodes, "policies": policies}, Scenario), Path(), 0)


def test_defaults_written_out_have_the_digest_of_a_file_without_them():
    written = {"malleable": True, "other_types": True, "due_dates": {"rule": "drawn", "limit_factor": 1.0}}
    plain = week([{"solver": "easy"}])
    assert week([{"solver": "easy", "preemption": None}], **written).digest() == plain.digest()
    assert week([{"solver": "easy"}], logged_gpu_type="P100").digest() == plain.digest()
    assert week([{"solver": "easy"}], malleable=False).digest() != plain.digest()
    assert week([{"solver": "easy"}], due_dates={"limit_factor": 2.0}).digest() != plain.digest()


def test_fields_of_hardware_that_are_not_used_leave_the_digest():
    """That of the file before nodes and scenarios had them."""
    plain = week([{"solver": "easy"}])
    document = plain.scenario.model_dump(mode="json")
    assert document["gpu_types"] == {}
    assert [spec["host"] for spec in document["nodes"]] == [None, None]
    before = _as_before(document)
    assert "gpu_types" not in before
    assert all("host" not in spec for spec in before["nodes"])
    with_types = plain.scenario.model_copy(update={"gpu_types": {"X9": GpuTypeSpec(speed=2.0)}})
    assert replace(plain, scenario=with_types).digest() != plain.digest()


def test_qos_that_are_not_used_leave_the_digest():
    job = {"name": "a", "submit_s": 0, "times_s": {"V100": [60.0]}}
    nodes = [{"name": "n", "gpu_type": "V100", "gpus": 1, "idle_w": 100, "gpu_w": 200}]
    document = {"workload": {"source": "jobs", "jobs": [job]}, "nodes": nodes, "policies": [{"solver": "easy"}]}
    before = _as_before(validate(document, Scenario).model_dump(mode="json"))
    assert "qos" not in before
    assert not {"qos", "user", "known_s"} & before["workload"]["jobs"][0].keys()
    assert "qos_weight" not in before["policies"][0]
    document["qos"], job["qos"] = [{"name": "q"}], "q"
    after = _as_before(validate(document, Scenario).model_dump(mode="json"))
    assert (after["qos"][0]["name"], after["workload"]["jobs"][0]["qos"]) == ("q", "q")


@pytest.mark.slow
def test_jobs_of_fixed_size_and_type_keep_them():
    problem = week(
        [{"solver": "lookahead"}], malleable=False, other_types=False, logged_gpu_type="T4", due_dates="none"
    )
    _, record = run(problem)
    asked = problem.table.requested_gpus
    row_of = {name: j for j, name in enumerate(problem.table.names)}
    assert len(record.segments.job) > 0
    for job, cluster_node in zip(record.segments.job, record.segments.node, strict=True):
        assert record.cluster.names[cluster_node].startswith("t-")
        own = record.segments.job == job
        first_s = record.segments.from_s[own].min()
        gpus = record.segments.gpus[own & (record.segments.from_s == first_s)].sum()
        assert gpus == asked[row_of[record.jobs.name[job]]]
    assert record.result.tardiness_cost == 0
    assert np.isinf(record.jobs.due_s).all()


@pytest.mark.slow
@pytest.mark.parametrize(("given", "stops"), [(None, True), ({"allowed": False}, False)])
def test_a_policy_overrides_preemption(given, stops):
    problem = week([PREEMPTIVE | {"preemption": given}], jobs_per_day=1500)
    _, record = run(problem)
    assert (record.result.preemptions + record.result.migrations > 0) == stops
