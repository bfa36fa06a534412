"""Quotas: how many jobs and GPUs a tenant, a QOS or an association may have at once.

What is beyond is taken out of a schedule, whichever solver made it. Jobs that share a quota have a key in common: the
name of their tenant, or what ``AccountingTracker`` gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commonwatt.control.dry_run import without_starts
from commonwatt.control.job_registry import JobRegistry
from commonwatt.control.scheduling import JobCondition, Scheduling
from commonwatt.model.accounting import QOS_SCOPES, AccountTree, Association, Limits, Qos
from commonwatt.model.arrays import Bools
from commonwatt.model.jobs import JobArrays
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule

__all__ = ["AccountingTracker", "JobQuotas", "Quota", "QuotaKey", "QuotaTracker", "Use", "job_quotas"]


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
    """Keeps schedules within the ``limits`` of keys.

    Keys are tenants here, what is in ``groups`` for their jobs, too, and in ``of_jobs`` for single jobs, by handle.
    """

    def __init__(self, registry: JobRegistry) -> None:
        self.registry = registry
        self.limits: Mapping[Hashable, Quota] = {}
        self.groups: Mapping[str, Sequence[Hashable]] = {}
        self.of_jobs: Mapping[int, Sequence[Hashable]] = {}

    def keys(self, handle: int, klass: int) -> Sequence[Hashable]:  # noqa: ARG002
        """Return what a job counts for on nodes of a class (-1: unknown)."""
        tenant = self.registry.tenants[int(self.registry.job("tenant")[handle])]
        return (tenant, *self.groups.get(tenant, ()), *self.of_jobs.get(handle, ()))

    def quotas(self, handle: int, klass: int) -> Sequence[tuple[Hashable, Quota]]:
        """Return what limits a job on nodes of a class, each with the key whose use counts."""
        return [(key, self.limits[key]) for key in self.keys(handle, klass) if key in self.limits]

    def limited(self, handle: int) -> bool:
        """Whether anything limits a job, on whatever nodes."""
        return bool(self.quotas(handle, -1))

    def use(self, gpus: Mapping[int, int], but: Collection[int] = ()) -> dict[Hashable, Use]:
        """Return what each key has by *gpus*, those of running jobs by handle, *but* for some jobs."""
        counts: dict[Hashable, list[int]] = {}
        left_out = set(but)
        rows, classes = self.registry.job("row"), self.registry.row("klass")
        for handle, many in gpus.items():
            if handle not in left_out:
                row = int(rows[handle])
                for key in self.keys(handle, int(classes[row]) if row >= 0 else -1):
                    own = counts.setdefault(key, [0, 0])
                    own[0] += 1
                    own[1] += many
        return {key: Use(*own) for key, own in counts.items()}

    def leaves(self, use: Mapping[Hashable, Use], handle: int, klass: int, gpus: int) -> bool:
        """Whether *use* leaves room for a job with so many GPUs on nodes of a class."""
        return all(use.get(key, Use()).leaves(quota, gpus) for key, quota in self.quotas(handle, klass))

    def fitting(self, problem: PlacementProblem, handles: Sequence[int], gpus: Mapping[int, int]) -> Bools | None:
        """Return the configurations ([C]) that leave each job within its limits beside the jobs that run now.

        A job that has none keeps the smallest ones; all keep the one they run in. ``None``: all of them do.
        """
        if not self.limits:
            return None
        use, many = self.use(gpus), problem.width * problem.per_node
        kept = np.ones(len(many), dtype=bool)
        for j, handle in enumerate(handles):
            own = slice(int(problem.start[j]), int(problem.start[j + 1]))
            if own.stop - own.start == 1 or not self.limited(handle):
                continue
            fits = np.ones(own.stop - own.start, dtype=bool)
            for klass in np.unique(problem.klass[own]).tolist():
                room = self._room(use, handle, klass, gpus.get(handle, 0))
                if room is not None:
                    fits &= (problem.klass[own] != klass) | (many[own] <= room)
            if not fits.any():
                fits = many[own] == many[own].min()
            kept[own] = fits
        running = problem.stay[problem.stay >= 0]
        kept[running] = True
        return None if kept.all() else kept

    def _room(self, use: Mapping[Hashable, Use], handle: int, klass: int, own_gpus: int) -> int | None:
        """Return the most GPUs that a job may have on nodes of a class, beside others; ``None``: any number."""
        counted = set(self.keys(handle, self.registry.class_of(handle))) if own_gpus else set()
        room = [
            quota.gpus - use.get(key, Use()).gpus + (own_gpus if key in counted else 0)
            for key, quota in self.quotas(handle, klass)
            if quota.gpus is not None
        ]
        return min(room) if room else None

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
            row = int(choice[j])
            if changed[j] and not self.leaves(use, handles[j], int(problem.klass[row]), problem.gpus_of(row)):
                over.append(j)
                if problem.stay[j] < 0:
                    continue
                row = int(problem.stay[j])
            for key in self.keys(handles[j], int(problem.klass[row])):
                use[key] = use.get(key, Use()).plus(problem.gpus_of(row))
        return without_starts(problem, schedule, over) if over else schedule


# -- accounting of Slurm


class QuotaKey(NamedTuple):
    """Jobs that are counted together.

    Attributes
    ----------
    of
        What has the limit: ``qos``, ``association``, or a ``job``.
    whose
        The QOS, its scope and whose jobs; account, user and partition of the association; or the name of the job.
    gpu_type
        The GPU type whose GPUs alone count; "": all do.
    """

    of: str
    whose: tuple[str, ...]
    gpu_type: str = ""


class JobQuotas(NamedTuple):
    """What a job counts for, and what limits it.

    Attributes
    ----------
    row
        The job, by its row in the table.
    keys
        What it counts for.
    quotas
        What limits it. A limit of its QOS comes before the same limit of its associations, whose use it counts for
        all the same.
    larger
        Whether what it asks for is more than a limit of its QOS, and than one of its associations. Such a limit does
        not count for it: the job ran, so that the limit was another.
    """

    row: int
    keys: list[QuotaKey]
    quotas: list[tuple[QuotaKey, Quota]]
    larger: tuple[bool, bool]


def job_quotas(table: JobArrays, qos: Sequence[Qos], associations: Sequence[Association]) -> Iterator[JobQuotas]:
    """Yield what limits the jobs of *table* that have one of *qos* or of *associations*.

    GPU types are those of the table, in whatever letters limits spell them.
    """
    named, tree = {one.name: one for one in qos}, AccountTree(associations)
    levels: dict[tuple[str, str, str], list[Association]] = {}
    for j in range(len(table)):
        own = named.get(table.qos[j]) if table.qos else None
        who = table.tenants[table.tenant[j]], table.user[j] if table.user else "", table.partition_of(j)
        if who not in levels:
            levels[who] = tree.levels(who[0], who[1], [name for name in who[2].split(",") if name])
        if own is not None or levels[who]:
            yield _OneJob(table, j).quotas_of(own, levels[who])


class _OneJob:
    """The limits of one job."""

    def __init__(self, table: JobArrays, j: int) -> None:
        rows = table.configs(j)
        self.name, self.row = table.names[j], j
        user = table.user[j] if table.user else ""
        self.whose = {"all": "", "account": table.tenants[table.tenant[j]], "user": user}
        self.least = max(int(table.requested_gpus[j]), int(table.config_gpus[rows].min()))
        self.most = int(table.config_gpus[rows].max())
        wish = int(table.requested_type[j])
        there = np.unique(table.config_type[rows]).tolist() if wish < 0 else [wish]
        self.only = table.gpu_types[there[0]].casefold() if len(there) == 1 else ""  # the type it certainly has
        self.keys, self.quotas = list[QuotaKey](), list[tuple[QuotaKey, Quota]]()
        self.larger = [False, False]

    def quotas_of(self, qos: Qos | None, levels: Sequence[Association]) -> JobQuotas:
        of_all = Limits(None, {}) if qos is None else qos.limits("all")
        per_job: Mapping[str, int] = {} if qos is None else qos.of_job
        most_jobs = None
        if qos is not None:
            most_jobs = qos.max_jobs_per_account if qos.max_jobs_per_account is not None else qos.max_jobs_per_user
            for scope in QOS_SCOPES:
                if scope == "all" or self.whose[scope]:
                    self._add("qos", (qos.name, scope, self.whose[scope]), qos.limits(scope))
        for one in levels:  # Grp limits hold at every level
            self._add("association", one.name, one.limits, but=of_all)
        if levels and levels[0].user:
            jobs = next((one.max_jobs_per_user for one in levels if one.max_jobs_per_user is not None), None)
            self._add("association", levels[0].name, Limits(jobs, {}), but=Limits(most_jobs, {}))
        nearest = {kind: limit for one in reversed(levels) for kind, limit in one.of_job.items()}
        self._add("qos", (self.name,), Limits(None, per_job), of_job=True)
        self._add("association", (self.name,), Limits(None, nearest), but=Limits(None, per_job), of_job=True)
        return JobQuotas(self.row, self.keys, self.quotas, (self.larger[0], self.larger[1]))

    def _add(
        self, of: str, whose: tuple[str, ...], limits: Limits, *, but: Limits | None = None, of_job: bool = False
    ) -> None:
        """Add *limits*, *but* where these have a limit of the same: then the job is only counted."""
        but = but or Limits(None, {})
        before = {kind.casefold() for kind in but.gpus}
        quotas = [] if limits.jobs is None else [(Quota(jobs=limits.jobs), "", but.jobs is not None)]
        quotas += [(Quota(gpus=n), kind.casefold(), kind.casefold() in before) for kind, n in limits.gpus.items()]
        for quota, kind, only_counted in quotas:
            key = QuotaKey("job" if of_job else of, whose, kind)
            certain = not kind or kind == self.only  # else it may have another type
            if certain and not only_counted and not Use().leaves(quota, self.least):
                self.larger[of == "association"] = True
                continue
            if of_job and (only_counted or (quota.gpus is not None and self.most <= quota.gpus)):
                continue
            if key not in self.keys:
                self.keys.append(key)
            if not only_counted:
                self.quotas.append((key, quota))


class AccountingTracker(QuotaTracker):
    """Keeps schedules within the limits of jobs' QOS and associations.

    What they leave no room for is not offered to the solver.
    """

    def __init__(
        self, registry: JobRegistry, table: JobArrays, qos: Sequence[Qos], associations: Sequence[Association] = ()
    ) -> None:
        super().__init__(registry)
        self._of = {table.names[one.row]: one for one in job_quotas(table, qos, associations) if one.keys}
        self.limits = {key: quota for one in self._of.values() for key, quota in one.quotas}
        self._cache: dict[tuple[int, int], tuple[list[QuotaKey], list[tuple[QuotaKey, Quota]]]] = {}
        self._dropped: set[int] = set()  # jobs whose start was beyond a limit in the last decisions
        self._types = [kind.gpu_type.casefold() for kind in registry.cluster.classes]

    def keys(self, handle: int, klass: int) -> Sequence[Hashable]:
        """Return what a job counts for on nodes of a class (-1: unknown)."""
        return self._there(handle, klass)[0]

    def quotas(self, handle: int, klass: int) -> Sequence[tuple[Hashable, Quota]]:
        """Return what limits a job on nodes of a class, each with the key whose use counts."""
        return self._there(handle, klass)[1]

    def _there(self, handle: int, klass: int) -> tuple[Sequence[QuotaKey], Sequence[tuple[QuotaKey, Quota]]]:
        """Return both, which do not change."""
        if (both := self._cache.get((handle, klass))) is None:
            one = self._of.get(self.registry.names[handle])
            keys = [] if one is None else [key for key in one.keys if self._counts(key, klass)]
            quotas = [] if one is None else [pair for pair in one.quotas if self._counts(pair[0], klass)]
            both = self._cache[handle, klass] = keys, quotas
        return both

    def limited(self, handle: int) -> bool:
        """Whether anything limits a job, on whatever nodes."""
        one = self._of.get(self.registry.names[handle])
        return one is not None and bool(one.quotas)

    def _counts(self, key: QuotaKey, klass: int) -> bool:
        return not key.gpu_type or (klass >= 0 and key.gpu_type == self._types[klass])

    def within(
        self, problem: PlacementProblem, schedule: Schedule, handles: Sequence[int], gpus: Mapping[int, int]
    ) -> Schedule:
        """Return *schedule* without what exceeds the limits, as above."""
        kept = super().within(problem, schedule, handles, gpus)
        dropped = np.flatnonzero((schedule.choice != POSTPONED) & (kept.choice == POSTPONED))
        self._dropped.update(handles[j] for j in dropped.tolist())
        return kept

    def mark(self, scheduling: Scheduling, gpus: Mapping[int, int]) -> bool:
        """Mark the waiting jobs that may not start now; returns whether another decision may start others.

        It may where they are others than before, and where a job had no room only on the GPU type it was given.
        """
        use, least = self.use(gpus), self.registry.job("asked_gpus")
        full = {
            handle
            for handle in self.registry.waiting
            if not any(self.leaves(use, handle, klass, int(least[handle])) for klass in self._classes(handle))
        }
        elsewhere = self._dropped & (self.registry.waiting - full)
        self._dropped = set()
        others = full != scheduling.jobs(JobCondition.QUOTA)
        scheduling.mark_only(full, JobCondition.QUOTA)
        return others or bool(elsewhere)

    def _classes(self, handle: int) -> Sequence[int]:
        """Return the classes of nodes on which a job may run; any one (-1) if none of its limits is of a GPU type."""
        one = self._of.get(self.registry.names[handle])
        if one is None or not any(key.gpu_type for key, _ in one.quotas):
            return (-1,)
        first, count = (int(self.registry.job(column)[handle]) for column in ("first", "count"))
        return sorted(set(self.registry.row("klass")[first : first + count].tolist()))
