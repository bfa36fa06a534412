"""What hours that many jobs want are worth: prices of GPU time, and of power under a cap, that clear the demand. Ours.

Lagrangian relaxation of the capacity in each piece of time, by a subgradient method. Nobody pays these prices. Under
them, jobs that each choose the least sum of cost and scarcity fit, or almost, into what is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import njit
from commonwatt.placement.start_times._timetable import Timetable

__all__ = ["Scarcity"]

MOST_STEPS, LEAST_STEPS = 100, 10
MOST_WORK = 2e7  # choices times steps
FIRST_STEP, DECAY = 0.1, 0.97  # part of all cost by which the first step may raise it; of a step, the next

Offer = tuple[int, Floats, float, Floats]
"""A configuration, the starts it may have, [S], the time it takes, and what it costs from each of them, [S]."""


class Scarcity:
    """Price of a GPU of each class, and of a watt, in each piece of time; summed up to each edge."""

    def __init__(self, profile: Timetable, gpu: Floats, watt: Floats) -> None:
        self._profile = profile
        self._gpu: Floats = np.concatenate((np.zeros((len(gpu), 1)), np.cumsum(gpu, axis=1)), axis=1)  # [K, B + 1]
        self._watt: Floats = np.concatenate(([0.0], np.cumsum(watt)))  # [B + 1]

    @classmethod
    def of(cls, profile: Timetable, jobs: Sequence[Iterable[Offer]]) -> Scarcity:
        """Return the prices at which *jobs*, each of which takes one of its offers, are worth most together."""
        free = profile.free_by_class()
        offers = [[(offer, *profile.pieces(offer[1], offer[2])) for offer in own] for own in jobs]
        each = [one for own in offers for one in own]
        if not each:
            return cls(profile, np.zeros_like(free), np.zeros(free.shape[1]))
        sizes = [sum(len(offer[1]) for offer, _, _ in own) for own in offers]
        row = np.concatenate([np.full(len(offer[1]), offer[0]) for offer, _, _ in each])
        gpu, watt = _clearing(
            np.cumsum([0, *(size for size in sizes if size)]), np.concatenate([offer[3] for offer, _, _ in each]),
            np.concatenate([first for _, first, _ in each]), np.concatenate([end for _, _, end in each]),
            profile.problem.klass[row], profile.gpus[row].astype(np.float64), profile.most_w[row], free,
            profile.free_w(),
        )  # fmt: skip
        return cls(profile, gpu, watt)

    def of_starts(self, row: int, starts_s: Floats, time_s: float) -> Floats:
        """Return what configuration *row* would pay for *time_s* from each of *starts_s*, [S]."""
        profile = self._profile
        first, end = profile.pieces(starts_s, time_s)
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
