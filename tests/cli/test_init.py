"""``commonwatt init``: from what a cluster prints to a scenario that runs."""

from __future__ import annotations

import io
import sys

import pytest
import yaml

from tests.cli.console import run
from tests.data.test_inventory import KUBERNETES, QUERY, SCONTROL, SMI_TABLE


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def installed(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("text", [SCONTROL, SMI_TABLE, KUBERNETES, QUERY], ids=["scontrol", "smi", "k8s", "unknown"])
def test_what_is_written_can_be_simulated(text, tmp_path):
    (tmp_path / "said.txt").write_text(text)
    out = tmp_path / "cluster.yaml"
    done = run("init", "--from", tmp_path / "said.txt", "--out", out)
    assert (done.code, done.out) == (0, ""), done.err
    assert f"written: {out}, " in done.err
    ran = run("simulate", out, "--policy", "fifo", "--jobs", 1, "--json")
    assert ran.code == 0, ran.err
    assert ran.document["nodes"] == len(
        [n for s in yaml.safe_load(out.read_text())["nodes"] for n in range(s.get("count", 1))]
    )


def test_what_is_written_passes_the_check_of_the_control_plane(tmp_path):
    pytest.importorskip("sqlalchemy")
    (tmp_path / "said.txt").write_text(SCONTROL)
    out = tmp_path / "cluster.yaml"
    assert run("init", "--from", tmp_path / "said.txt", "--out", out).code == 0
    checked = run("check", out, "--json")
    assert checked.code == 0, checked.out + checked.err


def test_json_says_what_was_found_and_assumed(tmp_path):
    (tmp_path / "said.txt").write_text(QUERY)
    done = run("init", "--from", tmp_path / "said.txt", "--json")
    answer = done.document
    assert (answer["source"], answer["unknown_gpu_types"], answer["written"]) == ("nvidia-smi", ["H100"], None)
    (node,) = answer["nodes"]
    assert (node["gpus"], node["idle_w"], node["gpu_w"]) == (2, 340.0, 630.0)
    assert "the speed of H100 is not known" in answer["notes"][0]
    assert "times_s.H100" in done.err


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


def test_without_any_command_it_says_what_to_give(nothing_installed):
    done = run("init")
    assert (done.code, done.out) == (2, "")
    expected = "scontrol, nvidia-smi or kubectl on this machine, or --from FILE with the output of one of them"
    assert done.err == f"error: expected {expected}\n"
