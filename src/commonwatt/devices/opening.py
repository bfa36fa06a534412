"""The device a configuration asks for."""

from __future__ import annotations

from commonwatt.devices.base import Device
from commonwatt.model.timeslice_config import CpuDevice, CudaDevice

__all__ = ["open_device"]


def open_device(spec: CpuDevice | CudaDevice) -> Device:
    """Open it."""
    raise NotImplementedError
