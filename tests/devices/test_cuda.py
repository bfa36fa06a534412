"""A real GPU, where there is one."""

from __future__ import annotations

import time

import numpy as np
import pytest

from commonwatt.devices.local import CpuDevice, CudaDevice, NvmlGpu
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.timeslice_file import CpuDeviceSpec as CpuSpec
from commonwatt.model.timeslice_file import CudaDeviceSpec as Spec


def run(model, inputs):
    execution = model.begin(inputs)
    for _ in model.step_names:
        execution.step()
    return execution.outputs()


@pytest.fixture
def gpu():
    pytest.importorskip("zeus", exc_type=ImportError)
    try:
        device = CudaDevice(Spec(kind="cuda", segment_s=1e-4))
    except (InputError, MissingExtraError) as error:
        pytest.skip(f"no GPU to run on: {error}")
    yield device
    device.close()


def test_without_a_gpu_it_says_so():
    pytest.importorskip("zeus", exc_type=ImportError)
    try:
        NvmlGpu(0)
    except InputError as error:
        assert str(error).startswith("field 'device.kind': got 'cuda', expected an NVIDIA GPU")  # noqa: PT017
        with pytest.raises(InputError, match="expected an NVIDIA GPU"):
            CudaDevice(Spec(kind="cuda"))
    else:
        pytest.skip("there is a GPU")


@pytest.mark.parametrize("kind", ["resnet", "mobilenet", "transformer"])
def test_onnx_computes_what_a_cpu_does(kind, gpu, tmp_path):
    pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("ONNX Runtime without its CUDA provider")
    from commonwatt.devices.tiny_models import write_tiny_models
    from tests.devices.models.graphs import inputs_of

    path = str(write_tiny_models(tmp_path, kinds=[kind])[kind])
    here, there = gpu.load(kind, path), CpuDevice(CpuSpec(kind="cpu", segment_s=None)).load(kind, path)
    given = inputs_of(here, 4)
    assert np.allclose(run(here, given)["logits"], run(there, given)["logits"], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["convolutions", "attention", "chosen"])
def test_pytorch_computes_what_a_cpu_does(name, gpu, tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch without CUDA")
    from tests.devices.models.graphs import inputs_of
    from tests.devices.models.programs import saved

    path = str(saved(name, tmp_path / "m.pt2"))
    here, there = gpu.load("m", path), CpuDevice(CpuSpec(kind="cpu", segment_s=None)).load("m", path)
    given = inputs_of(here, 2)
    found, expected = run(here, given), run(there, given)
    assert all(np.allclose(found[key], expected[key], rtol=1e-2, atol=1e-2) for key in expected)


def test_energy_grows(gpu):
    before = gpu.energy_j()
    time.sleep(0.5)
    assert gpu.energy_j() > before


def test_the_clock_where_it_is_permitted(gpu):
    try:
        gpu.set_clock(1000)
    except InputError as error:
        pytest.skip(f"clocks cannot be set here: {error}")
    gpu.set_clock(None)
