"""What clusters run today: EASY backfill, in order of arrival or of multifactor fair share.

Jobs get the GPUs their owner asked for, of the fastest type that is free if any will do, and keep them to the end.
The first job that does not fit gets a reservation at the earliest time its GPUs can be free; a later job may start if
it fits now and either ends by then or leaves the reserved GPUs alone. Ends are planned with the declared time limit,
where there is one.

Sources: D. Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995) for EASY; the multifactor priority of Slurm
for fair share, ``2 ** (-usage share / entitlement)`` with usage decayed by a half-life.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.units import WEEK_S
from commonwatt.placement._arrays import Record, Records, can_stay, give, prepare, reset, withdraw_claim
from commonwatt.placement._search import KeepGoing, Search, always
from commonwatt.placement.problem import Problem

__all__ = ["Backfill", "fair_share_factor"]


@dataclass(frozen=True)
class Backfill:
    """EASY backfill.

    Attributes
    ----------
    age_weight, fair_share_weight, size_weight
        Weights of the factors of a job's priority, each from 0 to 1. The default, age alone, is order of arrival.
    max_age_s
        Age at which the age factor reaches 1, if the other weights are not 0.
    depth
        How many waiting jobs are looked at.
    """

    age_weight: float = 1.0
    fair_share_weight: float = 0.0
    size_weight: float = 0.0
    max_age_s: float = WEEK_S
    depth: int = 1000

    def solve(self, problem: Problem, rng: np.random.Generator, keep_going: KeepGoing = always) -> Search:  # noqa: ARG002
        """Return the schedule; running jobs stay."""
        a = prepare(problem)
        waiting = np.flatnonzero(problem.stay < 0)
        order = waiting[np.lexsort((waiting, problem.submit_s[waiting], -self._priority(problem)[waiting]))]
        _start_jobs(
            a.jobs, a.rows, a.nodes, a.lists, a.held, a.given, a.picked, a.node_order,
            order[: self.depth], np.lexsort((a.rows["time_s"], problem.row_job[a.rows["origin"]])), problem.limit_s,
        )  # fmt: skip
        return Search(a.schedule(a.jobs["choice"].copy(), a.given))

    def _priority(self, problem: Problem) -> Floats:
        if not (self.fair_share_weight or self.size_weight):
            return np.zeros(len(problem))  # ties go by arrival
        age = np.clip((problem.now_s - problem.submit_s) / self.max_age_s, 0.0, 1.0)
        share = fair_share_factor(problem.tenant_usage_gpu_s, problem.tenant_weight)[problem.tenant]
        asked = np.where(problem.asked, problem.width * problem.per_node, 0)
        size = np.maximum.reduceat(asked, problem.start[:-1]) / max(1, int(problem.node_gpus.sum()))
        return self.age_weight * age + self.fair_share_weight * share + self.size_weight * size


def fair_share_factor(usage: Floats, weight: Floats) -> Floats:
    """``2 ** (-(usage share) / (entitled share))`` of each tenant; 1 for everybody before anything was used."""
    total = usage.sum()
    if total <= 0:
        return np.ones(len(usage))
    return np.asarray(np.exp2(-(usage / total) / (weight / weight.sum())))


@njit(cache=True, nogil=True)
def _start_jobs(
    jobs: Records,
    rows: Records,
    nodes: Records,
    lists: Ints,
    held: Ints,
    given: Ints,
    picked: Ints,
    node_order: Ints,
    order: Ints,
    by_time: Ints,
    limit_s: Floats,
) -> None:
    """Start the jobs of *order* that may; *by_time* [C] has the rows of each job, the fastest first."""
    reset(jobs, rows, nodes, lists, held, node_order)
    end_s = np.full(len(jobs), np.inf)  # planned ends of what runs
    for j in range(len(jobs)):
        job = jobs[j]
        job.choice = -1
        if job.stay >= 0:
            withdraw_claim(job, rows, nodes, lists, held)
            can_stay(job, rows, nodes, held, picked)
            give(jobs, rows, nodes, lists, given, picked, j, job.stay)
            end_s[j] = _planned(rows[job.stay].time_s, limit_s[j])
    reserved = np.zeros(len(nodes), dtype=np.int64)  # GPUs promised to the first job that waits
    spare = np.zeros(len(nodes), dtype=np.int64)  # GPUs of its nodes that stay free even then
    shadow_s = np.inf
    head = -1
    for j in order:
        r = _first_row(jobs[j], rows, nodes, reserved, spare, shadow_s, limit_s[j], by_time, picked)
        if r >= 0:
            for i in range(rows[r].width):
                if reserved[picked[i]] > 0 and _planned(rows[r].time_s, limit_s[j]) > shadow_s:
                    spare[picked[i]] -= rows[r].per_node
            give(jobs, rows, nodes, lists, given, picked, j, r)
            end_s[j] = _planned(rows[r].time_s, limit_s[j])
        elif head < 0:
            head = j
            shadow_s = _reserve(jobs, j, rows, nodes, given, end_s, by_time, reserved, spare)


@njit(cache=True, nogil=True)
def _planned(time_s: float, limit_s: float) -> float:
    return limit_s if limit_s < np.inf else time_s


@njit(cache=True, nogil=True)
def _wanted(job: Record, rows: Records, r: int) -> bool:
    """Whether row *r* is what the owner asked for; every row is, for an owner with no wish that can be met."""
    if rows[r].asked:
        return True
    for other in range(job.first, job.last):  # noqa: SIM110 (numba has no all() over a generator)
        if rows[other].asked:
            return False
    return True


@njit(cache=True, nogil=True)
def _first_row(
    job: Record,
    rows: Records,
    nodes: Records,
    reserved: Ints,
    spare: Ints,
    shadow_s: float,
    limit_s: float,
    by_time: Ints,
    picked: Ints,
) -> int:
    """Fastest row of *job* that can start now without delaying the reservation, or -1."""
    for r in by_time[job.first : job.last]:
        if not _wanted(job, rows, r):
            continue
        row = rows[r]
        in_the_way = _planned(row.time_s, limit_s) > shadow_s
        found = 0
        for room in range(row.per_node, 1 << 20):
            larger = False
            for n in range(len(nodes)):
                node = nodes[n]
                if node.klass != row.klass or node.free < room:
                    continue
                larger = True
                if node.free != room:
                    continue
                if in_the_way and reserved[n] > 0 and spare[n] < row.per_node:
                    continue
                picked[found] = n
                found += 1
                if found == row.width:
                    return r
            if not larger:
                break
    return -1


@njit(cache=True, nogil=True)
def _reserve(
    jobs: Records,
    head: int,
    rows: Records,
    nodes: Records,
    given: Ints,
    end_s: Floats,
    by_time: Ints,
    reserved: Ints,
    spare: Ints,
) -> float:
    """Reserve the earliest nodes for job *head*; returns when it can start, infinity if never."""
    free = np.empty(len(nodes), dtype=np.int64)
    for n in range(len(nodes)):
        free[n] = nodes[n].free
    by_end = np.argsort(end_s)
    k = 0
    while k < len(by_end) and end_s[by_end[k]] < np.inf:
        now_s = end_s[by_end[k]]
        while k < len(by_end) and end_s[by_end[k]] == now_s:
            job = jobs[by_end[k]]
            row = rows[job.choice]
            for i in range(row.width):
                free[given[job.slot + i]] += row.per_node
            k += 1
        for r in by_time[jobs[head].first : jobs[head].last]:
            if not _wanted(jobs[head], rows, r):
                continue
            row = rows[r]
            enough = 0
            for n in range(len(nodes)):
                if nodes[n].klass == row.klass and free[n] >= row.per_node:
                    enough += 1
            if enough < row.width:
                continue
            left = row.width
            for want in range(row.per_node, 1 << 20):
                for n in range(len(nodes)):
                    if left > 0 and nodes[n].klass == row.klass and free[n] == want:
                        reserved[n] = row.per_node
                        spare[n] = free[n] - row.per_node
                        left -= 1
                if left == 0:
                    return now_s
    return np.inf
