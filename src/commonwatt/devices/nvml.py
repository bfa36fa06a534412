"""Meter and clock of one NVIDIA GPU: NVML, through zeus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from warnings import catch_warnings, simplefilter

from commonwatt.devices.models.foreign import Foreign
from commonwatt.model.errors import DeviceError, InputError, MissingExtraError

__all__ = ["NvmlGpu"]


class NvmlGpu:
    """A GPU by its *index* among those that CUDA shows (``CUDA_VISIBLE_DEVICES``)."""

    def __init__(self, index: int) -> None:
        self._gpus, self._index = _gpus(), index
        if index >= len(self._gpus):
            raise InputError(f"a whole number below {len(self._gpus)}, as many GPUs as there are",
                             field="device.index", value=index)  # fmt: skip
        self.name = f"GPU {index}"
        with self._asking():
            self.name = str(self._gpus.get_name(index))
            self._metered = bool(self._gpus.supports_get_total_energy_consumption(index))
        self._clock_mhz: int | None = None

    def energy_j(self) -> float | None:
        """Return the reading of the GPU's energy meter; ``None`` if it has none (before Volta)."""
        if not self._metered:
            return None
        with self._asking():
            return float(self._gpus.get_total_energy_consumption(self._index)) / 1000

    def set_clock(self, clock_mhz: float | None) -> None:
        """Lock the GPU's clock, or let go of it; does nothing if it is so already."""
        wanted = None if clock_mhz is None else round(clock_mhz)
        if wanted == self._clock_mhz:
            return
        with self._asking(wanted), catch_warnings():
            simplefilter("ignore")  # zeus warns of a missing permission; if it is missing, the error says so
            if wanted is None:
                self._gpus.reset_gpu_locked_clocks(self._index)
            else:
                self._gpus.set_gpu_locked_clocks(self._index, wanted, wanted)
        self._clock_mhz = wanted

    def close(self) -> None:
        """Let go of the clock."""
        with suppress(DeviceError, InputError):  # of a GPU that is gone there is nothing to let go
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
            raise InputError(f"a clock that {self.name} has", field="clock_mhz", value=clock_mhz) from error
        except (common.ZeusGPUNotSupportedError, common.ZeusGPUFunctionNotFoundError) as error:
            wanted = f"nothing, as {self.name} or its driver does not support this"
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
