"""`commonwatt check` of a configuration for Slurm, against a real one."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.preflight_engines import power_saving
from commonwatt.model.errors import EngineDownError
from commonwatt.model.nodes import Cluster, NodeSpec
from tests.cli.console import run, write

from .site import until

V100 = {"gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 50}


@pytest.fixture
def check(site, tmp_path):
    def lines(nodes, slurm=(), **more):
        spec = {"conf": str(site.conf), "state": "state", **dict(slurm)}
        live = {"store": "live.db", "server": {"port": 0}, "slurm": spec}
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
    assert wrong["found"].startswith("node n-1: declared with 4 GPUs, has 2; node x: Slurm has no node")
    site.ask("scontrol", "update", "NodeName=n-2", "State=DRAIN", "Reason=test")
    assert "1 of 2 take no jobs now: n-2" in check([{"name": "n", "count": 2, **V100}])["node states"]["found"]
    planned = check([{"name": "n", "count": 2, **V100}], capacity={"policy": "cuff"})
    assert planned["power saving"]["verdict"] == "failed"  # the controller could not begin


def test_a_slurm_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    live = {"store": "live.db", "server": {"port": 0}}
    path = write(tmp_path / "live.yaml", {"engine": "slurm", "nodes": [{"name": "n", **V100}], "live": live})
    done = run("check", path, "--json")
    found = {line["what"]: line for line in done.document["checks"]}
    assert done.code == 1
    assert found["engine"]["found"].startswith("not installed here: sbatch, scancel")


def test_a_conf_that_is_no_file_is_named_at_once(check, tmp_path):
    line = check([{"name": "n", **V100}], {"conf": str(tmp_path / "none.conf")})["engine"]
    assert (line["verdict"], line["found"]) == ("failed", f"live.slurm.conf is no file: {tmp_path / 'none.conf'}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit jobs as other users")
def test_whether_files_can_be_given_to_owners_is_tried(check, monkeypatch):
    given = {"users": {"red": "games", "blue": "daemon"}}
    nodes, tenants = [{"name": "n", "count": 2, **V100}], [{"name": "red"}, {"name": "blue"}]
    lines = check(nodes, given, tenants=tenants)
    assert (lines["users"]["verdict"], lines["users"]["found"][:22]) == ("ok", "jobs are their owners'")

    def squashed(number, uid, gid):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.fchown", squashed)  # as NFS answers to root
    line = check(nodes, given, tenants=tenants)["users"]
    assert line["verdict"] == "failed"
    assert "cannot be given to user games: Operation not permitted" in line["found"]


class Said:
    """Client programs that say what they are told to."""

    def __init__(self, **settings):
        saving = {"SuspendProgram": "/s", "ResumeProgram": "/r", "SuspendTime": "31536000 sec"} | settings
        lines = "\n".join(f"{name:<24}= {value}" for name, value in saving.items())
        self.answers = {"scontrol": f"Configuration data as of 2026-11-22T10:48:05\n{lines}\n", "sinfo": "n-1\nn-1\n"}

    def run(self, program, *arguments):
        return self.answers[program]


@pytest.mark.parametrize(
    ("settings", "verdict", "found"),
    [
        ({}, "ok", "leaves these nodes on"),
        ({"SuspendTime": "INFINITE"}, "warning", "SuspendTime is INFINITE"),
        (
            {"SuspendTime": "NONE", "SuspendProgram": "(null)"},
            "warning",
            "SuspendProgram is not set, Suspend",
        ),
        ({"SuspendTime": "600 sec"}, "warning", "idle for 600 s, even those a plan keeps on: n-1, n-2"),
        ({"SuspendTime": "600 sec", "SuspendExcNodes": "n-[1-2],x"}, "ok", "leaves these nodes on"),
        ({"SuspendTime": "600 sec", "SuspendExcNodes": "n-[1-2]:1"}, "warning", "n-1, n-2"),
        ({"SuspendTime": "600 sec", "SuspendExcParts": "gpu"}, "warning", "plan keeps on: n-2"),
        ({"SuspendExcNodes": "n-[x]"}, "warning", ""),
    ],
)
def test_whether_a_plan_alone_decides_who_sleeps(settings, verdict, found):
    cluster = Cluster.of([NodeSpec(name="n", count=2, **V100)])
    (line,) = power_saving(Said(**settings), cluster)
    assert line.verdict == verdict
    assert found in line.found


def test_a_plan_that_slurm_would_refuse_to_carry_out_fails():
    cluster = Cluster.of([NodeSpec(name="n", count=2, **V100)])
    for settings in ({"SuspendProgram": "(null)"}, {"ResumeProgram": ""}, {"ResumeProgram": "", "SuspendTime": "NONE"}):
        (line,) = power_saving(Said(**settings), cluster, planned=True)
        assert line.verdict == "failed"
        assert "will refuse to put nodes to sleep" in line.found
    for idle in ("600 sec", "INFINITE"):  # a partition may have a time of its own
        (line,) = power_saving(Said(SuspendTime=idle), cluster, planned=True)
        assert line.verdict == "warning"


def test_power_saving_of_a_slurm_that_goes_away():
    class Gone:
        def run(self, *command):
            raise EngineDownError("no answer")

    (line,) = power_saving(Gone(), Cluster.of([NodeSpec(name="n", **V100)]))
    assert (line.verdict, line.found) == ("warning", "no answer")


@pytest.mark.long
def test_slurm_leaves_the_nodes_it_is_told_to_except_to_the_plan(check, site, slurm):
    """Which it puts to sleep, and wakes, when it is told to: others it puts to sleep itself."""
    nodes = [{"name": "n", "count": 2, **V100}]
    assert check(nodes, {"power": True})["power saving"]["verdict"] == "ok"
    text = site.conf.read_text()
    try:
        site.conf.write_text(text.replace("SuspendTime=31536000", "SuspendTime=3\nSuspendExcNodes=n-1"))
        site.ask("scontrol", "reconfigure")
        assert "a plan keeps on: n-2" in check(nodes, {"power": True})["power saving"]["found"]
        until(lambda: "powered_down" in site.states()["n-2"])
        assert site.states()["n-1"] == "idle"
        slurm.update_node("n-1", "POWER_DOWN")
        until(lambda: "powered_down" in site.states()["n-1"])
        until(lambda: site.pid("n-1") is None)
        site.wake("n-1")
    finally:
        site.conf.write_text(text)
        site.ask("scontrol", "reconfigure")
