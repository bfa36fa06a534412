"""Rounds, restart costs and hosts, as published simulators have them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.controller import Controller
from commonwatt.control.usage import ServiceTimes
from commonwatt.data import third_party
from commonwatt.data.files import validate
from commonwatt.engines.simulated.events import HostGpus
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.workload import prepare

NODE = {"name": "n", "gpu_type": "V100", "gpus": 1, "idle_w": 0, "gpu_w": 100}
FREE = {"restart_s": 0, "lose_work": False}


def finished(document: dict, folder: Path = Path()) -> Controller:
    p = prepare(validate(document, Scenario), folder, 0)
    return run_policy(p.scenario, p.scenario.policies[0], p.cluster, p.table, 0, hosts=p.hosts).controller


def ends(controller: Controller) -> dict[str, float]:
    return dict(zip(controller.registry.names, controller.registry.job("ended_s").tolist(), strict=True))


def listed(jobs, policy=None, **more) -> dict:
    """One GPU; *jobs*: submission, run time and more."""
    rows = [
        {"name": f"j{i}", "submit_s": s, "times_s": {"V100": [t]}, "requested_gpus": 1, **extra}
        for i, (s, t, extra) in enumerate(jobs)
    ]
    base = {"nodes": [NODE], "workload": {"source": "jobs", "jobs": rows}, "preemption": FREE}
    return base | {"rounds": {"length_s": 360}, "policies": [policy or {"solver": "fifo"}]} | more


def test_decisions_wait_for_the_round_and_freed_gpus_too():
    jobs = [(0, 100, {}), (10, 100, {}), (720, 50, {})]
    # j0 at 360, although it came at 0; j1 at 720, although the GPU is free at 460; j2 at the next, not at its own 720
    assert ends(finished(listed(jobs))) == {"j0": 460.0, "j1": 820.0, "j2": 1130.0}
    assert ends(finished(listed(jobs, rounds=None))) == {"j0": 100.0, "j1": 200.0, "j2": 770.0}


def test_a_policy_may_have_its_own_rounds():
    jobs = [(10, 100, {})]
    assert ends(finished(listed(jobs, {"solver": "fifo", "rounds": {"length_s": 60}}))) == {"j0": 160.0}


def test_a_round_begins_anew_after_an_empty_cluster():
    assert ends(finished(listed([(10, 100, {}), (5000, 100, {})]))) == {"j0": 460.0, "j1": 5140.0}


def test_the_first_start_may_cost_a_restart_and_jobs_have_their_own():
    jobs = [(0, 100, {}), (0, 100, {"restart_s": 7})]
    first = {"preemption": {"restart_s": 30, "lose_work": False, "first_start": True}}
    assert ends(finished(listed(jobs, **first))) == {"j0": 490.0, "j1": 827.0}
    assert ends(finished(listed(jobs))) == {"j0": 460.0, "j1": 820.0}


def test_gavel_takes_turns_by_round():
    """Two equal jobs on one GPU: each has every other round, until the first has had its 720 s."""
    run = finished(listed([(0, 720, {}), (0, 720, {})], {"solver": "gavel"}))
    assert ends(run) == {"j0": 1440.0, "j1": 1800.0}
    assert run.registry.job("starts").tolist() == [2, 2]


def test_las_needs_no_rounds():
    """The second job comes when the first has left the first queue."""
    policy = {"solver": "las", "queues_gpu_s": [100]}
    run = finished(listed([(0, 500, {}), (200, 50, {})], policy, rounds=None))
    assert ends(run) == {"j0": 550.0, "j1": 250.0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"policies": [{"solver": "gavel"}], "rounds": None},
            "field 'policies.gavel.rounds': got 'none', expected rounds",
        ),
        ({"policies": [{"solver": "themis"}], "knowledge": "none"}, "field 'policies.themis.knowledge': got 'none'"),
        ({"policies": [{"solver": "qssf", "knowledge": "none"}]}, "field 'policies.qssf.knowledge': got 'none'"),
        ({"policies": [{"solver": "las"}], "preemption": {"allowed": False}}, "policies.las.preemption.allowed"),
        (
            {"policies": [{"solver": "gavel", "objective": "max-sum"}], "knowledge": "predicted"},
            "field 'policies.gavel.knowledge': got 'predicted', expected oracle",
        ),
        ({"policies": [{"solver": "gavel", "objective": "max-sum"}]}, "policies.gavel.objective"),
        ({"rounds": {"length_s": 0}}, "rounds.length_s"),
        ({"policies": [{"solver": "las", "queues_gpu_s": [900, 300]}]}, "queues_gpu_s': got '300 after 900', expected"),
        (
            {"policies": [{"solver": "gavel"}], "preemption": {"restart_s": 360, "lose_work": False}},
            "field 'policies.gavel.rounds.length_s': got '360.0', expected more than the longest restart, 360 s",
        ),
        (
            {"policies": [{"solver": "themis"}], "preemption": {"restart_s": 0}},
            "field 'policies.themis.preemption.lose_work': got 'true', expected false",
        ),
    ],
)
def test_a_policy_on_a_workload_it_is_not_defined_for_is_an_error(change, said):
    with pytest.raises(InputError) as error:
        finished(listed([(0, 100, {})]) | change)
    assert said in str(error.value)


def test_a_rigid_scheduler_refuses_malleable_jobs():
    document = listed([(0, 100, {})], {"solver": "las"})
    document["nodes"][0] = NODE | {"gpus": 2}
    document["workload"]["jobs"][0] |= {"times_s": {"V100": [100, 60]}, "requested_gpus": 0}
    with pytest.raises(InputError, match=r"policies.las.solver.*j0.*does not resize|does not resize.*j0"):
        finished(document)
    document["workload"]["jobs"][0] |= {"times_s": {"V100": [100, 60]}, "requested_gpus": 3}
    with pytest.raises(InputError, match=r"policies.las.solver.*got 'j0, which asks for 3, more than it can have here"):
        finished(document)


@st.composite
def crowds(draw: st.DrawFn) -> dict:
    """Jobs of fixed size on two types of nodes, some of them gangs, in rounds or not, with limits or not."""
    rows, submit_s = [], 0.0
    for i in range(draw(st.integers(1, 8))):
        submit_s += draw(st.sampled_from([0.0, 40.0, 700.0]))
        gpus, alone_s = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.integers(1, 20)) * 100.0
        times = {t: {gpus: alone_s * f} for t, f in (("V100", 1.0), ("T4", 2.5)) if gpus <= 4 or t == "V100"}
        row = {"name": f"j{i}", "submit_s": submit_s, "times_s": times, "iterations": 100, "epochs": 4}
        rows.append(row | draw(st.sampled_from([{}, {"restart_s": 15.0}])))
    nodes = [NODE | {"name": "v", "count": 2, "gpus": 4}, NODE | {"name": "t", "count": 4, "gpus": 1, "gpu_type": "T4"}]
    objectives = ("max-min", "min-jct", "makespan", "max-sum", "fifo")
    policies = [{"solver": solver, "queues_gpu_s": [300, 900]} for solver in ("las", "themis", "qssf", "completion")]
    policies += [{"solver": "gavel", "objective": objective} for objective in objectives]
    policy = draw(st.sampled_from(policies))
    limits = draw(st.sampled_from([None, {"reserve_after_s": 600, "max_starts": 3, "min_run_s": 60}]))
    needs = policy["solver"] in ("gavel", "themis")
    length_s = draw(st.sampled_from([120, 360] if needs else [None, 120, 360]))
    return {
        "nodes": nodes, "workload": {"source": "jobs", "jobs": rows}, "policies": [policy | {"limits": limits}],
        "rounds": length_s and {"length_s": length_s},
        "preemption": {"restart_s": 30, "lose_work": False, "first_start": draw(st.booleans())},
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(crowds())
def test_every_job_ends_its_energy_is_accounted_for_and_starts_are_at_rounds(document):
    run = finished(document)
    registry, ledger = run.registry, run.ledger
    assert all(end_s > 0 for end_s in ends(run).values())
    rows = [*ledger.jobs.values(), ledger.idle, *ledger.overhead.values()]
    assert sum(row.energy_uj for row in rows) == ledger.meter.energy_uj
    if document["rounds"]:
        began_s = registry.job("began_s")
        assert (began_s % document["rounds"]["length_s"] == 0).all()
        assert (began_s > 0).all()
    if document["policies"][0]["limits"]:
        assert (registry.job("starts") <= 3).all()
    assert ends(finished(document)) == ends(run)


# -- what jobs received


def test_service_times_count_until_the_next_decision_and_outlive_the_controller():
    run = finished(listed([(0, 100, {}), (0, 500, {})], {"solver": "las"}))
    service, registry = run.service, run.registry
    had = service.received(np.array([0, 1]), 1440.0)
    # j0 ended at 460 and held the round; j1 ran from 720 to 1220, when the cluster was empty
    assert had.job_s[:, 0].tolist() == [360.0, 500.0]
    assert had.class_s.sum() == had.job_s.sum()
    assert had.jobs == 2
    registry.active.add(1)  # as if it had not ended
    left = json.loads(json.dumps(service.by_name()))
    again = ServiceTimes(registry, 1440.0)
    again.resume(left, {"j1": 1})
    assert again.received(np.array([1]), 1440.0).job_s[0, 0] == had.job_s[1, 0]
    assert again.received(np.array([1]), 1440.0).class_s.tolist() == had.class_s.tolist()


# -- hosts


def test_larger_jobs_take_the_first_gpus_and_others_move():
    gpus = HostGpus((4, 4, 4))
    assert gpus.enter({0: 2}) == []
    assert gpus.counts(0) == (2,)
    assert gpus.enter({1: 4}) == []  # on GPUs 0 to 3: job 0 goes to another host, with 2 GPUs on one as before
    assert (gpus.counts(0), gpus.counts(1)) == ((2,), (4,))
    assert gpus.enter({2: 3}) == [0]  # on GPUs 4 to 6: job 0 now has GPUs 7 and 8
    assert (gpus.counts(0), gpus.counts(2)) == ((1, 1), (3,))
    gpus.leave(2)
    assert gpus.enter({3: 2}) == []  # job 0 keeps what it has
    assert gpus.counts(3) == (2,)


def small_folder(folder: Path, workload: str = "") -> Path:
    """A cluster of one type, three hosts of four GPUs, in the layout of the reference folder."""
    cluster = {
        "gpu_types": [{"cluster": "aws", "gpu": "T4", "nodes": 3, "gpus_per_node": 4}], "restart_s": {"app": 50}
    }  # fmt: skip
    rates = ["application,batch_size,num_gpus,cluster,placement,kind,iteration_time_s,run_time_s"]
    rates += [
        "app,8,2,aws,2,compact,2,1000", "app,8,2,aws,1 1,seen in results,2.4,1200", "app,8,4,aws,4,compact,1,2000",
        "app,8,3,aws,3,compact,1,2000", "app,8,3,dgx,3,compact,1,2000",
    ]  # fmt: skip
    jobs = ["name,application,submission_s,num_gpus,batch_size"]
    jobs += workload.split("|") if workload else ["j0,app,0,2,8", "j1,app,400,4,8", "j2,app,400,3,8"]
    (folder / "throughput").mkdir()
    (folder / "workloads").mkdir()
    (folder / "cluster.json").write_text(json.dumps(cluster))
    (folder / "throughput" / "rigid_rates.csv").write_text("\n".join(rates))
    (folder / "workloads" / "core-1.csv").write_text("\n".join(jobs))
    return folder


def sia(**more) -> dict:
    rules = {"restart_s": 60, "lose_work": False, "first_start": True}
    policy = {"solver": "gavel", "objective": "fifo"}
    workload = {"source": "sia", "path": "."} | more
    return {"workload": workload, "rounds": {"length_s": 360}, "preemption": rules, "policies": [policy]}


def test_a_job_whose_gpus_per_host_change_starts_again_at_another_speed(tmp_path):
    run = finished(sia(), small_folder(tmp_path))
    # j0 works from 410; at 720 the larger jobs take its GPUs: 50 s later it has one GPU on each of two hosts
    left = 1 - (720 - 410) / 1000
    assert ends(run)["j0"] == pytest.approx(720 + 50 + left * 1200)
    assert ends(run)["j1"] == 720 + 50 + 2000
    assert run.registry.job("starts").tolist() == [1, 1, 1]  # the scheduler sees nothing of it


@pytest.mark.parametrize(
    ("workload", "more", "said"),
    [
        ("j0,app,0,5,8", {}, "rigid_rates.csv"),
        ("j0,app,never,2,8", {}, "submission_s"),
        ("j0,app,0,2,8|j0,app,0,2,8", {}, "distinct job names"),
        ("", {"path": "elsewhere"}, "a folder with cluster.json"),
        ("", {"workload": "core-9"}, "core-9.csv"),
    ],
)
def test_what_is_wrong_in_the_folder_is_named(tmp_path, workload, more, said):
    with pytest.raises(InputError) as error:
        finished(sia(**more), small_folder(tmp_path, workload))
    assert said in str(error.value)


def test_the_workload_brings_its_nodes():
    with pytest.raises(InputError, match="workload sia defines its nodes"):
        validate(sia() | {"nodes": [NODE]}, Scenario)


# -- the reference results


def reference(policy: str, workload: str) -> dict[str, float]:
    folder = third_party.peer_folder("sia")
    if folder is None:
        pytest.skip("no reference results: set COMMONWATT_DATA")
    lines = (folder / "results" / f"{policy}-{workload}.csv").read_text().splitlines()
    name, jct = (lines[0].split(",").index(column) for column in ("name", "jct_s"))
    return {cells[name]: float(cells[jct]) for cells in (line.split(",") for line in lines[1:])}


@pytest.mark.long
@pytest.mark.data
@pytest.mark.parametrize("workload", ["core-1", "core-3"])
@pytest.mark.parametrize(
    ("policy", "most"),
    [
        ({"solver": "gavel", "objective": "fifo", "name": "fifo"}, 0.01),
        ({"solver": "gavel", "objective": "max-sum", "name": "gavel"}, 0.1),
        ({"solver": "gavel", "objective": "max-min", "name": "las"}, 0.1),
        ({"solver": "themis", "name": "themis"}, 0.1),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_peers_come_near_the_reference(policy, most, workload):
    theirs = reference(policy["name"], workload)
    document = sia(workload=workload) | {"policies": [policy]}
    del document["workload"]["path"]
    run = finished(document)
    submitted = dict(zip(run.registry.names, run.registry.job("submit_s").tolist(), strict=True))
    ours = {name: end_s - submitted[name] for name, end_s in ends(run).items()}
    assert ours.keys() == theirs.keys()
    for of in (np.mean, np.median):
        assert of(list(ours.values())) == pytest.approx(of(list(theirs.values())), rel=most)


@pytest.mark.long
@pytest.mark.data
@pytest.mark.parametrize("workload", ["core-1", "core-3"])
def test_ours_ends_earlier_under_the_same_rules(workload):
    """With known run times at most .85 of the best mean, with unknown ones no worse than LAS; p99 no worse either."""
    theirs = {name: sorted(reference(name, workload).values()) for name in ("fifo", "las", "gavel", "themis")}

    def jct_s(policy: dict) -> list[float]:
        document = sia(workload=workload) | {"policies": [policy]}
        del document["workload"]["path"]
        run = finished(document)
        return sorted((run.registry.job("ended_s") - run.registry.job("submit_s")).tolist())

    def p99(values: list[float]) -> float:
        return values[int(0.99 * len(values))]

    known = jct_s({"solver": "completion"})
    assert np.mean(known) <= 0.85 * min(np.mean(values) for values in theirs.values())
    assert p99(known) <= min(p99(values) for values in theirs.values())
    unknown = jct_s({"solver": "completion", "knowledge": "none", "limits": {"min_run_s": 1200}})
    assert np.mean(unknown) <= np.mean(theirs["las"])
    assert p99(unknown) <= p99(theirs["las"])
