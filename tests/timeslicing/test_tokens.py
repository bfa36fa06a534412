"""VTC by hand and by its bound; tasks that leave a batch before the others, under every scheduler."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.timeslicing import Charge, FairScheduler, FifoScheduler, Task, VtcScheduler
from commonwatt.timeslicing._policies import Tf

MS = 10**6


def submit(scheduler, tenant, prompt=1, tokens=1):
    task = Task(scheduler.tenants[tenant], 0, {"left": tokens, "size": prompt + tokens}, 0, prompt)
    assert scheduler.submit(task)
    return task


def names(tasks):
    return [task.tenant.name for task in tasks]


class Device:
    """Batches of up to *room* tokens, prompts and answers together, that tasks join and leave at every step."""

    def __init__(self, scheduler, room, *, across):
        self.scheduler, self.room, self.across, self.batch = scheduler, room, across, []

    def _fits(self, task):
        if sum(other.work["size"] for other in self.batch) + task.work["size"] > self.room:
            return False
        self.batch.append(task)
        return True

    def step(self):
        """Make a token of each; returns those that have ended, and ``None`` without work."""
        first = self.scheduler.next()
        if first is None:
            return None
        if first not in self.batch:
            assert self._fits(first)
        self.scheduler.join(first, self._fits, others=self.across)
        made = {}
        for task in self.batch:
            made[task.tenant] = made.get(task.tenant, 0) + 1
            task.work["left"] -= 1
        others = [Charge(tenant, MS, 0.001, tokens) for tenant, tokens in made.items() if tenant is not first.tenant]
        self.scheduler.account(
            first, MS, 0.001, ended=False, others=others, output_tokens=made.get(first.tenant, 0)
        )  # fmt: skip
        over = [task for task in self.batch if not task.work["left"]]
        if over:
            self.scheduler.finish(over)
        self.batch = [task for task in self.batch if task.work["left"]]
        return over


def test_counters_by_hand():
    scheduler = VtcScheduler(prompt=1, answer=2)
    for name in "ab":
        scheduler.add(name, 1, 1)
    submit(scheduler, "a", prompt=10, tokens=5)
    submit(scheduler, "a", prompt=10, tokens=5)
    b1 = submit(scheduler, "b", prompt=4, tokens=1)
    device = Device(scheduler, 20, across=True)
    # a begins as it came first (counter 10), then b, which has least (4); a's next does not fit
    assert device.step() == [b1]
    assert scheduler.counters == {"a": 12, "b": 6}
    # b comes back while a waits: it is lifted to a's counter, and a goes first where they are level
    submit(scheduler, "b", prompt=4, tokens=1)
    assert scheduler.counters == {"a": 12, "b": 12}
    device.room = 35
    device.step()
    assert names(device.batch) == ["a", "a"]
    assert scheduler.counters == {"a": 12 + 10 + 4, "b": 12 + 4 + 2}


def test_who_comes_when_nobody_waits_is_lifted_to_the_last_that_waited():
    scheduler = VtcScheduler()
    for name in "ab":
        scheduler.add(name, 1, 1)
    submit(scheduler, "a", prompt=7, tokens=3)
    device = Device(scheduler, 100, across=True)
    device.step()
    submit(scheduler, "b")
    assert scheduler.counters == {"a": 9, "b": 9}


def test_nobody_goes_before_the_one_whose_turn_it_is():
    scheduler = VtcScheduler()
    for name in "ab":
        scheduler.add(name, 1, 1)
    submit(scheduler, "a", prompt=2, tokens=10)
    device = Device(scheduler, 20, across=True)
    device.step()
    submit(scheduler, "a", prompt=2, tokens=10)
    scheduler.counters["b"] = 0.0
    scheduler.counters["a"] = 50.0
    submit(scheduler, "b", prompt=19, tokens=1)  # does not fit beside a's
    scheduler.counters["b"] = 0.0
    submit(scheduler, "a", prompt=1, tokens=1)
    for _ in range(8):
        device.step()
        assert names(device.batch) == ["a"]
    device.step()
    device.step()
    assert scheduler.tenants["b"].tasks_done == 1


def test_weights_count():
    scheduler = VtcScheduler()
    scheduler.add("a", 3, 1), scheduler.add("b", 1, 1)
    device, served = Device(scheduler, 6, across=True), {"a": 0, "b": 0}
    for _ in range(400):
        for name in "ab":
            while scheduler.tenants[name].waiting < 4:
                submit(scheduler, name, prompt=1, tokens=2)
        for task in device.step():
            served[task.tenant.name] += 1
    assert served["a"] / served["b"] == pytest.approx(3, rel=0.05)


@pytest.mark.long
@given(
    st.integers(0, 10**6), st.floats(0, 4), st.floats(0.1, 4), st.integers(1, 12), st.integers(1, 12),
    st.integers(0, 60), st.integers(2, 4),
)  # fmt: skip
def test_counters_of_those_who_wait_differ_by_a_batch_at_most(seed, prompt, answer, longest, tokens, more, tenants):
    """Whatever the requests are: by max(w_p, w_q) M, which is Lemma 4.3's w_q M where w_p is not above w_q."""
    rng = random.Random(seed)
    room = longest + tokens + more
    scheduler = VtcScheduler(prompt, answer)
    for place in range(tenants):
        scheduler.add(str(place), 1, 1)
    device = Device(scheduler, room, across=True)
    sizes = {str(place): (rng.randint(1, longest), rng.randint(1, tokens)) for place in range(tenants)}
    for _ in range(150):
        for name, (p, t) in sizes.items():
            while scheduler.tenants[name].waiting <= room:  # so that nobody is lifted
                submit(scheduler, name, rng.randint(1, p), rng.randint(1, t))
        device.step()
        counters = scheduler.counters.values()
        assert max(counters) - min(counters) <= max(prompt, answer) * room + 1e-6


SCHEDULERS = [lambda: FairScheduler(Tf(), 4 * MS), FifoScheduler, VtcScheduler]


@pytest.mark.slow
@pytest.mark.parametrize("make", SCHEDULERS)
@given(seed=st.integers(0, 10**6))
def test_every_task_ends_once_whoever_joins_leaves_or_is_cancelled(make, seed):
    rng = random.Random(seed)
    scheduler = make()
    for name in "abc":
        scheduler.add(name, rng.randint(1, 3), rng.randint(1, 9), queues=rng.randint(1, 2))
    across = not isinstance(scheduler, FairScheduler)
    devices, waiting, ended, withdrawn = {}, [], [], []
    for _ in range(60):
        if rng.random() < 0.6:
            name = rng.choice("abc")
            task = Task(scheduler.tenants[name], 0, {"left": rng.randint(1, 5), "size": rng.randint(1, 4)}, 0, 2)
            assert scheduler.submit(task)
            waiting.append(task)
        if waiting and rng.random() < 0.1:
            task = waiting.pop(rng.randrange(len(waiting)))
            if scheduler.cancel(task):
                withdrawn.append(task)
        task = scheduler.next()
        if task is not None:
            key = "all" if across else task.tenant.name
            ended += devices.setdefault(key, Device(scheduler, 10, across=across)).step()
    while (task := scheduler.next()) is not None:
        ended += devices.setdefault("all" if across else task.tenant.name, Device(scheduler, 10, across=across)).step()
    assert len({id(task) for task in ended + withdrawn}) == len(ended + withdrawn)
    assert sum(tenant.tasks_done for tenant in scheduler.tenants.values()) == len(ended)
    assert all(not tenant.has_work() and not tenant.waiting for tenant in scheduler.tenants.values())


def test_a_tenant_whose_tasks_end_in_anothers_turn_is_idle():
    scheduler = FairScheduler(Tf(), 10 * MS)
    for name in "ab":
        scheduler.add(name, 1, 1)
    submit(scheduler, "a", tokens=3), submit(scheduler, "b", tokens=1)
    device = Device(scheduler, 100, across=True)
    assert names(device.step()) == ["b"]
    assert scheduler.slices_ns() == {"a": 5 * MS, "b": 5 * MS}
    while device.step() is not None:
        pass
    assert scheduler.slices_ns() == {"a": 10 * MS, "b": 0}
    assert [tenant.tasks_done for tenant in scheduler.tenants.values()] == [1, 1]
