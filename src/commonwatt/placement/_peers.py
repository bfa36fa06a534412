"""Published schedulers that do not resize jobs: what they have in common, and those that keep a queue.

A job gets the GPUs its owner asked for, on one class of nodes, or waits. A scheduler says in which order jobs get GPUs
of which class; ``realised`` gives them nodes: first so many GPUs of each class, as if a class were one pool, then
nodes. Jobs that stay in a class stay on the nodes they have. Only where a job then finds too few GPUs on one node are
all placed anew, larger jobs first, unless nothing may be stopped.

Sources: J. Gu et al., "Tiresias: A GPU cluster manager for distributed deep learning" (NSDI 2019); Q. Hu et al.,
"Characterization and prediction of deep learning workloads in large-scale GPU datacenters" (Helios, SC 2021); A. Ghodsi
et al., "Dominant resource fairness: Fair allocation of multiple resource types" (NSDI 2011).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import Received
from commonwatt.optimize import KeepGoing, always, ranked
from commonwatt.placement._objective import objective
from commonwatt.placement._problem import POSTPONED, PlacementProblem, PlacementSearch, Schedule

__all__ = [
    "DominantShare", "Entry", "LeastAttainedService", "Menu", "Peer", "ShortestService", "placed", "received_by",
]  # fmt: skip

Entry = tuple[int, int]
"""A job and a class of nodes."""


@dataclass(frozen=True)
class Menu:
    """What each job may get of each class, for schedulers that do not resize jobs.

    Attributes
    ----------
    row
        Its configuration there if it runs on, or is started; -1: none. Shape [J, K].
    start
        Its configuration there if it is started, on whatever nodes; -1: none. Shape [J, K].
    gpus
        GPUs of each job, [J].
    whole_s
        Time of the whole job there, infinite where it cannot run. Shape [J, K].
    left_s
        Time it would take from now, restart included. Shape [J, K].
    restart_s
        Time a job has its GPUs before it works when it is started, [J].
    home
        Class it runs in, [J]; -1: it waits.
    room
        GPUs of each class, [K].
    """

    row: Ints
    start: Ints
    gpus: Ints
    whole_s: Floats
    left_s: Floats
    restart_s: Floats
    home: Ints
    room: Ints

    @classmethod
    def of(cls, problem: PlacementProblem) -> Menu:
        """Raises ``InputError`` on a job that may have several numbers of GPUs and asked for none."""
        gpus = _asked_gpus(problem)
        jobs, classes = len(problem), len(problem.class_gpus)
        row = np.full((jobs, classes), -1, dtype=np.int64)
        start = row.copy()
        whole_s, left_s = np.full(row.shape, np.inf), np.full(row.shape, np.inf)
        home = np.full(jobs, -1, dtype=np.int64)
        runs = np.flatnonzero(problem.stay >= 0)
        home[runs] = problem.klass[problem.stay[runs]]
        size = problem.width * problem.per_node
        room = np.bincount(problem.node_class, weights=problem.node_gpus, minlength=classes).astype(np.int64)
        own = np.flatnonzero((size == gpus[problem.row_job]) & (size <= room[problem.klass]))
        whole = problem.time_s if problem.whole_s is None else problem.whole_s
        for chosen in (own, problem.stay[runs]):  # what runs counts as it runs
            at = problem.row_job[chosen], problem.klass[chosen]
            row[at], whole_s[at], left_s[at] = chosen, whole[chosen], problem.time_s[chosen]
        anew = own[problem.stay[problem.row_job[own]] != own]
        start[problem.row_job[anew], problem.klass[anew]] = anew
        restart_s = np.zeros(jobs) if problem.restart_s is None else problem.restart_s
        return cls(row, start, gpus, whole_s, left_s, restart_s, home, room)

    def only(self, jobs: Ints) -> Menu:
        """Return the menu of some jobs."""
        return Menu(
            self.row[jobs], self.start[jobs], self.gpus[jobs], self.whole_s[jobs], self.left_s[jobs],
            self.restart_s[jobs], self.home[jobs], self.room,
        )  # fmt: skip

    @property
    def left(self) -> Floats:
        """Part of each job that is left, [J]."""
        jobs = np.arange(len(self.home))
        at = np.where(self.home >= 0, self.home, np.argmin(self.whole_s, axis=1))
        work_s = self.left_s[jobs, at] - np.where(self.home >= 0, 0.0, self.restart_s)
        return np.asarray(np.clip(work_s / self.whole_s[jobs, at], 1e-9, 1.0))

    def by_speed(self, job: int, *, stay: bool = False) -> list[Entry]:
        """Classes a job can have, the fastest first; with *stay*, the one it has before all others."""
        order = ranked(self.whole_s[job])
        if stay:
            order = order[ranked(order != self.home[job])]
        return [(job, int(k)) for k in order if self.row[job, k] >= 0]


def _asked_gpus(problem: PlacementProblem) -> Ints:
    size = problem.width * problem.per_node
    anew = np.ones(len(size), dtype=bool)
    stays = problem.stay[problem.stay >= 0]
    anew[stays] = False
    asked = np.zeros(len(problem), dtype=np.int64)
    np.maximum.at(asked, problem.row_job, np.where(problem.asked, size, 0))
    for job in np.flatnonzero(asked == 0):
        own = np.arange(problem.start[job], problem.start[job + 1])
        sizes = np.unique(size[own[anew[own]]]) if anew[own].any() else np.unique(size[own])
        if len(sizes) > 1:
            raise InputError(
                "the GPUs it asks for: this scheduler does not resize jobs",
                field=f"jobs.{problem.job_names[int(job)]}.requested_gpus", value="none",
            )  # fmt: skip
        asked[job] = sizes[0]
    return asked


def received_by(problem: PlacementProblem) -> Received:
    """For how long jobs had GPUs; nobody had any, where that is not known."""
    if problem.received is not None:
        return problem.received
    jobs, classes = len(problem), len(problem.class_gpus)
    return Received(np.zeros((jobs, classes)), np.zeros(jobs), np.zeros(classes), jobs)


@dataclass(frozen=True)
class Peer(ABC):
    """A scheduler that does not resize jobs; its decisions are carried out as they are."""

    plans: ClassVar[bool] = False
    leaves_room: ClassVar[bool] = False
    stops: ClassVar[bool] = True
    """Whether it stops or moves running jobs, where that is allowed."""

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> PlacementSearch:
        """Return the schedule; raises ``InputError`` on jobs it is not defined for."""
        if not len(problem):
            return PlacementSearch(Schedule.empty(problem), 0.0)
        menu = self.menu(problem, rng)
        entries = self.entries(problem, menu, rng, keep_going)
        if problem.locked:
            entries = [(int(j), int(menu.home[j])) for j in np.flatnonzero(menu.home >= 0)] + list(entries)
        schedule = self.realised(problem, menu, entries)
        return PlacementSearch(schedule, objective(problem, schedule).total)

    def realised(self, problem: PlacementProblem, menu: Menu, entries: Sequence[Entry]) -> Schedule:
        """Give nodes to the jobs of *entries*."""
        return realised(problem, menu, entries, moves=self.stops and not problem.locked)

    def menu(self, problem: PlacementProblem, rng: np.random.Generator) -> Menu:  # noqa: ARG002
        """Return what each job may get; raises ``InputError`` on jobs it is not defined for."""
        return Menu.of(problem)

    @abstractmethod
    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: np.random.Generator, keep_going: KeepGoing
    ) -> Sequence[Entry]:
        """Return which job gets GPUs of which class, in order; a job's first entry with room counts."""


def realised(problem: PlacementProblem, menu: Menu, entries: Sequence[Entry], *, moves: bool = True) -> Schedule:
    """Give nodes to the jobs of *entries*; without *moves* those that run keep theirs, whoever has to wait."""
    chosen = _pooled(menu, entries)
    larger_first = sorted(chosen, key=lambda job: -menu.gpus[job])
    schedule, free = Schedule.empty(problem), problem.node_gpus.copy()
    starting = [job for job in larger_first if not _kept(problem, menu, schedule, free, job, chosen[job])]
    found = [placed(problem, menu, schedule, free, job, chosen[job]) for job in starting]
    if all(found) or not moves:
        return schedule
    schedule, free = Schedule.empty(problem), problem.node_gpus.copy()
    homeless = []
    for size in sorted({int(menu.gpus[job]) for job in chosen}, reverse=True):
        alike = [job for job in chosen if menu.gpus[job] == size]
        moving = [job for job in alike if not _kept(problem, menu, schedule, free, job, chosen[job])]
        homeless += [job for job in moving if not placed(problem, menu, schedule, free, job, chosen[job])]
    if homeless:  # the GPUs left are on too many nodes
        for job, klass in entries:
            if schedule.choice[job] == POSTPONED and not _kept(problem, menu, schedule, free, job, klass):
                placed(problem, menu, schedule, free, job, klass)
    return schedule


def _pooled(menu: Menu, entries: Sequence[Entry]) -> dict[int, int]:
    room, chosen = menu.room.copy(), dict[int, int]()
    for job, klass in entries:
        if job not in chosen and menu.row[job, klass] >= 0 and menu.gpus[job] <= room[klass]:
            room[klass] -= menu.gpus[job]
            chosen[job] = klass
    return chosen


def _kept(problem: PlacementProblem, menu: Menu, schedule: Schedule, free: Ints, job: int, klass: int) -> bool:
    """Let a job stay on the nodes it has, if it is to be in that class and they are free."""
    if menu.home[job] != klass:
        return False
    row, nodes = int(problem.stay[job]), problem.nodes_held(job)
    return bool((free[nodes] >= problem.per_node[row]).all()) and _give(problem, schedule, free, job, row, nodes)


def placed(problem: PlacementProblem, menu: Menu, schedule: Schedule, free: Ints, job: int, klass: int) -> bool:
    """Start a job on the fullest nodes of a class that it fits on, taken from *free* ([N]); returns whether it fits."""
    row = int(menu.start[job, klass])
    if row < 0:
        return False
    fit = problem.room(row, free)
    return bool(len(fit)) and _give(problem, schedule, free, job, row, fit[ranked(free[fit])][: problem.width[row]])


def _give(problem: PlacementProblem, schedule: Schedule, free: Ints, job: int, row: int, nodes: Ints) -> bool:
    schedule.choice[job] = row
    schedule.nodes[problem.slot_start[job] : problem.slot_start[job] + len(nodes)] = nodes
    free[nodes] -= problem.per_node[row]
    return True


@dataclass(frozen=True)
class LeastAttainedService(Peer):
    """Tiresias: queues by attained GPU time, in each the order of arrival; running jobs make way for earlier queues.

    The discretized form of its two-dimensional least attained service: GPUs times time. It does not choose GPU types:
    a job stays on the type it has, a waiting one gets the fastest with room. No job that waits is promoted again.
    """

    queues_gpu_s: tuple[float, ...] = (3600.0, 36_000.0)

    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: np.random.Generator, keep_going: KeepGoing  # noqa: ARG002
    ) -> Sequence[Entry]:  # fmt: skip
        """Jobs by queue and arrival."""
        queue = np.searchsorted(np.array(self.queues_gpu_s), received_by(problem).gpu_s, side="right")
        order = ranked(queue.astype(float), problem.submit_s)
        return [entry for job in order for entry in menu.by_speed(int(job), stay=True)]


@dataclass(frozen=True)
class ShortestService(Peer):
    """Helios' quasi shortest service first: waiting jobs by expected GPU time; nothing is preempted.

    The expected time is what the problem says is left, on the fastest type: predictions, where run times are
    predicted. No job starts in front of one that has less to do and does not fit.
    """

    stops: ClassVar[bool] = False

    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: np.random.Generator, keep_going: KeepGoing  # noqa: ARG002
    ) -> Sequence[Entry]:  # fmt: skip
        """Running jobs where they are, then waiting ones until one does not fit."""
        running, waiting = np.flatnonzero(menu.home >= 0), np.flatnonzero(menu.home < 0)
        entries = [(int(job), int(menu.home[job])) for job in running]
        room = menu.room - np.bincount(menu.home[running], weights=menu.gpus[running], minlength=len(menu.room))
        gpu_s = menu.left_s.min(axis=1) * menu.gpus
        return entries + in_strict_order(menu, waiting[ranked(gpu_s[waiting], problem.submit_s[waiting])], room)


@dataclass(frozen=True)
class DominantShare(Peer):
    """Dominant resource fairness: the next job is of the tenant with the least dominant share; nothing is preempted.

    A tenant's dominant share is the largest of its shares of all GPUs, CPUs and memory, over its weight (sections 4.1
    and 4.3). CPUs and memory count where the problem has them, and GPUs alone make it max-min fairness of GPUs. Within
    a tenant jobs go by arrival, and one that does not fit is passed.
    """

    stops: ClassVar[bool] = False

    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: np.random.Generator, keep_going: KeepGoing  # noqa: ARG002
    ) -> Sequence[Entry]:  # fmt: skip
        """Running jobs where they are, then waiting ones by progressive filling (Algorithm 1)."""
        needs, whole = _needs(problem, menu)
        running = np.flatnonzero(menu.home >= 0)
        entries = [(int(job), int(menu.home[job])) for job in running]
        room = menu.room - np.bincount(menu.home[running], weights=menu.gpus[running], minlength=len(menu.room))
        used = np.zeros((len(problem.tenant_names), needs.shape[1]))
        np.add.at(used, problem.tenant[running], needs[running])
        left = whole - used.sum(axis=0)
        queues: dict[int, list[int]] = {}
        waiting = np.flatnonzero(menu.home < 0)
        for job in waiting[ranked(problem.submit_s[waiting])]:
            queues.setdefault(int(problem.tenant[job]), []).append(int(job))
        scale = np.where(whole > 0, whole, 1.0)  # no node may be on
        while queues:
            shares = {t: (used[t] / scale).max() / problem.tenant_weight[t] for t in queues}
            tenant = min(queues, key=lambda t: (shares[t], problem.submit_s[queues[t][0]], t))
            job = queues[tenant].pop(0)
            if not queues[tenant]:
                del queues[tenant]
            fit = [entry for entry in menu.by_speed(job) if menu.gpus[job] <= room[entry[1]]]
            if fit and (needs[job] <= left + 1e-6).all():
                entries.append(fit[0])
                room[fit[0][1]] -= menu.gpus[job]
                used[tenant] += needs[job]
                left -= needs[job]
        return entries


def _needs(problem: PlacementProblem, menu: Menu) -> tuple[Floats, Floats]:
    """GPUs, and CPUs and memory that are limited, of each job ([J, R]) and of the cluster ([R])."""
    needs, whole = menu.gpus[:, None].astype(float), np.array([float(menu.room.sum())])
    if problem.cpus_memory is None or problem.node_cpus_memory is None:
        return needs, whole
    row = menu.row.max(axis=1)  # a job needs as much in each class
    more = problem.cpus_memory[row] * problem.width[row, None]
    all_of = problem.node_cpus_memory.sum(axis=0)
    counted = np.isfinite(all_of) & (all_of > 0)
    return np.hstack((needs, more[:, counted])), np.hstack((whole, all_of[counted]))


def in_strict_order(menu: Menu, order: Ints, room: Floats | Ints) -> list[Entry]:
    """Jobs in *order*, each in the fastest class with *room* ([K]), up to the first for which there is none."""
    left, entries = room.copy(), []
    for job in order:
        fit = [entry for entry in menu.by_speed(int(job)) if menu.gpus[job] <= left[entry[1]]]
        if not fit:
            break
        left[fit[0][1]] -= menu.gpus[job]
        entries.append(fit[0])
    return entries
