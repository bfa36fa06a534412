"""What clusters run today: EASY backfill, in order of arrival or of multifactor fair share.

Jobs get the GPUs their owner asked for, of the fastest type that is free if any will do, and keep them to the end.
The first job that does not fit gets a reservation at the earliest time its GPUs can be free; a later job may start if
it fits now and either ends by then or leaves the reserved GPUs alone. Ends are planned with the declared time limit,
where there is one.

Thrifty backfill takes the type with the least energy among those that are free: a baseline that owners of mixed
clusters could run today.

Sources: D. Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995) for EASY; the multifactor priority of Slurm
for fair share, ``2 ** (-usage share / entitlement)`` with usage decayed by a half-life.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.units import WEEK_S
from commonwatt.optimize import KeepGoing, always, njit, ranked
from commonwatt.placement._arrays import Candidate, Record, can_stay, give, prepare, reset, withdraw_claim
from commonwatt.placement._neighbourhood import candidate_cost
from commonwatt.placement._problem import PlacementProblem, PlacementSearch
from commonwatt.placement.guarantees._kept import Reservation

__all__ = ["Backfill", "fair_share_factor"]


@dataclass(frozen=True)
class Backfill:
    """EASY backfill.

    Attributes
    ----------
    age_weight, fair_share_weight, size_weight, qos_weight
        Weights of the factors of a job's priority, each from 0 to 1. The default, age alone, is order of arrival.
    max_age_s
        Age at which the age factor reaches 1, if the other weights are not 0.
    depth
        How many waiting jobs are looked at.
    thrifty
        Whether a job gets the free GPU type on which its requested size takes the least energy, instead of the
        fastest one its owner asked for.
    """

    age_weight: float = 1.0
    fair_share_weight: float = 0.0
    size_weight: float = 0.0
    qos_weight: float = 0.0
    max_age_s: float = WEEK_S
    depth: int = 1000
    thrifty: bool = False

    plans: ClassVar[bool] = False
    leaves_room: ClassVar[bool] = False

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always  # noqa: ARG002
    ) -> PlacementSearch:  # fmt: skip
        """Return the schedule; running jobs stay."""
        c = prepare(problem)
        order = ranked(-self._priority(problem), problem.submit_s)
        waiting = order[problem.stay[order] < 0][: self.depth]
        energy = problem.busy_cost + problem.share_cost
        preferred = energy[c.rows["origin"]] if self.thrifty else c.rows["time_s"]
        may_have = self.may_have(problem)
        menu = _Menu(ranked(problem.row_job[c.rows["origin"]], preferred), may_have[c.rows["origin"]])
        nodes = len(problem.node_gpus)
        promise = _Promise(np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64), menu)
        cost, head, shadow_s = _start_jobs(c, waiting, promise, np.ascontiguousarray(problem.limit_s))
        reservation = None
        if np.isfinite(shadow_s):
            kept, by_s = np.flatnonzero(promise.reserved), problem.now_s + shadow_s
            reservation = Reservation(head, kept, int(promise.reserved[kept[0]]), by_s, by_s, oldest=False)
        schedule = c.schedule(c.jobs["choice"].copy(), c.given)
        return PlacementSearch(replace(schedule, reservation=reservation, may_have=may_have), float(cost))

    def may_have(self, problem: PlacementProblem) -> Bools:
        """Configurations a job may get, [C]: what its owner asked for, on any type if this is thrifty.

        Every one is, for an owner with no wish that can be met.
        """
        if not len(problem):
            return np.zeros(0, dtype=bool)
        job = problem.row_job
        wanted = problem.asked
        if self.thrifty:
            gpus = problem.width * problem.per_node
            asked_gpus = np.maximum.reduceat(np.where(problem.asked, gpus, 0), problem.start[:-1])
            wanted = gpus == asked_gpus[job]
        met = np.logical_or.reduceat(wanted, problem.start[:-1])
        return np.asarray(wanted | ~met[job])

    def _priority(self, problem: PlacementProblem) -> Floats:
        if not (self.fair_share_weight or self.size_weight or self.qos_weight):
            return np.zeros(len(problem))  # ties go by arrival
        age = np.clip((problem.now_s - problem.submit_s) / self.max_age_s, 0.0, 1.0)
        share = fair_share_factor(problem.tenant_usage_gpu_s, problem.tenant_weight)[problem.tenant]
        asked = np.where(problem.asked, problem.width * problem.per_node, 0)
        size = np.maximum.reduceat(asked, problem.start[:-1]) / max(1, int(problem.node_gpus.sum()))
        given = np.zeros(len(problem)) if problem.priority is None else problem.priority
        weighted = self.age_weight * age + self.fair_share_weight * share + self.size_weight * size
        return np.asarray(weighted + self.qos_weight * given)


def fair_share_factor(usage: Floats, weight: Floats) -> Floats:
    """``2 ** (-(usage share) / (entitled share))`` of each tenant; 1 for everybody before anything was used."""
    total = usage.sum()
    if total <= 0:
        return np.ones(len(usage))
    return np.asarray(np.exp2(-(usage / total) / (weight / weight.sum())))


class _Menu(NamedTuple):
    """What jobs may get."""

    rows: Ints  # [C] rows of each job, the preferred first
    wanted: Bools  # [C] whether a job may get the row


class _Promise(NamedTuple):
    """What the first job that waits was promised."""

    reserved: Ints  # [N] GPUs promised to it
    spare: Ints  # [N] GPUs of its nodes that stay free even then
    menu: _Menu


@njit(cache=True, nogil=True)
def _start_jobs(c: Candidate, order: Ints, promise: _Promise, limit_s: Floats) -> tuple[float, int, float]:
    """Start the jobs of *order* that may; returns the cost, the first that waits (-1: none), and when it can start."""
    reset(c)
    jobs, rows, nodes, lists, stay_nodes, given, picked, _ = c
    end_s = np.full(len(jobs), np.inf)  # planned ends of what runs
    for j in range(len(jobs)):
        job = jobs[j]
        job.choice = -1
        if job.stay >= 0:
            withdraw_claim(job, rows, nodes, lists, stay_nodes)
            can_stay(job, rows, nodes, stay_nodes, picked)
            give(jobs, rows, nodes, lists, given, picked, j, job.stay)
            end_s[j] = _planned(rows[job.stay].time_s, limit_s[j])
    shadow_s = np.inf
    head = -1
    for j in order:
        r = _first_row(c, jobs[j], promise, shadow_s, limit_s[j])
        if r >= 0:
            row = rows[r]
            for i in range(row.width):
                if promise.reserved[picked[i]] > 0 and _planned(row.time_s, limit_s[j]) > shadow_s:
                    promise.spare[picked[i]] -= row.per_node
            give(jobs, rows, nodes, lists, given, picked, j, r)
            end_s[j] = _planned(row.time_s, limit_s[j])
        elif head < 0:
            head = j
            shadow_s = _reserve(c, jobs[j], promise, end_s)
    return candidate_cost(jobs, rows, nodes, given), head, shadow_s


@njit(cache=True, nogil=True)
def _planned(time_s: float, limit_s: float) -> float:
    return limit_s if limit_s < np.inf else time_s


@njit(cache=True, nogil=True)
def _first_row(c: Candidate, job: Record, promise: _Promise, shadow_s: float, limit_s: float) -> int:
    """Preferred row of *job* that can start now without delaying the reservation, or -1."""
    for r in promise.menu.rows[job.first : job.last]:
        if not promise.menu.wanted[r]:
            continue
        row = c.rows[r]
        in_the_way = _planned(row.time_s, limit_s) > shadow_s
        count = 0
        for room in range(row.per_node, 1 << 20):
            larger = False
            for n in range(len(c.nodes)):
                node = c.nodes[n]
                if node.klass != row.klass or node.free < room:
                    continue
                larger = True
                if node.free != room:
                    continue
                if in_the_way and promise.reserved[n] > 0 and promise.spare[n] < row.per_node:
                    continue
                c.picked[count] = n
                count += 1
                if count == row.width:
                    return r
            if not larger:
                break
    return -1


@njit(cache=True, nogil=True)
def _reserve(c: Candidate, head: Record, promise: _Promise, end_s: Floats) -> float:
    """Reserve the earliest nodes for job *head*; returns when it can start, infinity if never."""
    free = np.empty(len(c.nodes), dtype=np.int64)
    for n in range(len(c.nodes)):
        free[n] = c.nodes[n].free
    by_end = np.argsort(end_s)
    k = 0
    while k < len(by_end) and end_s[by_end[k]] < np.inf:
        now_s = end_s[by_end[k]]
        while k < len(by_end) and end_s[by_end[k]] == now_s:
            job = c.jobs[by_end[k]]
            row = c.rows[job.choice]
            for i in range(row.width):
                free[c.given[job.slot + i]] += row.per_node
            k += 1
        for r in promise.menu.rows[head.first : head.last]:
            if promise.menu.wanted[r] and _reserve_row(c, c.rows[r], promise, free):
                return now_s
    return np.inf


@njit(cache=True, nogil=True)
def _reserve_row(c: Candidate, row: Record, promise: _Promise, free: Ints) -> bool:
    """Reserve nodes for *row*, best fit first, if enough of them have *free* GPUs."""
    enough = 0
    for n in range(len(c.nodes)):
        if c.nodes[n].klass == row.klass and free[n] >= row.per_node:
            enough += 1
    if enough < row.width:
        return False
    left = row.width
    for room in range(row.per_node, 1 << 20):
        for n in range(len(c.nodes)):
            if left > 0 and c.nodes[n].klass == row.klass and free[n] == room:
                promise.reserved[n] = row.per_node
                promise.spare[n] = free[n] - row.per_node
                left -= 1
        if left == 0:
            break
    return True
