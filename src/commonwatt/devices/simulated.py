"""A device in virtual time: its kernels take the time and power in profiles, at the current clock."""

from __future__ import annotations

import hashlib

import numpy as np

from commonwatt.devices.base import StepWork, Tensor, TensorSpec, VirtualDeviceClock
from commonwatt.devices.profiles import load_profile, point_at
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_file import ModelProfile, ProfilePoint
from commonwatt.model.timeslice_file import SimulatedDeviceSpec as Spec

__all__ = ["SimulatedDevice", "SimulatedModel"]


class SimulatedModel:
    """A profile in place of a model: no tensors, and steps with the time and power of its kernels."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()

    def __init__(self, device: SimulatedDevice, name: str, profile: ModelProfile, power_w: float | None = None) -> None:
        self.name = name
        self.profile = profile
        self.digest = profile.model_digest or hashlib.sha256(profile.model_dump_json().encode()).hexdigest()
        self._device = device
        self._power_w = power_w
        first = self._steps(profile.points[0])
        self.step_names = tuple(name for name, _, _ in first)
        self.step_times_s = tuple(time_ns * 1e-9 for _, time_ns, _ in first)
        self.work = (StepWork(0.0, 0.0),) * len(first)
        self._by_clock: dict[float | None, list[tuple[str, int, float]]] = {}

    def steps(self) -> list[tuple[str, int, float]]:
        """Return name, time (ns) and power (W) of every step at the device's clock."""
        clock = self._device.clock_mhz
        if clock not in self._by_clock:
            self._by_clock[clock] = self._steps(point_at(self.profile, clock))
        return self._by_clock[clock]

    def _steps(self, point: ProfilePoint) -> list[tuple[str, int, float]]:
        if not point.kernels or not self._device.kernel_level:
            return [("inference", round(point.time_s * 1e9), self._power_w or point.power_w)]
        return [(k.name, round(k.time_s * 1e9), self._power_w or k.power_w or point.power_w) for k in point.kernels]

    def begin(self, inputs: dict[str, Tensor]) -> _Execution:
        """Start an inference; a simulated model takes no inputs."""
        if inputs:
            raise InputError("no inputs on a simulated device", field="inputs", value=", ".join(inputs))
        return _Execution(self._device, self)

    def close(self) -> None:
        """Do nothing."""


class _Execution:
    def __init__(self, device: SimulatedDevice, model: SimulatedModel) -> None:
        self._device, self._model, self._at = device, model, 0

    def step(self) -> None:
        _, time_ns, power_w = self._model.steps()[self._at]
        self._at += 1
        self._device.work(time_ns, power_w)

    def outputs(self) -> dict[str, Tensor]:
        return {"done": np.ones(1, np.bool_)}


class SimulatedDevice:
    """A device whose work consists of advancing a virtual clock."""

    kind = "simulated"
    enforcement = "simulated, switching at kernel boundaries"

    def __init__(self, spec: Spec, clock: VirtualDeviceClock) -> None:
        self.name = "simulated"
        self.kernel_level = spec.kernel_level
        self.idle_w = spec.idle_w
        self.clock_mhz: float | None = None
        self._clock = clock
        self._busy_ns = 0
        self._busy_j = 0.0

    def load(self, name: str, path: str) -> SimulatedModel:
        """Use the built-in profile *path*, or the one in that file, as a model."""
        return self.take(name, load_profile(path))

    def take(self, name: str, profile: ModelProfile, power_w: float | None = None) -> SimulatedModel:
        """Use *profile* as a model; *power_w*, if given, replaces the power in the profile."""
        return SimulatedModel(self, name, profile, power_w)

    def set_clock(self, clock_mhz: float | None) -> None:
        """Run the following steps at *clock_mhz*; a model whose profile lacks it is refused when it runs."""
        self.clock_mhz = clock_mhz

    def work(self, time_ns: int, power_w: float) -> None:
        """Let *time_ns* pass at *power_w*."""
        self._clock.advance(time_ns)
        self._busy_ns += time_ns
        self._busy_j += power_w * time_ns * 1e-9

    def energy_j(self) -> float:
        """Return the energy so far, idle time included."""
        return self._busy_j + self.idle_w * (self._clock.now_ns() - self._busy_ns) * 1e-9

    def close(self) -> None:
        """Do nothing."""
