"""Meter and clock of a GPU through NVML and zeus, over a stand-in library written for this test: no figure is real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pynvml")
pytest.importorskip("zeus", exc_type=ImportError)

START = """
import json, sys, time
from pathlib import Path
from commonwatt.devices import local
from commonwatt.devices.local import NvmlGpu
from commonwatt.model.errors import CommonwattError
from commonwatt.model.timeslice_file import CudaDeviceSpec as Spec
said = {}

def failing(call, *arguments):
    try:
        call(*arguments)
    except CommonwattError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to compile the stand-in for NVML")
    folder = tmp_path_factory.mktemp("stand-in")
    source = Path(__file__).with_name("nvml_stand_in.c")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-o", folder / "libnvidia-ml.so.1", source]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def told(library, tmp_path):
    """Run a script over the stand-in; returns what it put into ``said``, and the changes of clocks."""

    def run(script, **settings):
        log = tmp_path / "log"
        hidden = {"CUDA_VISIBLE_DEVICES", "ZEUSD_SOCK_PATH"}
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        environment = kept | settings | {"LD_LIBRARY_PATH": str(library), "STAND_IN_LOG": str(log)}
        command = [sys.executable, "-c", f"{START}{script}\nPath(sys.argv[1]).write_text(json.dumps(said))"]
        subprocess.run([*command, tmp_path / "said"], check=True, env=environment)
        changes = log.read_text().splitlines() if log.exists() else []
        return json.loads((tmp_path / "said").read_text()), changes

    return run


@pytest.mark.slow
def test_the_meter_is_in_joules(told):
    said, changes = told("""
gpu = NvmlGpu(0)
before, began = gpu.energy_j(), time.monotonic()
time.sleep(0.2)
said.update(name=gpu.name, watts=(gpu.energy_j() - before) / (time.monotonic() - began))
gpu.close()
""")
    assert said["name"] == "stand-in GPU"
    assert said["watts"] == pytest.approx(250, rel=0.05)
    assert changes == []  # a clock nobody set is not reset


@pytest.mark.slow
def test_the_clock_is_set_when_it_changes_and_let_go_in_the_end(told):
    said, changes = told("""
gpu = NvmlGpu(0)
for clock in (None, 1200, 1200.2, 900, None, None, 900):
    gpu.set_clock(clock)
said["too fast"] = failing(gpu.set_clock, 5000)
gpu.set_clock(900)
gpu.close()
gpu.close()
""")
    assert changes == ["lock 1200 1200", "lock 900 900", "reset 0 0", "lock 900 900", "reset 0 0"]
    assert said["too fast"] == "InputError: field 'clock_mhz': got '5000', expected a clock that stand-in GPU supports"


@pytest.mark.slow
def test_without_permission_it_says_which_is_missing(told):
    said, changes = told("gpu = NvmlGpu(0); said['it'] = failing(gpu.set_clock, 900)", STAND_IN_DENIED="1")
    assert said["it"].startswith("InputError: field 'clock_mhz': got '900', expected permission to lock the clocks")
    assert "CAP_SYS_ADMIN" in said["it"]
    assert changes == []


@pytest.mark.slow
def test_a_gpu_that_is_lost(told, tmp_path):
    said, _ = told(
        """
gpu = NvmlGpu(0)
gpu.set_clock(900)
Path(sys.argv[1]).with_name("lost").touch()
said.update(meter=failing(gpu.energy_j), clock=failing(gpu.set_clock, 800))
gpu.close()
""",
        STAND_IN_LOST=str(tmp_path / "lost"),
    )
    for error in said.values():
        assert error.startswith("DeviceError: stand-in GPU (GPU 0): ")
        assert "lost" in error.lower()


@pytest.mark.slow
def test_an_index_there_is_not(told):
    said, _ = told("said['it'] = failing(NvmlGpu, 2)", STAND_IN_GPUS="2")
    assert said["it"] == (
        "InputError: field 'device.index': got '2', expected a whole number below 2, the number of GPUs"
    )


@pytest.mark.slow
def test_the_device_over_it(told):
    said, changes = told("""
local._onnx_has_cuda = local._torch_has_cuda = lambda: False
said["without"] = failing(local.CudaDevice, Spec(kind="cuda"))
local._onnx_has_cuda = lambda: True
device = local.CudaDevice(Spec(kind="cuda"))
said.update(kind=device.kind, name=device.name, enforcement=device.enforcement, energy=device.energy_j())
device.set_clock(1000)
said["neither"] = failing(device.load, "m", "m.txt")
device.close()
""")
    assert said["without"].startswith(
        "InputError: field 'device.kind': got 'cuda', expected ONNX Runtime with its CUDA"
    )
    assert (said["kind"], said["name"]) == ("cuda", "stand-in GPU")
    assert said["enforcement"] == "cooperative at segment boundaries"
    assert said["energy"] > 0
    assert said["neither"] == "InputError: m.txt: got '.txt', expected a file name that ends in .onnx or .pt2"
    assert changes == ["lock 1000 1000", "reset 0 0"]
