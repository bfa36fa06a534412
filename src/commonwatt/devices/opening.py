"""Opening the device that a configuration describes."""

from __future__ import annotations

from commonwatt.devices.base import Device
from commonwatt.devices.cpu import CpuDevice
from commonwatt.devices.cuda import CudaDevice
from commonwatt.model.timeslice_config import CpuDevice as CpuSpec
from commonwatt.model.timeslice_config import CudaDevice as CudaSpec

__all__ = ["open_device"]


def open_device(spec: CpuSpec | CudaSpec) -> Device:
    """Return the device *spec* describes; raises ``InputError`` or ``MissingExtraError`` if it cannot be had here."""
    return CpuDevice(spec) if isinstance(spec, CpuSpec) else CudaDevice(spec)
