"""Profiles of models, looked up by name, file and clock; and the power of every step while a model runs.

The power of a step is stated by the user, taken from a profile, or modelled. A power model is a statement of the user,
not a measurement: ``idle_w`` always, ``busy_w`` more while anything runs, and a number of joules for each 10^9
floating-point operations and each 10^9 bytes moved. The work is counted from shapes
(:class:`commonwatt.devices.base.StepWork`), so caches, clocks and sparsity have no effect on it.

**Measuring** gives the time of each kernel, and power (ETF section 5, "Application Profiling").
Inferences are repeated for five seconds at each clock. A measurement is the mean service time of the inferences in a
window of a tenth of a second, the resolution of power meters. If the measurements of the five seconds have a
coefficient of variation above 5%, they are repeated, up to a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from commonwatt.data.files import load_yaml
from commonwatt.data.tx2 import TX2_MODELS, tx2_profile
from commonwatt.devices.base import Device, DeviceClock, LoadedModel, StepWork, Tensor, example_inputs
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError, ProfileError
from commonwatt.model.names import one_of
from commonwatt.model.timeslice_file import KernelProfile, ModelProfile, PowerModelSpec, ProfilePoint

__all__ = [
    "TX2_PROFILES",
    "PowerSource",
    "ProfilerSettings",
    "StepPowers",
    "check_fits",
    "load_profile",
    "modelled_power_w",
    "modelled_powers",
    "point_at",
    "profile_model",
    "profiled_powers",
    "stated_powers",
]

TX2_PROFILES = {f"tx2-{model}": model for model in TX2_MODELS}

NEAR_MHZ = 2.0
"""Clocks this close are the same: papers write 1300 MHz for 1300.5."""


def load_profile(name: str) -> ModelProfile:
    """Return the built-in profile *name*, or the one in that file; raises ``InputError``."""
    if name in TX2_PROFILES:
        return tx2_profile(TX2_PROFILES[name])
    if not Path(name).exists() and not name.endswith((".json", ".yaml", ".yml", ".gz")):
        raise InputError(f"a profile file, or {one_of(TX2_PROFILES, name)}", field="profile", value=name)
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


# -- measuring


WINDOW_NS = 100_000_000
WARM_UP = 3


@dataclass(frozen=True)
class ProfilerSettings:
    """Length, number and required stability of the measurements."""

    seconds: float = 5.0  # at each clock
    tries: int = 5
    largest_variation: float = 0.05  # coefficient of variation of the measurements


@dataclass
class _Measured:
    """Measurements of one series of inferences."""

    steps_ns: Floats  # [runs, steps]
    joules: float | None  # by the meter, over the whole series
    wall_ns: int

    def variation(self) -> float:
        """Return the coefficient of variation of the window means; of inferences longer than a window."""
        whole = self.steps_ns.sum(axis=1)
        window = (np.cumsum(whole) // WINDOW_NS).astype(np.int64)
        _, at = np.unique(window, return_inverse=True)
        means = np.bincount(at, weights=whole) / np.bincount(at)
        if len(means) > 2:
            means = means[:-1]  # the last window is not full
        return float(means.std() / means.mean())


def profile_model(
    device: Device,
    clock: DeviceClock,
    model: LoadedModel,
    clocks_mhz: tuple[float | None, ...],
    power: PowerModelSpec,
    settings: ProfilerSettings,
    rng: np.random.Generator,
    on_progress: Callable[[float], None] = lambda _: None,
) -> ModelProfile:
    """Profile *model* on *device* at each of *clocks_mhz* (``None``: the device's own).

    Power is the meter's if the device has one, else that of the model *power*, and marked as modelled. *on_progress*
    is called with the number of clocks done. Raises ``ProfileError`` if the measurements do not stabilise within
    ``settings.tries`` tries, and ``InputError`` for a clock that the device does not support.
    """
    inputs = example_inputs(model.inputs, rng)
    idle_w = _idle_w(device, clock)
    points = []
    for number, mhz in enumerate(clocks_mhz):
        device.set_clock(mhz)
        points.append(_point(device, clock, model, inputs, mhz, power, settings))
        on_progress(number + 1)
    return ModelProfile(
        model=model.name,
        model_digest=model.digest,
        device=device.name,
        idle_w=idle_w,
        source="measured here by commonwatt timeslice profile",
        points=tuple(points),
    )


def _idle_w(device: Device, clock: DeviceClock, seconds: float = 1.0) -> float | None:
    before = device.energy_j()
    if before is None:
        return None
    began_ns = clock.now_ns()
    clock.wait_until(began_ns + round(seconds * 1e9))
    after = device.energy_j()
    assert after is not None
    return max(0.0, (after - before) / ((clock.now_ns() - began_ns) * 1e-9))


def _point(
    device: Device, clock: DeviceClock, model: LoadedModel, inputs: dict[str, Tensor], mhz: float | None,
    power: PowerModelSpec, settings: ProfilerSettings,
) -> ProfilePoint:  # fmt: skip
    seen = []
    for _ in range(settings.tries):
        measured = _measure(device, clock, model, inputs, settings.seconds)
        seen.append(measured.variation())
        if seen[-1] <= settings.largest_variation:
            return _settled(model, measured, mhz, power, seen[-1])
    at = "" if mhz is None else f" at {mhz:g} MHz"
    raise ProfileError(
        f"{model.name} on {device.name}{at}: the service time varies by {100 * min(seen):.1f}% at best in "
        f"{settings.tries} tries of {settings.seconds:g} s, more than {100 * settings.largest_variation:g}%; "
        "is something else using the device?"
    )


def _measure(
    device: Device, clock: DeviceClock, model: LoadedModel, inputs: dict[str, Tensor], seconds: float
) -> _Measured:
    for _ in range(WARM_UP):
        _infer(clock, model, inputs)
    before_j, began_ns = device.energy_j(), clock.now_ns()
    rows = [_infer(clock, model, inputs)]
    while clock.now_ns() - began_ns < seconds * 1e9:
        rows.append(_infer(clock, model, inputs))
    after_j = device.energy_j()
    joules = None if before_j is None or after_j is None else after_j - before_j
    return _Measured(np.array(rows, dtype=float), joules, clock.now_ns() - began_ns)


def _infer(clock: DeviceClock, model: LoadedModel, inputs: dict[str, Tensor]) -> list[int]:
    execution = model.begin(inputs)
    times = []
    for _ in model.step_names:
        before_ns = clock.now_ns()
        execution.step()
        times.append(clock.now_ns() - before_ns)
    return times


def _settled(
    model: LoadedModel, measured: _Measured, mhz: float | None, power: PowerModelSpec, variation: float
) -> ProfilePoint:
    times_s = measured.steps_ns.mean(axis=0) * 1e-9
    whole_s = float(times_s.sum())
    modelled = modelled_powers(model, power, tuple(times_s.tolist()))
    steps_w: tuple[float | None, ...] = modelled.steps_w
    power_w = modelled.mean_w
    if measured.joules is not None:
        power_w = measured.joules / (measured.wall_ns * 1e-9)
        steps_w = (None,) * len(times_s)  # kernels are too short for a meter
    return ProfilePoint(
        clock_mhz=mhz,
        time_s=whole_s,
        power_w=power_w,
        power_source="modelled" if measured.joules is None else "measured",
        coefficient_of_variation=variation,
        runs=len(measured.steps_ns),
        kernels=tuple(
            KernelProfile(name=name, time_s=time_s, power_w=watts)
            for name, time_s, watts in zip(model.step_names, times_s.tolist(), steps_w, strict=True)
        ),
    )
