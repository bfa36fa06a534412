"""First-principle schedulers: jobs in a fixed order, each to the best configuration that fits.

FIFO, EDF and priority scheduling as ANDREAS section V-B compares with: a job takes the cheapest configuration
that meets its due date, else the fastest, of those that fit when its turn comes, and keeps it once started.
Shortest remaining time first is preemptive, a yardstick for completion times. Where run times are uncertain it goes by
the expected remaining time; where nothing is known of them, by least attained service, in queues of doubling GPU time
so that jobs do not displace each other at every tick (Tiresias: J. Gu et al., NSDI 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.optimize import KeepGoing, always, ranked
from commonwatt.placement._arrays import Candidate, prepare
from commonwatt.placement._construct import DISPLACE, NEVER_DISPLACE, construct
from commonwatt.placement._problem import PlacementProblem, PlacementSearch

__all__ = ["PriorityOrder", "keep_running_jobs"]

FIRST_QUEUE_GPU_S = 3600.0
"""GPU time up to which a job is in the first queue; each later queue takes twice as much again."""

Order = Literal["fifo", "edf", "priority", "srtf"]


@dataclass(frozen=True)
class PriorityOrder:
    """A scheduler that takes jobs in one order: ``fifo``, ``edf``, ``priority`` (tardiness weight) or ``srtf``."""

    order: Order

    plans: ClassVar[bool] = False
    leaves_room: ClassVar[bool] = False

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always  # noqa: ARG002
    ) -> PlacementSearch:  # fmt: skip
        """Return the schedule this order gives."""
        c = prepare(problem)
        preemptive = self.order == "srtf" and not problem.locked
        waits = np.zeros(len(problem)) if preemptive else (problem.stay < 0).astype(float)
        if not preemptive:
            keep_running_jobs(c)
        order = ranked(waits, self._key(problem), problem.submit_s)
        cost = construct(c, order, DISPLACE if preemptive else NEVER_DISPLACE, 0.0, rng)
        return PlacementSearch(c.schedule(c.jobs["choice"].copy(), c.given), float(cost))

    def _key(self, problem: PlacementProblem) -> Floats:
        if self.order == "fifo":
            return problem.submit_s
        if self.order == "edf":
            return problem.due_s
        if self.order == "priority":
            return -problem.weight
        if problem.attained_gpu_s is not None:
            return np.floor(np.log2(1.0 + problem.attained_gpu_s / FIRST_QUEUE_GPU_S))
        return problem.fastest_s


def keep_running_jobs(c: Candidate) -> None:
    """Leave each running job no configuration but the one it has."""
    running = np.flatnonzero(c.jobs["stay"] >= 0)
    stay = c.jobs["stay"][running]
    c.jobs["first"][running], c.jobs["last"][running] = stay, stay + 1
    c.jobs["in_time"][running] = 1
