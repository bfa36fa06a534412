"""Lucid: waiting jobs by GPU time, least first, two on the same GPUs where they hardly disturb each other.

Source: Q. Hu et al., "Lucid: A non-intrusive, scalable and interpretable scheduler for deep learning training jobs"
(ASPLOS 2023). Nothing is stopped or resized. Ours are the rule that switches packing on, and the
thresholds of the scores: a tree of three fitted to the 66 scores that Lucid's table states, of which it gets 55.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.packing import PackableJobs
from commonwatt.optimize import KeepGoing, ranked
from commonwatt.placement._peers import Entry, Menu, Peer, placed, received_by
from commonwatt.placement._problem import PlacementProblem, Schedule

__all__ = ["Lucid", "sharing_scores"]

MOST_GPUS = 8  # of a job that is packed
MOST_SCORE = 2  # of two jobs on the same GPUs
TINY, MEDIUM, JUMBO = 0.0, 1.0, 2.0
JUMBO_MEMORY_UTILIZATION, JUMBO_MEMORY_GIB, TINY_UTILIZATION = 0.30, 11.0, 0.25


def sharing_scores(jobs: PackableJobs) -> Floats:
    """Return how much each job disturbs another on its GPUs, [J]: 0 tiny, 1 medium, 2 jumbo; NaN: unknown."""
    unknown = np.isnan(jobs.utilization + jobs.memory_utilization + jobs.memory_gib)
    jumbo = (jobs.memory_utilization > JUMBO_MEMORY_UTILIZATION) | (jobs.memory_gib > JUMBO_MEMORY_GIB)
    tiny = jobs.utilization <= TINY_UTILIZATION
    return np.select([unknown, jumbo, tiny], [np.nan, JUMBO, TINY], MEDIUM)


@dataclass(frozen=True)
class Lucid(Peer):
    """Lucid's affinity-aware packing.

    While packing is on, a waiting job of one node with at most 8 GPUs is first offered a partner. This is the job with
    GPUs for the longest time that has as many of them for itself, whose memory fits beside the job's, whose score adds
    up with the job's to at most 2, and whose whole expected time there is at least half of the job's. The two then
    have the same GPUs. Else the job gets free GPUs, or is passed.

    Packing is on while waiting jobs ask for more GPUs than are free. While it is off, nobody passes.
    """

    stops: ClassVar[bool] = False

    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: np.random.Generator, keep_going: KeepGoing  # noqa: ARG002
    ) -> Sequence[Entry]:  # fmt: skip
        """Waiting jobs by the GPU time of the whole job, each in all its classes, the fastest first."""
        waiting = np.flatnonzero(menu.home < 0)
        gpu_s = menu.whole_s.min(axis=1) * menu.gpus
        order = waiting[ranked(gpu_s[waiting], problem.submit_s[waiting])]
        return [entry for job in order for entry in menu.by_speed(int(job))]

    def realised(self, problem: PlacementProblem, menu: Menu, entries: Sequence[Entry]) -> Schedule:
        """Let running jobs stay, and give each job of *entries* a partner, or nodes of its own."""
        packing = _Packing(problem, menu)
        crowded = menu.gpus[menu.home < 0].sum() > packing.free.sum()
        for job, own in groupby(entries, key=itemgetter(0)):
            if menu.home[job] >= 0 or (crowded and packing.packed(job)):
                continue
            given = any(placed(problem, menu, packing.schedule, packing.free, job, klass) for _, klass in own)
            if given:
                packing.oldest.append(job)
            elif not crowded:
                break
        return packing.schedule


class _Packing:
    """One decision: its schedule so far, the GPUs still free ([N]), and the jobs with GPUs, the oldest first."""

    def __init__(self, problem: PlacementProblem, menu: Menu) -> None:
        self.problem, self.menu = problem, menu
        unchanged = Schedule.unchanged(problem)
        beside = np.full(len(problem), -1) if unchanged.beside is None else unchanged.beside
        self.schedule = replace(unchanged, beside=beside)
        self.free: Ints = self.schedule.free_gpus(problem)
        running = np.flatnonzero(menu.home >= 0)
        had_s = received_by(problem).job_s.sum(axis=1)[running]
        self.oldest: list[int] = running[ranked(-had_s, problem.submit_s[running])].tolist()
        self.scores = None if problem.packable is None else sharing_scores(problem.packable)

    def packed(self, job: int) -> bool:
        """Put *job* onto the GPUs of the first job that it may share them with; returns whether there is one."""
        jobs, schedule = self.problem.packable, self.schedule
        if jobs is None or self.scores is None or self.menu.gpus[job] > MOST_GPUS or not self.oldest:
            return False
        others = np.array(self.oldest)
        fit = others[self._fits(jobs, self.scores, job, others)]
        if not len(fit):
            return False
        assert schedule.beside is not None
        other, slot = int(fit[0]), self.problem.slot_start
        schedule.choice[job] = self.menu.start[job, self.problem.klass[schedule.choice[other]]]
        schedule.nodes[slot[job]] = schedule.nodes[slot[other]]
        schedule.beside[job], schedule.beside[other] = other, job
        self.oldest.remove(other)
        return True

    def _fits(self, jobs: PackableJobs, scores: Floats, job: int, others: Ints) -> Bools:
        """Whether *job* may share the GPUs of each of *others*, none of which waits."""
        problem, menu, rows = self.problem, self.menu, self.schedule.choice[others]
        assert self.schedule.beside is not None
        klass = problem.klass[rows]
        own = menu.start[job, klass]
        alike = (own >= 0) & (problem.width[rows] == 1) & (problem.width[own] == 1)
        alike &= (problem.per_node[rows] == problem.per_node[own]) & (self.schedule.beside[others] < 0)
        room = jobs.memory_gib[job] + jobs.memory_gib[others] <= jobs.gpu_memory_gib[klass]
        quiet = scores[job] + scores[others] <= MOST_SCORE
        lasts = menu.whole_s[job, klass] <= 2 * menu.whole_s[others, klass]
        return np.asarray(alike & room & quiet & lasts)
