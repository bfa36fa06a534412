"""Requests divided into batches and put together in them: outputs, order, and what everybody is charged."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.devices.base import TensorSpec
from commonwatt.devices.batches import Batching, DeviceRequest
from commonwatt.devices.driver import Driver
from commonwatt.devices.profiles import stated_powers
from commonwatt.devices.rows import RowPlan, RowPoint, RowProfile
from commonwatt.model.errors import InputError
from commonwatt.timeslicing._energy import EnergyLedger
from commonwatt.timeslicing._policies import Ef, Etf, Tf
from commonwatt.timeslicing._scheduler import FairScheduler, FifoScheduler, Task
from tests.devices.made import MS, FakeDevice, FakeModel

ROW_MS, FIXED_MS, STEPS = 1, 2, 3
POWERS_W = {"a": 30.0, "b": 60.0, "c": 45.0}


class RowModel(FakeModel):
    """Each step takes 2 ms and 1 ms for each row; it doubles its input, and cannot compute negative numbers."""

    outputs = (TensorSpec("y", "FP32", (-1, 2)),)

    def __init__(self, device, digest="d"):
        super().__init__(device, times_s=((FIXED_MS + ROW_MS) / 1e3,) * STEPS)
        self.digest = digest

    def begin(self, inputs):
        return RowExecution(self, inputs["x"])


class RowExecution:
    def __init__(self, model, x):
        self.model, self.x = model, x

    def step(self):
        device = self.model.device
        device.steps += 1
        device.rows.append(len(self.x))
        device.clock.advance((FIXED_MS + ROW_MS * len(self.x)) * MS)
        if (self.x < 0).any():
            raise InputError("numbers of 0 or more")

    def outputs(self):
        return {"y": 2 * self.x}


def plan(most, worth=None):
    points = [
        RowPoint(rows=rows, time_s=(FIXED_MS + rows) * STEPS / 1e3, longest_step_s=(FIXED_MS + rows) / 1e3)
        for rows in (1, 2, 4, 8, 16, 32, 64)
    ]
    return RowPlan(RowProfile(divisible=True, points=points), None if most is None else (FIXED_MS + most) / 1e3, worth)


class Bench:
    """A driver over tenants that all have the same model file."""

    def __init__(self, scheduler, most=8, worth=None, *, across=False, weights=None):
        self.device = FakeDevice()
        self.device.rows = []
        self.scheduler = scheduler
        self.driver = Driver(scheduler, self.device, self.device.clock, EnergyLedger(5.0), settle_ns=100 * MS)
        self.batching = Batching(plan(most, worth), across=across)
        self.models, self.ended, self.tasks = {}, [], []
        for name, power_w in POWERS_W.items():
            model = RowModel(self.device)
            self.models[name] = model, stated_powers(model, power_w)
            scheduler.add(name, (weights or {}).get(name, 1.0), power_w, queues=2)

    def submit(self, name, rows=1, queue=0, sign=1, batching="own"):
        x = sign * np.arange(1, 2 * rows + 1, dtype=np.float32).reshape(rows, 2) * (1 + len(self.tasks))
        batching = self.batching if batching == "own" else batching
        request = DeviceRequest(*self.models[name], {"x": x}, self.ended.append, batching)
        task = Task(self.scheduler.tenants[name], queue, request)
        assert self.scheduler.submit(task)
        self.tasks.append(task)
        return task

    def run(self, steps=10**6):
        while steps and self.driver.step():
            steps -= 1

    def charged(self):
        self.driver.settle()
        requests = [task.work for task in self.tasks]
        tenants = self.scheduler.tenants.values()
        assert sum(r.time_ns for r in requests) == self.driver.device_ns
        assert sum(t.time_ns for t in tenants) == self.driver.device_ns
        for tenant in tenants:
            own = [task.work for task in self.tasks if task.tenant is tenant]
            assert tenant.time_ns == sum(r.time_ns for r in own)
            assert tenant.energy_j == pytest.approx(sum(r.energy_j for r in own), abs=1e-9)
            assert tenant.energy_j == pytest.approx(POWERS_W[tenant.name] * tenant.time_ns * 1e-9, abs=1e-9)


def fair(quantum_ms=40, policy=None):
    return FairScheduler(policy or Tf(), quantum_ms * MS)


def test_a_large_request_is_divided_and_gives_what_it_gives_whole():
    bench = Bench(fair(), most=8)
    task = bench.submit("a", 21)
    whole = bench.submit("a", 21, batching=None)
    bench.run()
    assert bench.device.rows == [8] * STEPS + [8] * STEPS + [5] * STEPS + [21] * STEPS
    assert (task.work.outputs["y"] == 2 * task.work.inputs["x"]).all()
    assert (whole.work.outputs["y"] == 2 * whole.work.inputs["x"]).all()
    assert bench.ended == [task, whole]
    bench.charged()


def test_another_tenant_waits_for_its_turn_and_one_step_at_most():
    bench = Bench(fair(40), most=8)
    bench.submit("a", 600)
    bench.run(1)
    small = bench.submit("b", 1)
    bench.run(STEPS * 600)
    slice_ms, step_ms, own_ms = 20, FIXED_MS + 8, STEPS * (FIXED_MS + 1)
    assert small.work.ended_ns / MS <= step_ms + slice_ms + step_ms + own_ms


def test_requests_that_wait_run_together_and_are_charged_by_row():
    bench = Bench(fair(), most=8, worth=8)
    one, two, five = (bench.submit("a", rows) for rows in (1, 2, 5))
    late = bench.submit("a", 1)
    bench.run()
    assert bench.device.rows == [8] * STEPS + [1] * STEPS
    assert [task.work.time_ns for task in (one, two, five)] == [STEPS * (FIXED_MS + 8) * MS * n // 8 for n in (1, 2, 5)]
    assert bench.ended == [one, two, five, late]
    bench.charged()


def test_the_last_rows_of_a_divided_request_take_others_along():
    bench = Bench(fair(), most=8, worth=8)
    large, small = bench.submit("a", 10), bench.submit("a", 3)
    bench.run()
    assert bench.device.rows == [8] * STEPS + [5] * STEPS
    assert bench.ended == [large, small]
    bench.charged()


def test_the_order_of_a_queue_is_kept():
    """A request that does not fit ends the batch: a later one that would fit does not overtake it."""
    bench = Bench(fair(), most=8, worth=8)
    tasks = [bench.submit("a", rows) for rows in (4, 6, 2, 1)]
    bench.run()
    assert bench.device.rows == [4] * STEPS + [8] * STEPS + [1] * STEPS
    assert bench.ended == tasks


def test_other_shapes_other_models_and_other_tenants_stay_apart():
    bench = Bench(fair(), most=8, worth=8)
    bench.submit("a", 2)
    narrow = DeviceRequest(*bench.models["a"], {"x": np.ones((2, 1), np.float32)}, bench.ended.append, bench.batching)
    assert bench.scheduler.submit(Task(bench.scheduler.tenants["a"], 0, narrow))
    other = RowModel(bench.device, "another")
    foreign = DeviceRequest(other, bench.models["a"][1], {"x": np.ones((2, 2), np.float32)}, bench.ended.append,
                            bench.batching)  # fmt: skip
    assert bench.scheduler.submit(Task(bench.scheduler.tenants["a"], 0, foreign))
    bench.submit("b", 2)
    bench.run()
    assert bench.device.rows == [2] * STEPS * 4


@pytest.mark.parametrize("scheduler", [fair, FifoScheduler])
def test_tenants_that_allow_it_share_a_batch_and_its_time(scheduler):
    bench = Bench(scheduler(), most=8, worth=8, across=True)
    a, b = bench.submit("a", 3), bench.submit("b", 1)
    bench.run()
    assert bench.device.rows == [4] * STEPS
    assert (a.work.time_ns, b.work.time_ns) == (STEPS * 6 * MS * 3 // 4, STEPS * 6 * MS // 4)
    assert (b.work.outputs["y"] == 2 * b.work.inputs["x"]).all()
    bench.charged()


def test_tenants_with_other_clocks_do_not_share_a_batch():
    bench = Bench(fair(), most=8, worth=8, across=True)
    bench.driver.clocks_mhz = {"a": 900.0}
    bench.submit("a", 3), bench.submit("b", 1)
    bench.run()
    assert bench.device.rows == [3] * STEPS + [1] * STEPS


def test_a_shared_batch_goes_on_in_the_turn_of_any_of_its_tenants():
    bench = Bench(fair(quantum_ms=9), most=30, worth=30, across=True)
    a, b = bench.submit("a", 10), bench.submit("b", 10)
    c = bench.submit("c", 1, batching=None)
    bench.run()
    assert bench.device.rows.count(20) == STEPS
    assert set(bench.ended) == {a, b, c}
    bench.charged()


@pytest.mark.parametrize("scheduler", [fair, FifoScheduler])
def test_a_request_that_cannot_be_computed_fails_alone(scheduler):
    bench = Bench(scheduler(), most=8, worth=8, across=True)
    good, bad, other = bench.submit("a"), bench.submit("a", sign=-1), bench.submit("b", 2)
    bench.run()
    assert isinstance(bad.work.error, InputError)
    assert bad.work.outputs is None
    for task in (good, other):
        assert (task.work.outputs["y"] == 2 * task.work.inputs["x"]).all()
    assert sorted(bench.device.rows) == [1] * (STEPS + 1) + [2] * STEPS + [4]
    bench.charged()


def test_a_cancelled_request_ends_with_its_batch_and_hurts_nobody():
    bench = Bench(fair(), most=8, worth=8)
    first, second = bench.submit("a", 2), bench.submit("a", 2)
    bench.run(1)
    assert not bench.scheduler.cancel(first)
    bench.run()
    assert (second.work.outputs["y"] == 2 * second.work.inputs["x"]).all()
    assert bench.ended == [first, second]
    for task in (bench.submit("a", 2), bench.submit("a", 2)):
        bench.run(1)
        assert not bench.scheduler.cancel(task) or task not in bench.ended
    steps = bench.device.steps
    bench.run()
    assert bench.device.steps == steps  # all of them are cancelled: the batch ends
    assert len(bench.ended) == 4 - (bench.tasks[3] not in bench.ended)


def test_a_cancelled_large_request_ends_before_its_next_step():
    bench = Bench(fair(), most=8)
    task, other = bench.submit("a", 600), bench.submit("a")
    bench.run(4)
    assert not bench.scheduler.cancel(task)
    bench.run()
    assert bench.device.rows == [8] * 4 + [1] * STEPS
    assert bench.ended == [task, other]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(1, 20), st.integers(0, 1), st.booleans(), st.booleans(), st.integers(0, 6)
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    EVENTS, st.integers(1, 12), st.integers(1, 12), st.booleans(), st.sampled_from(["fifo", Tf(), Ef(), Etf(0.7)]),
    st.integers(5, 80),
)  # fmt: skip
def test_whatever_happens_everybody_gets_their_own_rows_and_every_nanosecond_is_charged(
    events, most, worth, across, policy, quantum_ms
):
    bench = Bench(FifoScheduler() if policy == "fifo" else fair(quantum_ms, policy), most, worth, across=across)
    bad, cancelled = set(), set()
    for name, rows, queue, is_bad, gives_up, steps in events:
        task = bench.submit(name, rows, queue, -1 if is_bad else 1)
        bad |= {task} if is_bad else set()
        bench.run(steps)
        if gives_up:
            cancelled.add(task)
            if task not in bench.ended and bench.scheduler.cancel(task):
                bench.ended.append(task)
    bench.run()
    assert sorted(map(id, bench.ended)) == sorted(map(id, bench.tasks))
    for task in bench.tasks:
        if task not in cancelled and task in bad:
            assert isinstance(task.work.error, InputError)
        elif task not in cancelled:
            assert (task.work.outputs["y"] == 2 * task.work.inputs["x"]).all()
    for name in "abc":
        for queue in range(2):
            line = [t for t in bench.tasks if (t.tenant.name, t.queue) == (name, queue) and t not in cancelled]
            ends = [bench.ended.index(task) for task in line]
            assert all(one < next_ for one, next_ in pairwise(ends)), "answers overtook each other"
    assert max(bench.device.rows, default=0) <= most
    assert not any(tenant.has_work() or tenant.waiting for tenant in bench.scheduler.tenants.values())
    bench.charged()


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(
    st.tuples(*[st.sampled_from([1.0, 2.0, 3.0])] * 3), st.integers(1, 6), st.sampled_from([Tf(), Ef(), Etf(0.7)]),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_shares_are_within_a_point_of_plan(weights, worth, policy, across, seed):
    """Tenants that always have requests waiting, two of them of the same model and one that shares with nobody."""
    bench = Bench(fair(60, policy), 6, worth, across=across, weights=dict(zip("abc", weights, strict=True)))
    alone, chance, together = Batching(plan(6, worth)), random.Random(seed), 0

    def fill():
        for name in "abc":
            tenant = bench.scheduler.tenants[name]
            while tenant.waiting < 20:
                bench.submit(name, chance.randint(1, 3), batching=alone if name == "c" else "own")

    fill()
    while bench.device.clock.now_ns() < 30_000 * MS:
        bench.run(1)
        a, b = (bench.scheduler.tenants[name].begun for name in "ab")
        together += bool(a and b and a[0].work.batch is b[0].work.batch is not None)
        fill()
    bench.scheduler.book()
    tenants = bench.scheduler.tenants.values()
    used, planned = (np.array([getattr(t, field) for t in tenants]) for field in ("time_ns", "entitled_ns"))
    assert used / used.sum() == pytest.approx(planned / planned.sum(), abs=0.01)
    assert bool(together) == (across and worth > 1)


@pytest.mark.slow
def test_nobody_gets_ahead_in_the_turns_of_others():
    """Tenant a has one row at a time, so most rows of its batches could be b's; c shares with nobody."""
    bench = Bench(fair(60), 6, 6, across=True)
    while bench.device.clock.now_ns() < 20_000 * MS:
        a, b, c = bench.scheduler.tenants.values()
        if not a.has_work():
            bench.submit("a", 1)
        while b.waiting < 20:
            bench.submit("b", 1)
        while c.waiting < 20:
            bench.submit("c", 1, batching=None)
        bench.run(1)
    assert 6 in bench.device.rows
    times = np.array([tenant.time_ns for tenant in bench.scheduler.tenants.values()])
    assert times / times.sum() == pytest.approx([1 / 3] * 3, abs=0.01)
