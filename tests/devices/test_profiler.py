"""Profiles: means by kernel, power by meter or model, and measurements that do not settle."""

from __future__ import annotations

import random

import numpy as np
import pytest

from commonwatt.devices.profiles import ProfilerSettings, profile_model
from commonwatt.model.errors import ProfileError
from commonwatt.model.timeslice_file import PowerModelSpec
from tests.devices.made import FakeDevice, FakeModel

SPEC = PowerModelSpec(idle_w=10, busy_w=5, joules_per_gflop=0.0, joules_per_gb=0.0)


def profiled(device, clocks=(None,), **how):
    model = FakeModel(device, power_w=80.0)
    return profile_model(device, device.clock, model, clocks, SPEC, ProfilerSettings(**how), np.random.default_rng(0))


def test_five_seconds_of_inferences():
    profile = profiled(FakeDevice())
    (point,) = profile.points
    assert [kernel.name for kernel in point.kernels] == ["k0", "k1"]
    assert [kernel.time_s for kernel in point.kernels] == [pytest.approx(0.002), pytest.approx(0.003)]
    assert (point.time_s, point.runs) == (pytest.approx(0.005), 1000)
    assert (point.power_w, point.power_source) == (pytest.approx(15), "modelled")
    assert point.coefficient_of_variation == pytest.approx(0, abs=1e-12)
    assert profile.idle_w is None
    assert (profile.device, profile.model_digest) == ("fake", "d" * 64)


def test_a_meter_is_believed():
    (point,) = (profile := profiled(FakeDevice(meter=True, idle_w=7.0))).points
    assert (point.power_w, point.power_source) == (pytest.approx(80), "measured")
    assert profile.idle_w == pytest.approx(7)
    assert all(kernel.power_w is None for kernel in point.kernels)


def test_one_point_for_each_clock():
    device = FakeDevice()
    profile = profiled(device, (800.0, 1200.0), seconds=0.5)
    assert [point.clock_mhz for point in profile.points] == [800.0, 1200.0]
    assert device.clocks == [800.0, 1200.0]


def test_noise_of_single_inferences_evens_out_within_a_measurement():
    rng = random.Random(0)
    (point,) = profiled(FakeDevice(noise=lambda _: rng.uniform(0.8, 1.2))).points
    assert 0 < point.coefficient_of_variation < 0.05


def test_measurements_that_vary_are_done_again():
    """Disturbed for the first stretch only."""
    device = FakeDevice(noise=lambda step: 3.0 if step < 1200 and step % 400 < 200 else 1.0)
    (point,) = profiled(device).points
    assert device.steps > 2 * 1000
    assert point.time_s == pytest.approx(0.005)


def test_measurements_that_never_settle_are_an_error_that_says_so():
    device = FakeDevice(noise=lambda step: 3.0 if step % 40 < 20 else 1.0)
    with pytest.raises(
        ProfileError, match=r"fake on fake: .* varies by \d+\.\d% at best in 3 tries of 1 s, more than 5%"
    ):
        profiled(device, seconds=1.0, tries=3)
