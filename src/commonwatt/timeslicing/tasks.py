"""What is scheduled: tasks in queues of tenants."""

from __future__ import annotations

from collections import deque
from typing import Any

__all__ = ["Task", "Tenant"]


class Task:
    """One inference: steps (kernels) that run one after the other. ``work`` is the caller's own."""

    __slots__ = ("cancelled", "queue", "submitted_ns", "tenant", "work")

    def __init__(self, tenant: Tenant, queue: int = 0, work: Any = None, submitted_ns: int = 0) -> None:  # noqa: ANN401
        self.tenant = tenant
        self.queue = queue
        self.work = work
        self.submitted_ns = submitted_ns
        self.cancelled = False


class Tenant:
    """A tenant's queues, its virtual runtime, and what it has used so far.

    Each queue is first come, first served, like a CUDA stream: its next task begins when the one before has ended.
    Tasks at the heads of several queues take turns, one whole task at a time.
    """

    __slots__ = (
        "active", "energy_j", "entitled_ns", "name", "number", "power_w", "queue_limit", "queues", "ready", "running",
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
        self.running: Task | None = None  # begun and not ended
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
        return self.running is not None or bool(self.ready)

    def push(self, task: Task) -> bool:
        """Queue *task*; false, and nothing happens, if its queue is full."""
        queue = self.queues[task.queue]
        if self.queue_limit is not None and len(queue) >= self.queue_limit:
            return False
        if not queue and (self.running is None or self.running.queue != task.queue):
            self.ready.append(task.queue)
        queue.append(task)
        self.waiting += 1
        return True

    def head(self) -> Task:
        """Return the task that runs next, beginning it if none has begun; only if ``has_work``."""
        task = self.running
        if task is None:
            task = self.running = self.queues[self.ready.popleft()].popleft()
            self.waiting -= 1
        return task

    def finish(self) -> None:
        """Note that the begun task has ended."""
        task = self.running
        assert task is not None
        self.running = None
        self.tasks_done += 1
        if self.queues[task.queue] and task.queue not in self.ready:
            self.ready.append(task.queue)

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
