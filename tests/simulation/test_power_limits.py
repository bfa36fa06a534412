"""Power limits of GPUs as a choice: what jobs may have, what that costs, and whom it does not concern."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commonwatt.control.engine import JobEnded, Start
from commonwatt.control.events import EventKind
from commonwatt.data.files import validate
from commonwatt.data.profiles import LAW
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.scenario import Scenario
from commonwatt.placement import lower_bound
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

LIMITED = {"solver": "lookahead", "name": "limited", "power_limits": [0.6, 0.8]}
PLAIN = {"solver": "lookahead", "name": "plain"}


def week(*policies: dict, gpu_type: str = "V100", **more) -> Scenario:
    workload = {"source": "week", "days": 0.5, "jobs_per_day": 400, "profiles": "law"}
    node = {"name": "n", "count": 10, "gpu_type": gpu_type, "gpus": 8, "idle_w": 200, "gpu_w": 250}
    return validate({"workload": workload, "nodes": [node], "policies": list(policies), **more}, Scenario)


@pytest.fixture(scope="module")
def prepared():
    return prepare(week(LIMITED, PLAIN), Path(), 0)


def run(prepared, k: int):
    p = prepared
    return run_policy(p.scenario, p.scenario.policies[k], p.cluster, p.table, 0).controller


@pytest.fixture(scope="module")
def limited(prepared):
    return run(prepared, 0)


def test_a_limit_takes_longer_and_draws_less_by_the_law(prepared):
    table = prepared.table
    counts = np.zeros(3, dtype=int)
    for j in range(len(table)):
        own = table.configs(j)
        rows = list(zip(table.config_type[own], table.config_gpus[own], table.config_power_limit[own], strict=True))
        limits = [limit for _, _, limit in rows]
        assert limits == sorted(limits, key=lambda limit: limit < 1.0), "whole configurations come first"
        assert len(set(rows)) == len(rows)
        time_s = dict(zip(rows, table.config_time_s[own], strict=True))
        power_w = dict(zip(rows, table.config_gpu_w[own], strict=True))
        for gpu_type, gpus, limit in rows:
            counts += [limit == 0.6, limit == 0.8, limit == 1.0]
            time, power = LAW.limited(table.kinds[j], "V100", limit)
            assert time_s[gpu_type, gpus, limit] == pytest.approx(time * time_s[gpu_type, gpus, 1.0])
            assert power_w[gpu_type, gpus, limit] == pytest.approx(power * power_w[gpu_type, gpus, 1.0])
    assert counts.min() > 0
    recommending = [j for j, kind in enumerate(table.kinds) if kind == "recommendation"]
    assert recommending
    assert all((table.config_power_limit[table.configs(j)] == 1.0).all() for j in recommending), "it would save nothing"


def test_a_job_starts_with_the_limit_that_was_chosen(limited):
    events = limited.log.since(0)
    started = [e for e in events if e.kind is EventKind.STARTED and e.why.power_limit < 1.0]
    assert {e.why.power_limit for e in started} == {0.6, 0.8}
    assert f"limited to {started[0].why.power_limit:.0%} of their power" in started[0].sentence
    assert any(e.kind is EventKind.STARTED and e.why.power_limit == 1.0 for e in events)


@pytest.mark.parametrize(("limit", "ends_s", "watts"), [(1.0, 100.0, 200.0), (0.8, 110.0, 150.0)])
def test_the_engine_runs_and_meters_the_limited_configuration(limit, ends_s, watts):
    cluster = Cluster.of([NodeSpec(name="n", count=1, gpu_type="V100", gpus=2, idle_w=50, gpu_w=300)])
    job = Job("a", "t", 0.0, math.inf, 0.0, {"V100": {2: 100.0}}, gpu_w={"V100": 200.0})
    whole = JobArrays.of([job])
    table = replace(
        whole, start=np.array([0, 2]), config_type=np.zeros(2, dtype=int), config_gpus=np.array([2, 2]),
        config_time_s=np.array([100.0, 110.0]), config_gpu_w=np.array([200.0, 150.0]),
        config_power_limit=np.array([1.0, 0.8]),
    )  # fmt: skip
    engine = SimulatedEngine(cluster, table, World(unused_state=None))
    engine.apply([Start(0, "a", (0,), 2, limit)])
    engine.advance(200.0)
    [ended] = [change for change in engine.poll() if isinstance(change, JobEnded)]
    assert ended.at_s == pytest.approx(ends_s)
    energy_j = sum(r.energy_uj for r in engine.readings() if r.holders) / 1e6
    assert energy_j == pytest.approx(ends_s * (50 + 2 * watts))
    with pytest.raises(EngineError, match="cannot run on 2 GPUs of V100 with 70% of their highest power"):
        SimulatedEngine(cluster, table, World()).apply([Start(0, "a", (0,), 2, 0.7)])


def test_less_energy_and_a_bound_that_holds(prepared):
    [result], _ = run_seeds([prepared])
    limited, plain = result.policies
    assert limited.energy_kwh < 0.97 * plain.energy_kwh
    assert limited.late_jobs <= plain.late_jobs
    bound = prepared.lower_bound()
    assert bound <= min(limited.total_cost, plain.total_cost)
    tariff = prepared.scenario.electricity.tariff()
    assert bound < lower_bound(prepared.table.within_power_limits(()), prepared.cluster, tariff)


@pytest.mark.long
def test_who_may_not_limit_is_not_concerned(prepared):
    alone = prepare(week(PLAIN), Path(), 0)
    assert not len(alone.table.config_power_limit)
    [with_others], _ = run_seeds([prepared])
    [by_itself], _ = run_seeds([alone])
    ours, own = with_others.policies[1], by_itself.policies[0]
    same = {"lower_bound_cost": 0.0, "scheduler_s": 0.0}  # of the scenario, and of the clock
    assert ours.model_copy(update=same) == own.model_copy(update=same)


@pytest.mark.long
def test_each_policy_has_its_own_limits():
    p = prepare(week(LIMITED, {"solver": "lookahead", "name": "one", "power_limits": [0.7]}), Path(), 0)
    assert set(np.unique(p.table.config_power_limit)) == {0.6, 0.7, 0.8, 1.0}
    started = [e.why.power_limit for e in run(p, 1).log.since(0) if e.kind is EventKind.STARTED]
    assert set(started) == {0.7, 1.0}


def test_power_that_only_nodes_know(prepared):
    """Nobody measured an A100's power: a limited one draws its part of what its node says."""
    table = prepare(week(LIMITED, gpu_type="A100"), Path(), 0).table
    whole, limited = table.config_power_limit == 1.0, table.config_power_limit == 0.8
    assert np.isnan(table.config_gpu_w[whole]).all()
    job = np.repeat(np.arange(len(table)), np.diff(table.start))
    factors = [LAW.limited(table.kinds[j], "A100", 0.8)[1] for j in job[limited]]
    assert table.config_gpu_w[limited] == pytest.approx(250 * np.array(factors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": [{"solver": "srtf", "power_limits": [0.8]}]}, "policies.srtf.power_limits"),
        ({"policies": [{"solver": "lookahead", "power_limits": [0.3]}]}, "expected a number, 0.5 or more"),
        ({"policies": [{"solver": "lookahead", "power_limits": [1.0]}]}, "expected a number below 1"),
        ({"policies": [{"solver": "lookahead", "power_limits": [0.8, 0.6]}]}, "increasing numbers"),
        (
            {
                "workload": {"source": "jobs", "jobs": [{"name": "a", "submit_s": 0, "times_s": {"V100": [9]}}]},
                "policies": [LIMITED],
            },
            "none without jobs of a log or a generated week, whose models have measured limits",
        ),
    ],
)
def test_bad_limits_are_told(change, message):
    document = week(PLAIN).model_dump(mode="json", exclude_unset=True) | change
    with pytest.raises(InputError) as told:
        validate(document, Scenario)
    assert message in str(told.value)
