"""Where a training is profiled: NVIDIA GPUs, or threads of the CPU in their place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from commonwatt.devices.local import NvmlGpu, cpu_model
from commonwatt.model.errors import ArgumentError, DeviceError, InputError

__all__ = ["CORE_W", "CpuThreads", "Hardware", "NvidiaGpus", "cpu_seconds"]

CORE_W = 5.0
"""Modelled power of a busy core unless another is given."""
_IDLE_S = 1.0
_THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "BLIS")


class Hardware(Protocol):
    """GPUs, or what stands for them; numbered from 0."""

    name: str
    gpu_type: str  # unless the user names it
    count: int
    power_source: Literal["measured", "modelled"] | None
    power_model: str | None  # in words, where power is modelled
    idle_gpu_w: float | None

    def environment(self, gpus: int) -> dict[str, str]:
        """Return the variables that restrict a process to the first *gpus*."""

    def confine(self, gpus: int) -> Callable[[], None] | None:
        """Return what the process is to call before it begins; ``None`` for nothing."""

    def set_clock(self, gpus: int, clock_mhz: float | None) -> None:
        """Lock the clock of the first *gpus*; raises ``InputError`` if it cannot be."""

    def energy_j(self, gpus: int, session: int) -> float | None:
        """Return the energy of the first *gpus* since some moment, and with it of the processes of *session*."""

    def close(self) -> None:
        """Unlock every clock."""


class NvidiaGpus:
    """The NVIDIA GPUs of this machine, with NVML's meter and clocks."""

    def __init__(self, wait: Callable[[float], None] = time.sleep, gpu: Callable[[int], NvmlGpu] = NvmlGpu) -> None:
        self._gpus: list[NvmlGpu] = [gpu(0)]
        with suppress(InputError):  # the number after the last
            while True:
                self._gpus.append(gpu(len(self._gpus)))
        self.name, self.count = self._gpus[0].name, len(self._gpus)
        self.gpu_type = self.name
        self.power_model: str | None = None
        self.power_source: Literal["measured", "modelled"] | None = None
        self.idle_gpu_w: float | None = None
        before, began_s = self.energy_j(self.count, 0), time.perf_counter()
        if before is not None:
            wait(_IDLE_S)
            after = self.energy_j(self.count, 0)
            assert after is not None
            self.power_source = "measured"
            self.idle_gpu_w = max(0.0, after - before) / (time.perf_counter() - began_s) / self.count

    def environment(self, gpus: int) -> dict[str, str]:
        """Return the variable that shows CUDA the first *gpus* of those that are visible here."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(i) for i in range(self.count)]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names[:gpus])}

    def confine(self, gpus: int) -> Callable[[], None] | None:  # noqa: ARG002
        """Return nothing to do."""
        return None

    def set_clock(self, gpus: int, clock_mhz: float | None) -> None:
        """Lock the clock of the first *gpus*, or unlock it."""
        for gpu in self._gpus[:gpus]:
            gpu.set_clock(clock_mhz)

    def energy_j(self, gpus: int, session: int) -> float | None:  # noqa: ARG002
        """Return the sum of the energy counters; ``None`` if a GPU has none (before Volta)."""
        readings = [gpu.energy_j() for gpu in self._gpus[:gpus]]
        return None if None in readings else float(sum(filter(None, readings)))

    def close(self) -> None:
        """Unlock every clock."""
        for gpu in self._gpus:
            with suppress(DeviceError):
                gpu.close()


class CpuThreads:
    """Cores of this machine in place of GPUs, to try profiling without one; power is *core_w* for each busy core."""

    def __init__(self, core_w: float = CORE_W) -> None:
        self._cores: Sequence[int] = sorted(os.sched_getaffinity(0))
        self._core_w = core_w
        self.name, self.gpu_type, self.count = cpu_model(), "CPU", len(self._cores)
        self.power_source: Literal["measured", "modelled"] | None = "modelled"
        self.power_model: str | None = f"{core_w:g} W for each second of CPU time of the training's processes"
        self.idle_gpu_w: float | None = 0.0

    def environment(self, gpus: int) -> dict[str, str]:
        """Return the variables that numerical libraries take their number of threads from."""
        return {f"{library}_NUM_THREADS": str(gpus) for library in _THREADS}

    def confine(self, gpus: int) -> Callable[[], None] | None:
        """Return what binds the calling process to the first *gpus* cores."""
        cores = self._cores[:gpus]
        return lambda: os.sched_setaffinity(0, cores)

    def set_clock(self, gpus: int, clock_mhz: float | None) -> None:  # noqa: ARG002
        """Refuse any clock but the CPU's own."""
        if clock_mhz is not None:
            raise ArgumentError("no clock on a CPU", field="clock", value=clock_mhz)

    def energy_j(self, gpus: int, session: int) -> float | None:  # noqa: ARG002
        """Return the modelled energy of the processes of *session* so far."""
        return self._core_w * cpu_seconds(session)

    def close(self) -> None:
        """Do nothing."""


def cpu_seconds(session: int) -> float:
    """Return the CPU time of the processes of *session* that are alive, and of those they have waited for."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[3]) == session:
                    ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
