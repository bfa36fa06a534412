"""Taking jobs out of a candidate and putting them back where they cost least.

The candidate of ``_arrays`` plus, for every node, the list of jobs on it: a *slot* is one node of one job, as in
``given``. That is what the first-ending job of a node is found from when another one leaves.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from commonwatt.model.arrays import Ints
from commonwatt.placement._arrays import Record, Records, can_stay, change, pick

__all__ = ["candidate_cost", "insert", "insert_best", "remove"]


@njit(cache=True, nogil=True)
def remove(
    jobs: Records, rows: Records, nodes: Records, lists: Ints, given: Ints, slots: Ints, tops: Ints, j: int
) -> float:
    """Postpone job *j*; returns what that adds to the objective."""
    job = jobs[j]
    row = rows[job.choice]
    end_s = end_of(job, row, nodes, given)
    added = job.postponed - tardiness(job, end_s)
    for slot in range(job.slot, job.slot + row.width):
        n = given[slot]
        before, after = slots[slot, 0], slots[slot, 1]
        if before >= 0:
            slots[before, 1] = after
        else:
            tops[n] = after
        if after >= 0:
            slots[after, 0] = before
        change(nodes, lists, n, row.per_node, 0)
        given[slot] = -1
        if nodes[n].first_job == j:
            added -= nodes[n].first_cost
            _find_first(jobs, rows, nodes, given, slots, tops, n)
            added += nodes[n].first_cost
    job.choice = -1
    return added


@njit(cache=True, nogil=True)
def _find_first(jobs: Records, rows: Records, nodes: Records, given: Ints, slots: Ints, tops: Ints, n: int) -> None:
    node = nodes[n]
    node.first_end_s, node.first_cost, node.first_job = 1e300, 0.0, -1
    slot = tops[n]
    while slot >= 0:
        j = slots[slot, 2]
        end_s = end_of(jobs[j], rows[jobs[j].choice], nodes, given)
        if end_s < node.first_end_s or (end_s == node.first_end_s and j < node.first_job):
            node.first_end_s, node.first_cost, node.first_job = end_s, rows[jobs[j].choice].node_cost, j
        slot = slots[slot, 1]


@njit(cache=True, nogil=True)
def end_of(job: Record, row: Record, nodes: Records, given: Ints) -> float:
    """Time from now until *job* ends on the nodes it was given."""
    wait_s = 0.0
    for slot in range(job.slot, job.slot + row.width):
        if given[slot] >= 0:
            wait_s = max(wait_s, nodes[given[slot]].wait_s)
    return row.time_s + wait_s


@njit(cache=True, nogil=True)
def tardiness(job: Record, end_s: float) -> float:
    """Tardiness cost of *job* if it ends *end_s* from now."""
    return job.weight * (end_s - job.slack_s) if end_s > job.slack_s else 0.0


@njit(cache=True, nogil=True)
def insert(
    jobs: Records,
    rows: Records,
    nodes: Records,
    lists: Ints,
    given: Ints,
    slots: Ints,
    tops: Ints,
    picked: Ints,
    j: int,
    r: int,
) -> float:
    """Give job *j*, now postponed, the nodes in *picked* in row *r*; returns what that adds to the objective."""
    job, row = jobs[j], rows[r]
    job.choice = r
    added = -job.postponed
    for i in range(row.width):
        slot, n = job.slot + i, picked[i]
        given[slot] = n
        top = tops[n]
        slots[slot, 0], slots[slot, 1], slots[slot, 2] = -1, top, j
        if top >= 0:
            slots[top, 0] = slot
        tops[n] = slot
        change(nodes, lists, n, -row.per_node, 0)
    end_s = end_of(job, row, nodes, given)
    for i in range(row.width):
        node = nodes[picked[i]]
        if end_s < node.first_end_s or (end_s == node.first_end_s and j < node.first_job):
            added += row.node_cost - node.first_cost
            node.first_end_s, node.first_cost, node.first_job = end_s, row.node_cost, j
    return added + tardiness(job, end_s)


@njit(cache=True, nogil=True)
def cost_of(job: Record, row: Record, nodes: Records, picked: Ints, j: int) -> float:
    """What giving *job* the nodes in *picked* adds to the objective, its postponement cost not counted."""
    wait_s = 0.0
    for i in range(row.width):
        wait_s = max(wait_s, nodes[picked[i]].wait_s)
    end_s = row.time_s + wait_s
    cost = tardiness(job, end_s)
    for i in range(row.width):
        node = nodes[picked[i]]
        if end_s < node.first_end_s or (end_s == node.first_end_s and j < node.first_job):
            cost += row.node_cost - node.first_cost
    return cost


@njit(cache=True, nogil=True)
def insert_best(
    jobs: Records,
    rows: Records,
    nodes: Records,
    lists: Ints,
    held: Ints,
    given: Ints,
    slots: Ints,
    tops: Ints,
    picked: Ints,
    kept: Ints,
    j: int,
    look: int,
    noise: float,
    rng: np.random.Generator,
) -> float:
    """Put job *j*, now postponed, where it adds least to the objective, or leave it if that costs less.

    Of the nodes with equal room, the first *look* are tried. Costs are seen through relative *noise*.
    """
    job = jobs[j]
    best_row = -1
    best = job.postponed * (1.0 + noise * (rng.random() - 0.5))
    for r in range(job.first, job.last):
        row = rows[r]
        if r == job.stay:
            if can_stay(job, rows, nodes, held, picked):
                cost = cost_of(job, row, nodes, picked, j)
                if cost <= best:
                    best, best_row = cost, r
                    kept[: row.width] = picked[: row.width]
            continue
        if row.width > 1:
            if pick(row, nodes, lists, picked, False):  # noqa: FBT003
                cost = cost_of(job, row, nodes, picked, j) * (1.0 + noise * (rng.random() - 0.5))
                if cost < best:
                    best, best_row = cost, r
                    kept[: row.width] = picked[: row.width]
            continue
        for room in range(row.per_node, lists.shape[2]):
            n = lists[0, row.klass, room]
            tried = 0
            while n >= 0 and tried < look:
                picked[0] = n
                cost = cost_of(job, row, nodes, picked, j) * (1.0 + noise * (rng.random() - 0.5))
                if cost < best:
                    best, best_row = cost, r
                    kept[0] = n
                tried += 1
                if nodes[n].first_job < 0 and nodes[n].room == nodes[n].gpus:
                    break  # unused nodes are alike
                n = nodes[n].after
    if best_row < 0:
        return 0.0
    picked[: rows[best_row].width] = kept[: rows[best_row].width]
    return insert(jobs, rows, nodes, lists, given, slots, tops, picked, j, best_row)


@njit(cache=True, nogil=True)
def candidate_cost(jobs: Records, rows: Records, nodes: Records, given: Ints) -> float:
    """The objective of the candidate, summed afresh."""
    total = 0.0
    for n in range(len(nodes)):
        total += nodes[n].first_cost
    for j in range(len(jobs)):
        job = jobs[j]
        if job.choice < 0:
            total += job.postponed
        else:
            total += tardiness(job, end_of(job, rows[job.choice], nodes, given))
    return total
