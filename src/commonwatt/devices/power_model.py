"""Modelled power, where there is no meter: a statement of the user's, not a measurement.

Power is taken to be ``idle_w`` always, ``busy_w`` more while anything runs, and so many joules for each 10^9
floating-point operations and each 10^9 bytes moved. All four are figures of the configuration; the work is counted
from shapes (:class:`commonwatt.devices.base.Work`), so caches, clocks and sparsity do not show in it.
"""

from __future__ import annotations

import math

from commonwatt.devices.base import Work
from commonwatt.model.timeslice_config import PowerModelSpec

__all__ = ["modelled_power_w"]


def modelled_power_w(spec: PowerModelSpec, work: Work, time_s: float) -> float:
    """Return the mean power by *spec* of a device that did *work* in *time_s*."""
    if not (math.isfinite(time_s) and time_s > 0):
        raise ValueError(f"time_s: got {time_s}, expected a finite number above 0")
    joules = spec.joules_per_gflop * work.flops / 1e9 + spec.joules_per_gb * work.bytes_moved / 1e9
    return spec.idle_w + spec.busy_w + joules / time_s
