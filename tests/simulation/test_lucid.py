"""Two jobs on the same GPUs, in simulations: who shares, how fast they are, what they use and when they end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.engine import JobEnded, JobInterrupted, Start, Stop
from commonwatt.data import third_party
from commonwatt.data.files import validate
from commonwatt.data.profiles.lucid import SLOWDOWN, USE, make_packing
from commonwatt.engines.simulated.engine import Outage, SimulatedEngine, World
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.packing import GpuFootprint, Packing
from commonwatt.model.scenario import Scenario
from commonwatt.simulation import run_setup
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare
from tests.simulation.made import run

PACKING = Packing(
    {"calm": GpuFootprint(0.2, 0.1, 2.0), "busy": GpuFootprint(0.5, 0.2, 2.0), "loud": GpuFootprint(0.9, 0.6, 15.0)},
    {"V100": 16.0}, {("calm", "busy"): 0.8, ("busy", "calm"): 0.5}, 0.44, "made up",
)  # fmt: skip


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(run_setup, "make_packing", lambda kinds, types: PACKING)


def job(name, submit_s, seconds, kind="", gpus=1, gpu_w=200, **more):
    times = {"V100": {gpus: seconds}}
    own = {"name": name, "submit_s": submit_s, "times_s": times, "requested_gpus": gpus, "kind": kind}
    return {**own, "gpu_w": {"V100": gpu_w}, **more}


def scenario(jobs, *, gpus=1, nodes=1, **more) -> dict:
    node = {"name": "n", "count": nodes, "gpu_type": "V100", "gpus": gpus, "idle_w": 100, "gpu_w": 200}
    workload = {"workload": {"source": "jobs", "jobs": jobs}} if jobs else {}
    return {**workload, "nodes": [node], "policies": [{"solver": "lucid"}], **more}


def ends(record):
    return dict(zip(record.jobs.name, record.jobs.ended_s.tolist(), strict=True))


THREE = [
    job("a", 0, 1000, "calm", tenant="x"), job("b", 100, 400, "busy", gpu_w=120, tenant="y"),
    job("c", 200, 300, "busy", gpu_w=120, tenant="z"),
]  # fmt: skip


def test_three_jobs_on_paper(made_up):
    """One GPU, 100 W idle. a is alone for 100 s. b shares with it: a at 0.8, b at 0.5 until 900, when a has done 740.

    c, for which there was no partner left, comes then: a ends 260 / 0.8 later at 1225, when c has done 162.5, and c
    alone at 1362.5. Both draw 200 W together: a 200 / 320 of that, 125 W, the other 75 W, and each half of 100 W.
    """
    done, record = run(prepare(validate(scenario(THREE), Scenario), Path(), 0))
    assert ends(record) == pytest.approx({"a": 1225.0, "b": 900.0, "c": 1362.5})
    energy_j = dict(zip(record.jobs.name, record.jobs.energy_j.tolist(), strict=True))
    assert energy_j == pytest.approx({
        "a": 300 * 100 + 175 * 800 + 175 * 325, "b": 125 * 800, "c": 125 * 325 + 220 * 137.5,
    })  # fmt: skip
    ledger = done.controller.ledger
    assert vars(ledger.total()) == vars(ledger.meter)
    assert ledger.meter.energy_uj == 397_750 * 10**6
    assert ledger.idle.energy_uj == 0
    assert [sample.busy_gpus for sample in done.controller.samples if sample.time_s < 1362] == [1] * sum(
        sample.time_s < 1362 for sample in done.controller.samples
    )
    texts = [event.sentence for event in done.controller.log.since(0) if event.handle == 1 and event.nodes]
    assert texts[0] == "b runs on n with 1 GPU, which another job has too, until one of the two ends"


def test_while_gpus_are_free_nobody_shares(made_up):
    _, record = run(prepare(validate(scenario(THREE, gpus=3), Scenario), Path(), 0))
    assert ends(record) == pytest.approx({"a": 1000.0, "b": 500.0, "c": 500.0})


def test_results_repeat(made_up):
    first, second = (run_seeds([prepare(validate(scenario(THREE), Scenario), Path(), 0)])[0][0] for _ in range(2))
    policies = [result.policies[0].model_copy(update={"scheduler_s": None}) for result in (first, second)]
    assert policies[0] == policies[1]
    assert policies[0].lower_bound_cost <= policies[0].total_cost


# -- the engine


def engine(*jobs, gpus=2, **world) -> SimulatedEngine:
    table = JobArrays.of(jobs)
    cluster = Cluster.of([NodeSpec(name="n", count=2, gpu_type="V100", gpus=gpus, idle_w=100, gpu_w=200)])
    return SimulatedEngine(cluster, JobArrays(**{**vars(table), "packing": PACKING}), World(unused_state=None, **world))


def work(name, seconds, kind, gpus=1, epochs=1):
    return Job(name, "t", 0.0, np.inf, 0.0, {"V100": {gpus: seconds}}, epochs=epochs, kind=kind)


def until(simulated, time_s):
    changes = []
    while simulated.now_s < time_s:
        simulated.advance(time_s)
        changes += simulated.poll()
    return changes


def test_a_lost_node_takes_both_to_their_checkpoints():
    """a has 10 epochs of 100 s: after 100 s alone and 200 s at 0.8 it has done 2.6.

    0.6 epochs are lost: the last 75 s (at 0.8), which count half. b loses all its 200 s, half of which count.
    """
    simulated = engine(work("a", 1000, "calm", epochs=10), work("b", 500, "busy"), outages=(Outage(0, 300.0, 400.0),))
    simulated.apply([Start(0, "a", (0,), 1)])
    until(simulated, 100.0)
    simulated.apply([Start(1, "b", (0,), 1, beside=0)])
    lost = {change.handle: change.lost_s for change in until(simulated, 301.0) if isinstance(change, JobInterrupted)}
    assert lost == pytest.approx({0: 37.5, 1: 100.0})
    np.testing.assert_allclose(simulated.progress(np.array([0, 1])).done_epochs, [2.0, 0.0])
    simulated.apply([Start(0, "a", (1,), 1), Start(1, "b", (1,), 1)])
    at_s = {change.handle: change.at_s for change in until(simulated, 2000.0) if isinstance(change, JobEnded)}
    assert at_s == pytest.approx({0: 1101.0, 1: 801.0})


def test_a_partner_that_is_stopped_leaves_the_other_at_full_speed():
    simulated = engine(work("a", 1000, "calm"), work("b", 500, "busy"), gpus=1)
    simulated.apply([Start(0, "a", (0,), 1, beside=1), Start(1, "b", (0,), 1, beside=0)])  # whoever comes first
    assert simulated.power_w() == 100 + 200 + 100
    until(simulated, 500.0)
    simulated.apply([Stop(1)])
    assert [change.at_s for change in until(simulated, 2000.0)] == [pytest.approx(1100.0)]


def test_a_restart_takes_its_time_beside_a_partner():
    """The second needs 60 s before it works; the first is slowed down from when both have the GPUs."""
    simulated = engine(work("a", 1000, "calm"), work("b", 100, "busy"), restart_s=60.0, first_start=True)
    simulated.apply([Start(0, "a", (0,), 1), Start(1, "b", (0,), 1, beside=0)])
    at_s = {change.handle: change.at_s for change in until(simulated, 2000.0)}
    assert at_s == pytest.approx({1: 260.0, 0: 60 + 200 + (1000 - 200 * 0.8)})


@pytest.mark.parametrize(
    ("nodes", "gpus", "beside"), [((1,), 1, 0), ((0,), 2, 0), ((0,), 1, 1)], ids=["node", "GPUs", "a third"]
)
def test_what_no_engine_does(nodes, gpus, beside):
    simulated = engine(
        work("a", 1000, "calm"),
        work("b", 100, "busy"),
        Job("c", "t", 0, np.inf, 0, {"V100": {1: 9, 2: 9}}, kind="busy"),
    )
    simulated.apply([Start(0, "a", (0,), 1), Start(1, "b", (0,), 1, beside=0)])
    with pytest.raises(EngineError, match="it cannot have the GPUs of"):
        simulated.apply([Start(2, "c", nodes, gpus, beside=beside)])


# -- what holds of every run


@st.composite
def documents(draw) -> dict:
    jobs = [
        job(
            f"j{i}", draw(st.integers(0, 12)) * 60.5, draw(st.integers(1, 25)) * 40.0,
            draw(st.sampled_from(["calm", "calm", "busy", "loud"])), draw(st.sampled_from([1, 1, 2])),
            draw(st.sampled_from([0, 90, 200])), tenant=draw(st.sampled_from("xyz")),
            epochs=draw(st.sampled_from([1, 7])),
        )
        for i in range(draw(st.integers(2, 9)))
    ]  # fmt: skip
    outage = {"node": "n-1", "from_s": 333.25, "to_s": 777.75}
    return scenario(
        jobs, gpus=2, nodes=2, outages=draw(st.sampled_from([[], [outage]])),
        preemption=draw(st.sampled_from([{"lose_work": False}, {"restart_s": 30.0}, {"allowed": False}])),
        unused_nodes={"state": draw(st.sampled_from(["off", None]))},
        rounds=draw(st.sampled_from([None, {"length_s": 120}])), runtime_error=draw(st.sampled_from([0.0, 0.3])),
        knowledge=draw(st.sampled_from(["oracle", "predicted"])),
    )  # fmt: skip


@given(document=documents())
@settings(max_examples=40)
@pytest.mark.slow
def test_nothing_is_lost_and_nobody_has_a_third_beside_it(document):
    readings = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_setup, "make_packing", lambda kinds, types: PACKING)
        patch.setattr(SimulatedEngine, "readings", _noting(SimulatedEngine.readings, readings))
        prepared = prepare(validate(document, Scenario), Path(), 0)
        done, record = run(prepared)
    ledger = done.controller.ledger
    assert vars(ledger.total()) == vars(ledger.meter)
    assert not np.isnan(record.jobs.ended_s).any()
    kinds, worked_s = prepared.table.kinds, np.zeros(len(prepared.table))
    names = done.controller.registry.names
    rows = [prepared.table.names.index(name) for name in names]
    for reading in readings:
        there = {holder.handle: holder for holder in reading.holders}
        assert sum(holder.counted_gpus for holder in there.values()) <= 2
        for holder in there.values():
            speed = 1.0
            if holder.beside is not None:
                other = there[holder.beside]
                assert (other.beside, other.gpus) == (holder.handle, holder.gpus)
                both = [PACKING.use[kinds[rows[one.handle]]] for one in (holder, other)]
                assert sum(use.memory_gib for use in both) <= 16
                speed = PACKING.speed(kinds[rows[holder.handle]], kinds[rows[holder.beside]])
            seconds = max(0.0, reading.to_s - max(reading.from_s, holder.work_from_s))
            worked_s[rows[holder.handle]] += seconds * speed
    if not document["outages"] or not prepared.scenario.preemption.lose_work:
        slower = run_setup.slowdowns(prepared.scenario, len(prepared.table), 0)
        whole_s = prepared.table.config_time_s * (slower if len(slower) else 1.0)
        np.testing.assert_allclose(worked_s, whole_s, atol=1e-6)


def _noting(original, readings):
    def noted(self, *, up_to_now=False):
        new = original(self, up_to_now=up_to_now)
        readings.extend(new)
        return new

    return noted


# -- what is refused


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"policies": [{"solver": "lucid", "limits": {"max_starts": 3}}]}, "policies.lucid.limits"),
        ({"policies": [{"solver": "lucid", "wait_for_price": {}}]}, "policies.lucid.wait_for_price"),
        ({"policies": [{"solver": "lucid", "power_limits": [0.7]}]}, "policies.lucid.power_limits"),
        ({"policies": [{"solver": "lucid", "fairness": {}}]}, "policies.lucid.fairness"),
        ({"capacity": {"policy": "always-on"}}, "policies.lucid.capacity"),
        ({"knowledge": "none"}, "policies.lucid.knowledge"),
        ({"electricity": {"power_cap_w": 500}}, "electricity.power_cap_w"),
        ({"qos": [{"name": "low"}, {"name": "high", "preempts": ["low"]}]}, "qos"),
        ({"workload": {"source": "sia"}, "nodes": []}, "workload.source"),
        ({"fractional": {"source": "law", "days": 1, "jobs_per_day": 5}}, "policies.lucid.solver"),
    ],
)
def test_what_does_not_know_of_shared_gpus_is_refused(more, field):
    with pytest.raises(InputError) as refused:
        validate({**scenario([job("a", 0, 10, "bert")]), **more}, Scenario)
    assert refused.value.field == field


def test_cpus_of_nodes_are_refused():
    document = scenario([job("a", 0, 10, "bert")])
    document["nodes"][0]["cpus"] = 8
    with pytest.raises(InputError, match="cpus or memory_gib of n"):
        validate(document, Scenario)


@pytest.mark.parametrize(
    ("kind", "gpu_type", "match"), [("", "V100", "a known class of models"), ("bert", "X", "memory")]
)
def test_jobs_and_gpus_of_which_nothing_is_known_are_refused(kind, gpu_type, match):
    document = scenario([{**job("a", 0, 10, kind, gpu_w=1), "times_s": {gpu_type: [10.0]}, "gpu_w": {}}])
    document["nodes"][0]["gpu_type"] = gpu_type
    with pytest.raises(InputError, match=match) as refused:
        prepare(validate(document, Scenario), Path(), 0)
    assert refused.value.field == "policies.lucid.solver"


# -- the figures


def test_the_law_without_tables(monkeypatch):
    monkeypatch.setenv(third_party.VARIABLE, "/nonexistent")
    packing = make_packing(["bert", "recommendation-b512", "a3c", "resnet18-b32"], ["V100", "A100", "odd"])
    assert packing.use == {kind: USE[name] for kind, name in (
        ("bert", "bert"), ("recommendation-b512", "recommendation"), ("resnet18-b32", "resnet18"),
    )}  # fmt: skip
    assert packing.gpu_memory_gib == {"V100": 16.0, "A100": 40.0}
    assert packing.speed("bert", "resnet18-b32") == pytest.approx(1 / (1 + SLOWDOWN * 0.997 * 0.807))


@pytest.mark.data
@pytest.mark.slow
def test_half_an_hour_of_a_real_log_by_the_tables():
    """Jobs of known classes are packed, at most two at a time, and all ends well."""
    if third_party.find("philly_jobs.csv.gz") is None:
        pytest.skip("no Philly log")
    document = {
        "workload": {"source": "philly", "begin": "2017-10-10", "days": 0.02},
        "interval_s": 86_400,
        "nodes": [{"name": "n", "count": 2, "gpu_type": "V100", "gpus": 8, "idle_w": 300, "gpu_w": 250}],
        "policies": [{"solver": "qssf"}, {"solver": "lucid"}],
    }
    results, (_, lucid) = run_seeds([prepare(validate(document, Scenario), Path(), 0)])
    alone, packed = results[0].policies
    assert not np.isnan(lucid.jobs.ended_s).any()
    assert "packed" in lucid.events.reason
    assert packed.preemptions == packed.migrations == 0
    assert packed.lower_bound_cost == alone.lower_bound_cost <= min(packed.total_cost, alone.total_cost)
    assert packed.mean_wait_s < alone.mean_wait_s
