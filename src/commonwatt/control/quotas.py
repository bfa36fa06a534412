"""How many jobs and GPUs a tenant, or a QOS, may have at once: what is beyond is taken out of a schedule.

Jobs that share a limit have a key in common: the name of their tenant, or what ``QosKeeper`` gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.control.dry_run import without_starts
from commonwatt.control.job_registry import JobRegistry
from commonwatt.control.scheduling import JobCondition, Scheduling
from commonwatt.model.arrays import Bools
from commonwatt.model.jobs import QOS_SCOPES, JobArrays, Qos
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule

__all__ = ["QosKeeper", "Quota", "QuotaKeeper", "Use", "qos_limits"]


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


class QuotaKeeper:
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


class QosKeeper(QuotaKeeper):
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
