"""The CPU of this machine as a device."""

from __future__ import annotations

import platform
from pathlib import Path

from commonwatt.devices.base import LoadedModel
from commonwatt.devices.models.runtimes import Runtimes
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_file import CpuDeviceSpec as CpuSpec
from commonwatt.model.units import plural

__all__ = ["CpuDevice", "cpu_model"]


class CpuDevice:
    """Runs ``.onnx`` files in ONNX Runtime and ``.pt2`` files in PyTorch, on a number of CPU threads."""

    def __init__(self, spec: CpuSpec) -> None:
        self.kind = "cpu"
        self.name = f"{cpu_model()}, {plural(spec.threads, 'thread')}"
        self.enforcement = "cooperative at segment boundaries"
        self._runtimes = Runtimes(self.name, spec.segment_s, threads=spec.threads)

    def load(self, name: str, path: str) -> LoadedModel:
        """Load the model in file *path*."""
        return self._runtimes.load(name, path)

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


def cpu_model(file: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the CPU, or of its architecture if that is all the system reports."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = (line.partition(":") for line in lines)
    named = (value.strip() for key, _, value in fields if key.strip() == "model name")
    return next(named, "") or platform.processor() or platform.machine() or "CPU"
