"""First-principle schedulers: jobs in a fixed order, each to the best configuration that fits.

FIFO, EDF and priority scheduling as ANDREAS section V-B compares with: a job takes the cheapest configuration
that meets its due date, else the fastest, of those that fit when its turn comes, and keeps it once started.
Shortest remaining time first is preemptive, a yardstick for completion times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.placement._arrays import Arrays, prepare
from commonwatt.placement._construct import DISPLACE, NEVER_DISPLACE, construct
from commonwatt.placement._search import KeepGoing, Search, always
from commonwatt.placement.problem import Problem

__all__ = ["PriorityOrder", "keep_running_jobs"]

Order = Literal["fifo", "edf", "priority", "srtf"]


@dataclass(frozen=True)
class PriorityOrder:
    """A scheduler that takes jobs in one order: ``fifo``, ``edf``, ``priority`` (tardiness weight) or ``srtf``."""

    order: Order

    def solve(self, problem: Problem, rng: np.random.Generator, keep_going: KeepGoing = always) -> Search:  # noqa: ARG002
        """Return the schedule this order gives."""
        a = prepare(problem)
        preemptive = self.order == "srtf" and not problem.locked
        waits = np.zeros(len(problem)) if preemptive else (problem.stay < 0).astype(float)
        order = np.lexsort((np.arange(len(problem)), problem.submit_s, self._key(problem), waits))
        if not preemptive:
            keep_running_jobs(a)
        construct(
            a.jobs, a.rows, a.nodes, a.lists, a.held, a.given, a.picked, a.node_order, order,
            DISPLACE if preemptive else NEVER_DISPLACE, 0.0, rng,
        )  # fmt: skip
        return Search(a.schedule(_choices(a), a.given))

    def _key(self, problem: Problem) -> Floats:
        if self.order == "fifo":
            return problem.submit_s
        if self.order == "edf":
            return problem.due_s
        if self.order == "priority":
            return -problem.weight
        return problem.fastest_s


def keep_running_jobs(a: Arrays) -> None:
    """Leave each running job no configuration but the one it has."""
    running = np.flatnonzero(a.jobs["stay"] >= 0)
    stay = a.jobs["stay"][running]
    a.jobs["first"][running], a.jobs["last"][running] = stay, stay + 1
    a.jobs["in_time"][running] = 1


def _choices(a: Arrays) -> Ints:
    return a.jobs["choice"].copy()
