"""How many jobs and GPUs a tenant may have at once: starts beyond that are taken out of a schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from commonwatt.control.dry_run import without_starts
from commonwatt.control.job_registry import JobRegistry
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule

__all__ = ["Quota", "Use", "use_of_tenants", "within_quotas"]


@dataclass(frozen=True)
class Quota:
    """Largest numbers at once; ``None``: no limit."""

    jobs: int | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class Use:
    """What a tenant has at one moment."""

    jobs: int = 0
    gpus: int = 0

    def leaves(self, quota: Quota, gpus: int) -> bool:
        """Whether there is room for one more job with so many GPUs."""
        return (quota.jobs is None or self.jobs < quota.jobs) and (quota.gpus is None or self.gpus + gpus <= quota.gpus)

    def plus(self, gpus: int) -> Use:
        """Return the use with one more job."""
        return Use(self.jobs + 1, self.gpus + gpus)


def use_of_tenants(registry: JobRegistry, gpus: Mapping[int, int], but: Collection[int] = ()) -> dict[str, Use]:
    """Return what tenants have by *gpus*, those of running jobs by handle, *but* for some jobs."""
    use: dict[str, Use] = {}
    left_out, tenant = set(but), registry.job("tenant")
    for handle, many in gpus.items():
        if handle not in left_out:
            name = registry.tenants[int(tenant[handle])]
            use[name] = use.get(name, Use()).plus(many)
    return use


def within_quotas(
    problem: PlacementProblem, schedule: Schedule, quotas: Mapping[str, Quota], elsewhere: Mapping[str, Use]
) -> Schedule:
    """Return *schedule* without what exceeds the *quotas* of tenants.

    What stays as it is comes first, then running jobs that change, then starts, each in the order of the problem. A
    running job that would grow too far stays where it is if its place is still free.

    Parameters
    ----------
    elsewhere
        What tenants have beside the jobs of the problem.
    """
    choice, over = schedule.choice, []
    placed = np.flatnonzero(choice != POSTPONED)
    changed = choice != problem.stay
    order = sorted(placed.tolist(), key=lambda j: (changed[j], problem.stay[j] < 0, j))
    use = dict(elsewhere)
    for j in order:
        name = problem.tenant_names[int(problem.tenant[j])]
        if (quota := quotas.get(name)) is None:
            continue
        gpus = int(problem.width[choice[j]] * problem.per_node[choice[j]])
        now = use.get(name, Use())
        if changed[j] and not now.leaves(quota, gpus):
            over.append(j)
            if problem.stay[j] >= 0:
                use[name] = now.plus(int(problem.width[problem.stay[j]] * problem.per_node[problem.stay[j]]))
        else:
            use[name] = now.plus(gpus)
    return without_starts(problem, schedule, over) if over else schedule
