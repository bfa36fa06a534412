"""Sessions of ONNX Runtime: how they are made, called with little overhead, and what their errors mean.

A model cut into many parts is called many times. Overhead of a call in microseconds, with warm and cold caches, for a
graph of one tiny node on one core of a server CPU: ``run_with_ort_values`` 33 and 50, an I/O binding 8 and 30, vectors
of values (used here) 4 and 17.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from commonwatt.devices.base import Tensor, TensorSpec
from commonwatt.devices.models.base import Foreign, failure_of
from commonwatt.model.errors import InputError, MissingExtraError

__all__ = ["OnnxCall", "OnnxRuntime", "contiguous", "placed", "specs_of"]


class OnnxCall:
    """A session that is called with values by name.

    Parameters
    ----------
    session, reads, writes
        The session, its inputs and its outputs.
    cuda_index, on_cpu
        GPU on which outputs stay (``None``: the CPU), except for those *on_cpu*.
    """

    def __init__(
        self, session: Foreign, reads: Sequence[str], writes: Sequence[str], cuda_index: int | None,
        on_cpu: Collection[str] = (),
    ) -> None:  # fmt: skip
        import onnxruntime
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

        self._session, self._reads, self._writes = session, list(reads), list(writes)
        self._devices = [_device(None if name in on_cpu else cuda_index) for name in writes]
        self._options, self._vector = onnxruntime.RunOptions(), OrtValueVector

    def __call__(self, values: Mapping[str, Foreign]) -> dict[str, Foreign]:
        """Run the session and return its outputs by name."""
        given, results = self._vector(), self._vector()
        for name in self._reads:
            given.push_back(values[name])
        self._session.run_with_ortvaluevector(
            self._options, self._reads, given, self._writes, results, self._devices
        )  # needs one device per output: a list of another length crashes the process
        return {name: results[place] for place, name in enumerate(self._writes)}


def placed(array: Tensor, cuda_index: int | None) -> Foreign:
    """Return *array* as a value; on a CPU the value shares its memory, so the array must outlive it."""
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue

    return OrtValue.ortvalue_from_numpy(array, _device(cuda_index))


def contiguous(tensor: Tensor) -> Tensor:
    """Return *tensor*, copied unless it is contiguous."""
    return np.ascontiguousarray(tensor).reshape(tensor.shape)  # ascontiguousarray turns scalars into vectors


def _device(cuda_index: int | None) -> Foreign:
    import onnxruntime

    kind = ("cpu", 0) if cuda_index is None else ("cuda", cuda_index)
    return onnxruntime.OrtDevice.make(*kind)._get_c_device()  # noqa: SLF001 - vectors need the inner object


_DATATYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float": "FP32", "double": "FP64",
}  # fmt: skip


@dataclass(frozen=True)
class OnnxRuntime:
    """Device and threads on which models run.

    Parameters
    ----------
    device
        Name of the device in errors.
    threads
        Threads per request on a CPU.
    cuda_index
        Index of the GPU; ``None``: the CPU.
    """

    device: str
    threads: int = 1
    cuda_index: int | None = None
    what: ClassVar[str] = "an ONNX model"  # it runs

    @property
    def version(self) -> str:
        """ONNX Runtime and its version."""
        return f"onnxruntime {_onnxruntime().__version__}"

    def options(self, *, optimise: bool = False) -> Foreign:
        """Return options of a session that uses no CPU while idle and writes nothing to the terminal."""
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
        """Turn errors of ONNX Runtime into an ``InputError`` that names the model file."""
        errors = _errors()
        try:
            yield
        except errors as error:
            kind, cause = type(error).__name__, _cause(error)
            raise InputError(f"an ONNX model that ONNX Runtime can run ({cause})", file=path, value=kind) from error

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Turn errors of ONNX Runtime into a ``DeviceError``, or an ``InputError`` about the inputs."""
        try:
            yield
        except _errors() as error:
            raise failure_of(error, _cause(error), device=self.device, model=name) from error


def specs_of(arguments: list[Any], path: Path) -> tuple[TensorSpec, ...]:
    """Return the inputs or outputs of a session; raises ``InputError`` unless all are numeric tensors."""
    specs = []
    for argument in arguments:
        kind = argument.type.removeprefix("tensor(").removesuffix(")")
        if kind not in _DATATYPES:
            raise InputError("numeric tensors only", file=path, field=argument.name, value=argument.type)
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
    """Register one CPU allocator for all sessions, so that parts reuse memory that earlier parts left in the cache.

    The process keeps the memory of values for later inferences and frees that of weights. This only affects speed: an
    allocator that is already registered stays.
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
    """Let ONNX Runtime find the CUDA libraries that pip installed; it prints missing ones, which may be harmless."""
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
    """Return the first line of ONNX Runtime's message, without its prefix."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].split(" : ", 3)[-1]
