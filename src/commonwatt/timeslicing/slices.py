"""Algorithm 1's second step: unit after unit to whoever has used least, in time that does not depend on T.

The literal loop gives each remaining unit to the tenant whose level ``slice * rate / weight`` is lowest, the earlier
tenant where two are level. Tenant *i*'s units thus have levels ``s * rate_i / w_i`` for s = its slice, slice + 1, ...,
and the loop takes the R lowest of all tenants in order. A level below which at most R units lie is found by
bisection; those units are given at once, and the few that are left (at most about one for each tenant) one by one
from a heap. Levels are computed by the same two operations as in the loop, so that ties fall the same way.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
from numba import njit

from commonwatt.model.arrays import Floats, Ints

__all__ = ["give_least", "guaranteed"]


def guaranteed(shares: Floats, demands: Ints) -> Ints:
    """Round *shares* (units, [N]) down to whole units, but none above its demand (Algorithm 1, line 1).

    A share that is whole but for rounding in double precision (0.7 * 30 / 3) counts as whole.
    """
    nearest = np.rint(shares)
    is_whole = np.abs(shares - nearest) <= np.minimum(1e-9 + 1e-15 * shares, 0.49)
    return np.minimum(np.where(is_whole, nearest, np.floor(shares)).astype(np.int64), demands)


@njit(cache=True)
def _level(units: int, rate: float, weight: float) -> float:
    return units * rate / weight


@njit(cache=True)
def _below(level: float, start: int, stop: int, rate: float, weight: float) -> int:
    """First of the units start..stop whose level is not below *level*; levels never fall."""
    guess = level / rate * weight
    s = stop if guess >= stop else max(start, int(guess))
    while s < stop and _level(s, rate, weight) < level:
        s += 1
    while s > start and _level(s - 1, rate, weight) >= level:
        s -= 1
    return s


@njit(cache=True)
def give_least(slices: Ints, left: int, rates: Floats, weights: Floats, demands: Ints) -> Ints:
    """Give *left* units to the tenants that have least (Algorithm 1, lines 2 to 9); returns the slices.

    Parameters
    ----------
    slices
        Units each tenant has already. Shape [N], whole, at most *demands*.
    rates
        What one unit costs: the power for energy, 1 for time. Shape [N], positive.
    """
    n = len(slices)
    slices = slices.copy()
    room = (demands - slices).sum()
    left = min(left, room)
    if left == room:
        return demands.copy()
    low, high = 0.0, 0.0
    for i in range(n):
        high = max(high, _level(demands[i], rates[i], weights[i]))
    while True:  # at most *left* units lie below `low`, all of them below `high`
        middle = low + (high - low) / 2
        if middle <= low or middle >= high:
            break
        below = 0
        for i in range(n):
            below += _below(middle, slices[i], demands[i], rates[i], weights[i]) - slices[i]
        if below > left:
            high = middle
        else:
            low = middle
            if left - below <= n:
                break
    for i in range(n):
        upto = _below(low, slices[i], demands[i], rates[i], weights[i])
        left -= upto - slices[i]
        slices[i] = upto
    heap = [(_level(slices[i], rates[i], weights[i]), i) for i in range(n) if slices[i] < demands[i]]
    heapify(heap)
    while left > 0:
        _, i = heappop(heap)
        slices[i] += 1
        left -= 1
        if slices[i] < demands[i]:
            heappush(heap, (_level(slices[i], rates[i], weights[i]), i))
    return slices
