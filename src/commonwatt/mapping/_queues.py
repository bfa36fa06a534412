"""Annealing on the queues of sub-accelerators, compiled: for makespans of independent jobs, several times as fast.

A move swaps two jobs or takes one to another place, of its own queue or another's. What it may cost at most is drawn
*before* it is tried, so most moves are refused for what no order can change: with loads ``L[a]`` (sums of latencies),
volume ``V`` in cycles of the whole bandwidth and excess ``E`` (see ``lower_bound``), the makespan is at least
``max(max L + E, V)``, known without playing the mapping. Playing stops in the same way: at clock ``tau``, with ``W`` of
the volume moved, at least ``max(max L - tau, V - W)`` is still to come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._decoder import decode
from commonwatt.mapping._encoding import Mapping, from_orders
from commonwatt.mapping._gsharp import likelihoods, somewhere
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._search import MappingSearch, score
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import Budget, Incumbent, KeepGoing, always, njit

__all__ = ["QueueAnnealing", "Table", "is_plain", "table_of"]

CHUNK = 2000
"""Moves between two questions whether to keep going."""


class Table(NamedTuple):
    """The job table in units of the system bandwidth; infinite where a job cannot run. Shapes [J, A]."""

    latency: Floats
    request: Floats
    excess: Floats
    volume: Floats


def table_of(problem: MappingProblem) -> Table:
    """Return the table of *problem*."""
    possible, request = problem.possible, problem.bandwidth / problem.system_bandwidth
    latency = np.where(possible, problem.latency, 0.0)
    excess = np.where(possible, latency * np.maximum(0.0, request - 1.0), np.inf)
    return Table(problem.latency, request, excess, np.where(possible, latency * request, np.inf))


def is_plain(problem: MappingProblem) -> bool:
    """Whether a makespan of independent jobs is all that counts, in any order but for those that go first.

    A job goes first if its sub-accelerator is fixed, and its priority below 0 as that of no other job there: it runs
    already (``stream``). Searches only give priorities from 0 on.
    """
    goal, free = problem.goal, True
    if len(problem.priority):
        bound = problem.fixed[~np.isnan(problem.priority)]
        below = bool((problem.priority[~np.isnan(problem.priority)] < 0).all())
        free = below and bool((bound >= 0).all()) and len(np.unique(bound)) == len(bound)
    return goal.objective == "latency" and not goal.precedence and not len(goal.targets) and free


class _Queues(NamedTuple):
    """Jobs of each sub-accelerator in order, and where each job is in them."""

    queue: Ints  # [A, J]
    length: Ints  # [A]
    where: Ints  # [J]
    at: Ints  # [J]
    load: Floats  # [A]
    total: Floats  # excess, volume
    front: Ints  # [A], how many jobs at the front stay where they are


@njit(cache=True)
def _filled(t: Table, order: Ints, first: Ints, stays: Bools) -> _Queues:
    jobs, accelerators = t.latency.shape
    q = _Queues(
        np.zeros((accelerators, jobs), np.int64), np.zeros(accelerators, np.int64), np.zeros(jobs, np.int64),
        np.zeros(jobs, np.int64), np.zeros(accelerators), np.zeros(2), np.zeros(accelerators, np.int64),
    )  # fmt: skip
    for a in range(accelerators):
        for k in range(first[a], first[a + 1]):
            j = order[k]
            q.queue[a, q.length[a]], q.where[j], q.at[j] = j, a, q.length[a]
            q.length[a] += 1
            if stays[j]:
                q.front[a] = q.length[a]
    return q


@njit(cache=True)
def _count(t: Table, q: _Queues) -> None:
    """Sum up loads, excess and volume afresh, so that rounding does not add up."""
    q.load[:] = 0.0
    q.total[:] = 0.0
    for j in range(len(q.where)):
        a = q.where[j]
        q.load[a] += t.latency[j, a]
        q.total[0] += t.excess[j, a]
        q.total[1] += t.volume[j, a]


@njit(cache=True)
def _played(t: Table, queue: Ints, length: Ints, peak: float, volume: float, limit: float) -> float:
    """Return the makespan, infinite as soon as it must be above *limit*; *peak* is the largest load."""
    accelerators = len(length)
    due, ask, turn = np.full(accelerators, np.inf), np.zeros(accelerators), np.zeros(accelerators, np.int64)
    tau, now, total, left = 0.0, 0.0, 0.0, 0
    for a in range(accelerators):
        left += length[a]
        if length[a] > 0:
            j = queue[a, 0]
            due[a], ask[a] = t.latency[j, a], t.request[j, a]
            total += ask[a]
    while left > 0:
        b = 0
        for a in range(1, accelerators):
            if due[a] < due[b]:
                b = a
        step = due[b] - tau
        if step > 0.0:
            now += step * max(1.0, total)
            volume -= step * total
            tau = due[b]
            if now + max(peak - tau, volume) > limit:
                return np.inf
        left -= 1
        turn[b] += 1
        total -= ask[b]
        if turn[b] < length[b]:
            j = queue[b, turn[b]]
            due[b], ask[b] = tau + t.latency[j, b], t.request[j, b]
            total += ask[b]
        else:
            due[b], ask[b] = np.inf, 0.0
    return now


@njit(cache=True)
def _peak(load: Floats, a: int, at_a: float, b: int, at_b: float) -> float:
    """Return the largest load if that of *a* and *b* were *at_a* and *at_b*."""
    peak = max(at_a, at_b)
    for c in range(len(load)):
        if c != a and c != b:
            peak = max(peak, load[c])
    return peak


@njit(cache=True)
def _swap(t: Table, q: _Queues, one: int, two: int, limit: float) -> float:
    """Swap two jobs unless that costs more than *limit*; return the makespan, infinite if nothing was changed."""
    a, b, i, k = q.where[one], q.where[two], q.at[one], q.at[two]
    if t.latency[one, b] == np.inf or t.latency[two, a] == np.inf:
        return np.inf
    at_a, at_b, excess, volume = q.load[a], q.load[b], q.total[0], q.total[1]
    if a != b:
        at_a += t.latency[two, a] - t.latency[one, a]
        at_b += t.latency[one, b] - t.latency[two, b]
        excess += t.excess[two, a] - t.excess[one, a] + t.excess[one, b] - t.excess[two, b]
        volume += t.volume[two, a] - t.volume[one, a] + t.volume[one, b] - t.volume[two, b]
    peak = _peak(q.load, a, at_a, b, at_b)
    if max(peak + excess, volume) > limit:
        return np.inf
    q.queue[a, i], q.queue[b, k] = two, one
    makespan = _played(t, q.queue, q.length, peak, volume, limit)
    if makespan > limit:
        q.queue[a, i], q.queue[b, k] = one, two
        return np.inf
    q.where[one], q.at[one], q.where[two], q.at[two] = b, k, a, i
    q.load[a], q.load[b], q.total[0], q.total[1] = at_a, at_b, excess, volume
    return makespan


@njit(cache=True)
def _take_out(q: _Queues, a: int, i: int) -> None:
    for m in range(i, q.length[a] - 1):
        q.queue[a, m] = q.queue[a, m + 1]
    q.length[a] -= 1


@njit(cache=True)
def _put_in(q: _Queues, a: int, i: int, job: int) -> None:
    for m in range(q.length[a], i, -1):
        q.queue[a, m] = q.queue[a, m - 1]
    q.queue[a, i] = job
    q.length[a] += 1


@njit(cache=True)
def _shift(t: Table, q: _Queues, one: int, b: int, draw: float, limit: float) -> float:
    """Take a job to a place in the queue of *b*, of equal chances by *draw*, as ``_swap`` does."""
    a, i = q.where[one], q.at[one]
    at_a, at_b, excess, volume = q.load[a], q.load[b], q.total[0], q.total[1]
    if a != b:
        at_a -= t.latency[one, a]
        at_b += t.latency[one, b]
        excess += t.excess[one, b] - t.excess[one, a]
        volume += t.volume[one, b] - t.volume[one, a]
    peak = _peak(q.load, a, at_a, b, at_b)
    if max(peak + excess, volume) > limit:
        return np.inf
    _take_out(q, a, i)
    k = q.front[b] + int(draw * (q.length[b] - q.front[b] + 1))
    _put_in(q, b, k, one)
    makespan = _played(t, q.queue, q.length, peak, volume, limit)
    if makespan > limit:
        _take_out(q, b, k)
        _put_in(q, a, i, one)
        return np.inf
    q.where[one] = b
    for c in (a, b):
        for m in range(q.length[c]):
            q.at[q.queue[c, m]] = m
    q.load[a] = at_a
    if a != b:
        q.load[b] = at_b
    q.total[0], q.total[1] = excess, volume
    return makespan


@njit(cache=True)
def _anneal(
    t: Table, likely: Floats, q: _Queues, best: Ints, worth: float, least: float, heats: Floats, rng: Generator
) -> tuple[float, float]:
    """Try one move for each of *heats*; return the last makespan and the least.

    *best* gets the places of all jobs in the best queues, numbered through all of them, when *least* is improved.
    """
    jobs = len(q.where)
    _count(t, q)
    for heat in heats:
        limit = worth - heat * worth * np.log(1.0 - rng.random())
        draw, one = rng.random(), int(rng.random() * jobs)
        if q.at[one] < q.front[q.where[one]]:
            continue
        if draw < 0.55:
            two = int(rng.random() * jobs)
            stays = one == two or q.at[two] < q.front[q.where[two]]
            makespan = np.inf if stays else _swap(t, q, one, two, limit)
        else:
            to = somewhere(one, likely, rng) if draw < 0.8 else q.where[one]
            makespan = _shift(t, q, one, to, rng.random(), limit)
        if makespan < np.inf:
            worth = makespan
            if worth < least:
                least = worth
                for j in range(jobs):
                    best[j] = q.where[j] * jobs + q.at[j]
    return worth, least


@dataclass(frozen=True)
class QueueAnnealing:
    """Annealing from a given mapping of independent jobs, under a budget of moves.

    The temperature, relative to the makespan, falls from *hot* to *cold* evenly by its logarithm. A move counts as an
    evaluation, whether it had to be played or not.
    """

    budget: int
    hot: float = 0.005
    cold: float = 1e-5
    reached: float = -np.inf

    def improve(
        self, problem: MappingProblem, start: MappingSearch, rng: Generator, keep_going: KeepGoing = always
    ) -> MappingSearch:
        """Return the best mapping found, no worse than *start*; evaluations and history are its own."""
        t, likely = table_of(problem), likelihoods(problem, 1.0, 0.5)
        none = np.zeros(0, dtype=np.int64)
        accelerator = np.ascontiguousarray(start.best.accelerator, dtype=np.int64)
        stays = ~np.isnan(problem.priority) if len(problem.priority) else np.zeros(len(problem), dtype=bool)
        order, first = decode(accelerator, start.best.priority.astype(np.float64), problem.accelerators, none)
        q = _filled(t, order, first, stays)
        jobs, worth, least = len(problem), start.cost, start.cost
        best = q.where * jobs + q.at
        search = Incumbent(Budget(self.budget, keep_going, self.reached), start)
        while search.goes_on():
            done = np.arange(search.spent, min(self.budget, search.spent + CHUNK)) / self.budget
            heats = self.hot * (self.cold / self.hot) ** done
            worth, new_least = _anneal(t, likely, q, best, worth, least, heats, rng)
            if new_least < least:
                least = new_least
                better = score(problem, _mapping(best, jobs, problem.accelerators)[None])
                search.offer(better.best, better.cost, at=len(done), of=len(done))
            else:
                search.spent += len(done)
        return search.result()


def _mapping(places: Ints, jobs: int, accelerators: int) -> Mapping:
    order = np.argsort(places)
    return from_orders(jobs, [order[places[order] // jobs == a].tolist() for a in range(accelerators)])
