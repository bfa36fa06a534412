"""Partitions: jobs run on nodes of theirs, from the log or the list of jobs to the study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.files import validate
from commonwatt.data.fitting import UNFIT, UNKNOWN_PARTITION
from commonwatt.data.inventory import read_inventory
from commonwatt.data.malleable import APART
from commonwatt.data.readers import read_log
from commonwatt.data.scenario_draft import drafted_nodes
from commonwatt.engines.slurm.parsing import host_names
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from commonwatt.model.study_file import StudyFile
from commonwatt.simulation.workload import prepare
from commonwatt.studies.draft import DraftOptions, load_study
from commonwatt.studies.run import plan_study, run_study
from commonwatt.studies.summary import study_result
from tests.simulation.made import SOLVERS, node, run

NODES = [node("a", count=2, partitions=["left"]), node("b", partitions=["right", "long"])]


def scenario(jobs, nodes=NODES, solver="easy", **more):
    listed = [{"name": f"j{i}", "times_s": {"V100": {2: 1000}}, "submit_s": 0.0, **own} for i, own in enumerate(jobs)]
    document = {"workload": {"source": "jobs", "jobs": listed}, "nodes": nodes, "policies": [{"solver": solver}]}
    return prepare(validate(document | more, Scenario), Path(), 0)


def places(problem):
    _, record = run(problem)
    names = record.cluster.names
    return {
        record.jobs.name[job]: names[at]
        for job, at in zip(record.segments.job.tolist(), record.segments.node.tolist(), strict=True)
    }, record


@pytest.mark.parametrize("solver", SOLVERS)
def test_jobs_wait_for_their_own_nodes(solver):
    problem = scenario([{"partition": "right"}, {"partition": "long"}, {"partition": "left"}], solver=solver)
    there, record = places(problem)
    assert there["j0"] == there["j1"] == "b"
    assert there["j2"].startswith("a-")
    assert record.result.makespan_s == pytest.approx(2000)
    assert problem.lower_bound() <= record.result.total_cost


@pytest.mark.parametrize("solver", SOLVERS)
def test_jobs_wait_for_nodes_with_their_features(solver):
    nodes = [node("a", count=2), node("b", features=["ib", "new"]), node("c", features=["ib"])]
    jobs = [{"constraint": "ib&new"}, {"constraint": "[new|newer]"}, {"constraint": "ib"}, {}]
    problem = scenario(jobs, nodes=nodes, solver=solver)
    there, record = places(problem)
    assert there["j0"] == there["j1"] == "b"
    assert there["j2"] in "bc"
    assert problem.lower_bound() <= record.result.total_cost


def test_features_that_no_node_has_are_refused():
    with pytest.raises(InputError, match=r"jobs\.j0"):
        scenario([{"constraint": "ib"}])


def test_of_several_partitions_any_will_do():
    there, record = places(scenario([{"partition": "left,right"}] * 3))
    assert sorted(there.values()) == ["a-1", "a-2", "b"]
    assert record.result.makespan_s == pytest.approx(1000)


def test_a_job_without_one_and_a_node_without_any_take_what_comes():
    there, _ = places(scenario([{}, {}, {}]))
    assert sorted(there.values()) == ["a-1", "a-2", "b"]
    there, _ = places(scenario([{"partition": "left"}] * 3, nodes=[node("c", count=3)]))
    assert sorted(there.values()) == ["c-1", "c-2", "c-3"]


def test_a_mistyped_partition_is_named():
    with pytest.raises(InputError, match=r"jobs\.j0\.partition.*'lft'|'lft'.*left") as error:
        scenario([{"partition": "lft"}])
    assert "did you mean" in str(error.value)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.sampled_from(["", "left", "right", "long", "left,long"]), min_size=1, max_size=8))
def test_no_job_ever_runs_outside(partitions):
    there, record = places(scenario([{"partition": name} for name in partitions], solver="lookahead"))
    own = {"left": "a", "right": "b", "long": "b"}
    for i, text in enumerate(partitions):
        allowed = {own[name] for name in text.split(",")} if text else {"a", "b"}
        assert there[f"j{i}"][0] in allowed
    assert record.result.jobs == len(partitions)


def test_nodes_of_other_partitions_are_drafted_apart():
    text = "".join(
        f"NodeName=n-{i} Gres=gpu:v100:4 State=IDLE Partitions={'gpu,long' if i > 2 else 'gpu'}\n" for i in range(1, 5)
    )
    drafted = drafted_nodes(read_inventory(text, host_names).nodes)
    assert [(n.name, n.count, n.partitions) for n in drafted] == [
        ("n", 2, ("gpu",)), ("n-3", 1, ("gpu", "long")), ("n-4", 1, ("gpu", "long")),
    ]  # fmt: skip


ROW = "{i}|team|2026-09-07T0{h}:00:00|2026-09-07T0{h}:00:00|02:00:00|03:00:00|COMPLETED|gres/gpu={g}|{p}|{e}\n"
HEAD = "JobID|Account|Submit|Start|Elapsed|Timelimit|State|AllocTRES|Partition|ConsumedEnergyRaw\n"
HOSTS = (
    "NodeName=n-1 Gres=gpu:v100:4 State=IDLE Partitions=day\nNodeName=m-1 Gres=gpu:v100:4 State=IDLE Partitions=night\n"
)


@pytest.fixture
def log(tmp_path):
    rows = [
        ("day", 4, 0),
        ("day", 4, 7_200_000),
        ("night", 2, 3_600_000),
        ("gone", 2, 18446744073709551614),
        ("day", 8, 0),
    ]
    path = tmp_path / "jobs.txt"
    path.write_text(HEAD + "".join(ROW.format(i=100 + i, h=i, g=g, p=p, e=e) for i, (p, g, e) in enumerate(rows)))
    (tmp_path / "nodes.txt").write_text(HOSTS)
    return path


def test_slurm_tells_partitions_and_energy(log):
    read = read_log("slurm", log)
    assert read.partition == ("day", "day", "night", "gone", "day")
    assert [e if e == e else None for e in read.energy_j.tolist()] == [None, 7_200_000, 3_600_000, None, None]


def study(log, **changes):
    file, folder = load_study(log, DraftOptions(nodes=log.parent / "nodes.txt", days=0.5))
    plan = plan_study(validate(file.model_dump() | changes, StudyFile), folder, 0)
    return plan, study_result(plan, run_study(plan))


@pytest.mark.slow
def test_a_study_keeps_jobs_in_their_partitions_and_says_what_one_pool_would_bring(log):
    plan, result = study(log, alternatives=[], steps=["planning", "one-pool"])
    assert result.about.treatments[UNKNOWN_PARTITION] == 1
    assert result.about.treatments[UNFIT] == 1  # 8 GPUs are in no partition
    assert result.about.jobs == 4
    today, pooled = (plan.prepared[plan.runs[r, 0, 0]].table for r in (0, len(plan.rows) - 1))
    assert today.partition == ("day", "day", "night", "")
    assert pooled.partition == ()
    assert replace(pooled, partition=today.partition).kinds == today.kinds  # nothing else is drawn anew
    steps = {step.step: step for step in result.waterfall}
    assert steps["one-pool"].longest_wait_s == 0.0 < steps["as today"].longest_wait_s == 3600.0
    nodes = next(one for one in result.assumptions if one.what == "Nodes of jobs")
    assert nodes.value == "those of the partition the log names"


@pytest.mark.slow
def test_a_type_that_only_other_partitions_have_is_counted(log):
    (log.parent / "nodes.txt").write_text(HOSTS.replace("m-1 Gres=gpu:v100", "m-1 Gres=gpu:a100"))
    log.write_text(log.read_text().replace("gres/gpu=2|night", "gres/gpu=2,gres/gpu:v100=2|night"))
    _, result = study(log, alternatives=[], steps=["planning"])
    assert result.about.treatments[APART] == 1
    types = next(one for one in result.assumptions if one.what == "GPU type of jobs")
    assert "1 job ran on a type that no node of their partition has" in types.value


def test_one_pool_is_drafted_where_partitions_differ(log):
    file, _ = load_study(log, DraftOptions(nodes=log.parent / "nodes.txt"))
    assert file.steps[-1] == "one-pool"
    (log.parent / "nodes.txt").write_text(HOSTS.replace("night", "day"))
    file, _ = load_study(log, DraftOptions(nodes=log.parent / "nodes.txt"))
    assert "one-pool" not in file.steps


def test_the_energy_of_the_log_stands_beside_the_models(log):
    _, result = study(log, alternatives=[], steps=["planning"])
    energy = result.about.energy
    assert energy.jobs == 2
    assert energy.logged_kwh == pytest.approx(3.0)
    assert energy.modelled_kwh > 0
    assert any("has the energy of 2 jobs: 3.0 kWh" in note for note in result.notes)
    log.write_text(log.read_text().replace("7200000", "0").replace("3600000", "0"))
    assert study(log, alternatives=[], steps=["planning"])[1].about.energy is None
