"""GPUs of this machine, as far as the driver tells."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GpusHere", "gpus_here"]


@dataclass(frozen=True)
class GpusHere:
    """What the driver says. ``names`` is ``None`` if nobody can be asked; ``trouble`` says why."""

    names: tuple[str, ...] | None
    metered: tuple[bool, ...] = ()  # whether each has an energy counter
    trouble: str = ""


def gpus_here() -> GpusHere:
    """Ask NVML for the GPUs of this machine."""
    try:
        import pynvml
    except ImportError:
        return GpusHere(None, trouble="nvidia-ml-py is not installed (pip install 'commonwatt[gpu]')")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpusHere(None, trouble=f"NVML says: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        return GpusHere(
            tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names),
            tuple(_metered(pynvml, handle) for handle in handles),
        )
    except pynvml.NVMLError as error:
        return GpusHere(None, trouble=f"NVML says: {error}")
    finally:
        pynvml.nvmlShutdown()


def _metered(nvml: object, handle: object) -> bool:
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)  # type: ignore[attr-defined]
    except nvml.NVMLError:  # type: ignore[attr-defined]
        return False
    return True
