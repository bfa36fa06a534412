"""An NVIDIA GPU as a device."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from commonwatt.devices.base import LoadedModel
from commonwatt.devices.models.runtimes import Runtimes
from commonwatt.devices.nvml import NvmlGpu
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.timeslice_config import CudaDevice as CudaSpec

__all__ = ["CudaDevice"]

_ONNX = "ONNX Runtime with its CUDA provider (package onnxruntime-gpu)"
_TORCH = "PyTorch built for CUDA"


class CudaDevice:
    """Runs ``.onnx`` files in ONNX Runtime and ``.pt2`` files in PyTorch, on one GPU; meter and clock are NVML's."""

    def __init__(self, spec: CudaSpec) -> None:
        self.kind = "cuda"
        self.enforcement = "cooperative at segment boundaries"
        self._gpu = NvmlGpu(spec.index)
        self.name = self._gpu.name
        if not _onnx_has_cuda() and not _torch_has_cuda():
            if find_spec("onnxruntime") is None and find_spec("torch") is None:
                raise MissingExtraError("onnxruntime", "onnx")
            raise InputError(f"{_ONNX}, or {_TORCH}; there is neither", field="device.kind", value="cuda")
        self._runtimes = Runtimes(f"{self.name} (GPU {spec.index})", spec.segment_s, cuda_index=spec.index)

    def load(self, name: str, path: str) -> LoadedModel:
        """Load the model in file *path*."""
        ending = Path(path).suffix
        if ending == ".onnx" and find_spec("onnxruntime") is not None and not _onnx_has_cuda():
            raise InputError(f"{_ONNX} for a file that ends in .onnx", file=path)
        if ending == ".pt2" and find_spec("torch") is not None and not _torch_has_cuda():
            raise InputError(f"{_TORCH} for a file that ends in .pt2", file=path)
        return self._runtimes.load(name, path)

    def set_clock(self, clock_mhz: float | None) -> None:
        """Lock the GPU's clock, where that is permitted; ``None``: its own."""
        self._gpu.set_clock(clock_mhz)

    def energy_j(self) -> float | None:
        """Return the reading of the GPU's energy meter."""
        return self._gpu.energy_j()

    def close(self) -> None:
        """Close every model and let go of the clock."""
        self._runtimes.close()
        self._gpu.close()


def _onnx_has_cuda() -> bool:
    if find_spec("onnxruntime") is None:
        return False
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def _torch_has_cuda() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
