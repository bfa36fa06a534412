"""The runtimes of a device; the suffix of a file decides which one loads it."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakSet

from commonwatt.devices.base import LoadedModel
from commonwatt.devices.models.onnx_model import load_onnx
from commonwatt.devices.models.onnx_runtime import OnnxRuntime
from commonwatt.devices.models.torch_model import TorchRuntime, load_torch
from commonwatt.model.errors import InputError

__all__ = ["Runtimes"]


class Runtimes:
    """The runtimes of one device, and the models they have loaded."""

    def __init__(
        self, device: str, segment_s: float | None, *, threads: int = 1, cuda_index: int | None = None
    ) -> None:
        self._segment_s = segment_s
        self._loaded = WeakSet[LoadedModel]()  # still in use
        self._onnx = OnnxRuntime(device, threads, cuda_index)
        self._torch = TorchRuntime(device, threads, cuda_index)

    def load(self, name: str, path: str) -> LoadedModel:
        """Load the model in file *path*."""
        match Path(path).suffix:
            case ".onnx":
                model: LoadedModel = load_onnx(name, path, self._onnx, self._segment_s)
            case ".pt2":
                model = load_torch(name, path, self._torch, self._segment_s)
            case ending:
                raise InputError("a file name that ends in .onnx or .pt2", file=path, value=ending)
        self._loaded.add(model)
        return model

    def close(self) -> None:
        """Close every model."""
        for model in list(self._loaded):
            model.close()
