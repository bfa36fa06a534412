"""When waiting jobs may start, and when they will.

A job file's ``begin`` and ``after`` name a time and other jobs to wait for: these are conditions. So is that some node
has what the job needs beside GPUs. The estimates are a
simple projection, not a promise: waiting jobs take turns in the order of their pressure (due date minus shortest run
time), each in the configuration in which it would end first, GPUs counted over all nodes of a class. In a class, no job
starts before one whose turn came earlier. Jobs with a time before which they do not start come after all others. Where
no run time is known, no end is, and no start of those that need its GPUs.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from commonwatt.control.capacity import coming_jobs
from commonwatt.control.controller import Controller
from commonwatt.control.events import Event, EventKind
from commonwatt.control.job_registry import Shortage
from commonwatt.control.scheduling import JobCondition
from commonwatt.controlplane.jobs import begin_of
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.dependencies import Dependency, WaitedFor, handovers, met, together
from commonwatt.model.explanation import Reason
from commonwatt.model.units import amount_of
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.records import ACTIVE, JobRow, JobStatus

__all__ = ["LONGEST", "UNFORESEEN", "StartConditions", "Waiting", "expected_times"]

_NODES_S = 30.0  # between looks at what nodes have for jobs that wait


def _waited_for(row: JobRow) -> WaitedFor:
    """Return what is known of a job that others wait for, or of a task of it, by the store."""
    return WaitedFor(
        began=row.began_s is not None,
        ended=row.status not in ACTIVE,
        completed=row.status is JobStatus.COMPLETED,
        expected_end_s=row.expected_end_s if row.status is JobStatus.RUNNING else None,
        gpus=row.gpus,
    )


@dataclass
class StartConditions:
    """Keeps a controller from starting jobs whose time has not come, or that wait for others.

    A job that has run goes on without them after an interruption.
    """

    store: ControllerStore
    controller: Controller
    _begin_s: dict[int, float] = field(default_factory=dict)  # by handle
    _after: dict[int, Mapping[int, Dependency]] = field(default_factory=dict)  # by handle: kinds by job
    _tasks: dict[int, list[int]] = field(default_factory=dict)  # jobs of each array that others wait for, by its first
    # by handle: when the jobs it waits for are expected to have ended, and their GPUs, which it takes over
    _ends: dict[int, tuple[float, int]] = field(default_factory=dict)
    _unadmitted: tuple[Mapping[int, str], Callable[[int], int | None]] = field(default=({}, lambda _: None))
    _awaiting: Mapping[int, str] = field(default_factory=dict)  # by handle: why it may not be started yet
    _no_node: dict[int, Shortage] = field(default_factory=dict)  # by handle: what the nearest node has too little of
    _asked: set[int] = field(default_factory=set)  # waiting jobs for which nodes were looked at lately
    _asked_s: float = -math.inf
    _said: dict[int, str] = field(default_factory=dict)  # by handle: what the log says
    _seen: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())  # jobs active, and running, at the last

    def add(self, handle: int, row: JobRow, now_s: float) -> None:
        """Take up a job that has been registered."""
        if row.began_s is not None:
            return
        begin_s = begin_of(row.file)
        if begin_s is not None and begin_s > now_s:
            self._begin_s[handle] = begin_s
        if row.file.after:
            self._after[handle] = row.file.after
        self._mark()  # at once: the next decision may come before the next look

    def next_s(self) -> float | None:
        """When the next job's time comes."""
        return min(self._begin_s.values(), default=None)

    def coming(self, now_s: float, until_s: float) -> tuple[Floats, Ints, Ints]:
        """Return when jobs come up to *until_s* by what is known now, their GPUs, and their pools.

        A job with a begin time comes then. One that waits for running jobs comes when the last of them is expected to
        end, and takes over their GPUs: only those it asks for beyond them are new.
        """
        registry, on_hold = self.controller.registry, self.controller.scheduling.jobs(JobCondition.HELD)
        own = []
        for handle in sorted((self._begin_s.keys() | self._ends.keys()) & registry.active - on_hold):
            if handle in self._after and handle not in self._ends:
                continue
            end_s, freed = self._ends.get(handle, (now_s, 0))
            at_s = max(self._begin_s.get(handle, now_s), end_s)
            own.append((at_s, handle, int(registry.job("asked_gpus")[handle]) - freed))
        capacity = self.controller.capacity
        return coming_jobs(own, now_s, until_s, (lambda _: 0) if capacity is None else capacity.pool_of)

    def foreseen(self) -> tuple[Set[int], Mapping[int, float]]:
        """Return the waiting jobs, by handle, that wait for room or a time alone; and that time of those that do."""
        controller = self.controller
        others = self._after.keys() | self._awaiting.keys()
        others |= set[int]().union(*map(controller.scheduling.jobs, _NOT_FORESEEN))
        if controller.capacity is not None:
            others |= controller.capacity.waits_for_power
        return controller.registry.active - controller.registry.nodes.keys() - others, self._begin_s

    def moved(self) -> bool:
        """Whether jobs have started or ended since the last call, and others may wait for that.

        The store has that once the tick is written: another look is due then.
        """
        if not (self._after or self._awaiting):
            return False
        registry = self.controller.registry
        before, self._seen = self._seen, (frozenset(registry.active), frozenset(registry.nodes))
        return before != self._seen

    def await_admission(self, awaiting: Mapping[int, str], handle_of: Callable[[int], int | None]) -> bool:
        """Hold exactly these jobs, by id, as others have yet to admit them; returns whether that is a change."""
        self._unadmitted = awaiting, handle_of
        return self._hold_unadmitted()

    def _hold_unadmitted(self) -> bool:
        unadmitted, handle_of = self._unadmitted
        reasons = {handle_of(job): why for job, why in unadmitted.items()}
        before, self._awaiting = self._awaiting, {h: why for h, why in reasons.items() if h is not None}
        for handle in before.keys() - self._awaiting.keys():
            self._reconsider(handle)
        self._mark()
        return before != self._awaiting

    def look(self, now_s: float) -> None:
        """Let go of the jobs that may start now; the log says why the others wait, once."""
        self._hold_unadmitted()  # some may have been registered since
        active = self.controller.registry.active
        for handle in [h for h, begin_s in self._begin_s.items() if begin_s <= now_s or h not in active]:
            self._release(self._begin_s, handle)
        waited_for = sorted({job for handle, after in self._after.items() if handle in active for job in after})
        rows = self.store.jobs_by_id(waited_for) if waited_for else ()
        self._tasks = {row.id: self._tasks[row.id] for row in rows if row.id in self._tasks}
        others = {row.id: together([_waited_for(task) for task in self._tasks_of(row)]) for row in rows}
        for handle, after in list(self._after.items()):
            verdicts = {job: met(kind, others.get(job)) for job, kind in after.items()}
            if handle not in active or all(verdicts.values()):
                self._release(self._after, handle)
            elif handle not in self._begin_s:
                self._say_after(handle, after, verdicts, now_s)
        self._ends = handovers(self._after, others)
        for handle, begin_s in self._begin_s.items():
            moment = datetime.fromtimestamp(begin_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
            self._say(handle, "begin", f"it does not start before {moment} (UTC)", now_s)
        for handle in self._awaiting.keys() & active - self.controller.registry.nodes.keys():
            self._say(handle, "admission", self._awaiting[handle], now_s)
        self._look_at_nodes(now_s)
        self._mark()

    def _tasks_of(self, row: JobRow) -> list[JobRow]:
        """Return the tasks of an array, which its first job stands for, or the job itself."""
        array = row.file.batch.array if row.file.batch else None
        if array is None or array[0]:
            return [row]
        if row.id in self._tasks:
            return self.store.jobs_by_id(self._tasks[row.id])
        tasks = self.store.array_of(row)
        if len(tasks) == array[2]:  # else it is still being submitted
            self._tasks[row.id] = [task.id for task in tasks]
        return tasks

    def _look_at_nodes(self, now_s: float) -> None:
        """Hold jobs that no node has enough for, even if it were empty: new ones at once, all now and then.

        Placement would reserve GPUs for them that nobody could use.
        """
        registry = self.controller.registry
        waiting = registry.active - registry.nodes.keys()
        if now_s >= self._asked_s + _NODES_S:
            self._asked, self._asked_s = set(), now_s
        new = np.array(sorted(waiting - self._asked), dtype=np.int64)
        self._asked = set(waiting)
        short = registry.without_node(new) if len(new) else {}
        for handle in [h for h in self._no_node if h not in waiting or (h in new and h not in short)]:
            del self._no_node[handle]
            self._reconsider(handle)
        self._no_node |= short
        for handle, (node, resource, needs, most) in self._no_node.items():
            if not (handle in self._begin_s or handle in self._after or handle in self._awaiting):
                has = f"{registry.cluster.names[node]} has {amount_of(resource, most)} in all"
                what = f"no node has enough for it, even if it were empty: {has}, and it needs"
                self._say(handle, Reason.CPUS_OR_MEMORY, f"{what} {amount_of(resource, needs)} there", now_s)

    def _release(self, waiting: dict[int, float] | dict[int, Mapping[int, Dependency]], handle: int) -> None:
        del waiting[handle]
        self._reconsider(handle)

    def _reconsider(self, handle: int) -> None:
        if handle in self.controller.registry.active:
            self._said.pop(handle, None)
            self.controller.explain_again(handle)
            self.controller.decide_anew()

    def _mark(self) -> None:
        waiting = self._begin_s.keys() | self._after.keys() | self._awaiting.keys()
        self.controller.scheduling.mark_only(waiting, JobCondition.NOT_YET)
        self.controller.scheduling.mark_only(self._no_node, JobCondition.NO_NODE)

    def _say_after(
        self, handle: int, after: Mapping[int, Dependency], verdicts: Mapping[int, bool | None], now_s: float
    ) -> None:
        never = [job for job, verdict in verdicts.items() if verdict is None]
        if never:
            what = " and ".join(f"{after[job]} of job {job}" for job in never[:5])
            self._say(handle, "dependency-never", f"it never starts, as {what} cannot come true: cancel it", now_s)
            return
        still = [f"{job} ({after[job]})" for job, verdict in verdicts.items() if not verdict]
        self._say(handle, "dependency", f"it waits for job {', '.join(still[:5])}", now_s)

    def _say(self, handle: int, reason: str, sentence: str, now_s: float) -> None:
        if self._said.get(handle) != sentence:
            self._said[handle] = sentence
            name = self.controller.registry.names[handle]
            event = Event(now_s, EventKind.WAITS, handle, reason=reason, text=f"{name} waits: {sentence}")
            self.controller.log.append(event)


# -- estimates


UNFORESEEN = frozenset({Reason.CPUS_OR_MEMORY, "admission", "dependency", "dependency-never"})
"""Reasons for which a job waits until nobody knows when."""
_NOT_FORESEEN = (
    JobCondition.HELD, JobCondition.QUOTA, JobCondition.BACKOFF, JobCondition.NO_NODE, JobCondition.UNSCHEDULABLE,
    JobCondition.DEFERRED, JobCondition.NOT_PLACED,
)  # fmt: skip
LONGEST = 2_000
"""Waiting jobs that get an estimate; those behind them get none."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting job, its configurations (class, GPUs over all nodes, seconds; infinity: unknown), and since when."""

    handle: int
    pressure: float
    ways: Sequence[tuple[int, int, float]]
    from_s: float = -math.inf  # before which it does not start


def expected_times(
    now_s: float, free_gpus: Sequence[int], ends: Sequence[tuple[float, int, int]], waiting: Sequence[Waiting]
) -> dict[int, tuple[float, float]]:
    """Return when jobs start and end, by handle; infinity: unknown.

    Parameters
    ----------
    free_gpus
        Free GPUs of each class. Shape [K].
    ends
        When running jobs end: time (infinity: unknown), class, GPUs.
    waiting
        The jobs that wait.
    """
    releases: list[list[tuple[float, int]]] = [[] for _ in free_gpus]  # latest first
    for time_s, klass, gpus in ends:
        releases[klass].append((max(now_s, time_s), gpus))
    for own in releases:
        own.sort(key=_latest_first)
    free, estimates = list(free_gpus), {}
    begins = [now_s] * len(free)  # before which no job starts in a class: jobs there take turns
    for job in sorted(waiting, key=lambda w: (max(now_s, w.from_s), w.pressure, w.handle))[:LONGEST]:
        best: tuple[float, float, int, int] | None = None
        for klass, gpus, seconds in job.ways:
            from_s = max(begins[klass], job.from_s)
            begin_s = _earliest(from_s, free[klass], releases[klass], gpus)
            if begin_s is None:
                continue
            sooner = best is None or begin_s + seconds < best[0]
            if sooner or (best is not None and best[0] == math.inf and begin_s < best[1]):
                best = (begin_s + seconds, begin_s, klass, gpus)
        if best is None:
            continue
        end_s, begin_s, klass, gpus = best
        while releases[klass] and free[klass] < gpus:
            free[klass] += releases[klass].pop()[1]
        free[klass] -= gpus
        begins[klass] = max(begins[klass], begin_s)
        insort(releases[klass], (end_s, gpus), key=_latest_first)
        estimates[job.handle] = (begin_s, end_s)
    return estimates


def _latest_first(release: tuple[float, int]) -> float:
    return -release[0]


def _earliest(from_s: float, free: int, releases: list[tuple[float, int]], gpus: int) -> float | None:
    """When *gpus* are free; ``None`` if never."""
    if free >= gpus:
        return from_s
    for release_s, released in reversed(releases):
        free += released
        if free >= gpus:
            return max(from_s, release_s)
    return None
