"""Devices, configurations and clocks for tests: nothing here needs an extra."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from commonwatt.devices.base import StepWork, TensorSpec, VirtualDeviceClock
from commonwatt.devices.session import open_session
from commonwatt.model.errors import DeviceError
from commonwatt.model.timeslice_file import TimesliceConfig

MS = 10**6


def simulated(*tenants, **more):
    """A configuration of a simulated TX2; each tenant is (name, profile, clock) and what else there is to say."""
    document = {"device": {"kind": "simulated"}, "quantum_s": 0.2, "duration_s": 20} | more
    document["tenants"] = [
        {"name": name, "clock_mhz": clock, "models": [{"name": "m", "profile": f"tx2-{model}"}]} | extra
        for name, model, clock, extra in ((*tenant, {})[:4] for tenant in tenants)
    ]
    return TimesliceConfig.model_validate(document)


def opened(config, folder="."):
    return open_session(config, Path(folder))


class FakeModel:
    """Steps that take a time and power of their own, in virtual time."""

    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    outputs = (TensorSpec("y", "FP32", (-1, 2)),)

    def __init__(self, device, name="fake", times_s=(0.002, 0.003), power_w=50.0):
        self.device, self.name, self.digest, self.power_w = device, name, "d" * 64, power_w
        self.step_names = tuple(f"k{i}" for i in range(len(times_s)))
        self.step_times_s = times_s
        self.work = (StepWork(1e9, 1e6),) * len(times_s)
        self.closed = False

    def begin(self, inputs):
        return FakeExecution(self, inputs)

    def close(self):
        self.closed = True


class FakeExecution:
    def __init__(self, model, inputs):
        self.model, self.inputs, self.at = model, inputs, 0

    def step(self):
        self.model.device.work(self.model, self.at)
        self.at += 1

    def outputs(self):
        return {"y": 2 * self.inputs["x"]}


class FakeDevice:
    """A device in virtual time, with a meter if it is asked for, that may fail at some step."""

    kind, name, enforcement = "cpu", "fake", "cooperative at segment boundaries"

    def __init__(self, clock=None, meter=False, idle_w=5.0, fails_at=None, noise=lambda _: 1.0):
        self.clock = clock or VirtualDeviceClock()
        self.meter, self.idle_w, self.fails_at, self.noise = meter, idle_w, fails_at, noise
        self.steps, self.busy_ns, self.busy_j, self.clocks = 0, 0, 0.0, []

    def load(self, name, path):
        return FakeModel(self, name)

    def work(self, model, at):
        self.steps += 1
        if self.fails_at is not None and self.steps >= self.fails_at:
            raise DeviceError("fake: it fell off the bus")
        time_ns = round(model.step_times_s[at] * self.noise(self.steps) * 1e9)
        self.clock.advance(time_ns)
        self.busy_ns += time_ns
        self.busy_j += model.power_w * time_ns * 1e-9

    def set_clock(self, clock_mhz):
        self.clocks.append(clock_mhz)

    def energy_j(self):
        idle_ns = self.clock.now_ns() - self.busy_ns
        return self.busy_j + self.idle_w * idle_ns * 1e-9 if self.meter else None

    def close(self):
        pass


def rng():
    return np.random.default_rng(0)
