"""The scheduler: shares come out as planned, whoever comes and goes; queues keep their order."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from commonwatt.model.errors import InputError
from commonwatt.timeslicing._policies import Ef, Etf, Tf
from commonwatt.timeslicing._scheduler import FairScheduler, FifoScheduler, Task

MS = 10**6


def submit(scheduler, tenant, steps=1, queue=0, label=None):
    task = Task(tenant, queue, {"left": steps, "label": label})
    assert scheduler.submit(task)
    return task


def step(scheduler, step_ns=MS, log=None):
    """Run one step; false if there is no work."""
    task = scheduler.next()
    if task is None:
        return False
    task.work["left"] -= 1
    ended = task.work["left"] == 0
    scheduler.account(task, step_ns, task.tenant.power_w * step_ns * 1e-9, ended=ended)
    if log is not None:
        log.append((task.tenant.name, task.work["label"], ended))
    return True


def backlogged(policy, tenants, quantum_ns=100 * MS, tasks=3):
    scheduler = FairScheduler(policy, quantum_ns)
    for name, (weight, power) in tenants.items():
        tenant = scheduler.add(name, weight, power)
        for _ in range(tasks):
            submit(scheduler, tenant, steps=10**9)
    return scheduler


def shares(scheduler):
    whole = sum(t.time_ns for t in scheduler.tenants.values())
    return [t.time_ns / whole for t in scheduler.tenants.values()]


def test_the_example_runs_as_planned():
    scheduler = backlogged(Etf(0.7), {"A": (1, 2), "B": (1, 3), "C": (1, 8)}, quantum_ns=30 * MS)
    for _ in range(3000):
        step(scheduler)
    # in nanoseconds nothing is lost to rounding: A and B have the 23 ms that C leaves in the ratio 3 to 2
    assert list(scheduler.slices_ns().values()) == [13_800_000, 9_200_000, 7 * MS]
    assert [t.time_ns / MS for t in scheduler.tenants.values()] == pytest.approx([1380, 920, 700], abs=15)
    assert [t.energy_j for t in scheduler.tenants.values()] == pytest.approx([2.76, 2.76, 5.6], rel=0.02)


def test_each_turn_is_a_slice_and_slices_make_a_quantum():
    scheduler = backlogged(Tf(), {"A": (1, 5), "B": (3, 5)}, quantum_ns=8 * MS)
    log = []
    for _ in range(16):
        step(scheduler, log=log)
    assert "".join(name for name, _, _ in log) == "AABBBBBB" * 2
    assert scheduler.recomputed == 1


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.2, 5), st.floats(1, 50)), min_size=1, max_size=6),
    st.sampled_from([Etf(0.0), Etf(0.5), Etf(0.7), Etf(1.0), Ef(), Tf()]),
    st.integers(0, 10**6),
)
def test_achieved_time_is_what_slices_promise(tenants, policy, seed):
    """Steps of any length up to a slice: nobody is ahead or behind by more than the longest step and a slice."""
    rng = random.Random(seed)
    scheduler = backlogged(policy, {str(i): t for i, t in enumerate(tenants)})
    longest = 20 * MS
    for _ in range(2000):
        step(scheduler, rng.randint(1, longest))
    scheduler.book()
    for tenant in scheduler.tenants.values():
        assert abs(tenant.time_ns - tenant.entitled_ns) <= len(tenants) * (longest + tenant.slice_ns)


def test_steps_longer_than_slices_even_out():
    scheduler = backlogged(Tf(), {"A": (1, 1), "B": (1, 1)}, quantum_ns=2 * MS)
    for _ in range(3000):
        tenant = scheduler.next().tenant
        step(scheduler, 50 * MS if tenant.name == "A" else 3 * MS)
    assert shares(scheduler) == pytest.approx([0.5, 0.5], abs=0.01)


def test_a_newcomer_starts_at_the_least_and_takes_no_back_pay():
    scheduler = FairScheduler(Tf(), 10 * MS)
    a, b = scheduler.add("a", 1, 1), scheduler.add("b", 1, 1)
    submit(scheduler, a, steps=10**9)
    for _ in range(1000):
        step(scheduler)
    submit(scheduler, b, steps=10**9)
    assert b.vruntime == a.vruntime > 99
    before = a.time_ns
    for _ in range(1000):
        step(scheduler)
    assert a.time_ns - before == pytest.approx(500 * MS, abs=10 * MS)


def test_whoever_ran_alone_for_long_is_not_starved_afterwards():
    scheduler = FairScheduler(Tf(), 10 * MS)
    a, b = scheduler.add("a", 1, 1), scheduler.add("b", 1, 1)
    submit(scheduler, a, steps=1000)
    while step(scheduler):
        pass
    submit(scheduler, b, steps=10**9)
    for _ in range(5):
        step(scheduler)
    submit(scheduler, a, steps=10**9)
    for _ in range(1000):
        step(scheduler)
    assert a.time_ns - 1000 * MS == pytest.approx(500 * MS, abs=20 * MS)


def test_coming_and_going_gains_nothing():
    """A tenant that sends one task at a time, as soon as the last has ended, gets no more than its share."""
    scheduler = FairScheduler(Tf(), 10 * MS)
    a, b = scheduler.add("a", 1, 1), scheduler.add("b", 1, 1)
    submit(scheduler, a, steps=10**9)
    for _ in range(4000):
        if not b.has_work():
            submit(scheduler, b, steps=1)
        step(scheduler, 3 * MS)
    assert b.time_ns <= 0.51 * (a.time_ns + b.time_ns)


def test_a_newcomer_waits_less_than_a_quantum():
    for flood in (1, 10, 1000):
        scheduler = FairScheduler(Tf(), 100 * MS)
        greedy, modest = scheduler.add("greedy", 1, 1), scheduler.add("modest", 1, 1)
        for _ in range(flood):
            submit(scheduler, greedy, steps=10**6)
        for _ in range(537):
            step(scheduler)
        task = submit(scheduler, modest, steps=1)
        waited = 0
        while scheduler.next() is not task:
            waited += 1
            step(scheduler)
        assert waited <= 50  # ms; half a quantum is the other's slice


def test_idle_tenants_get_nothing_and_slices_follow_the_set():
    scheduler = FairScheduler(Etf(0.7), 100 * MS)
    a, b = scheduler.add("a", 1, 1), scheduler.add("b", 1, 3)
    submit(scheduler, a, steps=10)
    while step(scheduler):
        pass
    assert (scheduler.slices_ns(), b.time_ns) == ({"a": 100 * MS, "b": 0}, 0)
    submit(scheduler, a, steps=10), submit(scheduler, b, steps=10)
    step(scheduler)
    assert scheduler.slices_ns() == {"a": 65 * MS, "b": 35 * MS}
    assert scheduler.recomputed == 2
    while step(scheduler):
        pass
    assert scheduler.next() is None


def test_weights_powers_and_policy_can_change_between_steps():
    scheduler = backlogged(Etf(0.5), {"a": (1, 1), "b": (1, 1)})
    step(scheduler)
    a = scheduler.tenants["a"]
    scheduler.update(a, weight=3)
    step(scheduler)
    assert scheduler.slices_ns() == {"a": 75 * MS, "b": 25 * MS}
    scheduler.update(a, power_w=6)
    step(scheduler)
    assert scheduler.slices_ns()["a"] < 75 * MS
    scheduler.share_by(Tf(), 10 * MS)
    step(scheduler)
    assert scheduler.slices_ns() == {"a": 7_500_000, "b": 2_500_000}
    with pytest.raises(InputError, match="power_w"):
        scheduler.update(a, power_w=0)
    with pytest.raises(InputError, match="weight"):
        scheduler.add("c", -1, 1)
    with pytest.raises(InputError, match="name"):
        scheduler.add("a", 1, 1)


def test_queues_are_first_come_first_served_and_take_turns():
    scheduler = FairScheduler(Tf(), 100 * MS)
    a = scheduler.add("a", 1, 1, queues=2)
    for label in ("x1", "x2", "x3"):
        submit(scheduler, a, steps=2, queue=0, label=label)
    for label in ("y1", "y2"):
        submit(scheduler, a, steps=1, queue=1, label=label)
    log = []
    while step(scheduler, log=log):
        pass
    assert [label for _, label, ended in log if ended] == ["x1", "y1", "x2", "y2", "x3"]
    assert [label for _, label, _ in log] == ["x1", "x1", "y1", "x2", "x2", "y2", "x3", "x3"]


def test_a_full_queue_refuses_and_a_begun_task_does_not_count():
    scheduler = FairScheduler(Tf(), 100 * MS)
    a = scheduler.add("a", 1, 1, queue_limit=2)
    tasks = [Task(a, 0, {"left": 1, "label": i}) for i in range(4)]
    assert [scheduler.submit(t) for t in tasks[:3]] == [True, True, False]
    assert scheduler.next() is tasks[0]
    assert scheduler.submit(tasks[3])
    assert a.waiting == 2


@pytest.mark.parametrize("make", [lambda: FairScheduler(Tf(), 100 * MS), FifoScheduler])
def test_cancelling(make):
    scheduler = make()
    a, b = scheduler.add("a", 1, 1), scheduler.add("b", 1, 1)
    first, second, only = submit(scheduler, a, 2), submit(scheduler, a, 1), submit(scheduler, b, 1)
    assert scheduler.next() is first
    assert not scheduler.cancel(first)
    assert first.cancelled
    assert scheduler.cancel(second)
    assert scheduler.cancel(only)
    scheduler.account(first, 0, 0.0, ended=True)
    assert scheduler.next() is None
    again = submit(scheduler, b, 1)
    assert scheduler.next() is again


def test_fifo_runs_tasks_whole_in_order_of_arrival():
    scheduler = FifoScheduler()
    a, b = scheduler.add("a", 1, 1), scheduler.add("b", 9, 1)
    for tenant, label in ((a, 1), (b, 2), (a, 3)):
        submit(scheduler, tenant, steps=3, label=label)
    log = []
    while step(scheduler, log=log):
        pass
    assert [label for _, label, _ in log] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


class Workplace(RuleBasedStateMachine):
    """Anything in any order: no task is lost, run twice, or run out of its queue's order."""

    def __init__(self):
        super().__init__()
        self.scheduler = FairScheduler(Etf(0.7), 10 * MS)
        self.tenants = [self.scheduler.add(str(i), i + 1, 3.0 - i, queues=2, queue_limit=3) for i in range(3)]
        self.waiting = defaultdict(list)
        self.begun: dict[object, Task] = {}
        self.count = 0

    @rule(who=st.integers(0, 2), queue=st.integers(0, 1), steps=st.integers(1, 4))
    def submit(self, who, queue, steps):
        task = Task(self.tenants[who], queue, {"left": steps})
        accepted = self.scheduler.submit(task)
        line = self.waiting[who, queue]
        assert accepted == (len(line) < 3)
        if accepted:
            line.append(task)

    @rule(step_ns=st.integers(1, 12 * MS), cut=st.booleans())
    def run(self, step_ns, cut):
        task = self.scheduler.next()
        if task is None:
            assert not self.begun
            assert not any(self.waiting.values())
            return
        who = task.tenant.number
        if self.begun.get(who) is not task:
            assert who not in self.begun
            assert self.waiting[who, task.queue].pop(0) is task
            self.begun[who] = task
        task.work["left"] -= 1
        ended = task.work["left"] == 0 or task.cancelled
        self.scheduler.account(task, step_ns, 1.0, ended=ended)
        if ended:
            del self.begun[who]

    @rule(who=st.integers(0, 2), queue=st.integers(0, 1), place=st.integers(0, 2))
    def cancel(self, who, queue, place):
        line = self.waiting[who, queue]
        if place < len(line):
            assert self.scheduler.cancel(line.pop(place))
        elif who in self.begun:
            assert not self.scheduler.cancel(self.begun[who])

    @rule(who=st.integers(0, 2), weight=st.floats(0.1, 9), power=st.floats(0.1, 9))
    def update(self, who, weight, power):
        self.scheduler.update(self.tenants[who], weight=weight, power_w=power)

    @invariant()
    def counts_agree(self):
        for number, tenant in enumerate(self.tenants):
            assert tenant.waiting == len(self.waiting[number, 0]) + len(self.waiting[number, 1])
            assert bool(tenant.begun) == (number in self.begun)
            assert not tenant.has_work() or tenant.active


TestWorkplace = pytest.mark.slow(Workplace.TestCase)
