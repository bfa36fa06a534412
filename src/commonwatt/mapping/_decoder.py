"""Decoder and bandwidth allocator (G#, 3.6 and Algorithm 1), compiled: from genes to queues to times.

Algorithm 1 shares bandwidth in proportion to the request when the requests exceed it. So at any moment every
running job goes at the *same* part ``min(1, B/Q)`` of its full speed, Q being what all of them request together.
By a clock tau that runs at this speed every job takes its no-stall latency, and a sub-accelerator is through with its
jobs at the running sums of their latencies, whatever the others do. Hence

    makespan = integral of max(1, Q(tau) / B) over tau, from 0 to the largest sum of latencies

and one pass over the ends of jobs computes it. The volume that Algorithm 1 counts down need not be kept: a job has
moved its latency times its request exactly when tau has gone on by its latency. Nothing is divided by a request, so a
job may ask for none: it is slowed like the others, the limit of asking for ever less.

Where jobs come after others (``Precedence``) a sub-accelerator waits, asking for nothing, until the next job of its
queue may start. That too is decided by the clock tau alone: the jobs that run when tau is reached do not depend on B,
and the integral holds as it stands. Only the ends of jobs are no longer running sums: events are played in order.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import njit

__all__ = ["decode", "play", "raised", "stable_order"]

RUN = 20
"""Values sorted by insertion before runs of them are merged."""


@njit(cache=True)
def stable_order(values: Floats) -> Ints:
    """Return the indices that sort *values*, ties by index.

    A merge sort of our own: Numba's takes four times as long to compile, and every first ``map`` waits for it.
    """
    count = len(values)
    order, merged = np.arange(count), np.empty(count, dtype=np.int64)
    for low in range(0, count, RUN):
        for i in range(low + 1, min(low + RUN, count)):
            one, k = order[i], i
            while k > low and values[order[k - 1]] > values[one]:
                order[k] = order[k - 1]
                k -= 1
            order[k] = one
    width = RUN
    while width < count:
        for low in range(0, count, 2 * width):
            middle, high = min(low + width, count), min(low + 2 * width, count)
            i, k = low, middle
            for at in range(low, high):
                if k >= high or (i < middle and values[order[i]] <= values[order[k]]):
                    merged[at] = order[i]
                    i += 1
                else:
                    merged[at] = order[k]
                    k += 1
        order, merged = merged, order
        width *= 2
    return order


@njit(cache=True)
def decode(accelerator: Ints, priority: Floats, accelerators: int, sorted_jobs: Ints) -> tuple[Ints, Ints]:
    """Return jobs by sub-accelerator, then priority, then index; and where each sub-accelerator's begin.

    *sorted_jobs* (``Precedence.order``) takes the index's place where jobs come after others. Then no job's priority
    value counts as less than that of one it comes after: see ``raised``.
    """
    first = np.zeros(accelerators + 1, dtype=np.int64)
    for a in accelerator:
        first[a + 1] += 1
    for a in range(accelerators):
        first[a + 1] += first[a]
    free = first[:-1].copy()
    order = np.empty(len(accelerator), dtype=np.int64)
    depends = len(sorted_jobs) > 0
    values = priority
    if depends:
        values = np.empty(len(sorted_jobs))
        for k in range(len(sorted_jobs)):
            values[k] = priority[sorted_jobs[k]]
    for k in stable_order(values):
        j = sorted_jobs[k] if depends else k
        a = accelerator[j]
        order[free[a]] = j
        free[a] += 1
    return order, first


@njit(cache=True)
def raised(priority: Floats, sorted_jobs: Ints, at: Ints, follows: Ints) -> Floats:
    """Return priority values none of which is less than that of a job it comes after; arguments as ``Precedence``.

    With ties in the order of *sorted_jobs* they put all jobs into one order that keeps every dependency, so that queues
    cannot wait for each other in a circle.
    """
    if len(sorted_jobs) == 0:
        return priority
    raised_to = priority.copy()
    for j in sorted_jobs:
        for k in follows[at[j] : at[j + 1]]:
            raised_to[k] = max(raised_to[k], raised_to[j])
    return raised_to


@njit(cache=True)
def play(
    latency: Floats, bandwidth: Floats, limit: float, order: Ints, first: Ints, waits: Ints, at: Ints, follows: Ints,
    start: Floats, end: Floats, edges: Floats, asked: Floats,
) -> tuple[float, int]:  # fmt: skip
    """Run the jobs of *order*; return the makespan, infinite if some job cannot run, and the number of intervals.

    *waits*, *at* and *follows* are those of ``Precedence``. *start* and *end* ([J]), *edges* ([2 J + 1]) and *asked*
    ([2 J]) are filled unless they are empty.
    """
    accelerators, ends, traced, depends = len(first) - 1, len(end) > 0, len(edges) > 0, len(follows) > 0
    turn, missing = first[:-1].copy(), waits.copy()
    due, ask = np.full(accelerators, np.inf), np.zeros(accelerators)
    tau, now, intervals = 0.0, 0.0, 0
    for a in range(accelerators):
        if turn[a] < first[a + 1]:
            j = order[turn[a]]
            if latency[j, a] == np.inf:
                return np.inf, 0
            if depends and missing[j] > 0:
                continue
            due[a], ask[a] = latency[j, a], bandwidth[j, a]
            if traced:
                start[j] = 0.0
    while True:
        nearest, total = np.inf, 0.0
        for a in range(accelerators):
            total += ask[a]
            nearest = min(nearest, due[a])
        if nearest == np.inf:
            return now, intervals
        if nearest > tau:
            now += (nearest - tau) * max(1.0, total / limit)
            tau = nearest
            if traced:
                edges[intervals + 1], asked[intervals] = now, total
                intervals += 1
        for a in range(accelerators):
            if due[a] != nearest:
                continue
            done = order[turn[a]]
            if ends:
                end[done] = now
            turn[a] += 1
            due[a], ask[a] = np.inf, 0.0
            if depends:
                for k in follows[at[done] : at[done + 1]]:
                    missing[k] -= 1
                continue
            if turn[a] < first[a + 1]:
                j = order[turn[a]]
                if latency[j, a] == np.inf:
                    return np.inf, 0
                due[a], ask[a] = nearest + latency[j, a], bandwidth[j, a]
                if traced:
                    start[j] = now
        if not depends:
            continue
        for a in range(accelerators):
            if due[a] == np.inf and turn[a] < first[a + 1]:
                j = order[turn[a]]
                if latency[j, a] == np.inf:
                    return np.inf, 0
                if missing[j] == 0:
                    due[a], ask[a] = nearest + latency[j, a], bandwidth[j, a]
                    if traced:
                        start[j] = now
