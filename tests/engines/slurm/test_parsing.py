"""What Slurm says, in all the ways it says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.slurm.parsing import (
    SlurmJob,
    SlurmNode,
    jobs_of_json,
    jobs_of_text,
    nodes_of_json,
    nodes_of_text,
)
from commonwatt.engines.slurm.run import comment_of, run_of
from commonwatt.engines.slurm.settings import SlurmSettings, submission
from commonwatt.engines.slurm.snapshot import NodeUse, SlurmSnapshot
from commonwatt.model.errors import InputError

OLD_JOB = {"job_id": 7, "user_name": "ann", "job_state": "RUNNING", "cpus": 2, "state_reason": "None", "comment": "c d"}
NEW_JOB = {
    "job_id": 7, "user_name": "ann", "job_state": ["RUNNING"], "cpus": {"set": True, "infinite": False, "number": 2},
    "state_reason": "None", "comment": {"administrator": "", "job": "c d", "system": ""},
}  # fmt: skip
OLD_NODE = {
    "name": "a", "state": "mixed", "state_flags": ["DRAIN"], "gres": "gpu:v100:4(S:0-1)", "cpus": 16, "alloc_cpus": 3,
    "gres_used": "gpu:v100:2(IDX:0-1),shard:0", "features": "big,new",
}  # fmt: skip
NEW_NODE = {**OLD_NODE, "state": ["MIXED", "DRAIN"], "features": ["big", "new"]}
del NEW_NODE["state_flags"]


@pytest.mark.parametrize("raw", [OLD_JOB, NEW_JOB], ids=["22.05", "24.05"])
def test_jobs_are_read_from_the_json_of_any_version(raw):
    assert jobs_of_json(json.dumps({"errors": [], "jobs": [raw]})) == [SlurmJob(7, "ann", "RUNNING", 2, "None", "c d")]


def test_a_job_that_is_ending_is_not_over():
    (job,) = jobs_of_json(json.dumps({"jobs": [{**NEW_JOB, "job_state": ["CANCELLED", "COMPLETING"]}]}))
    assert not job.over
    assert not job.allocated


@pytest.mark.parametrize("raw", [OLD_NODE, NEW_NODE], ids=["22.05", "24.05"])
def test_nodes_are_read_from_the_json_of_any_version(raw):
    (node,) = nodes_of_json(json.dumps({"nodes": [raw], "warnings": [{"description": "x"}]}))
    assert node == SlurmNode("a", frozenset({"mixed", "drain"}), {"v100": 4}, {"v100": 2}, 16, 3, ("big", "new"))
    assert node.out


JOB_HEADER = "f00d|JOBID|USER|STATE|CPUS|REASON|COMMENT\n"
NODE_HEADER = "NODELIST|STATECOMPLETE|GRES|GRES_USED|CPUS(A/I/O/T)|AVAIL_FEATURES|\n"


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "slurm_load_jobs error\n", "f00d|8|bob|RUNNING|1|None|\n", JOB_HEADER.replace("f00d", "beef"),
        JOB_HEADER.strip(), JOB_HEADER + "f00d|8|bob|RUNN", JOB_HEADER + "f00d|8|bob|RUNNING\n",
        JOB_HEADER + "f00d|x|bob|RUNNING|1|None|\n", "warning: old\n" + JOB_HEADER,
    ],
)  # fmt: skip
def test_plain_output_that_cannot_be_read_is_no_empty_queue(text):
    with pytest.raises(ValueError, match=r"no list of jobs|no job"):
        jobs_of_text(text, "f00d")
    assert jobs_of_text(JOB_HEADER, "f00d") == []


@pytest.mark.parametrize("text", ["", "sinfo: error\n", NODE_HEADER.strip(), NODE_HEADER + "a|idle\n"])
def test_plain_output_that_cannot_be_read_is_no_cluster_without_nodes(text):
    with pytest.raises(ValueError, match=r"no list of nodes|no node"):
        nodes_of_text(text)
    assert nodes_of_text(NODE_HEADER) == []


def test_nodes_are_read_from_plain_output_once():
    line = "a|mixed+drain|gpu:v100:4(S:0-1)|gpu:v100:2(IDX:0-1),shard:0|3/13/0/16|big,new|\n"
    assert nodes_of_text(NODE_HEADER + 2 * line) == nodes_of_json(json.dumps({"nodes": [OLD_NODE]}))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"jobs": 3}', '{"jobs": [3]}', "slurm_load_jobs error",
        '{"errors": [{"description": "Failed while looking for jobs", "error_number": -1}], "jobs": []}',
    ],
)  # fmt: skip
def test_a_list_that_is_none_is_never_an_empty_one(text):
    """Without a controller, 22.05.8 prints an empty list with an error in it, and exits with 0."""
    with pytest.raises(ValueError, match=r"."):
        jobs_of_json(text)


@pytest.mark.slow
@given(st.text(max_size=60))
@example("\n9|ann|RUNNING|1|None|commonwatt me:1 5 1")
@example("\r\nab12|9|ann|RUNNING|1|None|commonwatt me:1 5 1")
def test_nobody_elses_comment_becomes_a_job_of_ours(comment):
    line = f"f00d|8|bob|RUNNING|1|None|{comment}\nf00d|9|ann|PENDING|2|Resources|commonwatt me:1 4 2\n"
    ours = [job for job in jobs_of_text(JOB_HEADER + line, "f00d") if job.user == "ann"]
    assert ours == [SlurmJob(9, "ann", "PENDING", 2, "Resources", "commonwatt me:1 4 2")]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", {"": 4}), ("gpu:a100:8(S:0-1)", {"a100": 8}), ("gpu:a100:4,gpu:t4:2", {"a100": 4, "t4": 2}),
        ("gpu:1g.5gb:7", {"1g.5gb": 7}), ("gpu:a100:1(IDX:0,2-3),gpu:t4:0(IDX:N/A)", {"a100": 1, "t4": 0}),
        ("(null)", {}), ("", {}), ("shard:8", {}), ("gpu:a100_3g.20gb:2", {"a100_3g.20gb": 2}), ("craynetwork:4", {}),
    ],
)  # fmt: skip
def test_gpus_of_a_gres(gres, gpus):
    assert nodes_of_json(json.dumps({"nodes": [{"name": "a", "gres": gres}]}))[0].gpus == gpus


@given(st.integers(0, 10**17), st.integers(1, 10**6))
def test_a_comment_says_whose_run_it_is(handle, attempt):
    assert run_of("me:1", comment_of("me:1", handle, attempt)) == (handle, attempt)
    assert run_of("you:1", comment_of("me:1", handle, attempt)) is None


@pytest.mark.parametrize(
    "comment", ["", "commonwatt me:1 1", "commonwatt me:1 1 2 3", "commonwatt me:1 -1 2", "commonwatt me:1 ² 1"]
)
def test_what_only_looks_like_ours_is_not(comment):
    assert run_of("me:1", comment) is None


NOTHING = NodeUse()


def usable(node: SlurmNode | None, held=NOTHING, before=None, cpus_per_gpu=1, gpus=4) -> int:
    sight = SlurmSnapshot(0.0, {} if node is None else {"a": node}, {})
    return sight.usable("a", "V100", gpus, held, cpus_per_gpu, before)


def node(*states: str, used=0, cpus=16, used_cpus=0, kind="v100") -> SlurmNode:
    return SlurmNode("a", frozenset(states), {kind: 4}, {kind: used}, cpus, used_cpus)


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        (4, usable(node("idle"))),
        (4, usable(node("idle", used=1))),  # what Slurm says for seconds after a restart of its controller
        (4, usable(node("idle"), gpus=8)),  # declared with more than there are
        (2, usable(node("idle"), gpus=2)),
        (1, usable(node("mixed", used=3))),  # of others
        (3, usable(node("mixed", used=3), NodeUse(2))),  # two of the three are ours
        (4, usable(node("mixed", used=0), NodeUse(2))),  # Slurm has taken ours back already
        (0, usable(node("allocated", used=0, used_cpus=16))),  # others use all its CPUs
        (2, usable(node("mixed", used=2, used_cpus=16), NodeUse(2, 2))),
        (1, usable(node("mixed", used_cpus=12), cpus_per_gpu=4)),
        (0, usable(node("idle", "drain"))),
        (0, usable(node("mixed", "drain", used=2))),
        (2, usable(node("mixed", "drain", used=3), NodeUse(2))),  # draining: what runs there may end there
        (0, usable(node("unknown", "drain"), before=4)),
        (0, usable(node("down", "not_responding"))),
        (2, usable(node("mixed", "not_responding", used=2), NodeUse(2))),  # what runs there goes on, for now
        (3, usable(node("unknown"), before=3)),  # the controller has just been started
        (0, usable(node("unknown"))),
        (4, usable(node("idle", "powered_down"))),
        (4, usable(node("idle", "not_responding", "powering_up"))),
        (0, usable(node("idle", "maint"))),
        (0, usable(node("idle", "completing"))),  # whatever others had there, Slurm gives none of it yet
        (4, usable(node("idle", "completing"), NodeUse(completing_gpus=1))),  # of which our job that leaves has one
        (3, usable(node("mixed", "completing", used=1))),
        (1, usable(node("idle", "completing", "drain"), NodeUse(completing_gpus=1))),
        (0, usable(None)),
        (3, usable(node("mixed", used=1, kind=""))),  # Slurm knows no types
    ],
)  # fmt: skip
def test_gpus_that_are_ours_to_use(expected, seen):
    assert seen == expected


def test_gpus_of_another_type_on_the_same_node_are_not_meant():
    mixed = SlurmNode("a", frozenset({"mixed"}), {"V100": 2, "t4": 4}, {"V100": 0, "t4": 3}, 16, 3)
    assert usable(mixed) == 2
    assert mixed.type_for("V100") == "V100"


def test_a_submission_is_made_of_arguments():
    order = RunSpec(3, 2, "a\nb; rm -rf /", (0, 1), 2, ((), ()), 0.0, 0.0, ("x",), "/", {}, 5.0, limit_s=100.0)
    settings = SlurmSettings(options=("--partition=gpu",), cpus_per_gpu=4)
    options = submission(settings, order, ["a", "b"], "v100", Path("/s/100%"), "commonwatt me 3 2")
    assert options[0] == "--partition=gpu"
    assert {
        "--nodes=2", "--nodelist=a,b", "--gres=gpu:v100:2", "--cpus-per-task=8", "--no-requeue", "--time=3",
        "--comment=commonwatt me 3 2", "--job-name=a b; rm -rf /", "--output=/s/100%%/slurm-%j.log",
    } <= set(options)  # fmt: skip
    assert all(option.startswith("--") for option in options)
    assert "ALL" not in "".join(option for option in options if option.startswith("--export"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"options": ("rm",)}, {"options": ("--",)}, {"python": "python3"}, {"python": "/a b"}, {"cpus_per_gpu": 0},
        {"cluster_id": "a b"}, {"cluster_id": ""},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        SlurmSettings(**wrong)
