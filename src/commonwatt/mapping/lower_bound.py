"""A certified lower bound: no mapping of the batch can end earlier.

Let B be the system bandwidth, and of job j on sub-accelerator a let ``l`` be the latency, ``r`` the request,
``p[j,a] = l * max(1, r/B)`` what it takes alone and ``v[j,a] = l * r / B`` its volume in cycles of the whole bandwidth.

**Facts.** Take any mapping, of makespan M. (1) While job j runs on a, at least r is asked for, so it goes at no more
than the part min(1, B/r) of full speed and takes at least p[j,a]. A sub-accelerator runs one job at a time, so the sum
of p over its jobs is at most M; so is each single p. (2) No more than B flows at any time, so the sum of v over all
jobs is at most M.

**Weights.** For any u[a] >= 0 and w >= 0 with sum(u) + w = 1, adding u[a] times (1) and w times (2) gives
M >= sum over jobs of (u[a] p[j,a] + w v[j,a]) at the job's own a >= sum over jobs of the least such term over all a.
So *every* such choice of weights certifies a bound; the linear program only finds good ones, and its rounding errors
cannot make the bound wrong. Bandwidth-volume (w = 1) and shared load (w = 0) are special cases.

**Thresholds.** If M < t, no job is where its p is t or more. So if the weights' bound over the pairs with p < t is t or
more, or some job has no such pair, then M >= t. Bisection over the values of p finds such a t. The weights' bound over
the pairs with p <= t then holds too: it is below the next value of p, and either M is not, or M uses only such pairs.

**Pigeonhole.** Among any k A + 1 jobs some k + 1 share one of the A sub-accelerators, which is busy for the sum of the
k + 1 least of their shortest times, or longer. The k A + 1 jobs with the longest shortest times are tried for each k.

**Chains.** Jobs that come one after the other take at least the sum of their shortest times.

The bound is the largest of all this, less one part in 1e12 for rounding, here and in the evaluator.
"""

from __future__ import annotations

import numpy as np

from commonwatt.mapping._lp import multipliers
from commonwatt.mapping.problem import Problem
from commonwatt.model.arrays import Bools, Floats, Ints

__all__ = ["lower_bound", "pigeonhole", "simple_bound", "weighted_bound"]

ROUNDING = 1e-12


def lower_bound(problem: Problem) -> float:
    """Return the bound, in cycles."""
    alone = problem.alone
    volume = problem.volume / problem.system_bandwidth
    kinds, count = np.unique(np.vstack([alone, volume]), axis=1, return_counts=True)  # equal sub-accelerators are one
    alone, volume = kinds[: len(problem)], kinds[len(problem) :]
    values = np.unique(alone[np.isfinite(alone)])

    def weighed(k: int) -> float:
        allowed = alone <= values[k]
        u, w = multipliers(alone / values[k], volume / values[k], count, allowed)
        return weighted_bound(alone, volume, allowed, u, w, count)

    low = int(np.searchsorted(values, alone.min(axis=1).max()))  # below it some job has nowhere to go
    high = len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if weighed(middle) * (1 - ROUNDING) >= values[middle + 1]:
            low = middle + 1
        else:
            high = middle
    chain = problem.goal.precedence.earliest(problem.alone.min(axis=1)).max()
    return max(float(values[low]), weighed(low), pigeonhole(problem), float(chain)) * (1 - ROUNDING)


def weighted_bound(alone: Floats, volume: Floats, allowed: Bools, u: Floats, w: float, count: Ints) -> float:
    """Return the bound that weights certify over the *allowed* pairs, whatever sum the weights have.

    *u* weighs the load of each kind of sub-accelerator ([G]); there are *count* of it.
    """
    terms = np.where(allowed, u * np.where(allowed, alone, 0.0) + w * np.where(allowed, volume, 0.0), np.inf)
    return float(terms.min(axis=1).sum() / (u @ count + w))


def pigeonhole(problem: Problem) -> float:
    """Return the bound of jobs that must share a sub-accelerator."""
    longest = np.sort(problem.alone.min(axis=1))[::-1]
    best = float(longest[0])
    for k in range(1, (len(longest) - 1) // problem.accelerators + 1):
        among = longest[: k * problem.accelerators + 1]
        best = max(best, float(among[-(k + 1) :].sum()))
    return best


def simple_bound(problem: Problem) -> float:
    """Return the bound published with the reference data: longest job, mean load, volume; each at its best."""
    shortest = problem.latency.min(axis=1)
    volume = problem.volume.min(axis=1).sum() / problem.system_bandwidth
    return float(max(shortest.max(), shortest.sum() / problem.accelerators, volume))
