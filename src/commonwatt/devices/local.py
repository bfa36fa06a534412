"""The CPU and the NVIDIA GPUs of this machine as devices; a GPU's meter and clock are NVML's, through zeus.

The suffix of a model's file decides which runtime loads it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from warnings import catch_warnings, simplefilter
from weakref import WeakSet

from commonwatt.devices.base import LoadedModel
from commonwatt.devices.language.base import LanguageModel
from commonwatt.devices.language.decoder import load_decoder
from commonwatt.devices.language.pretrained import load_pretrained
from commonwatt.devices.measured import MeasuredFile, MeasuredModels, MeasuredUnder
from commonwatt.devices.models.base import Foreign, SegmentedModel, checked_file, digest_of
from commonwatt.devices.models.onnx_model import load_onnx
from commonwatt.devices.models.onnx_runtime import OnnxRuntime
from commonwatt.devices.models.torch_model import TorchRuntime, load_torch
from commonwatt.devices.rows import RowProfile, measure_rows
from commonwatt.model.errors import DeviceError, InputError, MissingExtraError
from commonwatt.model.timeslice_file import CpuDeviceSpec as CpuSpec
from commonwatt.model.timeslice_file import CudaDeviceSpec as CudaSpec
from commonwatt.model.units import plural

__all__ = ["CpuDevice", "CudaDevice", "NvmlGpu", "Runtimes", "cpu_model"]

# -- devices


class Runtimes:
    """The runtimes of one device, and the models they have loaded.

    Parameters
    ----------
    device
        Name of the device.
    segment_s
        Length of the segments; ``None``: models are not cut.
    measured
        Where cuts and times are kept.
    """

    def __init__(
        self, device: str, segment_s: float | None, measured: MeasuredModels, *, threads: int = 1,
        cuda_index: int | None = None,
    ) -> None:  # fmt: skip
        self._device, self._segment_s, self._measured = device, segment_s, measured
        self._loaded = WeakSet[SegmentedModel]()  # still in use
        self._onnx = OnnxRuntime(device, threads, cuda_index)
        self._torch = TorchRuntime(device, threads, cuda_index)

    def load(self, name: str, path: str) -> LoadedModel:
        """Load the model in file *path*, cut as when it was first measured."""
        match Path(path).suffix:
            case ".onnx":
                load: Callable[..., SegmentedModel] = partial(load_onnx, name, path, self._onnx, self._segment_s)
                runtime: OnnxRuntime | TorchRuntime = self._onnx
            case ".pt2":
                load = partial(load_torch, name, path, self._torch, self._segment_s)
                runtime = self._torch
            case ending:
                raise InputError("a file name that ends in .onnx or .pt2", file=path, value=ending)
        digest = digest_of(checked_file(path, runtime.what))
        under = MeasuredUnder(digest, self._device, runtime.version, self._segment_s)
        model = self._load(load, under)
        self._loaded.add(model)
        return model

    def rows(self, model: LoadedModel, until_s: float) -> RowProfile:
        """Return how long a loaded model takes with many rows, measured unless it has been."""
        under = getattr(model, "measured_under", None)
        record = None if under is None else self._measured.recall(under)
        rows = measure_rows(model, until_s, None if record is None else record.rows)
        if under is not None:
            self._measured.keep_rows(under, rows)
        return rows

    def language(self, path: str) -> LanguageModel:
        """Load the language model in file or folder *path*."""
        load = load_decoder if Path(path).suffix == ".npz" else load_pretrained
        return load(path, self._torch)

    def close(self) -> None:
        """Close every model."""
        for model in list(self._loaded):
            model.close()

    def _load(self, load: Callable[..., SegmentedModel], under: MeasuredUnder) -> SegmentedModel:
        record = self._measured.recall(under)
        if record is not None:
            model = load(cuts=record.cuts, times_s=record.step_times_s)
            model.measured_under = under
            if model.step_names == record.step_names:
                return model
            self._measured.tell(under, "its segments are not those of the model")
            model.close()
        model = load()
        model.measured_under = under
        new_record = MeasuredFile(
            model_digest=under.digest, device=under.device, runtime=under.runtime, segment_s=under.segment_s,
            cuts=model.cuts, step_names=model.step_names, step_times_s=model.step_times_s,
        )  # fmt: skip
        self._measured.keep(under, new_record)
        return model


class CpuDevice:
    """Runs ``.onnx`` files in ONNX Runtime and ``.pt2`` files in PyTorch, on a number of CPU threads."""

    def __init__(self, spec: CpuSpec, measured: MeasuredModels | None = None, longest_s: float | None = None) -> None:
        self.kind = "cpu"
        self.name = f"{cpu_model()}, {plural(spec.threads, 'thread')}"
        self.enforcement = "cooperative at segment boundaries"
        kept = measured or MeasuredModels(None)
        self._runtimes = Runtimes(self.name, _shorter(spec.segment_s, longest_s), kept, threads=spec.threads)

    def load(self, name: str, path: str) -> LoadedModel:
        """Load the model in file *path*."""
        return self._runtimes.load(name, path)

    def rows(self, model: LoadedModel, until_s: float) -> RowProfile:
        """Return how long *model* takes with many rows, measured until a step takes *until_s*."""
        return self._runtimes.rows(model, until_s)

    def language(self, path: str) -> LanguageModel:
        """Load the language model in file or folder *path*."""
        return self._runtimes.language(path)

    def set_clock(self, clock_mhz: float | None) -> None:
        """Refuse any clock but the CPU's own."""
        if clock_mhz is not None:
            raise InputError("no clock, as a CPU has no clock per tenant", field="clock_mhz", value=clock_mhz)

    def energy_j(self) -> float | None:
        """Return ``None``: the meters of a CPU count everything that runs on it."""
        return None

    def close(self) -> None:
        """Close every model."""
        self._runtimes.close()


def _shorter(segment_s: float | None, longest_s: float | None) -> float | None:
    return segment_s if segment_s is None or longest_s is None else min(segment_s, longest_s)


def cpu_model(file: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the CPU, or of its architecture if that is all the system reports."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = (line.partition(":") for line in lines)
    named = (value.strip() for key, _, value in fields if key.strip() == "model name")
    return next(named, "") or platform.processor() or platform.machine() or "CPU"


class NvmlGpu:
    """Meter and clock of the GPU with this *index* among those visible to CUDA (``CUDA_VISIBLE_DEVICES``)."""

    def __init__(self, index: int) -> None:
        self._gpus, self._index = _gpus(), index
        if index >= len(self._gpus):
            raise InputError(f"a whole number below {len(self._gpus)}, the number of GPUs",
                             field="device.index", value=index)  # fmt: skip
        self.name = f"GPU {index}"
        with self._asking():
            self.name = str(self._gpus.get_name(index))
            self._metered = bool(self._gpus.supports_get_total_energy_consumption(index))
        self._clock_mhz: int | None = None

    def energy_j(self) -> float | None:
        """Return the reading of the GPU's energy meter; ``None`` if it has no meter (before Volta)."""
        if not self._metered:
            return None
        with self._asking():
            return float(self._gpus.get_total_energy_consumption(self._index)) / 1000

    def set_clock(self, clock_mhz: float | None) -> None:
        """Lock the GPU's clock, or unlock it with ``None``."""
        wanted = None if clock_mhz is None else round(clock_mhz)
        if wanted == self._clock_mhz:
            return
        with self._asking(wanted), catch_warnings():
            simplefilter("ignore")  # zeus warns of a missing permission; our error names it
            if wanted is None:
                self._gpus.reset_gpu_locked_clocks(self._index)
            else:
                self._gpus.set_gpu_locked_clocks(self._index, wanted, wanted)
        self._clock_mhz = wanted

    def close(self) -> None:
        """Unlock the clock."""
        with suppress(DeviceError, InputError):  # a GPU that has disappeared has no clock to unlock
            self.set_clock(None)

    @contextmanager
    def _asking(self, clock_mhz: int | None = None) -> Iterator[None]:
        from zeus.device.gpu import common

        try:
            yield
        except common.ZeusGPUNoPermissionError as error:
            wanted = "permission to lock the clocks of GPUs (root or CAP_SYS_ADMIN, or zeusd running), or no clock"
            raise InputError(wanted, field="clock_mhz", value=clock_mhz) from error
        except common.ZeusGPUInvalidArgError as error:
            raise InputError(f"a clock that {self.name} supports", field="clock_mhz", value=clock_mhz) from error
        except (common.ZeusGPUNotSupportedError, common.ZeusGPUFunctionNotFoundError) as error:
            wanted = f"no clock, as {self.name} or its driver cannot lock one"
            raise InputError(wanted, field="clock_mhz", value=clock_mhz) from error
        except common.ZeusBaseGPUError as error:
            raise DeviceError(f"{self.name} (GPU {self._index}): {error}") from error


def _gpus() -> Foreign:
    try:
        from zeus.device import get_gpus
        from zeus.device.gpu import NVIDIAGPUs, ZeusGPUInitError
    except ImportError as error:
        raise MissingExtraError("zeus", "gpu") from error
    wanted = "an NVIDIA GPU whose driver answers (NVML)"
    try:
        gpus = get_gpus()
    except ZeusGPUInitError as error:
        raise InputError(f"{wanted}; there is none", field="device.kind", value="cuda") from error
    if not isinstance(gpus, NVIDIAGPUs) or not len(gpus):
        raise InputError(f"{wanted}; there is none", field="device.kind", value="cuda")
    return gpus


_ONNX = "ONNX Runtime with its CUDA provider (package onnxruntime-gpu)"
_TORCH = "PyTorch built for CUDA"


class CudaDevice:
    """Runs ``.onnx`` files in ONNX Runtime and ``.pt2`` files in PyTorch, on one GPU; meter and clock are NVML's."""

    def __init__(self, spec: CudaSpec, measured: MeasuredModels | None = None, longest_s: float | None = None) -> None:
        self.kind = "cuda"
        self.enforcement = "cooperative at segment boundaries"
        self._gpu = NvmlGpu(spec.index)
        self.name = self._gpu.name
        if not _onnx_has_cuda() and not _torch_has_cuda():
            if find_spec("onnxruntime") is None and find_spec("torch") is None:
                raise MissingExtraError("onnxruntime", "onnx")
            raise InputError(f"{_ONNX}, or {_TORCH}; there is neither", field="device.kind", value="cuda")
        kept, segment_s = measured or MeasuredModels(None), _shorter(spec.segment_s, longest_s)
        self._runtimes = Runtimes(f"{self.name} (GPU {spec.index})", segment_s, kept, cuda_index=spec.index)

    def load(self, name: str, path: str) -> LoadedModel:
        """Load the model in file *path*."""
        ending = Path(path).suffix
        if ending == ".onnx" and find_spec("onnxruntime") is not None and not _onnx_has_cuda():
            raise InputError(f"{_ONNX} for a file that ends in .onnx", file=path)
        if ending == ".pt2" and find_spec("torch") is not None and not _torch_has_cuda():
            raise InputError(f"{_TORCH} for a file that ends in .pt2", file=path)
        return self._runtimes.load(name, path)

    def rows(self, model: LoadedModel, until_s: float) -> RowProfile:
        """Return how long *model* takes with many rows, measured until a step takes *until_s*."""
        return self._runtimes.rows(model, until_s)

    def language(self, path: str) -> LanguageModel:
        """Load the language model in file or folder *path*."""
        if find_spec("torch") is not None and not _torch_has_cuda():
            raise InputError(f"{_TORCH} for a language model", file=path)
        return self._runtimes.language(path)

    def set_clock(self, clock_mhz: float | None) -> None:
        """Lock the GPU's clock, where that is permitted; ``None`` unlocks it."""
        self._gpu.set_clock(clock_mhz)

    def energy_j(self) -> float | None:
        """Return the reading of the GPU's energy meter."""
        return self._gpu.energy_j()

    def close(self) -> None:
        """Close every model and unlock the clock."""
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
