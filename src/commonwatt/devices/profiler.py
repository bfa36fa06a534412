"""Profiling a model on a device: time by kernel, and power (ETF section 5, "Application Profiling").

Inferences are repeated for five seconds at each clock. A measurement is the mean service time of the inferences in a
window of a tenth of a second, which is as fine as power meters resolve; where the measurements of the five seconds
have a coefficient of variation above 5%, all of it is done again, a few times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from commonwatt.devices.base import Device, LoadedModel, Tensor, example_input
from commonwatt.devices.clock import Clock
from commonwatt.devices.powers import modelled_powers
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import ProfileError
from commonwatt.model.timeslice_config import PowerModelSpec
from commonwatt.model.timeslice_profile import KernelProfile, ModelProfile, ProfilePoint

__all__ = ["Settings", "profile_model"]

WINDOW_NS = 100_000_000
WARM_UP = 3


@dataclass(frozen=True)
class Settings:
    """How to profile."""

    seconds: float = 5.0  # at each clock
    tries: int = 5
    largest_variation: float = 0.05  # coefficient of variation of the measurements


@dataclass
class _Measured:
    """What one stretch of repeated inferences showed."""

    steps_ns: Floats  # [runs, steps]
    joules: float | None  # by the meter, over the whole stretch
    wall_ns: int

    def variation(self) -> float:
        """Coefficient of variation of the means of windows; of inferences, where they are longer than a window."""
        whole = self.steps_ns.sum(axis=1)
        window = (np.cumsum(whole) // WINDOW_NS).astype(np.int64)
        _, at = np.unique(window, return_inverse=True)
        means = np.bincount(at, weights=whole) / np.bincount(at)
        if len(means) > 2:
            means = means[:-1]  # the last window is not full
        return float(means.std() / means.mean())


def profile_model(
    device: Device,
    clock: Clock,
    model: LoadedModel,
    clocks_mhz: tuple[float | None, ...],
    power: PowerModelSpec,
    settings: Settings,
    rng: np.random.Generator,
    heard: Callable[[float], None] = lambda _: None,
) -> ModelProfile:
    """Profile *model* on *device* at each of *clocks_mhz* (``None``: the device's own).

    Power is the meter's where the device has one, else what the stated model *power* says, and marked so.
    *heard* is told how many clocks are done. Raises ``ProfileError`` if the measurements do not settle in
    ``settings.tries`` tries, and ``InputError`` for a clock the device cannot be set to.
    """
    inputs = {spec.name: example_input(spec, rng) for spec in model.inputs}
    idle_w = _idle_w(device, clock)
    points = []
    for number, mhz in enumerate(clocks_mhz):
        device.set_clock(mhz)
        points.append(_point(device, clock, model, inputs, mhz, power, settings))
        heard(number + 1)
    return ModelProfile(
        model=model.name,
        model_digest=model.digest,
        device=device.name,
        idle_w=idle_w,
        source="measured here by commonwatt timeslice profile",
        points=tuple(points),
    )


def _idle_w(device: Device, clock: Clock, seconds: float = 1.0) -> float | None:
    before = device.energy_j()
    if before is None:
        return None
    began_ns = clock.now_ns()
    clock.wait_until(began_ns + round(seconds * 1e9))
    after = device.energy_j()
    assert after is not None
    return max(0.0, (after - before) / ((clock.now_ns() - began_ns) * 1e-9))


def _point(
    device: Device, clock: Clock, model: LoadedModel, inputs: dict[str, Tensor], mhz: float | None,
    power: PowerModelSpec, settings: Settings,
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


def _measure(device: Device, clock: Clock, model: LoadedModel, inputs: dict[str, Tensor], seconds: float) -> _Measured:
    for _ in range(WARM_UP):
        _infer(clock, model, inputs)
    before_j, began_ns = device.energy_j(), clock.now_ns()
    rows = [_infer(clock, model, inputs)]
    while clock.now_ns() - began_ns < seconds * 1e9:
        rows.append(_infer(clock, model, inputs))
    after_j = device.energy_j()
    joules = None if before_j is None or after_j is None else after_j - before_j
    return _Measured(np.array(rows, dtype=float), joules, clock.now_ns() - began_ns)


def _infer(clock: Clock, model: LoadedModel, inputs: dict[str, Tensor]) -> list[int]:
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
