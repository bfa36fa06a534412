"""Decoder and bandwidth allocator (G#, 3.6 and Algorithm 1) as one pure function: from mappings to makespans.

Algorithm 1 shares bandwidth in proportion to the request when more is asked for than there is. So at any moment every
running job goes at the *same* part ``min(1, B/Q)`` of its full speed, Q being what all of them ask for together.
By a clock tau that runs at this speed every job takes its no-stall latency, and a sub-accelerator is through with its
jobs at the running sums of their latencies, whatever the others do. Hence

    makespan = integral of max(1, Q(tau) / B) over tau, from 0 to the largest sum of latencies

and one pass over the ends of jobs computes it. The volume that Algorithm 1 counts down need not be kept: a job has
moved its latency times its request exactly when tau has gone on by its latency. Nothing is divided by a request, so a
job may ask for none: it is slowed like the others, the limit of asking for ever less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from commonwatt.mapping.encoding import Mapping
from commonwatt.mapping.problem import Problem
from commonwatt.model.arrays import Floats, Ints

__all__ = ["Timeline", "decode", "makespan", "makespans", "play", "timeline"]


@dataclass(frozen=True)
class Timeline:
    """What happens when: K intervals in which the same jobs run. Times in cycles, bandwidth in GB/s."""

    start: Floats  # [J]
    end: Floats  # [J]
    edges: Floats  # [K + 1]
    requested: Floats  # [K], by all running jobs together
    used: Floats  # [K]
    running: Ints  # [K, A], the job, -1 for none
    granted: Floats  # [K, A]

    @property
    def makespan(self) -> float:
        """When the last job ends."""
        return float(self.edges[-1])


@njit(cache=True)
def decode(accelerator: Ints, priority: Floats, accelerators: int) -> tuple[Ints, Ints]:
    """Return jobs by sub-accelerator, then priority, then index; and where each sub-accelerator's begin."""
    first = np.zeros(accelerators + 1, dtype=np.int64)
    for a in accelerator:
        first[a + 1] += 1
    for a in range(accelerators):
        first[a + 1] += first[a]
    free = first[:-1].copy()
    order = np.empty(len(accelerator), dtype=np.int64)
    for j in np.argsort(priority, kind="mergesort"):  # stable
        a = accelerator[j]
        order[free[a]] = j
        free[a] += 1
    return order, first


@njit(cache=True)
def play(
    latency: Floats, bandwidth: Floats, limit: float, order: Ints, first: Ints,
    start: Floats, end: Floats, edges: Floats, asked: Floats,
) -> tuple[float, int]:  # fmt: skip
    """Run the jobs of *order*; return the makespan, infinite if some job cannot run, and the number of intervals.

    *start*, *end* ([J]), *edges* ([J + 1]) and *asked* ([J]) are filled unless they are empty.
    """
    accelerators, told = len(first) - 1, len(start) > 0
    at = first[:-1].copy()
    due, ask = np.full(accelerators, np.inf), np.zeros(accelerators)
    tau, now, intervals = 0.0, 0.0, 0
    for a in range(accelerators):
        if at[a] < first[a + 1]:
            j = order[at[a]]
            due[a], ask[a] = latency[j, a], bandwidth[j, a]
            if due[a] == np.inf:
                return np.inf, 0
            if told:
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
            if told:
                edges[intervals + 1], asked[intervals] = now, total
                intervals += 1
        for a in range(accelerators):
            if due[a] != nearest:
                continue
            if told:
                end[order[at[a]]] = now
            at[a] += 1
            if at[a] == first[a + 1]:
                due[a], ask[a] = np.inf, 0.0
                continue
            j = order[at[a]]
            if latency[j, a] == np.inf:
                return np.inf, 0
            due[a], ask[a] = nearest + latency[j, a], bandwidth[j, a]
            if told:
                start[j] = now


@njit(cache=True)
def _makespans(latency: Floats, bandwidth: Floats, limit: float, accelerator: Ints, priority: Floats) -> Floats:
    nothing = np.zeros(0)
    found = np.empty(len(accelerator))
    for p in range(len(accelerator)):
        order, first = decode(accelerator[p], priority[p], latency.shape[1])
        found[p], _ = play(latency, bandwidth, limit, order, first, nothing, nothing, nothing, nothing)
    return found


def makespans(problem: Problem, mappings: Mapping) -> Floats:
    """Return the makespan of each of a population of mappings ([P]), infinite where a job cannot run, in cycles."""
    return _makespans(
        problem.latency,
        problem.bandwidth,
        problem.system_bandwidth,
        np.ascontiguousarray(mappings.accelerator, dtype=np.int64),
        np.ascontiguousarray(mappings.priority, dtype=np.float64),
    )


def makespan(problem: Problem, mapping: Mapping) -> float:
    """Return the makespan of one mapping, in cycles."""
    return float(makespans(problem, Mapping(mapping.accelerator[None], mapping.priority[None]))[0])


def timeline(problem: Problem, mapping: Mapping) -> Timeline:
    """Return who runs what with how much bandwidth from when to when; every job must be where it can run."""
    jobs, accelerators = problem.latency.shape
    start, end, edges, asked = np.zeros(jobs), np.zeros(jobs), np.zeros(jobs + 1), np.zeros(jobs)
    order, first = decode(mapping.accelerator, mapping.priority, accelerators)
    limit = problem.system_bandwidth
    _, count = play(problem.latency, problem.bandwidth, limit, order, first, start, end, edges, asked)
    edges, asked = edges[: count + 1], asked[:count]
    running = np.full((count, accelerators), -1, dtype=np.int64)
    granted = np.zeros((count, accelerators))
    part = limit / np.maximum(asked, limit)
    for j, a in enumerate(mapping.accelerator.tolist()):
        span = slice(*np.searchsorted(edges, [start[j], end[j]]).tolist())
        running[span, a] = j
        granted[span, a] = problem.bandwidth[j, a] * part[span]
    return Timeline(start, end, edges, asked, np.minimum(asked, limit), running, granted)
