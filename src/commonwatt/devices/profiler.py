"""Profiles a model on a device: time of each kernel, and power (ETF section 5, "Application Profiling").

Inferences are repeated for five seconds at each clock. A measurement is the mean service time of the inferences in a
window of a tenth of a second, the resolution of power meters. If the measurements of the five seconds have a
coefficient of variation above 5%, they are repeated, up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from commonwatt.devices.base import Device, DeviceClock, LoadedModel, Tensor, example_inputs
from commonwatt.devices.profiles import modelled_powers
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import ProfileError
from commonwatt.model.timeslice_file import KernelProfile, ModelProfile, PowerModelSpec, ProfilePoint

__all__ = ["ProfilerSettings", "profile_model"]

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
