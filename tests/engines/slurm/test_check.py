"""`commonwatt check` of a configuration for Slurm, against a real one."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from tests.cli.console import run, write

V100 = {"gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 50}


@pytest.fixture
def check(site, tmp_path):
    def lines(nodes, **more):
        live = {"store": "live.db", "server": {"port": 0}, "slurm": {"conf": str(site.conf), "state": "state"}}
        path = write(tmp_path / "live.yaml", {"engine": "slurm", "nodes": nodes, "live": live, **more})
        return {line["what"]: line for line in run("check", path, "--json").document["checks"]}

    return lines


def test_slurm_is_asked_what_nodes_it_has(check, site):
    lines = check([{"name": "n", "count": 2, **V100}])
    assert lines["engine"]["verdict"] == "ok"
    assert lines["engine"]["found"].startswith("slurm")
    assert "3 nodes" in lines["engine"]["found"]
    assert (lines["nodes"]["verdict"], lines["nodes"]["found"]) == ("warning", "node spare: not declared")
    assert "node states" not in lines
    wrong = check([{"name": "n-1", **V100 | {"gpus": 4}}, {"name": "x", **V100}])["nodes"]
    assert wrong["verdict"] == "failed"
    assert wrong["found"].startswith("node n-1: declared with 4 GPUs, has 2; node x: Slurm knows no node")
    site.ask("scontrol", "update", "NodeName=n-2", "State=DRAIN", "Reason=test")
    assert "1 of 2 take no jobs now: n-2" in check([{"name": "n", "count": 2, **V100}])["node states"]["found"]
    assert "power saving" in check([{"name": "n", "count": 2, **V100}], capacity={"policy": "cuff"})


def test_a_slurm_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    live = {"store": "live.db", "server": {"port": 0}}
    path = write(tmp_path / "live.yaml", {"engine": "slurm", "nodes": [{"name": "n", **V100}], "live": live})
    done = run("check", path, "--json")
    found = {line["what"]: line for line in done.document["checks"]}
    assert done.code == 1
    assert found["engine"]["found"].startswith("not installed here: sbatch, scancel")
