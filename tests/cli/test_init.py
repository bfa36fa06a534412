"""``commonwatt init``: from what a cluster prints to a scenario that runs."""

from __future__ import annotations

import io
import sys

import pytest
import yaml

from tests.cli.console import run
from tests.data.test_inventory import KUBERNETES, QUERY, SCONTROL, SMI_TABLE
from tests.data.test_node_details import LISTED, TREE


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def installed(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("text", [SCONTROL, SMI_TABLE, KUBERNETES, QUERY], ids=["scontrol", "smi", "k8s", "h100"])
def test_what_is_written_can_be_simulated(text, tmp_path):
    (tmp_path / "said.txt").write_text(text)
    out = tmp_path / "cluster.yaml"
    done = run("init", "--from", tmp_path / "said.txt", "--out", out)
    assert (done.code, done.out) == (0, ""), done.err
    assert f"written: {out}, " in done.err
    ran = run("simulate", out, "--policy", "fifo", "--jobs", 1, "--json")
    assert ran.code == 0, ran.err
    nodes = yaml.safe_load(out.read_text())["nodes"]
    sizes = [s.get("count", 1) * (len(s["gpus"]) if isinstance(s["gpus"], dict) else 1) for s in nodes]
    assert ran.document["nodes"] == sum(sizes)


def test_what_is_written_passes_the_check_of_the_control_plane(tmp_path):
    pytest.importorskip("sqlalchemy")
    (tmp_path / "said.txt").write_text(SCONTROL)
    out = tmp_path / "cluster.yaml"
    assert run("init", "--from", tmp_path / "said.txt", "--out", out).code == 0
    written = yaml.safe_load(out.read_text())
    out.write_text(yaml.safe_dump({**written, "live": {**written.get("live", {}), "server": {"port": 0}}}))
    checked = run("check", out, "--json")
    assert checked.code == 0, checked.out + checked.err


def test_json_says_what_was_found_and_assumed(tmp_path):
    (tmp_path / "said.txt").write_text(QUERY)
    done = run("init", "--from", tmp_path / "said.txt", "--json")
    answer = done.document
    assert (answer["source"], answer["unknown_gpu_types"], answer["written"]) == ("nvidia-smi", [], None)
    (node,) = answer["nodes"]
    assert (node["gpus"], node["idle_w"], node["gpu_w"]) == (2, 340.0, 630.0)
    assert answer["notes"] == []


@pytest.mark.slow
def test_an_unknown_type_beside_another_gets_a_placeholder(tmp_path):
    (tmp_path / "said.txt").write_text("n1|gpu:flux9:4\nn2|gpu:t4:2\n")
    out = tmp_path / "cluster.yaml"
    done = run("init", "--from", tmp_path / "said.txt", "--out", out, "--json")
    assert done.document["unknown_gpu_types"] == ["flux9"]
    assert done.document["notes"][0] == "the speed of flux9 is not known: gpu_types.flux9.speed is a placeholder"
    assert "flux9: {speed: 1.0, relative_to: A100}" in out.read_text()
    assert run("simulate", out, "--policy", "fifo", "--jobs", 1, "--json").code == 0


def test_estimated_speeds_are_told(tmp_path):
    (tmp_path / "said.txt").write_text("n1|gpu:h100:4\nn2|gpu:v100:2\n")
    notes = run("init", "--from", tmp_path / "said.txt", "--json").document["notes"]
    assert notes == ["the speed of H100 is an estimate from data sheets; gpu_types can declare it"]


def test_a_node_with_two_types_is_one_entry(tmp_path):
    (tmp_path / "said.txt").write_text(SCONTROL)
    done = run("init", "--from", tmp_path / "said.txt")
    assert yaml.safe_load(done.out)["nodes"][1] == {
        "name": "gpu002", "gpus": {"A100": 4, "T4": 1}, "idle_w": 367, "gpu_w": {"A100": 360, "T4": 63},
    }  # fmt: skip
    assert "gpu002 has several GPU types (a100, t4): it stays on" in done.err
    assert "2 nodes with 13 GPUs from scontrol; left out 1 node without GPUs" in done.err


def test_a_file_that_is_there_stays_unless_asked(tmp_path):
    (tmp_path / "said.txt").write_text(SCONTROL)
    out = tmp_path / "cluster.yaml"
    out.write_text("mine")
    done = run("init", "--from", tmp_path / "said.txt", "--out", out)
    assert (done.code, out.read_text()) == (2, "mine")
    assert "error: field '--out': got " in done.err
    assert "expected a new file, or --overwrite" in done.err
    assert run("init", "--from", tmp_path / "said.txt", "--out", out, "--overwrite").code == 0
    assert "nodes:" in out.read_text()


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(SCONTROL))
    done = run("init", "--from", "-")
    assert done.code == 0, done.err
    assert [node["name"] for node in yaml.safe_load(done.out)["nodes"]] == ["gpu001", "gpu002"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert "standard input: got 'nothing', expected some content" in run("init", "--from", "-").err


def test_the_first_command_that_answers_is_asked(nothing_installed):
    installed(nothing_installed, "scontrol", "echo 'slurm_load_node error: no controller' >&2; exit 1")
    installed(nothing_installed, "nvidia-smi", "printf 'index, name, power.limit [W]\\n0, Tesla T4, 70.00 W\\n'")
    done = run("init")
    assert done.code == 0, done.err
    assert "scontrol: slurm_load_node error: no controller" in done.err
    assert yaml.safe_load(done.out)["nodes"][0]["gpu_type"] == "T4"


DOMAINS = {"n": "left/s0", "n-3": "left/s1", "n-4": "right/s2"}


def domains(done):
    assert done.code == 0, done.err
    return {node["name"]: node.get("domain") for node in yaml.safe_load(done.out)["nodes"]}


def test_scontrol_is_asked_where_nodes_are_in_the_network(nothing_installed):
    said = f"case $2 in node) printf '{LISTED}';; topology) printf '{TREE}';; esac"
    installed(nothing_installed, "scontrol", said)
    assert domains(run("init")) == DOMAINS


@pytest.mark.parametrize(
    "answer", ["echo 'No topology information available' >&2", "echo 'SwitchName=s0 Nodes=n-1'; exit 1"]
)
def test_a_slurm_that_does_not_say_has_no_domains(nothing_installed, answer):
    installed(nothing_installed, "scontrol", f"case $2 in node) printf '{LISTED}';; topology) {answer};; esac")
    done = run("init")
    assert set(domains(done).values()) == {None}
    assert "note" not in done.err


def test_both_outputs_of_scontrol_on_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(SCONTROL.replace("gpu001", "n-1").replace("gpu002", "n-3") + TREE))
    done = run("init", "--from", "-")
    assert domains(done) == {"n-1": "s0", "n-3": "s1"}
    assert "2 nodes with 13 GPUs from scontrol; left out 1 node without GPUs" in done.err


def test_near_is_for_kubernetes(tmp_path):
    (tmp_path / "nodes.txt").write_text(LISTED)
    for more in ((), ("--topology", "zone")):
        refused = run("init", "--from", tmp_path / "nodes.txt", "--near", "rack", *more)
        assert (refused.code, refused.out) == (2, "")
        assert (
            "field '--near': got 'rack', expected nodes of Kubernetes, which have labels; over Slurm, " in refused.err
        )
        assert "`scontrol show topology`" in refused.err


def test_without_any_command_it_says_what_to_give(nothing_installed):
    done = run("init")
    assert (done.code, done.out) == (2, "")
    given = "--from FILE with the output of one of them, or --from kubernetes"
    expected = f"scontrol, nvidia-smi or kubectl on this machine, {given}"
    assert done.err == f"error: expected {expected}\n"


def test_a_file_without_from_is_told_how(run):
    done = run("init", "nodes.txt")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: Got unexpected extra argument (nodes.txt): use --from nodes.txt; see ")


def test_cpus_and_memory_are_written_where_they_are_known(tmp_path):
    (tmp_path / "said.txt").write_text(
        "NodeName=a-[1-2] CPUEfctv=60 CPUTot=64 Gres=gpu:a100:8 RealMemory=515000 State=IDLE\n"
    )
    out = tmp_path / "cluster.yaml"
    assert run("init", "--from", tmp_path / "said.txt", "--out", out).code == 0
    (node,) = yaml.safe_load(out.read_text())["nodes"]
    assert (node["count"], node["cpus"], node["memory_gib"]) == (2, 60, 502.9)
