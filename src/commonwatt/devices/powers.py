"""Power of every step of a model while it runs for a tenant: a profile's, else a stated model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonwatt.devices.base import LoadedModel
from commonwatt.devices.power_model import modelled_power_w
from commonwatt.devices.profiles import point_at
from commonwatt.model.timeslice_config import PowerModelSpec
from commonwatt.model.timeslice_profile import ModelProfile

__all__ = ["PowerSource", "StepPowers", "modelled_powers", "profiled_powers", "stated_powers"]

PowerSource = Literal["stated", "profile-measured", "profile-modelled", "modelled"]


@dataclass(frozen=True)
class StepPowers:
    """Power while a model runs, step by step."""

    steps_w: tuple[float, ...]
    mean_w: float  # over an inference, by time
    time_s: float  # of an inference, as far as known beforehand
    source: PowerSource


def stated_powers(model: LoadedModel, power_w: float) -> StepPowers:
    """Every step at the power the configuration states for the tenant."""
    return StepPowers((power_w,) * len(model.step_names), power_w, sum(model.step_times_s), "stated")


def profiled_powers(model: LoadedModel, profile: ModelProfile, clock_mhz: float | None) -> StepPowers:
    """Power as *profile* has it at *clock_mhz*: by kernel where its kernels are the model's steps, else its mean.

    Raises ``InputError`` if the profile lacks that clock.
    """
    point = point_at(profile, clock_mhz)
    steps = (point.power_w,) * len(model.step_names)
    if tuple(kernel.name for kernel in point.kernels) == model.step_names:
        steps = tuple(kernel.power_w or point.power_w for kernel in point.kernels)
    source: PowerSource = "profile-measured" if point.power_source == "measured" else "profile-modelled"
    return StepPowers(steps, point.power_w, point.time_s, source)


def modelled_powers(model: LoadedModel, spec: PowerModelSpec, times_s: tuple[float, ...] | None = None) -> StepPowers:
    """Power by the stated model *spec*, from the work of each step and the time it takes.

    The time is *times_s*, else what it took when the model was loaded.
    """
    times_s = model.step_times_s if times_s is None else times_s
    steps = [modelled_power_w(spec, work, time_s) for work, time_s in zip(model.work, times_s, strict=True)]
    whole_s = sum(times_s)
    mean_w = sum(w * t for w, t in zip(steps, times_s, strict=True)) / whole_s
    return StepPowers(tuple(steps), mean_w, whole_s, "modelled")
