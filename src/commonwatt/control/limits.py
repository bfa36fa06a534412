"""Limits that a policy keeps: quotas of tenants and QOS; reservations, and how long jobs waited beside room.

A quota says how many jobs and GPUs a tenant, or a QOS, may have at once: what is beyond is taken out of a schedule.
Jobs that share a quota have a key in common: the name of their tenant, or what ``QosTracker`` gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from commonwatt.control.dry_run import without_starts
from commonwatt.control.job_registry import JobRegistry
from commonwatt.control.scheduling import JobCondition, Scheduling
from commonwatt.model.arrays import Bools, Ints
from commonwatt.model.jobs import QOS_SCOPES, JobArrays, Qos
from commonwatt.model.scenario import PolicyLimits
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement.guarantees import Guarantees, Reservation, held_back

__all__ = ["LimitTracker", "QosTracker", "Quota", "QuotaTracker", "Use", "qos_limits"]


@dataclass(frozen=True)
class Quota:
    """Largest numbers at once; ``None``: no limit."""

    jobs: int | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class Use:
    """What jobs have at one moment."""

    jobs: int = 0
    gpus: int = 0

    def leaves(self, quota: Quota, gpus: int) -> bool:
        """Whether there is room for one more job with so many GPUs."""
        return (quota.jobs is None or self.jobs < quota.jobs) and (quota.gpus is None or self.gpus + gpus <= quota.gpus)

    def plus(self, gpus: int) -> Use:
        """Return the use with one more job."""
        return Use(self.jobs + 1, self.gpus + gpus)


class QuotaTracker:
    """Keeps schedules within limits, by key; here the keys are tenants.

    Attributes
    ----------
    limits
        The limit of each key that has one.
    """

    def __init__(self, registry: JobRegistry) -> None:
        self.registry = registry
        self.limits: Mapping[Hashable, Quota] = {}

    def keys(self, handle: int) -> Sequence[Hashable]:
        """Return the keys of a job."""
        return (self.registry.tenants[int(self.registry.job("tenant")[handle])],)

    def use(self, gpus: Mapping[int, int], but: Collection[int] = ()) -> dict[Hashable, Use]:
        """Return what each key has by *gpus*, those of running jobs by handle, *but* for some jobs."""
        use: dict[Hashable, Use] = {}
        left_out = set(but)
        for handle, many in gpus.items():
            if handle not in left_out:
                for key in self.keys(handle):
                    use[key] = use.get(key, Use()).plus(many)
        return use

    def fitting(
        self, problem: PlacementProblem, handles: Sequence[int], gpus: Mapping[int, int]
    ) -> Bools | None:  # fmt: skip
        """Return the configurations ([C]) that leave each job within its limits beside the jobs that run now.

        A job keeps the smallest one, and the one it runs in. ``None``: all of them do.
        """
        if not self.limits:
            return None
        use, many = self.use(gpus), problem.width * problem.per_node
        kept = np.ones(len(many), dtype=bool)
        for j, handle in enumerate(handles):
            room = [
                quota.gpus - use.get(key, Use()).gpus
                for key in self.keys(handle)
                if (quota := self.limits.get(key)) is not None and quota.gpus is not None
            ]
            if room:
                own = slice(int(problem.start[j]), int(problem.start[j + 1]))
                kept[own] = many[own] <= max(min(room) + gpus.get(handle, 0), int(many[own].min()))
        running = problem.stay[problem.stay >= 0]
        kept[running] = True
        return None if kept.all() else kept

    def within(
        self, problem: PlacementProblem, schedule: Schedule, handles: Sequence[int], gpus: Mapping[int, int]
    ) -> Schedule:
        """Return *schedule* without what exceeds the limits.

        What stays as it is comes first, then running jobs that change, then starts, each in the order of the problem.
        A running job that would grow too far stays where it is if its place is still free.

        Parameters
        ----------
        handles
            The jobs of the problem.
        gpus
            Those of all running jobs, by handle.
        """
        choice, over = schedule.choice, []
        placed = np.flatnonzero(choice != POSTPONED)
        changed = choice != problem.stay
        order = sorted(placed.tolist(), key=lambda j: (changed[j], problem.stay[j] < 0, j))
        use = self.use(gpus, handles)
        for j in order:
            keys = [key for key in self.keys(handles[j]) if key in self.limits]
            many = problem.gpus_of(int(choice[j]))
            if changed[j] and not all(use.get(key, Use()).leaves(self.limits[key], many) for key in keys):
                over.append(j)
                if problem.stay[j] < 0:
                    continue
                many = problem.gpus_of(int(problem.stay[j]))
            for key in keys:
                use[key] = use.get(key, Use()).plus(many)
        return without_starts(problem, schedule, over) if over else schedule


_Key = tuple[str, str, str]  # QOS, scope, and whose jobs


def qos_limits(table: JobArrays, qos: Sequence[Qos]) -> Iterator[tuple[int, list[tuple[_Key, Quota]], bool]]:
    """Yield jobs of *table* that have one of *qos*: row, limits, and whether some limit is less than the job asks for.

    A limit that is less than what a job asks for does not count for it: the job ran, so that the limit was another.
    """
    named = {one.name: one for one in qos}
    for j, name in enumerate(table.qos):
        if name not in named:
            continue
        whose = {"all": name, "account": table.tenants[table.tenant[j]], "user": table.user[j] if table.user else ""}
        own: list[tuple[_Key, Quota]] = []
        larger = False
        least = max(int(table.requested_gpus[j]), int(table.config_gpus[table.configs(j)].min()))
        for scope in QOS_SCOPES:
            quota = Quota(*named[name].limits(scope))
            if quota == Quota() or not whose[scope]:
                continue
            fits = Use().leaves(quota, least)
            larger |= not fits
            if fits:
                own.append(((name, scope, whose[scope]), quota))
        yield j, own, larger


class QosTracker(QuotaTracker):
    """Keeps schedules within the limits of jobs' QOS; what they leave no room for is not offered to the solver."""

    def __init__(self, registry: JobRegistry, table: JobArrays, qos: Sequence[Qos]) -> None:
        super().__init__(registry)
        found = list(qos_limits(table, qos))
        self.limits = {key: quota for _, own, _ in found for key, quota in own}
        self._keys = {table.names[j]: tuple(key for key, _ in own) for j, own, _ in found}

    def keys(self, handle: int) -> Sequence[Hashable]:
        """Return the keys of a job."""
        return self._keys.get(self.registry.names[handle], ())

    def mark(self, scheduling: Scheduling, gpus: Mapping[int, int]) -> bool:
        """Mark the waiting jobs that may not start now; returns whether they are others than before."""
        use, least = self.use(gpus), self.registry.job("asked_gpus")
        full = {
            handle
            for handle in self.registry.waiting
            for key in self.keys(handle)
            if not use.get(key, Use()).leaves(self.limits[key], int(least[handle]))
        }
        before = scheduling.jobs(JobCondition.QUOTA)
        if full == before:
            return False
        scheduling.mark_only(full, JobCondition.QUOTA)
        return True


# -- reservations and waits


class LimitTracker:
    """Turns a policy's limits into guarantees of one decision after another.

    A job that was once the oldest with a reservation runs to its end when it has started. Else the solver could stop
    it for one that came later, and it would be the oldest again, in front of all others.
    """

    def __init__(self, limits: PolicyLimits, registry: JobRegistry) -> None:
        self.limits, self.registry = limits, registry
        self._reservation: tuple[int, Reservation] | None = None  # with the handle of its job
        self._promised: set[int] = set()  # jobs that are not stopped any more
        self._waited_s: dict[int, float] = {}  # although there was room
        self._since_s: dict[int, float] = {}  # jobs for which the last decision left room

    def guarantees(self, problem: PlacementProblem, handles: Ints, now_s: float, closed: Collection[int]) -> Guarantees:
        """Return what must hold of a decision about *handles*, the jobs of *problem*; *closed* nodes get no job."""
        running, oldest = problem.stay >= 0, np.zeros(0, dtype=np.int64)
        before = None
        if self.limits.reserve_after_s is not None and problem.background is None:
            due = ~running & (now_s - problem.submit_s >= self.limits.reserve_after_s)
            oldest = np.flatnonzero(due)
            oldest = oldest[np.argsort(problem.submit_s[oldest], kind="stable")]
            if self._reservation is not None:
                handle, reserved = self._reservation
                first = np.flatnonzero(handles == handle)
                if len(first) and not running[first[0]]:
                    oldest = np.concatenate((first, oldest[oldest != first[0]]))
                    before = replace(reserved, job=int(first[0]))
        nodes = np.zeros(len(problem.node_gpus), dtype=bool)
        nodes[sorted(closed)] = True
        promised = self._among(handles, self._promised) & running
        pinned, overdue = self.pinned(handles, running, now_s), self._overdue(handles, now_s)
        return Guarantees(pinned, promised, overdue, oldest, before, nodes, pinned & self._spent(handles))

    def decided(self, problem: PlacementProblem, schedule: Schedule, handles: Ints, now_s: float) -> int | None:
        """Take note of a decision; returns the job for which GPUs are newly reserved, if any."""
        self._count(problem, schedule, handles, now_s)
        if problem.guarantees is None or problem.background is not None:
            return None
        before, reserved = self._reservation, schedule.reservation
        if reserved is not None and not reserved.oldest:
            reserved = None
        self._promised &= self.registry.active
        if reserved is None:
            self._reservation = None
            due = problem.guarantees.oldest
            started = due[schedule.choice[due] != POSTPONED]
            self._promised.update(int(handle) for handle in handles[started[:1]])
            return None
        handle = int(handles[reserved.job])
        self._reservation = handle, reserved
        return None if before is not None and before[0] == handle else handle

    def by_name(self) -> dict[str, object]:
        """Return what an earlier controller has to leave behind, by names of jobs and nodes."""
        names, nodes = self.registry.names, self.registry.cluster.names
        active, placed_s = self.registry.active, self.registry.job("placed_s")
        young = () if self.limits.min_run_s is None else self.registry.nodes
        reserved = None
        if self._reservation is not None:
            handle, kept = self._reservation
            reserved = asdict(kept) | {"job": names[handle], "nodes": [nodes[n] for n in kept.nodes.tolist()]}
        return {
            "reserved": reserved,
            "promised": sorted(names[handle] for handle in self._promised & active),
            "waited_s": {names[handle]: s for handle, s in self._waited_s.items() if handle in active},
            "since_s": {names[handle]: s for handle, s in self._since_s.items() if handle in active},
            "placed_s": {names[handle]: float(placed_s[handle]) for handle in young},
        }

    def resume(self, left: Mapping[str, Any], handles: Mapping[str, int]) -> None:
        """Continue from what ``by_name`` returned; *handles* by name. Clocks have run on meanwhile.

        A reservation is dropped with its job, or with a node that is not there any more. A job that had one and runs
        now was started by the last command of the earlier controller.
        """
        at = {name: n for n, name in enumerate(self.registry.cluster.names)}
        active, running = self.registry.active, self.registry.nodes
        known = {name: handle for name, handle in handles.items() if handle in active}
        self._promised |= {known[name] for name in left["promised"] if name in known}
        for mine, theirs in ((self._waited_s, left["waited_s"]), (self._since_s, left["since_s"])):
            mine.update({known[name]: seconds for name, seconds in theirs.items() if name in known})
        for name, placed_s in left["placed_s"].items():
            if (handle := known.get(name)) in running:
                self.registry.job("placed_s")[handle] = placed_s
        reserved = left["reserved"]
        if reserved is None or reserved["job"] not in known:
            return
        handle = known[reserved["job"]]
        if handle in running:
            self._promised.add(handle)
        elif all(name in at for name in reserved["nodes"]):
            nodes = np.array([at[name] for name in reserved["nodes"]], dtype=np.int64)
            self._reservation = handle, Reservation(**{**reserved, "job": -1, "nodes": nodes})

    def pinned(self, handles: Ints, running: Bools, now_s: float) -> Bools:
        """Running jobs that may not be stopped or moved, [J]."""
        pinned = np.zeros(len(handles), dtype=bool)
        if self.limits.min_run_s is not None:
            pinned |= now_s - self.registry.job("placed_s")[handles] < self.limits.min_run_s
        return (pinned | self._spent(handles)) & running

    def _spent(self, handles: Ints) -> Bools:
        """Jobs that were started as often as they may be, [J]."""
        most = self.limits.max_starts
        starts: Ints = self.registry.job("starts")[handles]
        return np.zeros(len(handles), dtype=bool) if most is None else starts >= most

    def lasting(self, handles: Ints, running: Bools, now_s: float) -> Bools:
        """Running jobs that may not be stopped, [J]."""
        return self.pinned(handles, running, now_s) | self._among(handles, self._promised) & running

    @staticmethod
    def _among(handles: Ints, some: set[int]) -> Bools:
        return np.isin(handles, list(some)) if some else np.zeros(len(handles), dtype=bool)

    def _overdue(self, handles: Ints, now_s: float) -> Bools:
        """Jobs that have waited long enough although they could have run, [J]."""
        most_s = self.limits.max_deliberate_wait_s
        if most_s is None:
            return np.zeros(len(handles), dtype=bool)
        return np.array([self._waited(int(handle), now_s) >= most_s for handle in handles], dtype=bool)

    def _waited(self, handle: int, now_s: float) -> float:
        return self._waited_s.get(handle, 0.0) + now_s - self._since_s.get(handle, now_s)

    def _count(self, problem: PlacementProblem, schedule: Schedule, handles: Ints, now_s: float) -> None:
        """Count the time for which jobs wait beside room they could use."""
        if self.limits.max_deliberate_wait_s is None:
            return
        waiting = held_back(problem, schedule)
        for handle, held in zip(handles.tolist(), waiting.tolist(), strict=True):
            waited_s = self._waited(handle, now_s)
            if waited_s:
                self._waited_s[handle] = waited_s
            self._since_s.pop(handle, None)
            if held:
                self._since_s[handle] = now_s
        for gone in self._waited_s.keys() - self.registry.active:
            del self._waited_s[gone]
