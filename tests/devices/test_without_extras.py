"""Without an extra, one line says what to install."""

from __future__ import annotations

import sys

import pytest

from commonwatt.devices import local
from commonwatt.devices.local import CpuDevice
from commonwatt.devices.tiny_models import tiny_model
from commonwatt.model.errors import MissingExtraError
from commonwatt.model.timeslice_file import CpuDeviceSpec as CpuSpec
from commonwatt.model.timeslice_file import CudaDeviceSpec as CudaSpec


@pytest.fixture
def without(monkeypatch):
    def hide(package):
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)  # importing it fails as if it were not there

    return hide


@pytest.mark.parametrize(("package", "extra", "ending"), [("onnxruntime", "onnx", "onnx"), ("torch", "torch", "pt2")])
def test_a_model_without_its_runtime(package, extra, ending, without, tmp_path):
    without(package)
    path = tmp_path / f"m.{ending}"
    path.write_bytes(b"something")
    with pytest.raises(
        MissingExtraError, match=rf"{package} is not installed; run: pip install 'commonwatt\[{extra}\]'"
    ):
        CpuDevice(CpuSpec(kind="cpu")).load("m", str(path))


def test_onnx(without, tmp_path):
    without("onnx")
    with pytest.raises(MissingExtraError, match=r"onnx is not installed; run: pip install 'commonwatt\[onnx\]'"):
        tiny_model("resnet")
    (tmp_path / "m.onnx").write_bytes(b"something")
    with pytest.raises(MissingExtraError, match=r"onnx(runtime)? is not installed"):
        CpuDevice(CpuSpec(kind="cpu")).load("m", str(tmp_path / "m.onnx"))


def test_zeus(without):
    without("zeus")
    with pytest.raises(MissingExtraError, match=r"zeus is not installed; run: pip install 'commonwatt\[gpu\]'"):
        local.CudaDevice(CudaSpec(kind="cuda"))


def test_a_gpu_without_any_runtime(monkeypatch):
    class Gpu:
        def __init__(self, index):
            self.name = f"GPU {index}"

    monkeypatch.setattr(local, "NvmlGpu", Gpu)
    monkeypatch.setattr(local, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="onnxruntime is not installed"):
        local.CudaDevice(CudaSpec(kind="cuda"))
