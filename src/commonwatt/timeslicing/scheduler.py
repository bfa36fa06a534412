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
        self._from = 0.0, 0  # its virtual runtime, and what it had used, when the slice was set
        self._floor = 0.0  # least virtual runtime of those with work, the last time that was looked at
        self._active = 0  # tenants with work
        self._stale = False
        self._unbooked_ns = 0  # time used under the present slices
        self._is_active = np.zeros(0, np.bool_)  # by number of the tenant, as all that follow
        self._weights, self._powers_w = np.zeros(0), np.zeros(0)
        self._slices = np.zeros(0, np.int64)  # of those that were active when they were computed; 0 for others
        self._entitled_ns = np.zeros(0)

    def add(self, name: str, weight: float, power_w: float, queues: int = 1, queue_limit: int | None = None) -> Tenant:
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
            if self._used_ns < tenant.slice_ns:
                return tenant.head()
            heappush(self._heap, (tenant.vruntime, tenant.number, tenant))
            self._current = None
        if not self._heap:
            return None
        tenant = self._current = heappop(self._heap)[2]
        tenant.slice_ns = int(self._slices[tenant.number])
        self._used_ns = 0
        self._from = tenant.vruntime, 0
        return tenant.head()

    def account(self, task: Task, time_ns: int, energy_j: float, *, ended: bool) -> None:
        """Note what the step took that has just run, and whether *task*, as ``next`` returned it, has ended with it."""
        tenant = task.tenant
        tenant.time_ns += time_ns
        tenant.energy_j += energy_j
        self._used_ns += time_ns
        vruntime, used_ns = self._from  # not summed up step by step: a whole slice makes exactly 1
        tenant.vruntime = vruntime + (self._used_ns - used_ns) / tenant.slice_ns
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
        self._weights[tenant.number], self._powers_w[tenant.number] = weight, power_w
        self._stale |= tenant.active

    def share_by(self, policy: Policy, quantum_ns: int) -> None:
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

    def _leave(self, tenant: Tenant) -> None:
        self._floor = max(self._floor, self._least())
        tenant.active = self._is_active[tenant.number] = False
        self._active -= 1
        self._stale = True

    def _divide(self) -> None:
        """Run Algorithm 1 for the tenants that have work."""
        self._book()
        sharing = np.flatnonzero(self._is_active)
        demands = np.full(len(sharing), self.quantum_ns)
        problem = Problem(self.quantum_ns, self._weights[sharing], self._powers_w[sharing], demands)
        self._slices[:] = 0
        self._slices[sharing] = np.maximum(1, self.policy.slices(problem))
        current = self._current
        if current is not None:
            current.slice_ns = int(self._slices[current.number])
            self._from = current.vruntime, self._used_ns
        self._stale = False
        self.recomputed += 1
