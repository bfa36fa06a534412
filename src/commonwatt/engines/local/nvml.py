"""Meters of nodes on this machine: the energy counters of their GPUs (NVML) beside the declared idle power."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from commonwatt.model.errors import EngineError, InputError, MissingExtraError
from commonwatt.model.nodes import Cluster

__all__ = ["nvml_energy_j"]

_FIELD = "live.local.meter"


def nvml_energy_j(
    cluster: Cluster, slots: Sequence[Sequence[int]], now_s: Callable[[], float] = time.time
) -> Callable[[int], float]:
    """Return what reads the meter of a node, in joules since some moment.

    Of node *n* that is what the counters of the GPUs *slots[n]* (NVML indices) say since the driver was loaded, and
    the declared idle power of the node since 1970: differences count. What GPUs draw while idle is in their counters,
    so ``idle_w`` should leave it out.

    Raises
    ------
    MissingExtraError
        Without nvidia-ml-py.
    InputError
        If there are no such GPUs, or they have no energy counter (before Volta).
    EngineError
        Later, from the function returned, if the driver does not answer any more.
    """
    try:
        import pynvml
    except ImportError as error:
        raise MissingExtraError("nvidia-ml-py", "gpu") from error
    try:
        pynvml.nvmlInit()
        handles = [[pynvml.nvmlDeviceGetHandleByIndex(slot) for slot in own] for own in slots]
        for own in handles:
            for handle in own:
                pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        expected = f"GPUs {sorted({slot for own in slots for slot in own})} with energy counters (NVML says: {error})"
        raise InputError(expected, field=_FIELD, value="nvml") from None
    idle_w = [cluster.classes[k].idle_w for k in cluster.klass]

    def read(n: int) -> float:
        try:
            gpus_mj = sum(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles[n])
        except pynvml.NVMLError as error:
            msg = f"energy counters of node {cluster.names[n]}: NVML says: {error}"
            raise EngineError(msg) from error
        return float(gpus_mj) / 1000 + idle_w[n] * now_s()

    return read
