"""What hours that many jobs want are worth: prices of GPU time, and of power under a cap, that clear the demand. Ours.

Lagrangian relaxation of the capacity in each piece of time, by a subgradient method. Nobody pays these prices. Under
them, jobs that each choose the least sum of cost and scarcity fit, or almost, into what is free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import njit
from commonwatt.placement.start_times._timetable import Timetable

__all__ = ["Scarcity"]

MOST_STEPS, LEAST_STEPS = 100, 10
MOST_WORK = 2e7  # choices times steps
FIRST_STEP, DECAY = 0.1, 0.97  # part of all cost by which the first step may raise it; of a step, the next

Offer = tuple[int, Ints, Ints, Floats]
"""A configuration; of each of its starts the first piece of time, the one after the last, and the cost, [S] each."""


class Scarcity:
    """Price of a GPU of each class, and of a watt, in each piece of time; summed up to each edge."""

    def __init__(self, profile: Timetable, gpu: Floats, watt: Floats) -> None:
        self._profile = profile
        self._gpu: Floats = np.concatenate((np.zeros((len(gpu), 1)), np.cumsum(gpu, axis=1)), axis=1)  # [K, B + 1]
        self._watt: Floats = np.concatenate(([0.0], np.cumsum(watt)))  # [B + 1]

    @classmethod
    def clearing(cls, profile: Timetable, jobs: Sequence[Sequence[Offer]]) -> Scarcity:
        """Return prices that clear the demand of *jobs*, each of which takes one of its offers, for what is free."""
        free, each = profile.free_by_class(), [offer for own in jobs for offer in own]
        if not each:
            return cls(profile, np.zeros_like(free), np.zeros(free.shape[1]))
        sizes = [sum(len(offer[1]) for offer in own) for own in jobs]
        row = np.concatenate([np.full(len(offer[1]), offer[0]) for offer in each])
        first, end, cost = (np.concatenate([offer[k] for offer in each]) for k in (1, 2, 3))
        gpu, watt = _clearing(
            np.cumsum([0, *(size for size in sizes if size)]), cost, first, end, profile.problem.klass[row],
            profile.gpus[row].astype(np.float64), profile.most_w[row], free, profile.free_w(),
        )  # fmt: skip
        return cls(profile, gpu, watt)

    def of(self, row: int, first: Ints, end: Ints) -> Floats:
        """Return what configuration *row* would pay from each piece *first* to before *end*, [S]."""
        profile = self._profile
        by_gpu = self._gpu[profile.problem.klass[row]]
        paid: Floats = profile.gpus[row] * (by_gpu[end] - by_gpu[first])
        return paid + profile.most_w[row] * (self._watt[end] - self._watt[first])


@njit(cache=True, nogil=True)
def _clearing(
    start: Ints, cost: Floats, first: Ints, end: Ints, klass: Ints, gpus: Floats, watts: Floats, free: Floats,
    free_w: Floats,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return the prices with the greatest lower bound that the steps find: of GPUs, [K, B], and of watts, [B]."""
    kinds, pieces = free.shape
    capped = np.isfinite(free_w).all()
    # what there is of each, as one: so GPUs and watts have one step
    most = np.ones(kinds + 1)
    room = np.zeros((kinds + 1, pieces))
    for k in range(kinds):
        most[k] = max(1.0, free[k].max())
        room[k] = free[k] / most[k]
    if capped:
        most[kinds] = max(1.0, free_w.max())
        room[kinds] = free_w / most[kinds]
    price = np.zeros((kinds + 1, pieces))
    best, found, size = -np.inf, price.copy(), FIRST_STEP
    sums = np.zeros((kinds + 1, pieces + 1))
    for _ in range(int(min(MOST_STEPS, max(LEAST_STEPS, MOST_WORK / len(cost))))):
        for k in range(kinds + 1):
            sums[k, 1:] = np.cumsum(price[k])
        over = -room
        bound, total = -(price * room).sum(), 0.0
        for j in range(len(start) - 1):
            least, at = np.inf, start[j]
            for i in range(start[j], start[j + 1]):
                own = cost[i] + gpus[i] / most[klass[i]] * (sums[klass[i], end[i]] - sums[klass[i], first[i]])
                if capped:
                    own += watts[i] / most[kinds] * (sums[kinds, end[i]] - sums[kinds, first[i]])
                if own < least:
                    least, at = own, i
            bound += least
            total += abs(cost[at])
            over[klass[at], first[at] : end[at]] += gpus[at] / most[klass[at]]
            if capped:
                over[kinds, first[at] : end[at]] += watts[at] / most[kinds]
        if bound > best:
            best, found = bound, price.copy()
        norm = 0.0
        for k in range(kinds + 1):
            for b in range(pieces):
                if over[k, b] < 0 and price[k, b] <= 0:
                    over[k, b] = 0.0
                norm += over[k, b] ** 2
        if norm == 0:
            break
        for k in range(kinds + 1):
            for b in range(pieces):
                price[k, b] = max(0.0, price[k, b] + size * total / norm * over[k, b])
        size *= DECAY
    gpu = np.zeros((kinds, pieces))
    for k in range(kinds):
        gpu[k] = found[k] / most[k]
    return gpu, found[kinds] / most[kinds]
