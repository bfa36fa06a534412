"""Shared devices with servers that fail: they rest longer each time, and what has lasted is forgiven."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from commonwatt.control.fleet.interface import GpuLost
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.model_servers import FIRST_SERVER, HostedService, Hosting, ModelServers
from commonwatt.engines.shared_devices import SharedDevices
from commonwatt.model.nodes import Cluster, NodeSpec


class Run:
    def __init__(self, folder, spec):
        self.folder, self.spec, self.over = folder, spec, None


class Servers(ModelServers[Run]):
    """Servers in name only: each ends when it is told."""

    first_handle = FIRST_SERVER

    def __init__(self):
        self.runs, self.stopped = [], []

    def free_slots(self, node):
        return [0, 1]

    def host(self, node):
        return "127.0.0.1"

    def adopt(self, folder, spec):
        self.runs.append(Run(folder, spec))
        return self.runs[-1]

    def start(self, folder, spec):
        return self.adopt(folder, spec)

    def ended(self, run):
        return run.over

    def stop(self, run):
        self.stopped.append(run)
        return True

    def release(self, run):
        return


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def devices(tmp_path, clock):
    cluster = Cluster.of((NodeSpec(name="n", count=2, gpu_type="V100", gpus=2, idle_w=100, gpu_w=200),))
    hosting = Hosting(
        (HostedService("vision", "m.onnx", 1.0, {"V100": 150.0}),), "etf", equal=False, phi=0.7, quantum_s=0.02,
        host="127.0.0.1", port=0,
    )  # fmt: skip
    return SharedDevices(cluster, tmp_path, hosting, [range(2), range(2)], Servers(), lambda: clock[0])


def fails(devices, run, cause="exit code 1"):
    run.over = End(1, stopped=False, at_s=devices._now_s(), cause=cause)
    devices.poll()
    return devices.take_changes()


def serves(run):
    (run.folder.path / "output.log").write_text('"rest": "127.0.0.1:1"')


def test_a_node_whose_servers_fail_rests_longer_each_time_up_to_a_minute(devices, clock):
    rests = []
    for gpu in range(8):
        assert devices.open(gpu, 0) == clock[0]
        (lost,) = fails(devices, devices._servers.runs[-1])
        assert isinstance(lost, GpuLost)
        assert devices.resting() == [0]
        begun_s = clock[0]
        while devices.resting():
            clock[0] += 0.5
        rests.append(clock[0] - begun_s)
    assert rests == [2, 4, 8, 16, 32, 60, 60, 60]
    assert devices.server_trouble is not None
    assert "node n-1" in devices.server_trouble


def test_a_server_that_has_lasted_is_replaced_soon_and_clears_its_node(devices, clock):
    devices.open(0, 0)
    fails(devices, devices._servers.runs[-1])
    fails_before = dict(devices._failures)
    clock[0] += 5.0
    devices.open(1, 0)
    serves(devices._servers.runs[-1])
    clock[0] += 31.0
    devices.poll()
    assert (fails_before, devices._failures) == ({0: 1}, {})
    clock[0] += 3600.0
    fails(devices, devices._servers.runs[-1])
    clock[0] += 2.0
    assert devices.resting() == []


def test_the_last_line_of_a_server_says_why_it_ended(devices):
    devices.open(0, 0)
    run = devices._servers.runs[-1]
    (run.folder.path / "output.log").write_text("loading\nerror: no module named onnxruntime\n")
    (lost,) = fails(devices, run, "exit code 2")
    assert lost.cause == "its model server ended: exit code 2: error: no module named onnxruntime"


def test_a_server_that_does_not_answer_is_stopped_and_replaced(devices):
    devices.open(3, 1)
    devices.note_silent(3, 1)
    devices.poll()
    (lost,) = devices.take_changes()
    assert (lost.gpu, lost.cause) == (3, "its model server did not answer any more")
    assert devices._servers.stopped == devices._servers.runs
    assert devices.resting() == [1]


def again(devices, **changed):
    hosting = Hosting(**{**vars(devices.hosting), **changed})
    later = SharedDevices(devices._cluster, devices._state, hosting, devices._slots, Servers(), devices._now_s)
    later.attach()
    later.stop_unwanted()
    return later


def test_servers_of_another_python_or_image_are_replaced_and_others_go_on(devices):
    devices.open(0, 0)
    assert not again(devices).take_changes()
    for changed in ({"python": "/other/python"}, {"image": "another"}, {"quantum_s": 0.5}):
        devices._write()
        (lost,) = again(devices, **changed).take_changes()
        assert lost.gpu == 0


def test_damaged_records_of_a_server_are_those_of_one_that_is_lost(devices):
    devices.open(0, 0)
    path = devices._servers.runs[-1].folder.path
    (path / "server.yaml").write_text("[1, 2]")
    (lost,) = again(devices).take_changes()
    assert lost.gpu == 0
    (path / "run.json").write_text("{")
    devices._write()
    later = again(devices)
    assert later.devices[0].run is None
    later.launch_due()
    assert later.devices[0].run is not None


def test_a_server_of_engine_local_is_stopped_by_the_engine_that_comes_after_it(devices, monkeypatch):
    stopped = []
    monkeypatch.setattr("commonwatt.engines.model_servers.stop_local", lambda run: stopped.append(run.spec.handle))
    spec = devices._spec(7, 1, "services-7", ("true",), devices.folder / "runs" / "7-1")
    RunFolder.create(devices.folder / "runs", spec)
    assert json.loads((devices.folder / "runs" / "7-1" / "run.json").read_text())["handle"] == asdict(spec)["handle"]
    again(devices)
    assert stopped == [7]
