"""When all jobs are planned anew, and when only new ones are added to what runs.

A solver that plans all known jobs to their end takes time in proportion to them. On a large cluster, where something
happens every few seconds, most of that would be spent on finding again what was found before. So what changed since
the last plan decides what is decided anew:

- a new job for which GPUs are free, while nobody waits, is placed beside the running jobs;
- a completion while nobody waits changes nothing until the next rescheduling point: running jobs could only grow;
- else all jobs are planned anew, after events have been gathered for a while: the longer, the more jobs there are.

Up to ``SMALL`` active jobs, all of them are planned anew whenever something happens.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.placement import POSTPONED, Background, PlacementProblem, Schedule

__all__ = ["Replanning", "RoundClock", "Scope"]

SMALL = 200  # active jobs
JOBS_PER_S = 30  # each second of gathering stands for so many active jobs beyond those
LONGEST = 0.2  # of the time between rescheduling points


class Scope(Enum):
    """What a tick decides about."""

    ALL = auto()
    NEW = auto()
    NOTHING = auto()


@dataclass
class Replanning:
    """Gathers events between plans.

    Attributes
    ----------
    interval_s
        H: time between rescheduling points, at which all jobs are planned anew.
    due_s
        When gathered events are planned; ``None``: there are none.
    """

    interval_s: float
    due_s: float | None = None
    _planned_s: float | None = None
    _new: set[int] = field(default_factory=set)
    _on_until_s: Floats = field(default_factory=lambda: np.zeros(0))  # [N]
    _pressing_weight: float = 0.0

    def submitted(self, handle: int) -> None:
        """Take note of a new job."""
        self._new.add(handle)

    def hurry(self) -> None:
        """Plan all jobs at the next tick: more than submissions and completions has happened."""
        self._planned_s = None

    def planned(self, now_s: float, problem: PlacementProblem, schedule: Schedule) -> None:
        """Take note that all jobs were planned."""
        self._planned_s, self.due_s = now_s, None
        self._new.clear()
        self._on_until_s = np.zeros(len(problem.node_gpus))
        self._pressing_weight = problem.pressing_weight
        self.started(problem, schedule)

    def started(self, problem: PlacementProblem, schedule: Schedule) -> None:
        """Take note of how long the jobs of *schedule* keep their nodes on."""
        nodes, _ = schedule.occupancy(problem)
        rows = schedule.choice[schedule.choice != POSTPONED]
        np.maximum.at(self._on_until_s, nodes, np.repeat(problem.now_s + problem.time_s[rows], problem.width[rows]))

    def background(self, allocated_gpus: Ints, now_s: float) -> Background:
        """Return the running jobs, to which new ones are added."""
        return Background(np.maximum(0.0, self._on_until_s - now_s), allocated_gpus, self._pressing_weight)

    def added(self, *, all_started: bool) -> None:
        """Take note that the new jobs were placed beside the others, or (not *all_started*) that some found no room."""
        if all_started:
            self._new.clear()

    def scope(self, now_s: float, active: int, waiting: Set[int]) -> Scope:
        """Return what to decide about, with so many *active* jobs, of which these may start and are *waiting*."""
        self.due_s = None
        if active <= SMALL or self._planned_s is None or now_s >= self._planned_s + self.interval_s:
            return Scope.ALL
        if not waiting:
            return Scope.NOTHING
        if waiting <= self._new:
            return Scope.NEW
        return self.gathered(now_s, active)

    def gathered(self, now_s: float, active: int) -> Scope:
        """Return whether events were gathered for long enough to plan all jobs; sets ``due_s`` if they were not."""
        if self._planned_s is None:
            return Scope.ALL
        due_s = self._planned_s + min(LONGEST * self.interval_s, (active - SMALL) / JOBS_PER_S)
        if now_s >= due_s:
            return Scope.ALL
        self.due_s = due_s
        return Scope.NOTHING


@dataclass
class RoundClock:
    """Ends of rounds, at which alone decisions are made: the multiples of *length_s*; ``None``: there are no rounds.

    Attributes
    ----------
    due_s
        The end of the present round; ``None``: no job waits for it.
    """

    length_s: float | None
    due_s: float | None = None

    def within(self, now_s: float, *, any_job: bool) -> bool:
        """Whether a decision has to wait for the end of the present round; sets that while there is *any_job*."""
        if self.length_s is None or not any_job:
            self.due_s = None
            return False
        if self.due_s is None:
            self.due_s = max(1, math.ceil(now_s / self.length_s)) * self.length_s
        if now_s < self.due_s:
            return True
        self.due_s = (math.floor(now_s / self.length_s) + 1) * self.length_s
        return False
