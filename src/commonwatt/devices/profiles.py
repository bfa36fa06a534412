"""Profiles of models, looked up by name, file and clock; and the power of every step while a model runs.

The power of a step is stated by the user, taken from a profile, or modelled. A power model is a statement of the user,
not a measurement: ``idle_w`` always, ``busy_w`` more while anything runs, and a number of joules for each 10^9
floating-point operations and each 10^9 bytes moved. The work is counted from shapes
(:class:`commonwatt.devices.base.StepWork`), so caches, clocks and sparsity have no effect on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from commonwatt.data.files import load_yaml
from commonwatt.data.tx2 import TX2_MODELS, tx2_profile
from commonwatt.devices.base import LoadedModel, StepWork
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of
from commonwatt.model.timeslice_file import ModelProfile, PowerModelSpec, ProfilePoint

__all__ = [
    "KNOWN",
    "PowerSource",
    "StepPowers",
    "check_fits",
    "load_profile",
    "modelled_power_w",
    "modelled_powers",
    "point_at",
    "profiled_powers",
    "stated_powers",
]

KNOWN = {f"tx2-{model}": model for model in TX2_MODELS}

NEAR_MHZ = 2.0
"""Clocks this close are the same: papers write 1300 MHz for 1300.5."""


def load_profile(name: str) -> ModelProfile:
    """Return the built-in profile *name*, or the one in that file; raises ``InputError``."""
    if name in KNOWN:
        return tx2_profile(KNOWN[name])
    if not Path(name).exists() and not name.endswith((".json", ".yaml", ".yml", ".gz")):
        raise InputError(f"a profile file, or {one_of(KNOWN, name)}", field="profile", value=name)
    return load_yaml(name, ModelProfile)


def point_at(profile: ModelProfile, clock_mhz: float | None) -> ProfilePoint:
    """Return the point of *profile* at *clock_mhz*; ``None``: the point without a clock, else the highest clock.

    Raises ``InputError`` naming the clocks in the profile.
    """
    if clock_mhz is None:
        plain = [point for point in profile.points if point.clock_mhz is None]
        return plain[0] if plain else max(profile.points, key=lambda point: point.clock_mhz or 0.0)
    for point in profile.points:
        if point.clock_mhz is not None and abs(point.clock_mhz - clock_mhz) <= NEAR_MHZ:
            return point
    there = ", ".join(f"{point.clock_mhz:g}" for point in profile.points if point.clock_mhz is not None)
    raise InputError(
        f"a clock in the profile of {profile.model} ({there or 'none'}), in MHz", field="clock_mhz", value=clock_mhz
    )


def check_fits(profile: ModelProfile, file: str, model_digest: str, device: str) -> None:
    """Raise ``InputError`` naming *file* if it is a profile of another model or device."""
    if profile.model_digest is not None and profile.model_digest != model_digest:
        raise InputError(
            f"a profile of this model (SHA-256 {model_digest[:12]}...)",
            file=file, field="model_digest", value=profile.model_digest[:12] + "...",
        )  # fmt: skip
    if profile.device != device:
        raise InputError(f"a profile made on {device!r}", file=file, field="device", value=profile.device)


PowerSource = Literal["stated", "profile-measured", "profile-modelled", "modelled"]


@dataclass(frozen=True)
class StepPowers:
    """Power of each step of a model."""

    steps_w: tuple[float, ...]
    mean_w: float  # over an inference, by time
    time_s: float  # of an inference, estimated beforehand
    source: PowerSource


def stated_powers(model: LoadedModel, power_w: float) -> StepPowers:
    """Return the power that the configuration states for the tenant, for every step."""
    return StepPowers((power_w,) * len(model.step_names), power_w, sum(model.step_times_s), "stated")


def profiled_powers(model: LoadedModel, profile: ModelProfile, clock_mhz: float | None) -> StepPowers:
    """Return the power in *profile* at *clock_mhz*: by kernel if its kernels are the model's steps, else the mean.

    Raises ``InputError`` if the profile lacks that clock.
    """
    point = point_at(profile, clock_mhz)
    steps = (point.power_w,) * len(model.step_names)
    if tuple(kernel.name for kernel in point.kernels) == model.step_names:
        steps = tuple(kernel.power_w or point.power_w for kernel in point.kernels)
    source: PowerSource = "profile-measured" if point.power_source == "measured" else "profile-modelled"
    return StepPowers(steps, point.power_w, point.time_s, source)


def modelled_powers(model: LoadedModel, spec: PowerModelSpec, times_s: tuple[float, ...] | None = None) -> StepPowers:
    """Return the power by the model *spec*, from the work of each step and its time.

    The times are *times_s*, else those measured when the model was loaded.
    """
    times_s = model.step_times_s if times_s is None else times_s
    steps = [modelled_power_w(spec, work, time_s) for work, time_s in zip(model.work, times_s, strict=True)]
    whole_s = sum(times_s)
    mean_w = sum(w * t for w, t in zip(steps, times_s, strict=True)) / whole_s
    return StepPowers(tuple(steps), mean_w, whole_s, "modelled")


def modelled_power_w(spec: PowerModelSpec, work: StepWork, time_s: float) -> float:
    """Return the mean power of a device that does *work* in *time_s*, by the model *spec*."""
    if not (math.isfinite(time_s) and time_s > 0):
        raise ValueError(f"time_s: got {time_s}, expected a finite number above 0")
    joules = spec.joules_per_gflop * work.flops / 1e9 + spec.joules_per_gb * work.bytes_moved / 1e9
    return spec.idle_w + spec.busy_w + joules / time_s
