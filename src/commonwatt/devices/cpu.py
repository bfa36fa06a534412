"""The CPU of this machine as a device."""

from __future__ import annotations

import platform
from pathlib import Path

from commonwatt.devices.base import LoadedModel
from commonwatt.devices.models.runtimes import Runtimes
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_config import CpuDevice as CpuSpec

__all__ = ["CpuDevice", "cpu_model"]


class CpuDevice:
    """Runs ``.onnx`` files in ONNX Runtime and ``.pt2`` files in PyTorch, on so many threads of the CPU."""

    def __init__(self, spec: CpuSpec) -> None:
        self.kind = "cpu"
        self.name = f"{cpu_model()}, {spec.threads} thread{'s' if spec.threads > 1 else ''}"
        self.enforcement = "cooperative at segment boundaries"
        self._runtimes = Runtimes(self.name, spec.segment_s, threads=spec.threads)

    def load(self, name: str, path: str) -> LoadedModel:
        """Load the model in file *path*."""
        return self._runtimes.load(name, path)

    def set_clock(self, clock_mhz: float | None) -> None:
        """Refuse any clock but the CPU's own."""
        if clock_mhz is not None:
            raise InputError("none, as clocks of a CPU are not set per tenant", field="clock_mhz", value=clock_mhz)

    def energy_j(self) -> float | None:
        """Return ``None``: CPUs' meters count everything that runs, so there is none."""
        return None

    def close(self) -> None:
        """Close every model."""
        self._runtimes.close()


def cpu_model(file: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the CPU, as far as it is known."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = (line.partition(":") for line in lines)
    named = (value.strip() for key, _, value in fields if key.strip() == "model name")
    return next(named, "") or platform.processor() or platform.machine() or "CPU"
