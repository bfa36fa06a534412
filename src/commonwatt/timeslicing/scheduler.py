"""The run-time scheduler of ETF section 5: who runs next, and for how long.

Tenants with work stand in a heap by virtual runtime. The one with the least runs for its time slice, or until it has
no more work; meanwhile its virtual runtime grows by time / slice, eq. (16), so that everyone's grows alike when all
get what Algorithm 1 gives them. Slices are computed anew when the set of tenants with work has changed, or a weight,
a power or the policy. A tenant that comes (back) starts at the least virtual runtime there is, or at its own if that
is greater: idleness earns no credit, and going to and fro repays no debt. Idle tenants have no slice.

The scheduler knows no clock and no device: it is told how long each step took. It is not thread-safe.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol

import numpy as np

from commonwatt.model.errors import InputError
from commonwatt.timeslicing.policies import Policy
from commonwatt.timeslicing.problem import Problem
from commonwatt.timeslicing.tasks import Task, Tenant

__all__ = ["FairScheduler", "Scheduler", "Tenants"]


class Scheduler(Protocol):
    """What a device is driven by: tasks in, the next one out."""

    tenants: dict[str, Tenant]

    def add(self, name: str, weight: float, power_w: float, queues: int = 1, queue_limit: int | None = None) -> Tenant:
        """Add a tenant; raises ``InputError`` for a name that is taken, or a weight or power that is not positive."""
        ...

    def submit(self, task: Task) -> bool:
        """Queue *task*; false, and nothing happens, if its queue is full."""
        ...

    def next(self) -> Task | None:
        """Return the task whose next step runs now; ``None`` if no tenant has work."""
        ...

    def account(self, task: Task, time_ns: int, energy_j: float, *, ended: bool) -> None:
        """Note what the step took that has just run, and whether *task*, as ``next`` returned it, has ended with it."""
        ...

    def cancel(self, task: Task) -> bool:
        """Withdraw *task*; false if it has begun: then it is marked, and its driver ends it before its next step."""
        ...

    def update(self, tenant: Tenant, *, weight: float | None = None, power_w: float | None = None) -> None:
        """Change a tenant's weight or power; what depends on them follows at the next decision."""
        ...

    def book(self) -> None:
        """Bring ``entitled_ns`` of every tenant up to date."""
        ...


class Tenants:
    """Tenants by name, in order."""

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}

    def add(self, name: str, weight: float, power_w: float, queues: int = 1, queue_limit: int | None = None) -> Tenant:
        """Add a tenant; raises ``InputError`` for a name that is taken, or a weight or power that is not positive."""
        if name in self.tenants:
            raise InputError("a name no other tenant has", field="name", value=name)
        Problem.make(1, [weight], [power_w])  # checks both
        tenant = self.tenants[name] = Tenant(name, len(self.tenants), weight, power_w, queues, queue_limit)
        return tenant


class FairScheduler(Tenants):
    """Shares a device among tenants as a policy divides its quantum.

    Parameters
    ----------
    policy
        ETF, TF, EF or ETF's dual; see ``commonwatt.timeslicing.policies``.
    quantum_ns
        T in nanoseconds, which are the unit of slices too, so that no share is lost to rounding.
    """

    def __init__(self, policy: Policy, quantum_ns: int) -> None:
        super().__init__()
        self.policy = policy
        self.quantum_ns = quantum_ns
        self.recomputed = 0  # times slices were computed
        self._heap: list[tuple[float, int, Tenant]] = []  # tenants with work, but for the current one
        self._current: Tenant | None = None
        self._used_ns = 0  # of the current tenant's slice
        self._floor = 0.0  # least virtual runtime of those with work, the last time that was looked at
        self._active: set[Tenant] = set()
        self._stale = False
        self._sliced: tuple[Tenant, ...] = ()  # whom the slices are for
        self._unbooked_ns = 0  # time used under these slices

    def submit(self, task: Task) -> bool:
        """Queue *task*; false, and nothing happens, if its queue is full."""
        tenant = task.tenant
        if not tenant.push(task):
            return False
        if not tenant.active:
            if self._active:
                self._floor = max(self._floor, self._least())
            tenant.vruntime = max(tenant.vruntime, self._floor)
            tenant.active = True
            self._active.add(tenant)
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
            if self._used_ns < tenant.slice_ns:
                return tenant.head()
            heappush(self._heap, (tenant.vruntime, tenant.number, tenant))
            self._current = None
        if not self._heap:
            return None
        tenant = self._current = heappop(self._heap)[2]
        self._used_ns = 0
        return tenant.head()

    def account(self, task: Task, time_ns: int, energy_j: float, *, ended: bool) -> None:
        """Note what the step took that has just run, and whether *task*, as ``next`` returned it, has ended with it."""
        tenant = task.tenant
        tenant.time_ns += time_ns
        tenant.energy_j += energy_j
        tenant.vruntime += time_ns / tenant.slice_ns
        self._used_ns += time_ns
        self._unbooked_ns += time_ns
        if ended:
            tenant.finish()

    def cancel(self, task: Task) -> bool:
        """Withdraw *task*; false if it has begun: then it is marked, and its driver ends it before its next step."""
        tenant = task.tenant
        if not tenant.withdraw(task):
            task.cancelled = True
            return False
        if not tenant.has_work() and tenant is not self._current:
            self._leave(tenant)
            self._heap = [entry for entry in self._heap if entry[2] is not tenant]
            heapify(self._heap)
        return True

    def update(self, tenant: Tenant, *, weight: float | None = None, power_w: float | None = None) -> None:
        """Change a tenant's weight or power; slices follow at the next decision."""
        weight = tenant.weight if weight is None else weight
        power_w = tenant.power_w if power_w is None else power_w
        Problem.make(1, [weight], [power_w])
        tenant.weight, tenant.power_w = weight, power_w
        self._stale |= tenant.active

    def share_by(self, policy: Policy, quantum_ns: int) -> None:
        """Share by another policy or quantum from the next decision on."""
        self.policy, self.quantum_ns, self._stale = policy, quantum_ns, True

    def book(self) -> None:
        """Bring ``entitled_ns`` up to date: the time used under the present slices, as they divide it."""
        whole = sum(tenant.slice_ns for tenant in self._sliced)
        for tenant in self._sliced:
            tenant.entitled_ns += self._unbooked_ns * tenant.slice_ns / whole
        self._unbooked_ns = 0

    def _least(self) -> float:
        """Least virtual runtime among tenants with work; infinite if there are none."""
        waiting = self._heap[0][0] if self._heap else inf
        return waiting if self._current is None else min(waiting, self._current.vruntime)

    def _leave(self, tenant: Tenant) -> None:
        self._floor = max(self._floor, self._least())
        tenant.active = False
        self._active.discard(tenant)
        self._stale = True

    def _divide(self) -> None:
        """Run Algorithm 1 for the tenants that have work."""
        self.book()
        sharing = tuple(sorted(self._active, key=_number))
        problem = Problem(
            self.quantum_ns,
            np.array([tenant.weight for tenant in sharing]),
            np.array([tenant.power_w for tenant in sharing]),
            np.full(len(sharing), self.quantum_ns),
        )
        for tenant, units in zip(sharing, self.policy.slices(problem).tolist(), strict=True):
            tenant.slice_ns = max(1, units)
        self._sliced = sharing
        self._stale = False
        self.recomputed += 1


def _number(tenant: Tenant) -> int:
    return tenant.number
