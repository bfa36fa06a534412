"""Starts that decide which sub-accelerator first, order later: annealed loads, and jobs packed by kind.

**Annealed loads.** Whatever the order, a mapping takes at least ``max(max L + E, V)``: the largest load and all excess,
or the volume (see ``lower_bound``). It depends on where jobs are, not on their order, and a move changes it in a few
operations: hundreds of thousands of moves take as long as a thousand mappings.

**Packed.** The integer program (``integer_bound``) says how many jobs of each type each *kind* of sub-accelerator gets,
and the clock ``T`` at which all may end. Within a kind jobs are packed by how bandwidth is used: jobs that request the
most go one after the other onto as few queues as ``T`` allows, so that they do not meet; the others are spread evenly,
longest first. How many queues of each kind are filled in the first way, and three orders in the others, are all tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._gsharp import likelihoods, somewhere
from commonwatt.mapping._integer_bound import Counts
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._queues import Table, table_of
from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import njit, ranked

__all__ = ["annealed_loads", "ordered", "packed"]

EVEN = 0.02
"""Weight of the mean square of loads, relative to that of the largest, beside the largest."""
MOST_PACKINGS = 64


@njit(cache=True)
def _anneal(t: Table, likely: Floats, where: Ints, best: Ints, heats: Floats, rng: Generator) -> float:
    """Try one move for each of *heats*; *best* gets the places of the least ``max(max L + E, V)``, returned."""
    jobs, accelerators = t.latency.shape
    load, excess, volume = np.zeros(accelerators), 0.0, 0.0
    for j in range(jobs):
        a = where[j]
        load[a] += t.latency[j, a]
        excess += t.excess[j, a]
        volume += t.volume[j, a]
    scale, squares = load.max(), 0.0
    for a in range(accelerators):
        squares += (load[a] / scale) ** 2
    least = max(load.max() + excess, volume)
    worth = least * (1.0 + EVEN * squares / accelerators)
    for heat in heats:
        limit = worth - heat * worth * np.log(1.0 - rng.random())
        one, two = int(rng.random() * jobs), -1
        a = where[one]
        if rng.random() < 0.6:
            two = int(rng.random() * jobs)
            b = where[two]
            if a == b or t.latency[one, b] == np.inf or t.latency[two, a] == np.inf:
                continue
            at_a, at_b = load[a] + t.latency[two, a], load[b] - t.latency[two, b]
            new_excess = excess + t.excess[two, a] - t.excess[two, b]
            new_volume = volume + t.volume[two, a] - t.volume[two, b]
        else:
            b = somewhere(one, likely, rng)
            if a == b:
                continue
            at_a, at_b, new_excess, new_volume = load[a], load[b], excess, volume
        at_a, at_b = at_a - t.latency[one, a], at_b + t.latency[one, b]
        new_excess += t.excess[one, b] - t.excess[one, a]
        new_volume += t.volume[one, b] - t.volume[one, a]
        peak = max(at_a, at_b)
        for c in range(accelerators):
            if c != a and c != b:
                peak = max(peak, load[c])
        new_squares = squares + (at_a * at_a + at_b * at_b - load[a] * load[a] - load[b] * load[b]) / scale / scale
        bound = max(peak + new_excess, new_volume)
        score = bound * (1.0 + EVEN * new_squares / accelerators)
        if score <= limit:
            load[a], load[b], excess, volume, squares, worth = at_a, at_b, new_excess, new_volume, new_squares, score
            where[one] = b
            if two >= 0:
                where[two] = a
            if bound < least:
                least = bound
                for j in range(jobs):
                    best[j] = where[j]
    return least


def annealed_loads(
    problem: MappingProblem, start: Ints, moves: int, rng: Generator, hot: float = 0.02, cold: float = 1e-5
) -> tuple[Ints, float]:
    """Return a sub-accelerator for each job ([J]), annealed from *start*, and what it takes at least, in cycles."""
    best = np.array(start, dtype=np.int64)
    heats = hot * (cold / hot) ** (np.arange(moves) / max(1, moves))
    least = _anneal(table_of(problem), likelihoods(problem, 1.0, 0.5), best.copy(), best, heats, rng)
    return best, float(least)


def ordered(problem: MappingProblem, accelerator: Ints, rng: Generator) -> list[Mapping]:
    """Return the mappings that run jobs longest first, by falling and by rising request, and at random."""
    job = np.arange(len(problem))
    latency, request = problem.latency[job, accelerator], problem.bandwidth[job, accelerator]
    return [Mapping(accelerator, _ranks(keys)) for keys in (-latency, -request, request, rng.random(len(problem)))]


def _ranks(keys: Floats) -> Floats:
    """Return priorities above 0 in the order of *keys*."""
    priority = np.empty(len(keys))
    priority[ranked(keys)] = (np.arange(len(keys)) + 0.5) / len(keys)
    return priority


def packed(problem: MappingProblem, counts: Counts) -> Iterator[Mapping]:
    """Yield the packings of *counts*, by how many queues of each kind are filled one after the other."""
    left = [list(jobs) for jobs in counts.members]
    groups = []
    for k, places in enumerate(counts.places):
        jobs = [left[t].pop() for t in range(len(left)) for _ in range(int(counts.jobs[t, k]))]
        groups.append((np.array(sorted(jobs), dtype=np.int64), places))
    every = itertools.product(*(range(len(places) + 1) for _, places in groups))
    for serial in itertools.islice(every, MOST_PACKINGS):
        for sign in (1.0, -1.0, 0.0):
            yield _packing(problem, groups, serial, counts.horizon, sign)


def _packing(
    problem: MappingProblem, groups: list[tuple[Ints, Ints]], serial: tuple[int, ...], horizon: float, sign: float
) -> Mapping:
    """Fill *serial* queues of each kind up to *horizon* by falling request, the others evenly.

    These run jobs by rising (*sign* 1) or falling (-1) request, or longest first (0).
    """
    accelerator, priority = np.zeros(len(problem), dtype=np.int64), np.zeros(len(problem))
    for (jobs, places), filled in zip(groups, serial, strict=True):
        latency, request = problem.latency[jobs, places[0]], problem.bandwidth[jobs, places[0]]
        left = ranked(-request).tolist()
        for a in places[:filled].tolist():
            kept, load = [], 0.0
            for i in left:
                if load + latency[i] <= horizon * (1 + 1e-4):
                    accelerator[jobs[i]], priority[jobs[i]] = a, -request[i]
                    load += latency[i]
                else:
                    kept.append(i)
            left = kept
        rest = places[filled:] if filled < len(places) else places
        loads = np.zeros(len(rest))
        for i in sorted(left, key=lambda i: -latency[i]):
            least = int(np.argmin(loads))
            accelerator[jobs[i]], priority[jobs[i]] = rest[least], sign * request[i] if sign else -latency[i]
            loads[least] += latency[i]
    return Mapping(accelerator, _ranks(priority))
