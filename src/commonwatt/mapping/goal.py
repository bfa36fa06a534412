"""What a mapping is judged by: the objective, and what some jobs must wait for.

- ``latency``: the makespan, in cycles. With a target the search stops as soon as it is met.
- ``energy``: the sum of what all jobs take where they run, in nJ; ``edp``: that times the makespan.
- ``satisfaction`` (G#, 5.7): the part of jobs that end about where a target order has them. Fig. 14 defines it by ranks
  of the times jobs end at and the number of sub-accelerators, which decides how many end at about the same time. Its
  formula is lost in the text at hand; here a job is satisfied if its rank is less than that number off the target.
- ``tail``: for each tenant the time by which a given part of its jobs has ended, averaged by the tenants' weights.
- ``completion``: the time jobs end at, averaged by the weights of their tenants.

All are costs, the less the better; satisfaction counts as what is missing to 1. With any but ``latency``, a latency
target is soft: each percent that the makespan is above it adds ``PENALTY`` percent of the cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError

__all__ = ["OBJECTIVES", "PENALTY", "Goal", "Objective", "Precedence"]

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
    """

    objective: Objective = "latency"
    precedence: Precedence = field(default_factory=Precedence)
    tenant: Ints = field(default_factory=_none)
    weights: Floats = field(default_factory=lambda: np.ones(1))
    tail: float = 0.95
    place: Ints = field(default_factory=_none)
    target_cycles: float = np.inf

    def of_tenants(self, jobs: int) -> Ints:
        """Return whose each of so many jobs is, from 0."""
        return self.tenant if len(self.tenant) else np.zeros(jobs, dtype=np.int64)
