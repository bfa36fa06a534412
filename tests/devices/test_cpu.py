from __future__ import annotations

import pytest

from commonwatt.devices.local import CpuDevice, cpu_model
from commonwatt.devices.session import open_device
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_file import CpuDeviceSpec as Spec


def test_what_it_says_of_itself():
    device = open_device(Spec(kind="cpu", threads=2))
    assert isinstance(device, CpuDevice)
    assert device.kind == "cpu"
    assert device.name == f"{cpu_model()}, 2 threads"
    assert CpuDevice(Spec(kind="cpu")).name.endswith(", 1 thread")
    assert device.enforcement == "cooperative at segment boundaries"
    assert device.energy_j() is None
    device.close()


def test_its_clock_is_its_own():
    device = CpuDevice(Spec(kind="cpu"))
    device.set_clock(None)
    with pytest.raises(
        InputError, match="field 'clock_mhz': got '800', expected no clock, as a CPU has no clock per tenant"
    ):
        device.set_clock(800)


def test_the_name_of_the_cpu(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: another\n")
    assert cpu_model(file) == "Some CPU @ 2 GHz"
    file.write_text("Processor : ARM\n")
    assert cpu_model(file)
    assert cpu_model(tmp_path / "none")


def test_files_by_their_ending(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from commonwatt.devices.tiny_models import write_tiny_models

    paths = write_tiny_models(tmp_path, kinds=["mobilenet"])
    device = CpuDevice(Spec(kind="cpu", segment_s=None))
    model = device.load("net", str(paths["mobilenet"]))
    assert (model.name, len(model.step_names)) == ("net", 1)
    assert CpuDevice(Spec(kind="cpu", segment_s=2e-5)).load("net", str(paths["mobilenet"])).step_names[1:]
    for name in ("m.txt", "m"):
        with pytest.raises(InputError, match=r"expected a file name that ends in \.onnx or \.pt2"):
            device.load("m", str(tmp_path / name))
    for name in ("m.onnx", "m.pt2"):
        with pytest.raises(InputError, match="there is no such file"):
            device.load("m", str(tmp_path / name))
    device.close()
    assert model.steps == ()


@pytest.mark.slow
def test_programs_of_pytorch(tmp_path):
    pytest.importorskip("torch")
    from tests.devices.models.programs import saved

    model = CpuDevice(Spec(kind="cpu")).load("net", str(saved("attention", tmp_path / "m.pt2")))
    assert [spec.name for spec in model.inputs] == ["tokens"]
