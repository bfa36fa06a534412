"""First come, first served over all tenants: what a plain server does, and what sharing is measured against.

What is scheduled: tasks in queues of tenants.

The run-time scheduler of ETF section 5: who runs next, and for how long.

Tenants with work stand in a heap by virtual runtime. The one with the least runs for its time slice, or until it has
no more work; meanwhile its virtual runtime grows by time / slice, eq. (16), so that everyone's grows alike when all
get what Algorithm 1 gives them. Slices are computed anew when the set of tenants with work has changed, or a weight,
a power or the policy. A tenant that comes (back) starts at the least virtual runtime there is, or at its own if that
is greater: idleness earns no credit, and going to and fro repays no debt. Idle tenants have no slice.

The scheduler knows no clock and no device: the caller reports how long each step took. It is not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Protocol

import numpy as np

from commonwatt.model.errors import InputError
from commonwatt.timeslicing._policies import QuantumProblem, SharingPolicy

__all__ = ["Charge", "FairScheduler", "FifoScheduler", "Scheduler", "Task", "TenantQueue", "Tenants"]


class Task:
    """One inference: steps (kernels) that run one after the other. ``work`` is the caller's own.

    Generating text is one task, too: ``input_tokens`` is the length of its prompt.
    """

    __slots__ = ("cancelled", "input_tokens", "queue", "submitted_ns", "tenant", "work")

    def __init__(
        self, tenant: TenantQueue, queue: int = 0, work: Any = None, submitted_ns: int = 0, input_tokens: int = 0,  # noqa: ANN401
    ) -> None:  # fmt: skip
        self.tenant = tenant
        self.queue = queue
        self.work = work
        self.submitted_ns = submitted_ns
        self.input_tokens = input_tokens
        self.cancelled = False


class TenantQueue:
    """A tenant's queues, its virtual runtime, and what it has used so far.

    Each queue is first come, first served, like a CUDA stream: its next task begins when the one before has ended, or
    together with it. Tasks at the heads of several queues take turns, one whole task at a time. Tasks that have begun
    together (a batch) end together, unless ``end`` names some of them only.
    """

    __slots__ = (
        "active", "begun", "energy_j", "entitled_ns", "name", "number", "power_w", "queue_limit", "queues", "ready",
        "slice_ns", "tasks_done", "time_ns", "vruntime", "waiting", "weight",
    )  # fmt: skip

    def __init__(
        self, name: str, number: int, weight: float, power_w: float, queues: int = 1, queue_limit: int | None = None
    ) -> None:
        self.name = name
        self.number = number  # order breaks ties
        self.weight = weight
        self.power_w = power_w  # of the device while it works for this tenant; updated as it is measured
        self.queue_limit = queue_limit  # tasks that may wait in each queue
        self.queues: tuple[deque[Task], ...] = tuple(deque() for _ in range(queues))
        self.ready: deque[int] = deque()  # queues with a task that may begin, in turn
        self.begun: list[Task] = []  # and not ended
        self.waiting = 0  # tasks in queues, begun ones excluded
        self.active = False
        self.vruntime = 0.0  # eq. (16)
        self.slice_ns = 1
        self.time_ns = 0  # used
        self.entitled_ns = 0.0  # what its slices promised of the time that was used
        self.energy_j = 0.0
        self.tasks_done = 0  # ended, however

    def has_work(self) -> bool:
        """Whether it has a task begun or waiting."""
        return bool(self.begun or self.ready)

    def push(self, task: Task) -> bool:
        """Queue *task*; false, and nothing happens, if its queue is full."""
        queue = self.queues[task.queue]
        if self.queue_limit is not None and len(queue) >= self.queue_limit:
            return False
        queue.append(task)
        self.waiting += 1
        self._make_ready(task.queue)
        return True

    def head(self) -> Task:
        """Return the task that runs next, beginning it if none has begun; only if ``has_work``."""
        if not self.begun:
            self.begun.append(self.queues[self.ready.popleft()].popleft())
            self.waiting -= 1
        return self.begun[0]

    def join(self, accepts: Callable[[Task], bool]) -> list[Task]:
        """Begin waiting tasks together with those begun, and return them.

        They are taken from each queue that is free or has begun, from its head on while *accepts* allows it.
        """
        joined: list[Task] = []
        for place in dict.fromkeys([*(task.queue for task in self.begun), *self.ready]):
            queue, before = self.queues[place], len(joined)
            while queue and accepts(queue[0]):
                joined.append(queue.popleft())
            if len(joined) > before and place in self.ready:
                self.ready.remove(place)
        self.waiting -= len(joined)
        self.begun += joined
        return joined

    def put_back(self, tasks: Sequence[Task]) -> None:
        """Let tasks that have begun wait again, at the heads of their queues in the same order."""
        for task in reversed(tasks):
            self.begun.remove(task)
            self.queues[task.queue].appendleft(task)
            self.waiting += 1
        for task in tasks:
            self._make_ready(task.queue)

    def finish(self) -> None:
        """Note that the begun tasks have ended."""
        assert self.begun
        self.end(list(self.begun))

    def end(self, ended: Sequence[Task]) -> None:
        """Note that some of the begun tasks have ended; the others go on."""
        for task in ended:
            self.begun.remove(task)
        self.tasks_done += len(ended)
        for task in ended:
            self._make_ready(task.queue)

    def _make_ready(self, place: int) -> None:
        busy = place in self.ready or any(task.queue == place for task in self.begun)
        if self.queues[place] and not busy:
            self.ready.append(place)

    def withdraw(self, task: Task) -> bool:
        """Take *task* out of its queue; false if it has begun or is not there."""
        queue = self.queues[task.queue]
        try:
            queue.remove(task)
        except ValueError:
            return False
        self.waiting -= 1
        if not queue and task.queue in self.ready:
            self.ready.remove(task.queue)
        return True


@dataclass(frozen=True)
class Charge:
    """What a tenant has used of a step that ran in another tenant's turn."""

    tenant: TenantQueue
    time_ns: int
    energy_j: float
    output_tokens: int = 0


class Scheduler(Protocol):
    """What a device is driven by: tasks in, the next one out."""

    tenants: dict[str, TenantQueue]

    def add(
        self, name: str, weight: float, power_w: float, queues: int = 1, queue_limit: int | None = None
    ) -> TenantQueue:
        """Add a tenant; raises ``InputError`` for a name that is taken, or a weight or power that is not positive."""
        ...

    def submit(self, task: Task) -> bool:
        """Queue *task*; false, and nothing happens, if its queue is full."""
        ...

    def next(self) -> Task | None:
        """Return the task whose next step runs now; ``None`` if no tenant has work."""
        ...

    def join(self, task: Task, accepts: Callable[[Task], bool], *, others: bool = False) -> list[Task]:
        """Begin waiting tasks together with *task*, which ``next`` has returned and which has just begun.

        They are its tenant's, and those of *others* if asked for; *accepts* says yes to each or ends its queue.
        """
        ...

    def separate(self, joined: Sequence[Task]) -> None:
        """Let tasks that have joined another wait again, at the heads of their queues."""
        ...

    def account(
        self, task: Task, time_ns: int, energy_j: float, *, ended: bool, others: Sequence[Charge] = (),
        output_tokens: int = 0,
    ) -> None:  # fmt: skip
        """Note what the step took that has just run, and whether *task*, as ``next`` returned it, has ended with it.

        Time, energy and tokens are those of the task's tenant; *others* are those of tenants whose tasks have begun
        together with it. These tasks end with it.
        """
        ...

    def finish(self, ended: Sequence[Task]) -> None:
        """Note that these of the tasks that have begun together have ended before the others, or all of them."""
        ...

    def cancel(self, task: Task) -> bool:
        """Withdraw *task*; false if it has begun: then it is marked, and its driver ends it before its next step."""
        ...

    def update(self, tenant: TenantQueue, *, weight: float | None = None, power_w: float | None = None) -> None:
        """Change a tenant's weight or power; what depends on them follows at the next decision."""
        ...

    def book(self) -> None:
        """Bring ``entitled_ns`` of every tenant up to date."""
        ...


class Tenants:
    """Tenants by name, in order."""

    def __init__(self) -> None:
        self.tenants: dict[str, TenantQueue] = {}

    def add(
        self, name: str, weight: float, power_w: float, queues: int = 1, queue_limit: int | None = None
    ) -> TenantQueue:
        """Add a tenant; raises ``InputError`` for a name that is taken, or a weight or power that is not positive."""
        if name in self.tenants:
            raise InputError("a name no other tenant has", field="name", value=name)
        QuantumProblem.make(1, [weight], [power_w])  # checks both
        tenant = self.tenants[name] = TenantQueue(name, len(self.tenants), weight, power_w, queues, queue_limit)
        return tenant


class FairScheduler(Tenants):
    """Shares a device among tenants as a policy divides its quantum.

    Parameters
    ----------
    policy
        ETF, TF, EF or ETF's dual; see ``commonwatt.timeslicing._policies``.
    quantum_ns
        T in nanoseconds, which are the unit of slices too, so that no share is lost to rounding.
    """

    def __init__(self, policy: SharingPolicy, quantum_ns: int) -> None:
        super().__init__()
        self.policy = policy
        self.quantum_ns = quantum_ns
        self.recomputed = 0  # times slices were computed
        self._heap: list[tuple[float, int, TenantQueue]] = []  # tenants with work, but for the current one
        self._current: TenantQueue | None = None
        self._turn_ns = 0  # of the current tenant's turn so far, tasks of others that ran in it included
        self._used_ns = 0  # of it, by the current tenant
        self._from = 0.0, 0  # its virtual runtime, and what it had used, when the slice was set
        self._floor = 0.0  # least virtual runtime of those with work, the last time that was looked at
        self._active = 0  # tenants with work
        self._stale = False
        self._unbooked_ns = 0  # time used under the present slices
        self._is_active = np.zeros(0, np.bool_)  # by number of the tenant, as all that follow
        self._weights, self._powers_w = np.zeros(0), np.zeros(0)
        self._slices = np.zeros(0, np.int64)  # of those that were active when they were computed; 0 for others
        self._entitled_ns = np.zeros(0)

    def add(
        self, name: str, weight: float, power_w: float, queues: int = 1, queue_limit: int | None = None
    ) -> TenantQueue:
        """Add a tenant; raises ``InputError`` for a name that is taken, or a weight or power that is not positive."""
        tenant = super().add(name, weight, power_w, queues, queue_limit)
        self._is_active = np.append(self._is_active, [False])
        self._weights, self._powers_w = np.append(self._weights, weight), np.append(self._powers_w, power_w)
        self._slices, self._entitled_ns = np.append(self._slices, 0), np.append(self._entitled_ns, 0.0)
        return tenant

    def submit(self, task: Task) -> bool:
        """Queue *task*; false, and nothing happens, if its queue is full."""
        tenant = task.tenant
        if not tenant.push(task):
            return False
        if not tenant.active:
            if self._active:
                self._floor = max(self._floor, self._least())
            tenant.vruntime = max(tenant.vruntime, self._floor)
            tenant.active = self._is_active[tenant.number] = True
            self._active += 1
            self._stale = True
            heappush(self._heap, (tenant.vruntime, tenant.number, tenant))
        return True

    def next(self) -> Task | None:
        """Return the task whose next step runs now; ``None`` if no tenant has work."""
        tenant = self._current
        if tenant is not None and not tenant.has_work():
            self._leave(tenant)
            tenant = self._current = None
        if self._stale and self._active:
            self._divide()
        if tenant is not None:
            if self._turn_ns < tenant.slice_ns:
                return tenant.head()
            heappush(self._heap, (tenant.vruntime, tenant.number, tenant))
            self._current = None
        if not self._heap:
            return None
        tenant = self._current = heappop(self._heap)[2]
        tenant.slice_ns = int(self._slices[tenant.number])
        self._turn_ns = self._used_ns = 0
        self._from = tenant.vruntime, 0
        return tenant.head()

    def join(self, task: Task, accepts: Callable[[Task], bool], *, others: bool = False) -> list[Task]:
        """Begin waiting tasks together with *task*, which ``next`` has returned and which has just begun.

        A tenant joins another's turn only while it is less than a slice ahead, so that a third tenant waits no longer
        than without it.
        """
        joined = task.tenant.join(accepts)
        if others:
            latest = task.tenant.vruntime + 1
            for vruntime, _, tenant in sorted(self._heap, key=lambda entry: entry[:2]):
                if vruntime < latest and not tenant.begun and self._slices[tenant.number]:
                    joined += tenant.join(accepts)
        return joined

    def separate(self, joined: Sequence[Task]) -> None:
        """Let tasks that have joined another wait again, at the heads of their queues."""
        _separate(joined)

    def account(
        self, task: Task, time_ns: int, energy_j: float, *, ended: bool, others: Sequence[Charge] = (),
        output_tokens: int = 0,  # noqa: ARG002
    ) -> None:  # fmt: skip
        """Note what the step took that has just run, and whether *task*, as ``next`` returned it, has ended with it."""
        tenant = task.tenant
        tenant.time_ns += time_ns
        tenant.energy_j += energy_j
        self._used_ns += time_ns
        self._turn_ns += time_ns
        self._unbooked_ns += time_ns
        vruntime, used_ns = self._from  # not summed up step by step: a whole slice makes exactly 1
        tenant.vruntime = vruntime + (self._used_ns - used_ns) / tenant.slice_ns
        if ended:
            tenant.finish()
        if others:
            self._charge(others, ended=ended)

    def _charge(self, others: Sequence[Charge], *, ended: bool) -> None:
        for charge in others:
            tenant = charge.tenant
            tenant.time_ns += charge.time_ns
            tenant.energy_j += charge.energy_j
            self._turn_ns += charge.time_ns
            self._unbooked_ns += charge.time_ns
            tenant.vruntime += charge.time_ns / max(1, int(self._slices[tenant.number]))
            if ended:
                tenant.finish()
        self._drop([charge.tenant for charge in others if not charge.tenant.has_work()])

    def finish(self, ended: Sequence[Task]) -> None:
        """Note that these of the tasks that have begun together have ended before the others, or all of them."""
        tenants = _end(ended)
        idle = [tenant for tenant in tenants if not tenant.has_work() and tenant is not self._current]
        if idle:
            self._drop(idle)

    def _drop(self, idle: Sequence[TenantQueue]) -> None:
        """Take tenants without work out of the heap, and put the others where they belong by now."""
        self._heap = [(of.vruntime, number, of) for _, number, of in self._heap if of not in idle]
        heapify(self._heap)
        for tenant in idle:
            self._leave(tenant)

    def cancel(self, task: Task) -> bool:
        """Withdraw *task*; false if it has begun: then it is marked, and its driver ends it before its next step."""
        tenant = task.tenant
        if not tenant.withdraw(task):
            task.cancelled = True
            return False
        if not tenant.has_work() and tenant is not self._current:
            self._drop([tenant])
        return True

    def update(self, tenant: TenantQueue, *, weight: float | None = None, power_w: float | None = None) -> None:
        """Change a tenant's weight or power; slices follow at the next decision."""
        weight = tenant.weight if weight is None else weight
        power_w = tenant.power_w if power_w is None else power_w
        QuantumProblem.make(1, [weight], [power_w])
        tenant.weight, tenant.power_w = weight, power_w
        self._weights[tenant.number], self._powers_w[tenant.number] = weight, power_w
        self._stale |= tenant.active

    def share_by(self, policy: SharingPolicy, quantum_ns: int) -> None:
        """Share by another policy or quantum from the next decision on."""
        self.policy, self.quantum_ns, self._stale = policy, quantum_ns, True

    def book(self) -> None:
        """Bring ``entitled_ns`` up to date: the time used under the present slices, as they divide it."""
        self._book()
        for tenant in self.tenants.values():
            tenant.entitled_ns = float(self._entitled_ns[tenant.number])

    def slices_ns(self) -> dict[str, int]:
        """Return the slice of each tenant in every quantum as last computed; 0 for those without work then."""
        return {name: int(self._slices[tenant.number]) for name, tenant in self.tenants.items()}

    def _book(self) -> None:
        if self._unbooked_ns:
            self._entitled_ns += self._slices * (self._unbooked_ns / self._slices.sum())
            self._unbooked_ns = 0

    def _least(self) -> float:
        """Least virtual runtime among tenants with work; infinite if there are none."""
        waiting = self._heap[0][0] if self._heap else inf
        return waiting if self._current is None else min(waiting, self._current.vruntime)

    def _leave(self, tenant: TenantQueue) -> None:
        self._floor = max(self._floor, self._least())
        tenant.active = self._is_active[tenant.number] = False
        self._active -= 1
        self._stale = True

    def _divide(self) -> None:
        """Run Algorithm 1 for the tenants that have work."""
        self._book()
        sharing = np.flatnonzero(self._is_active)
        demands = np.full(len(sharing), self.quantum_ns)
        problem = QuantumProblem(self.quantum_ns, self._weights[sharing], self._powers_w[sharing], demands)
        self._slices[:] = 0
        self._slices[sharing] = np.maximum(1, self.policy.slices(problem))
        current = self._current
        if current is not None:
            current.slice_ns = int(self._slices[current.number])
            self._from = current.vruntime, self._used_ns
        self._stale = False
        self.recomputed += 1


class FifoScheduler(Tenants):
    """Runs each task to its end before the next. Nobody is entitled to anything."""

    def __init__(self) -> None:
        super().__init__()
        self._line: deque[Task] = deque()
        self._begun: list[Task] = []  # together

    def submit(self, task: Task) -> bool:
        """Queue *task*; false, and nothing happens, if its queue is full."""
        if not task.tenant.push(task):
            return False
        self._line.append(task)
        return True

    def next(self) -> Task | None:
        """Return the task that has begun, else the one that has waited longest."""
        if not self._begun and (task := self._first()) is not None:
            self._begin(task)
        return self._begun[0] if self._begun else None

    def join(self, task: Task, accepts: Callable[[Task], bool], *, others: bool = False) -> list[Task]:
        """Begin those tasks together with *task* that have waited longest, as long as *accepts* allows it."""
        joined: list[Task] = []
        while (first := self._first()) and (others or first.tenant is task.tenant) and accepts(first):
            joined.append(first)
            self._begin(first)
        return joined

    def separate(self, joined: Sequence[Task]) -> None:
        """Let tasks that have joined another wait again, before all others."""
        _separate(joined)
        self._begun = [task for task in self._begun if task not in joined]
        self._line.extendleft(reversed(joined))

    def account(
        self, task: Task, time_ns: int, energy_j: float, *, ended: bool, others: Sequence[Charge] = (),
        output_tokens: int = 0,
    ) -> None:  # fmt: skip
        """Note what the step took that has just run, and whether *task* has ended with it."""
        for charge in (Charge(task.tenant, time_ns, energy_j, output_tokens), *others):
            charge.tenant.time_ns += charge.time_ns
            charge.tenant.energy_j += charge.energy_j
        if ended:
            self.finish(list(self._begun))

    def finish(self, ended: Sequence[Task]) -> None:
        """Note that these of the tasks that have begun together have ended before the others, or all of them."""
        _end(ended)
        self._begun = [task for task in self._begun if task not in ended]

    def cancel(self, task: Task) -> bool:
        """Withdraw *task*; false if it has begun: then it is marked, and its driver ends it before its next step."""
        if not task.tenant.withdraw(task):
            task.cancelled = True
            return False
        self._line.remove(task)
        return True

    def update(self, tenant: TenantQueue, *, weight: float | None = None, power_w: float | None = None) -> None:
        """Note a tenant's weight or power; neither changes the order."""
        tenant.weight = tenant.weight if weight is None else weight
        tenant.power_w = tenant.power_w if power_w is None else power_w

    def book(self) -> None:
        """Do nothing: there are no slices."""

    def _first(self) -> Task | None:
        """Return the task that begins next; ``None`` if none waits."""
        return self._line[0] if self._line else None

    def _begin(self, task: Task) -> None:
        self._line.remove(task)
        task.tenant.withdraw(task)
        task.tenant.begun.append(task)
        self._begun.append(task)


def _end(ended: Sequence[Task]) -> tuple[TenantQueue, ...]:
    """Let tasks end that have begun; returns their tenants."""
    tenants = tuple(dict.fromkeys(task.tenant for task in ended))
    for tenant in tenants:
        tenant.end([task for task in ended if task.tenant is tenant])
    return tenants


def _separate(joined: Sequence[Task]) -> None:
    for tenant in dict.fromkeys(task.tenant for task in joined):
        tenant.put_back([task for task in joined if task.tenant is tenant])
