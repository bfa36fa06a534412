"""First come, first served over all tenants: what a plain server does, and what sharing is measured against."""

from __future__ import annotations

from collections import deque

from commonwatt.timeslicing.scheduler import Tenants
from commonwatt.timeslicing.tasks import Task, Tenant

__all__ = ["FifoScheduler"]


class FifoScheduler(Tenants):
    """Runs each task to its end before the next. Nobody is entitled to anything."""

    def __init__(self) -> None:
        super().__init__()
        self._line: deque[Task] = deque()
        self._running: Task | None = None

    def submit(self, task: Task) -> bool:
        """Queue *task*; false, and nothing happens, if its queue is full."""
        if not task.tenant.push(task):
            return False
        self._line.append(task)
        return True

    def next(self) -> Task | None:
        """Return the task that has begun, else the one that has waited longest."""
        if self._running is None and self._line:
            task = self._running = self._line.popleft()
            task.tenant.withdraw(task)
            task.tenant.running = task
        return self._running

    def account(self, task: Task, time_ns: int, energy_j: float, *, ended: bool) -> None:
        """Note what the step took that has just run, and whether *task* has ended with it."""
        tenant = task.tenant
        tenant.time_ns += time_ns
        tenant.energy_j += energy_j
        if ended:
            tenant.finish()
            self._running = None

    def cancel(self, task: Task) -> bool:
        """Withdraw *task*; false if it has begun: then it is marked, and its driver ends it before its next step."""
        if not task.tenant.withdraw(task):
            task.cancelled = True
            return False
        self._line.remove(task)
        return True

    def update(self, tenant: Tenant, *, weight: float | None = None, power_w: float | None = None) -> None:
        """Note a tenant's weight or power; neither changes the order."""
        tenant.weight = tenant.weight if weight is None else weight
        tenant.power_w = tenant.power_w if power_w is None else power_w

    def book(self) -> None:
        """Do nothing: there are no slices."""
