"""Power that Slurm measures: of what it prints, and of a real Slurm whose nodes have counters."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from commonwatt.control.engine import MeterMark
from commonwatt.controlplane.wiring import read_config
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.connect import open_slurm
from commonwatt.engines.slurm.node_control import NodeMeter, node_draw
from commonwatt.engines.slurm.parsing import NodeDraw, node_draws
from commonwatt.model.errors import EngineDownError
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from tests.cli.console import run
from tests.controlplane.chaos import config_in

from .conftest import started
from .site import NODES, Site, until

OFF = PowerState(name="off", power_w=5, enter_s=1, wake_s=1)
CLUSTER = Cluster.of([NodeSpec(name="n", count=3, gpu_type="V100", gpus=2, idle_w=100, gpu_w=200, states=(OFF,))])


def line(name, state="IDLE", watts="0", used="gpu:v100:0", reason=""):
    return f"NodeName={name} Gres=gpu:v100:2 GresUsed={used} State={state} CurrentWatts={watts} AveWatts=0 {reason}\n"


class Printed:
    """A Slurm that prints a text, or does not answer."""

    def __init__(self, text):
        self.text, self.asked = text, 0

    def run(self, *_):
        self.asked += 1
        if self.text is None:
            msg = "slurmctld: no answer"
            raise EngineDownError(msg)
        return self.text


class Clock:
    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        monkeypatch.setattr("commonwatt.engines.slurm.node_control.time.monotonic", lambda: self.now_s)

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_what_scontrol_prints_is_read():
    text = (
        line("n-1", "MIXED", "350", "gpu:v100:1(IDX:0)", "Reason=was State=IDLE CurrentWatts=1 NodeName=n-9 [root]")
        + line("n-2", "IDLE+POWERED_DOWN", "n/s")
        + line("n-3", watts="4294967294")
    )
    assert node_draws(text) == {
        "n-1": NodeDraw(350, 1, off=False), "n-2": NodeDraw(None, 0, off=True), "n-3": NodeDraw(None, 0, off=False),
    }  # fmt: skip
    with pytest.raises(ValueError, match="no list of nodes"):
        node_draws("slurm_load_node error")


def test_power_is_summed_up_over_time_and_slurm_is_asked_now_and_then(clock):
    slurm = Printed(
        line("n-1", "MIXED", "350")
        + line("n-2", "IDLE+POWERED_DOWN")
        + line("n-3", "MIXED", "0", "gpu:v100:2(IDX:0-1)")
    )
    meter = NodeMeter(slurm, CLUSTER, {}, clock)
    assert [meter(n) for n in range(3)] == [0, 0, 0]
    clock.now_s += 4
    assert [meter(n) for n in range(3)] == [1400, 20, 2000]  # measured; of the state; declared: 100 W and two GPUs
    assert slurm.asked == 1
    clock.now_s += 6
    slurm.text = line("n-1", "MIXED", "500")
    assert meter(0) == 3500  # what it drew until now
    clock.now_s += 1
    assert meter(0) == 4000
    assert meter(1) == 20 + 7 * 5  # not listed any more: as before


def test_while_slurm_is_away_the_last_power_counts_and_a_clock_set_back_takes_nothing(clock):
    slurm = Printed(line("n-1", "MIXED", "350"))
    meter = NodeMeter(slurm, CLUSTER, {}, clock)
    slurm.text = None
    clock.now_s += 20
    assert meter(0) == 7000
    clock.now_s -= 10
    assert meter(0) == 7000
    clock.now_s += 1
    assert meter(0) == 7350


def test_another_controller_goes_on_where_the_former_one_was(clock):
    slurm = Printed(line("n-1", "MIXED", "300"))
    since = {0: MeterMark(900.0, 5000.0), 1: MeterMark(900.0, None)}
    meter = NodeMeter(slurm, CLUSTER, since, clock)
    assert meter(0) == 5000 + 100 * 300
    assert meter(1) == 0


def test_who_slept_at_the_last_reading_sleeps_until_slurm_says_otherwise(clock):
    meter = NodeMeter(Printed(None), CLUSTER, {0: MeterMark(900.0, 0.0, asleep=True)}, clock)
    assert meter(0) == 100 * 5


MOUNT = """#!/bin/sh
# In a mount namespace of its own, so that each node has counters of its own where the plugin looks for them.
for last; do :; done
exec unshare --mount sh -c 'name=$1; shift
mount --rbind /sys {folder}/sys && mount -t tmpfs none /sys || exit 1
for d in devices fs class kernel bus; do mkdir /sys/$d && mount --rbind {folder}/sys/$d /sys/$d; done
mkdir -p /sys/cray/pm_counters && mount --bind {folder}/counters/$name /sys/cray/pm_counters || exit 1
exec {slurmd} "$@"' sh "$last" "$@"
"""


class MeasuredSite(Site):
    """Nodes have counters of energy and power, as Cray's have; the plugin that reads them is Slurm's own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "bin").mkdir()
        (folder / "sys").mkdir()
        slurmd = shutil.which("slurmd", path=self.env["PATH"])
        wrapper = folder / "bin" / "slurmd"
        wrapper.write_text(MOUNT.format(folder=folder, slurmd=slurmd))
        wrapper.chmod(0o755)
        self.env["PATH"] = f"{folder / 'bin'}:{self.env['PATH']}"
        for name in NODES:
            (folder / "counters" / name).mkdir(parents=True)
            self.draw(name, 120, 1000)

    def configure(self, slurmd_timeout_s: int = 30) -> None:
        super().configure(slurmd_timeout_s)
        more = "AcctGatherEnergyType=acct_gather_energy/pm_counters\nAcctGatherNodeFreq=1\n"
        self.conf.write_text(self.conf.read_text() + more)

    def draw(self, name: str, watts: int, joules: int) -> None:
        counters = self.folder / "counters" / name
        for counter, value, unit in (("power", watts, "W"), ("energy", joules, "J")):
            (counters / f"{counter}.new").write_text(f"{value} {unit} {joules + 1}\n")
            (counters / f"{counter}.new").replace(counters / counter)


@pytest.fixture(scope="module")
def measured():
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    if os.geteuid() != 0 or subprocess.run(tried, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting counters where Slurm reads them needs root")
    yield from started(MeasuredSite)


@pytest.mark.long
def test_a_real_slurm_says_what_its_nodes_draw(measured, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", measured.env["PATH"])
    slurm, joules = Slurm(measured.conf), iter(range(11, 10_000))

    def seen(watts: dict[str, int]) -> bool:
        for name, value in watts.items():
            measured.draw(name, value, next(joules) * 100)
        drawn = node_draw(slurm)
        return {name: drawn[name].watts for name in watts} == watts

    until(lambda: seen({"n-1": 210, "n-2": 340, "spare": 95}), 60.0, pause_s=1.0)
    text = slurm.run("scontrol", "--oneliner", "show", "node")
    (tmp_path / "nodes.txt").write_text(text)
    drafted = run("init", "--from", str(tmp_path / "nodes.txt"), "--json").document
    assert {node["name"]: node["idle_w"] for node in drafted["nodes"]}["n"] == (210 + 340) / 2
    path = config_in(tmp_path, engine="slurm", live={"slurm": {"conf": str(measured.conf), "meter": "slurm"}})
    checked = run("check", str(path), "--json").document
    found = {line["what"]: line for line in checked["checks"]}
    assert found["power readings"]["found"] == "Slurm measures 2 nodes that are on"
    config = read_config(path)
    engine = open_slurm(config.live.slurm, Cluster.of(config.nodes), tmp_path, lambda _: pytest.fail("no job is run"))
    engine.readings(up_to_now=True)
    time.sleep(3.0)
    readings = engine.readings(up_to_now=True)
    assert {r.node for r in readings} == {0, 1}
    for reading in readings:
        watts = reading.energy_uj / 1e6 / (reading.to_s - reading.from_s)
        assert watts == pytest.approx((210, 340)[reading.node], rel=0.01)
    assert engine.measured_w().tolist() == [210, 340]
    assert engine.power_w() == 550
