"""One scheduler and one device: what runs, what it costs, what happens when something fails."""

from __future__ import annotations

import numpy as np
import pytest

from commonwatt.devices.batches import DeviceRequest
from commonwatt.devices.driver import Driver
from commonwatt.devices.profiles import modelled_powers, profiled_powers, stated_powers
from commonwatt.model.timeslice_file import KernelProfile, ModelProfile, PowerModelSpec, ProfilePoint
from commonwatt.timeslicing._energy import EnergyLedger
from commonwatt.timeslicing._policies import Etf, Tf
from commonwatt.timeslicing._scheduler import FairScheduler, Task
from tests.devices.made import MS, FakeDevice, FakeModel

X = {"x": np.ones((1, 2), np.float32)}


class Bench:
    """A driver over a fake device, with tenants a and b."""

    def __init__(self, policy=None, stated=(50.0, 50.0), true=(50.0, 50.0), **device):
        self.device = FakeDevice(**device)
        self.scheduler = FairScheduler(policy or Tf(), 20 * MS)
        self.driver = Driver(self.scheduler, self.device, self.device.clock, EnergyLedger(5.0), settle_ns=100 * MS)
        self.models = {}
        for name, says, draws in zip("ab", stated, true, strict=True):
            model = FakeModel(self.device, power_w=draws)
            self.models[name] = (model, stated_powers(model, says))
            self.scheduler.add(name, 1, says, queue_limit=1000)
        self.ended = []

    def submit(self, name, times=1):
        tasks = []
        for _ in range(times):
            task = Task(self.scheduler.tenants[name], 0, DeviceRequest(*self.models[name], X, self.ended.append))
            assert self.scheduler.submit(task)
            tasks.append(task)
        return tasks

    def run(self, steps=10**6):
        while steps and self.driver.step():
            steps -= 1


def test_requests_end_in_order_with_their_outputs():
    bench = Bench()
    tasks = bench.submit("a", 3)
    bench.run()
    assert bench.ended == tasks
    assert all((task.work.outputs["y"] == 2).all() for task in tasks)
    assert [task.work.ended_ns for task in tasks] == [5 * MS, 10 * MS, 15 * MS]
    assert not bench.driver.step()


def test_energy_of_tenants_and_idling_sums_to_the_meter():
    """The stated powers are wrong both ways; the meter knows better, and slices follow it."""
    bench = Bench(policy=Etf(0.0), stated=(50.0, 50.0), true=(20.0, 80.0), meter=True)
    for _ in range(30):
        bench.submit("a", 20), bench.submit("b", 20)
        bench.run(30)
        bench.device.clock.advance(7 * MS)
        bench.run(50)
    bench.run()
    bench.driver.settle()
    a, b = bench.scheduler.tenants.values()
    whole = a.energy_j + b.energy_j + bench.driver.ledger.idle_j
    assert whole == pytest.approx(bench.device.energy_j(), rel=1e-9)
    assert bench.driver.ledger.meter_j == pytest.approx(whole, rel=1e-9)
    assert (a.power_w, b.power_w) == (pytest.approx(20, rel=0.1), pytest.approx(80, rel=0.1))
    assert bench.driver.ledger.idle_ns == 30 * 7 * MS


def test_without_a_meter_energy_is_the_models():
    bench = Bench(stated=(40.0, 60.0))
    bench.submit("a", 4), bench.submit("b", 2)
    bench.run()
    bench.driver.settle()
    a, b = bench.scheduler.tenants.values()
    assert (a.energy_j, b.energy_j) == (pytest.approx(40 * 0.020), pytest.approx(60 * 0.010))
    assert bench.driver.ledger.meter_j is None


def test_clocks_are_set_when_tenants_change_and_only_then():
    bench = Bench()
    bench.driver.clocks_mhz = {"a": 900.0, "b": None}
    bench.submit("a", 8), bench.submit("b", 8)
    bench.run()
    assert bench.device.clocks == [900.0, None, 900.0, None, 900.0, None, 900.0, None][: len(bench.device.clocks)]
    assert 3 <= len(bench.device.clocks) <= 8


def test_a_request_that_fails_fails_alone():
    bench = Bench()
    bad = Task(bench.scheduler.tenants["a"], 0, DeviceRequest(*bench.models["a"], {}, bench.ended.append))
    assert bench.scheduler.submit(bad)
    good = bench.submit("a")[0]
    bench.run()
    assert isinstance(bad.work.error, KeyError)
    assert good.work.outputs is not None
    assert bench.driver.gone is None


def test_a_device_that_is_gone_is_noticed():
    bench = Bench(fails_at=3)
    first, second = bench.submit("a", 2)
    bench.run(3)
    assert first.work.outputs is not None
    assert "fell off the bus" in str(second.work.error)
    assert bench.driver.gone is second.work.error


def test_a_cancelled_request_ends_before_its_next_step():
    bench = Bench()
    task, other = bench.submit("a", 2)
    bench.run(1)
    assert not bench.scheduler.cancel(task)
    bench.run()
    assert bench.ended == [task, other]
    assert (task.work.outputs, bench.device.steps) == (None, 3)


def test_powers():
    model = FakeModel(FakeDevice(), times_s=(0.001, 0.003))
    spec = PowerModelSpec(idle_w=10, busy_w=5, joules_per_gflop=0.001, joules_per_gb=1.0)
    modelled = modelled_powers(model, spec)
    assert modelled.steps_w == (pytest.approx(15 + 1 + 1), pytest.approx(15 + 1 / 3 + 1 / 3))
    assert modelled.mean_w == pytest.approx((17 + 3 * (15 + 2 / 3)) / 4)
    assert (modelled.time_s, modelled.source) == (pytest.approx(0.004), "modelled")
    kernels = tuple(KernelProfile(name=n, time_s=0.001, power_w=w) for n, w in (("k0", 30), ("k1", 60)))
    point = ProfilePoint(time_s=0.002, power_w=45, power_source="measured", kernels=kernels)
    profile = ModelProfile(model="m", device="d", points=(point,))
    assert profiled_powers(model, profile, None).steps_w == (30, 60)
    other = profile.model_copy(update={"points": (point.model_copy(update={"kernels": kernels[:1]}),)})
    assert profiled_powers(model, other, None).steps_w == (45, 45)  # cut otherwise: its mean
    assert profiled_powers(model, profile, None).source == "profile-measured"
