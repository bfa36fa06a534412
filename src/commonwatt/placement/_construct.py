"""Building one candidate: jobs in a given order, each to the best configuration that still fits."""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Ints
from commonwatt.optimize import njit
from commonwatt.placement._arrays import Candidate, Record, Records, can_stay, give, pick, reset, withdraw_claim

__all__ = ["DISPLACE", "DISPLACE_LAST", "NEVER_DISPLACE", "construct", "fits"]

NEVER_DISPLACE = 0  # running jobs keep what they hold until their own turn
DISPLACE_LAST = 1  # they lose it only to a job that would be postponed otherwise
DISPLACE = 2  # they lose it to any job whose turn comes earlier


@njit(cache=True, nogil=True)
def fits(
    job: Record, r: int, rows: Records, nodes: Records, lists: Ints, stay_nodes: Ints, picked: Ints, displace: bool
) -> int:
    """Row in which *job* can have the shape of row *r*, or -1; the nodes go to *picked*.

    A running job that wants the shape it has stays where it is, if it can.
    """
    if rows[r].like_stay and can_stay(job, rows, nodes, stay_nodes, picked):
        return job.stay
    if r != job.stay and pick(rows[r], nodes, lists, picked, displace):
        return r
    return -1


@njit(cache=True, nogil=True)
def _draw(rows: Records, lo: int, among: int, rng: np.random.Generator) -> int:
    """Choose one of *among* rows from *lo* with probability inverse to its cost."""
    point = rng.random() * rows[lo + among - 1].chance
    r = lo
    while rows[r].chance < point and r < lo + among - 1:
        r += 1
    return r


@njit(cache=True, nogil=True)
def _place(
    jobs: Records, rows: Records, nodes: Records, lists: Ints, stay_nodes: Ints, given: Ints, picked: Ints,
    j: int, displace: int, explore: float, rng: np.random.Generator,
) -> float:  # fmt: skip
    """Give job *j* a configuration, or postpone it; returns its part of the objective but for node costs.

    The selected configuration is the cheapest of D*_j, else the fastest; with probability *explore* it is
    drawn instead. If it does not fit: the rest of D*_j by cost, then the others by time, else postponed.
    """
    job = jobs[j]
    if job.stay >= 0:
        withdraw_claim(job, rows, nodes, lists, stay_nodes)
    selected = job.first
    if explore > 0.0 and rng.random() < explore:
        selected = _draw(rows, job.first, job.in_time if job.in_time > 0 else job.last - job.first, rng)
    row = fits(job, selected, rows, nodes, lists, stay_nodes, picked, displace == DISPLACE)
    if row >= 0:
        return give(jobs, rows, nodes, lists, given, picked, j, row)
    for last_resort in range(2):
        for r in range(job.first, job.last):
            row = fits(job, r, rows, nodes, lists, stay_nodes, picked, displace == DISPLACE or last_resort == 1)
            if row >= 0:
                return give(jobs, rows, nodes, lists, given, picked, j, row)
        if displace != DISPLACE_LAST:
            break
    job.choice = -1
    return job.postponed


@njit(cache=True, nogil=True)
def construct(c: Candidate, order: Ints, displace: int, explore: float, rng: np.random.Generator) -> float:
    """Build a candidate in *order*; returns its objective."""
    reset(c)
    jobs, rows, nodes, lists, stay_nodes, given, picked, _ = c
    total = 0.0
    for j in order:
        total += _place(jobs, rows, nodes, lists, stay_nodes, given, picked, j, displace, explore, rng)
    for n in range(len(nodes)):
        total += nodes[n].first_cost
    return total
