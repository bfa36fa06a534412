"""Nodes with GPUs of several types: a node for each type, with one machine's idle power among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.files import load_yaml, validate
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

JOBS = [
    {"name": "v", "submit_s": 0, "times_s": {"V100": {2: 1000}}},
    {"name": "t", "submit_s": 500, "times_s": {"T4": {1: 300}}},
]
MIXED = {"name": "m", "gpus": {"V100": 4, "T4": 2}, "idle_w": 120, "gpu_w": {"V100": 250, "T4": 70}}


def scenario(nodes, **more):
    raw = {"workload": {"source": "jobs", "jobs": JOBS}, "nodes": nodes, "policies": [{"solver": "fifo"}]} | more
    return validate(raw, Scenario)


def result(spec):
    results, _ = run_seeds([prepare(spec, Path(), 0)], jobs=1)
    return results[0].policies[0]


@pytest.mark.slow
@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("ABCD"), st.integers(1, 16), min_size=1), st.integers(1, 12), st.floats(0, 1e4))
def test_parts_add_up_to_the_machines(gpus, count, idle_w):
    (first, *rest) = scenario([{"name": "m", "count": count, "gpus": gpus, "idle_w": idle_w, "gpu_w": 10}]).nodes
    parts = (first, *rest)
    cluster = Cluster.of(parts)
    assert len(cluster) == count * len(gpus)
    assert cluster.total_gpus == count * sum(gpus.values())
    assert sum(part.idle_w for part in parts) == pytest.approx(count * idle_w)
    assert {part.name for part in parts} == {f"{part.host}:{part.gpu_type}" for part in parts}
    assert all(part.states == () and part.gpu_w == 10 for part in parts)
    assert len({part.host for part in parts}) == count


def test_what_was_read_is_read_again():
    once = scenario([MIXED, {"name": "p", "gpu_type": "T4", "gpus": 2, "idle_w": 1, "gpu_w": 1}])
    assert [node.name for node in once.nodes] == ["m:V100", "m:T4", "p"]
    assert Scenario.model_validate(once.model_dump(mode="json")) == once


def test_parts_stay_on_and_their_energy_is_the_machines():
    found = result(scenario([MIXED], electricity={"price_per_kwh": 0.1, "pue": 1.0}))
    busy_j = 1000 * 2 * 250 + 300 * 70
    assert found.energy_kwh * 3.6e6 == pytest.approx(1000 * 120 + busy_j)
    plain = [{"name": n.name.replace(":", "-"), "gpu_type": n.gpu_type, "gpus": n.gpus, "idle_w": n.idle_w,
              "gpu_w": n.gpu_w} for n in scenario([MIXED]).nodes]  # fmt: skip
    asleep = result(scenario(plain, electricity={"price_per_kwh": 0.1, "pue": 1.0}))
    assert asleep.energy_kwh < found.energy_kwh  # nodes of their own would be switched off
    on = result(scenario(plain, unused_nodes={"state": None}, electricity={"price_per_kwh": 0.1, "pue": 1.0}))
    assert on.energy_kwh == pytest.approx(found.energy_kwh)


def test_a_capacity_plan_leaves_parts_on():
    plan = {"policy": "last-value", "step_s": 60}
    nodes = [MIXED, {"name": "p", "gpu_type": "T4", "gpus": 2, "idle_w": 30, "gpu_w": 70}]
    found = result(scenario(nodes, capacity=plan, electricity={"price_per_kwh": 0.1, "pue": 1.0}))
    assert found.energy_kwh * 3.6e6 > 1000 * 120 + 1000 * 2 * 250


def test_each_type_has_its_weight_in_shares():
    both = scenario([MIXED | {"share_weight": {"V100": 2.0, "T4": 0.5}}]), scenario([MIXED | {"share_weight": 3}])
    assert [{n.gpu_type: n.share_weight for n in one.nodes} for one in both] == [
        {"V100": 2.0, "T4": 0.5}, {"V100": 3.0, "T4": 3.0}
    ]  # fmt: skip


def test_an_outage_of_the_machine_is_one_of_its_parts():
    def ran(*names):
        down = [{"node": name, "from_s": 600.5, "to_s": 1000.5} for name in names]
        found = result(scenario([MIXED], outages=down, preemption={"restart_s": 0}))
        return found.makespan_s, found.mean_jct_s, found.energy_kwh

    assert ran("m") == ran("m:V100", "m:T4")
    assert ran("m")[1] > ran("m:V100")[1] > ran()[1]


@pytest.mark.parametrize(
    ("node", "line"),
    [
        (MIXED | {"gpus": {"V100": 0}}, "field 'nodes.m.gpus.V100': got '0', expected a number, 1 or more"),
        (MIXED | {"gpu_w": {"V100": 1}}, "field 'nodes.m.gpu_w': got 'V100', expected one for each of V100, T4"),
        (
            MIXED | {"share_weight": {"T4": 1}},
            "field 'nodes.m.share_weight': got 'T4', expected one for each of V100, T4",
        ),
        (MIXED | {"share_weight": {"T4": 1, "V100": 0}}, "field 'nodes.m.share_weight.V100': got '0', expected"),
        (MIXED | {"gpu_type": "V100"}, "field 'nodes.m.gpu_type': expected one of the fields"),
        (
            {"name": "a", "host": "m", "gpu_type": "T4", "gpus": 1, "idle_w": 1, "gpu_w": 1, "count": 2},
            "field 'nodes.a.count': got '2', expected 1, as it is a part of m",
        ),
        (
            {
                "name": "a",
                "host": "m",
                "gpu_type": "T4",
                "gpus": 1,
                "idle_w": 1,
                "gpu_w": 1,
                "states": [{"name": "off"}],
            },
            "field 'nodes.a.states': got 'off', expected none, as a part of m cannot sleep alone",
        ),
        ({"name": "a", "gpus": 1, "idle_w": 1, "gpu_w": 1}, "field 'nodes.a.gpu_type': expected this field"),
    ],
)
def test_what_cannot_be(node, line):
    with pytest.raises(InputError) as caught:
        scenario([node])
    assert str(caught.value).startswith(line)


def test_slurm_takes_one_type_a_node(tmp_path):
    pytest.importorskip("sqlalchemy")
    from commonwatt.controlplane.wiring import read_config

    path = tmp_path / "s.yaml"
    path.write_text("engine: slurm\nnodes: [{name: m, gpus: {V100: 1, T4: 1}, idle_w: 1, gpu_w: 1}]\n")
    assert load_yaml(path, Scenario).nodes[0].host == "m"
    with pytest.raises(InputError, match=r"field 'nodes.m': got 'several types', expected GPUs of one type"):
        read_config(path)
