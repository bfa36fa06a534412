"""Two networks on a Jetson TX2 at 13 GPU clocks, as published with ETF (umassos/energy-time-fairness, models/).

The 26 rows by model are figures typed in from there. Kernel by kernel the same profiles are read from the published
files where those are available, ``tx2_profiles/MODEL_profile.json`` among the traces.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commonwatt.data.text import read_text
from commonwatt.data.third_party import find
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_file import KernelProfile, ModelProfile, ProfilePoint

__all__ = ["TX2_DEVICE", "TX2_MODELS", "TX2_ROWS", "read_tx2_kernels", "tx2_profile"]

TX2_DEVICE = "NVIDIA Jetson TX2"

# model -> (GPU clock in MHz, time of an inference in us, power in mW)
TX2_ROWS: dict[str, tuple[tuple[float, int, int], ...]] = {
    "resnet18": (
        (114.75, 180739, 498),
        (216.75, 95994, 720),
        (318.75, 65900, 918),
        (420.75, 50966, 1090),
        (522.75, 42018, 1248),
        (624.75, 36101, 1380),
        (726.75, 32129, 1536),
        (854.25, 28191, 1952),
        (930.75, 26510, 2177),
        (1032.75, 24703, 2489),
        (1122, 23375, 2839),
        (1236.75, 22083, 3352),
        (1300.5, 21406, 3736),
    ),
    "resnet50": (
        (114.75, 491684, 541),
        (216.75, 262810, 776),
        (318.75, 181197, 995),
        (420.75, 139644, 1193),
        (522.75, 114572, 1380),
        (624.75, 97847, 1539),
        (726.75, 86979, 1717),
        (854.25, 75976, 2187),
        (930.75, 71271, 2460),
        (1032.75, 66176, 2815),
        (1122, 62543, 3226),
        (1236.75, 58823, 3799),
        (1300.5, 57005, 4261),
    ),
}

TX2_MODELS = tuple(TX2_ROWS)


def tx2_profile(model: str, *, kernels: bool = True) -> ModelProfile:
    """Return the profile of *model* (resnet18 or resnet50), by kernel if the published file is available."""
    file = find(f"tx2_profiles/{model}_profile.json") if kernels else None
    steps: dict[float, tuple[KernelProfile, ...]] = read_tx2_kernels(file) if file is not None else {}
    return ModelProfile(
        model=model,
        device=TX2_DEVICE,
        source="published with ETF (SEC 2023)" + (", by kernel" if steps else ", by model"),
        points=tuple(
            ProfilePoint(
                clock_mhz=mhz, time_s=us * 1e-6, power_w=mw * 1e-3, power_source="measured",
                kernels=steps.get(mhz, ()),
            )
            for mhz, us, mw in TX2_ROWS[model]
        ),
    )  # fmt: skip


def read_tx2_kernels(path: Path) -> dict[float, tuple[KernelProfile, ...]]:
    """Read the kernels of a published profile, by clock in MHz; raises ``InputError`` naming the file."""
    try:
        kernels: dict[str, Any] = json.loads(read_text(path))["kernel_profile"]
        clocks = list(next(iter(kernels.values()))["exec_time"])
        return {
            int(hz) / 1e6: tuple(
                KernelProfile(name=name, time_s=kernel["exec_time"][hz] * 1e-6, power_w=kernel["gpu_power"][hz] * 1e-3)
                for name, kernel in kernels.items()
                if kernel["exec_time"][hz] > 0
            )
            for hz in clocks
        }
    except (KeyError, TypeError, ValueError, StopIteration, AttributeError) as error:
        raise InputError(
            "a profile with exec_time and gpu_power of every kernel by frequency", file=path, value=error
        ) from None
