"""Limits on waiting that a policy keeps: reservations, how long jobs waited beside room, how often they are stopped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from commonwatt.control.job_registry import JobRegistry
from commonwatt.model.arrays import Bools, Ints
from commonwatt.model.scenario import PolicyLimits
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement.guarantees import Guarantees, Reservation, waiting_beside_room

__all__ = ["LimitTracker"]


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
        jobs = {name: handle for name, handle in handles.items() if handle in active}
        self._promised |= {jobs[name] for name in left["promised"] if name in jobs}
        for mine, theirs in ((self._waited_s, left["waited_s"]), (self._since_s, left["since_s"])):
            mine.update({jobs[name]: seconds for name, seconds in theirs.items() if name in jobs})
        for name, placed_s in left["placed_s"].items():
            if (handle := jobs.get(name)) in running:
                self.registry.job("placed_s")[handle] = placed_s
        reserved = left["reserved"]
        if reserved is None or reserved["job"] not in jobs:
            return
        handle = jobs[reserved["job"]]
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
        waiting = waiting_beside_room(problem, schedule)
        for handle, waits in zip(handles.tolist(), waiting.tolist(), strict=True):
            waited_s = self._waited(handle, now_s)
            if waited_s:
                self._waited_s[handle] = waited_s
            self._since_s.pop(handle, None)
            if waits:
                self._since_s[handle] = now_s
        for gone in self._waited_s.keys() - self.registry.active:
            del self._waited_s[gone]
