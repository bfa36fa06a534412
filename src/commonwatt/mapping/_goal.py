"""The goal of a problem file, its jobs by name or number, as arrays.

What a mapping is judged by: the objective, and what some jobs must wait for.

- ``latency``: the makespan, in cycles. With a target the search stops as soon as it is met.
- ``energy``: the sum of what all jobs take where they run, in nJ; ``edp``: that times the makespan.
- ``satisfaction`` (G#, 5.7): the part of jobs that end about where a target order has them. Fig. 14 defines it by ranks
  of the times jobs end at and the number of sub-accelerators, which decides how many end at about the same time. Its
  formula is missing in our copy; here a job is satisfied if its rank is less than that number off the target.
- ``tail``: for each tenant the time by which a given part of its jobs has ended, averaged by the tenants' weights.
- ``completion``: the time jobs end at, averaged by the weights of their tenants.

All are costs, the less the better; satisfaction counts as what is missing to 1. With any but ``latency``, a latency
target is soft: each percent that the makespan is above it adds ``PENALTY`` percent of the cost. Latency targets of
tenants are soft with every objective: each percent that a tenant's tail is above its target adds as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError

if TYPE_CHECKING:
    from commonwatt.model.map_file import MapFile

__all__ = ["OBJECTIVES", "PENALTY", "Goal", "Objective", "Precedence", "fixed_of", "goal_of"]

Objective = Literal["latency", "energy", "edp", "satisfaction", "tail", "completion"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
PENALTY = 10.0


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Precedence:
    """Which jobs come after which: an acyclic graph. Without any, all arrays are empty.

    Parameters
    ----------
    order
        Jobs, those others come after first; otherwise by index. Shape [J].
    waits
        Of how many jobs each must await the end. Shape [J].
    at, follows
        ``follows[at[j] : at[j + 1]]`` are the jobs that come after job j. Shapes [J + 1] and [E].
    """

    order: Ints = field(default_factory=_none)
    waits: Ints = field(default_factory=_none)
    at: Ints = field(default_factory=_none)
    follows: Ints = field(default_factory=_none)

    @classmethod
    def of(cls, jobs: int, after: Sequence[Sequence[int]]) -> Precedence:
        """Return the graph in which job j comes after all of ``after[j]``.

        Raises ``InputError`` for jobs there are not, and for cycles, naming the jobs of one.
        """
        before = [sorted(set(jobs_before)) for jobs_before in after]
        for j, earlier in enumerate(before):
            for k in earlier:
                if not 0 <= k < jobs:
                    raise InputError(f"a job from 0 to {jobs - 1}", field=f"after.{j}", value=k)
        if not any(before):
            return cls()
        next_of: list[list[int]] = [[] for _ in range(jobs)]
        for j, earlier in enumerate(before):
            for k in earlier:
                next_of[k].append(j)
        order = _sorted(before, next_of)
        return cls(
            np.array(order, dtype=np.int64),
            np.array([len(earlier) for earlier in before], dtype=np.int64),
            np.cumsum([0, *map(len, next_of)], dtype=np.int64),
            np.array([j for jobs_after in next_of for j in jobs_after], dtype=np.int64),
        )

    def __bool__(self) -> bool:
        return len(self.follows) > 0

    def after(self, job: int) -> list[int]:
        """Return the jobs that come after *job*."""
        return self.follows[self.at[job] : self.at[job + 1]].tolist() if self else []

    def earliest(self, least: Floats) -> Floats:
        """Return how long every chain of jobs up to each takes at least, if each takes *least* ([J])."""
        ends = least.astype(np.float64)
        ready = np.zeros(len(least))
        for j in self.order.tolist():
            ends[j] = ready[j] + least[j]
            for k in self.after(j):
                ready[k] = max(ready[k], ends[j])
        return ends

    def upward(self, least: Floats) -> Floats:
        """Return how long every chain of jobs from each on takes at least, if each takes *least* ([J])."""
        long = least.astype(np.float64)
        for j in self.order[::-1].tolist():
            long[j] = least[j] + max((long[k] for k in self.after(j)), default=0.0)
        return long


def _sorted(before: list[list[int]], next_of: list[list[int]]) -> list[int]:
    """Jobs in an order in which none stands before one that it comes after; the lowest index that can goes first."""
    from heapq import heapify, heappop, heappush

    missing = [len(earlier) for earlier in before]
    free = [j for j, count in enumerate(missing) if count == 0]
    heapify(free)
    order = []
    while free:
        order.append(heappop(free))
        for k in next_of[order[-1]]:
            missing[k] -= 1
            if missing[k] == 0:
                heappush(free, k)
    if len(order) < len(before):
        at = next(j for j, count in enumerate(missing) if count)
        path = [at]
        while True:  # every job left has one left before it
            at = next(k for k in before[at] if missing[k])
            if at in path:
                cycle = " after ".join(map(str, [*path[path.index(at) :], at]))
                raise InputError("dependencies without a cycle", field="after", value=cycle)
            path.append(at)
    return order


@dataclass(frozen=True)
class Goal:
    """What is asked of a mapping. See the module.

    Parameters
    ----------
    objective
        Which of ``OBJECTIVES``.
    precedence
        Which jobs come after which, whatever the objective.
    tenant
        Whose each job is, from 0. Shape [J], or empty: all are one tenant's.
    weights
        How much each tenant counts for ``tail`` and ``completion``. Shape [T].
    tail
        Part of a tenant's jobs that must have ended, above 0 up to 1.
    place
        Where in the target order each job is, from 0. Shape [J]; empty if there is none.
    target_cycles
        A makespan that is short enough; infinite if there is none.
    targets
        When the *tail* of each tenant's jobs should have ended, in cycles, infinite if at any time. Shape [T], or
        empty.
    """

    objective: Objective = "latency"
    precedence: Precedence = field(default_factory=Precedence)
    tenant: Ints = field(default_factory=_none)
    weights: Floats = field(default_factory=lambda: np.ones(1))
    tail: float = 0.95
    place: Ints = field(default_factory=_none)
    target_cycles: float = np.inf
    targets: Floats = field(default_factory=lambda: np.zeros(0))

    def of_tenants(self, jobs: int) -> Ints:
        """Return whose each of so many jobs is, from 0."""
        return self.tenant if len(self.tenant) else np.zeros(jobs, dtype=np.int64)


class _Names:
    """Jobs by name, else by number from 0."""

    def __init__(self, names: tuple[str, ...], jobs: int) -> None:
        if names and len(names) != jobs:
            raise InputError(f"one for each of the {jobs} jobs", field="names", value=f"{len(names)} of them")
        self.jobs, self.of = jobs, {name: j for j, name in enumerate(names)}
        if len(self.of) < len(names):
            twice = next(name for j, name in enumerate(names) if self.of[name] != j)
            raise InputError("each name once", field="names", value=twice)

    def index(self, name: str, field: str) -> int:
        if name in self.of:
            return self.of[name]
        if name.isascii() and name.isdigit() and int(name) < self.jobs:
            return int(name)
        said = f"a job from 0 to {self.jobs - 1}" + (" or one of 'names'" if self.of else "")
        raise InputError(said, field=field, value=name)


def goal_of(file: MapFile, jobs: int, *, has_energy: bool, names: tuple[str, ...] = ()) -> Goal:
    """Return the goal of a file of so many jobs; *names* are theirs if the file gives none.

    Raises ``InputError`` for jobs and tenants there are not, cyclic dependencies, and an objective without its keys.
    """
    job_names = _Names(file.names or names, jobs)
    if file.objective in {"energy", "edp"} and not has_energy:
        expected = f"energies with the objective {file.objective}, as 'table.energy_nj'"
        raise InputError(expected, field="objective", value=file.objective)
    if file.objective == "satisfaction" and file.order is None:
        expected = "a target order with the objective satisfaction, as 'order'"
        raise InputError(expected, field="objective", value=file.objective)
    return Goal(
        objective=file.objective,
        precedence=_precedence(file, job_names),
        tenant=_tenants(file, jobs),
        weights=_weights(file),
        tail=file.tail,
        place=_places(file, job_names),
        target_cycles=np.inf if file.target_cycles is None else file.target_cycles,
        targets=_targets(file),
    )


def _precedence(file: MapFile, job_names: _Names) -> Precedence:
    after: list[list[int]] = [[] for _ in range(job_names.jobs)]
    if file.after == "tenant":
        if file.tenants is None:
            raise InputError("'tenants' with 'after: tenant'", field="after", value="tenant")
        last: dict[str, int] = {}
        for j, tenant in enumerate(file.tenants[: job_names.jobs]):
            after[j] = [last[tenant]] if tenant in last else []
            last[tenant] = j
    elif file.after is not None:
        for name, earlier in file.after.items():
            j = job_names.index(name, f"after.{name}")
            after[j] += [job_names.index(other, f"after.{name}.{i}") for i, other in enumerate(earlier)]
    return Precedence.of(job_names.jobs, after)


def _tenants(file: MapFile, jobs: int) -> Ints:
    if file.tenants is None:
        return np.zeros(0, dtype=np.int64)
    if len(file.tenants) != jobs:
        raise InputError(f"one for each of the {jobs} jobs", field="tenants", value=f"{len(file.tenants)} of them")
    number = {tenant: t for t, tenant in enumerate(dict.fromkeys(file.tenants))}
    return np.array([number[tenant] for tenant in file.tenants], dtype=np.int64)


def _weights(file: MapFile) -> Floats:
    tenants = list(dict.fromkeys(file.tenants or ("",)))
    for tenant in file.weights:
        if tenant not in tenants or file.tenants is None:
            raise InputError("a tenant of 'tenants'", field=f"weights.{tenant}", value=tenant)
    return np.array([file.weights.get(tenant, 1.0) for tenant in tenants])


def _targets(file: MapFile) -> Floats:
    tenants = list(dict.fromkeys(file.tenants or ()))
    for tenant in file.targets:
        if tenant not in tenants:
            raise InputError("a tenant of 'tenants'", field=f"targets.{tenant}", value=tenant)
    return np.array([file.targets.get(tenant, np.inf) for tenant in tenants]) if file.targets else np.zeros(0)


def _places(file: MapFile, job_names: _Names) -> Ints:
    if file.order is None:
        return np.zeros(0, dtype=np.int64)
    jobs = [job_names.index(name, f"order.{i}") for i, name in enumerate(file.order)]
    place = np.full(job_names.jobs, -1, dtype=np.int64)
    for i, j in enumerate(jobs):
        if place[j] >= 0:
            raise InputError("each job once", field=f"order.{i}", value=file.order[i])
        place[j] = i
    if len(jobs) < job_names.jobs:
        raise InputError(f"all {job_names.jobs} jobs", field="order", value=f"none for job {int(np.argmin(place))}")
    return place


def fixed_of(file: MapFile, latency: Floats) -> tuple[Ints, Floats]:
    """Return the sub-accelerator each job is bound to, -1 if to none, and its priority, NaN if free.

    Raises ``InputError`` where a job is bound to a sub-accelerator that there is not, or that it cannot run on.
    """
    if file.fixed is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    jobs, accelerators = latency.shape
    for name, genes in (("accelerator", file.fixed.accelerator), ("priority", file.fixed.priority)):
        if genes is not None and len(genes) != jobs:
            expected = f"one entry for each of the {jobs} jobs"
            raise InputError(expected, field=f"fixed.{name}", value=f"{len(genes)} of them")
    at = np.array([-1 if a is None else a for a in file.fixed.accelerator or (None,) * jobs], dtype=np.int64)
    for j, a in enumerate(at.tolist()):
        if a >= accelerators or (a >= 0 and not np.isfinite(latency[j, a])):
            there = ", ".join(map(str, np.flatnonzero(np.isfinite(latency[j])).tolist()))
            raise InputError(
                f"a sub-accelerator job {j} can run on ({there}), or null", field=f"fixed.accelerator.{j}", value=a
            )
    priority = [np.nan if p is None else p for p in file.fixed.priority or (None,) * jobs]
    return at, np.array(priority, dtype=np.float64)
