"""Taking jobs out of a candidate and putting them back where they cost least.

The candidate of ``_arrays`` plus, for every node, the list of jobs on it: a *slot* is one node of one job, as in
``given``. That is what the first-ending job of a node is found from when another one leaves. The list of node ``n``
begins at the slot ``len(given) + n``, which is nobody's.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Ints
from commonwatt.optimize import njit
from commonwatt.placement._arrays import (
    Candidate,
    Record,
    Records,
    can_stay,
    change,
    end_s,
    ends_first,
    pick,
    set_first,
    tardiness,
)  # fmt: skip

__all__ = ["candidate_cost", "empty_slots", "insert", "insert_best", "remove"]


def empty_slots(c: Candidate) -> Ints:
    """Return slots with nothing in them: slot before, slot after, job. Shape [slots + N, 3]."""
    return np.full((len(c.given) + len(c.nodes), 3), -1, dtype=np.int64)


@njit(cache=True, nogil=True)
def remove(jobs: Records, rows: Records, nodes: Records, lists: Ints, given: Ints, slots: Ints, j: int) -> float:
    """Postpone job *j*; returns what that adds to the objective."""
    job = jobs[j]
    row = rows[job.choice]
    added = job.postponed - tardiness(job, end_s(row, nodes, given, job.slot), row.time_s)
    for slot in range(job.slot, job.slot + row.width):
        n = given[slot]
        before, after = slots[slot, 0], slots[slot, 1]
        slots[before, 1] = after
        if after >= 0:
            slots[after, 0] = before
        change(nodes, lists, n, row.per_node, 0)
        given[slot] = -1
        if nodes[n].first_job == j:
            added -= nodes[n].first_cost
            _find_first(jobs, rows, nodes, given, slots, n)
            added += nodes[n].first_cost
    job.choice = -1
    return added


@njit(cache=True, nogil=True)
def _find_first(jobs: Records, rows: Records, nodes: Records, given: Ints, slots: Ints, n: int) -> None:
    node = nodes[n]
    set_first(node, -1, 1e300, 0.0)
    slot = slots[len(given) + n, 1]
    while slot >= 0:
        j = slots[slot, 2]
        row = rows[jobs[j].choice]
        ends_s = end_s(row, nodes, given, jobs[j].slot)
        if ends_first(node, j, ends_s):
            set_first(node, j, ends_s, row.node_cost)
        slot = slots[slot, 1]


@njit(cache=True, nogil=True)
def insert(
    jobs: Records, rows: Records, nodes: Records, lists: Ints, given: Ints, slots: Ints, picked: Ints, j: int, r: int
) -> float:
    """Give job *j*, now postponed, the nodes in *picked* in row *r*; returns what that adds to the objective."""
    job, row = jobs[j], rows[r]
    job.choice = r
    ends_s = end_s(row, nodes, picked, 0)
    added = -job.postponed
    for i in range(row.width):
        slot, n = job.slot + i, picked[i]
        given[slot] = n
        before = len(given) + n
        after = slots[before, 1]
        slots[slot, 0], slots[slot, 1], slots[slot, 2] = before, after, j
        if after >= 0:
            slots[after, 0] = slot
        slots[before, 1] = slot
        change(nodes, lists, n, -row.per_node, 0)
        if ends_first(nodes[n], j, ends_s):
            added += row.node_cost - nodes[n].first_cost
            set_first(nodes[n], j, ends_s, row.node_cost)
    return added + tardiness(job, ends_s, row.time_s)


@njit(cache=True, nogil=True)
def _cost_of(job: Record, row: Record, nodes: Records, picked: Ints, j: int) -> float:
    """What giving *job* the nodes in *picked* adds to the objective, its postponement cost not counted."""
    ends_s = end_s(row, nodes, picked, 0)
    cost = tardiness(job, ends_s, row.time_s)
    for i in range(row.width):
        node = nodes[picked[i]]
        if ends_first(node, j, ends_s):
            cost += row.node_cost - node.first_cost
    return cost


@njit(cache=True, nogil=True)
def insert_best(
    jobs: Records, rows: Records, nodes: Records, lists: Ints, stay_nodes: Ints, given: Ints, slots: Ints, picked: Ints,
    j: int, look: int, noise: float, rng: np.random.Generator,
) -> float:  # fmt: skip
    """Put job *j*, now postponed, where it adds least to the objective, or leave it if that costs less.

    Of the nodes with equal room, the first *look* are tried. Costs are seen through relative *noise*.
    """
    job = jobs[j]
    best_row, best_node = -1, -1
    best = job.postponed * (1.0 + noise * (rng.random() - 0.5))
    for r in range(job.first, job.last):
        row = rows[r]
        if r == job.stay:
            if can_stay(job, rows, nodes, stay_nodes, picked):
                cost = _cost_of(job, row, nodes, picked, j)
                if cost <= best:
                    best, best_row = cost, r
            continue
        if row.width > 1:
            if pick(row, nodes, lists, picked, False):  # noqa: FBT003
                cost = _cost_of(job, row, nodes, picked, j) * (1.0 + noise * (rng.random() - 0.5))
                if cost < best:
                    best, best_row = cost, r
            continue
        for room in range(row.per_node, lists.shape[2]):
            n = lists[0, row.klass, room]
            tried = 0
            while n >= 0 and tried < look:
                picked[0] = n
                cost = _cost_of(job, row, nodes, picked, j) * (1.0 + noise * (rng.random() - 0.5))
                if cost < best:
                    best, best_row, best_node = cost, r, n
                tried += 1
                if nodes[n].first_job < 0 and nodes[n].room == nodes[n].gpus:
                    break  # unused nodes are alike
                n = nodes[n].after
    if best_row < 0:
        return 0.0
    if best_row == job.stay:
        can_stay(job, rows, nodes, stay_nodes, picked)
    elif rows[best_row].width > 1:
        pick(rows[best_row], nodes, lists, picked, False)  # noqa: FBT003
    else:
        picked[0] = best_node
    return insert(jobs, rows, nodes, lists, given, slots, picked, j, best_row)


@njit(cache=True, nogil=True)
def candidate_cost(jobs: Records, rows: Records, nodes: Records, given: Ints) -> float:
    """The objective of the candidate, summed afresh."""
    total = 0.0
    for n in range(len(nodes)):
        total += nodes[n].first_cost
    for job in jobs:
        if job.choice < 0:
            total += job.postponed
        else:
            row = rows[job.choice]
            total += tardiness(job, end_s(row, nodes, given, job.slot), row.time_s)
    return total
