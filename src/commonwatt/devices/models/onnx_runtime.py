"""ONNX Runtime: how its sessions are made here, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from commonwatt.devices.base import TensorSpec
from commonwatt.devices.models.failures import failure_of
from commonwatt.devices.models.foreign import Foreign
from commonwatt.model.errors import InputError, MissingExtraError

__all__ = ["OnnxRuntime", "specs_of"]

_DATATYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float": "FP32", "double": "FP64",
}  # fmt: skip


@dataclass(frozen=True)
class OnnxRuntime:
    """Where and how models run.

    Parameters
    ----------
    device
        Its name, for errors.
    threads
        That compute one request, on a CPU.
    cuda_index
        Which GPU; ``None``: the CPU.
    """

    device: str
    threads: int = 1
    cuda_index: int | None = None

    def options(self, *, optimise: bool = False) -> Foreign:
        """Return options of a session that burns no CPU while it is idle and writes nothing to the terminal."""
        ort = _onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.log_severity_level = 4
        if self.cuda_index is None and _memory_is_shared():
            options.add_session_config_entry("session.use_env_allocators", "1")
            options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
        return options

    def session(self, model: str | Path, options: Foreign) -> Foreign:
        """Return a session of the file *model* on this device."""
        if self.cuda_index is not None:
            _cuda_libraries()
        session = _onnxruntime().InferenceSession(str(model), options, providers=self._providers())
        if self.cuda_index is not None and session.get_providers()[0] != "CUDAExecutionProvider":
            raise InputError("CUDA libraries that ONNX Runtime can load", field="device.kind", value="cuda")
        return session

    def _providers(self) -> list[Any]:
        if self.cuda_index is None:
            return ["CPUExecutionProvider"]
        return [("CUDAExecutionProvider", {"device_id": self.cuda_index}), "CPUExecutionProvider"]

    @contextmanager
    def loading(self, path: Path) -> Iterator[None]:
        """Turn errors of ONNX Runtime into such as name the file of the model."""
        errors = _errors()
        try:
            yield
        except errors as error:
            kind, cause = type(error).__name__, _cause(error)
            raise InputError(f"an ONNX model that ONNX Runtime can run ({cause})", file=path, value=kind) from error

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Turn errors of ONNX Runtime into such as tell a failed device from inputs the model cannot compute."""
        try:
            yield
        except _errors() as error:
            raise failure_of(error, _cause(error), device=self.device, model=name) from error


def specs_of(arguments: list[Any], path: Path) -> tuple[TensorSpec, ...]:
    """Return inputs or outputs of a session; only tensors of numbers will do."""
    specs = []
    for argument in arguments:
        kind = argument.type.removeprefix("tensor(").removesuffix(")")
        if kind not in _DATATYPES:
            raise InputError("tensors of numbers only", file=path, field=argument.name, value=argument.type)
        shape = tuple(length if isinstance(length, int) else -1 for length in argument.shape)
        specs.append(TensorSpec(argument.name, _DATATYPES[kind], shape))
    return tuple(specs)


def _onnxruntime() -> Foreign:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnx") from error
    return onnxruntime


@cache
def _memory_is_shared() -> bool:
    """Let all sessions allocate on the CPU from one place, so that parts reuse what earlier ones still have in cache.

    Said once for the whole process, which keeps what values took for the values of later inferences; weights are given
    back. It is only about speed, so it is left alone where somebody has said it already.
    """
    ort = _onnxruntime()
    kind = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    try:
        ort.create_and_register_allocator(kind, None)
    except _errors():
        return False
    return True


@cache
def _cuda_libraries() -> None:
    """Have ONNX Runtime find CUDA where pip has put it; it prints what it did not find, which need not be wrong."""
    preload = getattr(_onnxruntime(), "preload_dlls", None)
    if preload is not None:
        with redirect_stdout(StringIO()):
            preload()


@cache
def _errors() -> tuple[type[BaseException], ...]:
    _onnxruntime()
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    kinds = [kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return (*kinds, RuntimeError, MemoryError)


def _cause(error: BaseException) -> str:
    """The first line of what ONNX Runtime says, without its prefix."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].split(" : ", 3)[-1]
