"""How many instances of each class all GPUs together can be cut into, and what is known of the market on each.

The market's utilities on a layout are bracketed without solving it. From below: without limits no tenant does worse
than with its part of every instance (its budget buys that). With limits, prices p and fees q of the limits l satisfy
``p @ m <= 1 - q_i l_i``; so the bundle of a tenant's part of every instance, cut down to the limit (a part t of it),
costs at most ``w_i (1 + max(0, t - w_i))``, and the tenant does no worse than with this bundle divided by as much.
From above: the weighted mean of logarithms is at most what the prices of any other layout say
(:mod:`commonwatt.partitioning.mig_market`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.partitioning.mig_problem import MigProblem

__all__ = ["MOST_COUNTS", "Brackets", "all_counts", "highest"]

MOST_COUNTS = 600_000


def all_counts(problem: MigProblem, most: int = MOST_COUNTS) -> tuple[Ints, Ints]:
    """Return all counts of instances by class that serve every tenant, and the fewest instances drained for each.

    Shapes [T, K] and [T]. Raises ``InputError`` if there are more than *most*, or none.
    """
    radix = np.ones(len(problem.classes))
    for group in problem.groups:
        radix += len(group.members) * np.max([choice.counts for choice in group.choices], axis=0)
    too_many = InputError(
        f"nash, as these GPUs can be cut into more than {most:,} different sets of instances", field="--welfare"
    )
    if radix.prod() >= 2.0**62:
        raise too_many
    powers = np.cumprod([1, *radix[:-1].astype(np.int64)])  # counts are the digits of a number
    codes, drained = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for group in problem.groups:
        steps = np.array([choice.counts @ powers for choice in group.choices])
        gone = np.array([choice.drained for choice in group.choices])
        for _ in group.members:
            wider = (codes[:, None] + steps).ravel()
            codes, place = np.unique(wider, return_inverse=True)
            fewest = np.full(len(codes), np.iinfo(np.int64).max)
            np.minimum.at(fewest, place, (drained[:, None] + gone).ravel())
            drained = fewest
            if len(codes) > most:
                raise too_many
    totals = codes[:, None] // powers % radix.astype(np.int64)
    served = ((totals @ (problem.rates > 0).T) > 0).all(axis=1)
    if not served.any():
        raise InputError("a layout with an instance for every tenant", field="tenants")
    return totals[served], drained[served]


@dataclass(frozen=True)
class Brackets:
    """What utilities lie between in the market on each layout. Shapes [T, N]."""

    low: Floats
    high: Floats

    @classmethod
    def of(cls, problem: MigProblem, totals: Ints) -> Brackets:
        """Bracket the utilities on layouts with *totals* instances of each class ([T, K])."""
        low, high = np.zeros((len(totals), len(problem.weights))), np.zeros((len(totals), len(problem.weights)))
        for i, (weight, rates, limit) in enumerate(zip(problem.weights, problem.rates, problem.limits, strict=True)):
            order = np.argsort(-rates, kind="stable")
            order = order[rates[order] > 0]
            for bracket, part in ((low, weight), (high, 1.0)):
                held = np.diff(np.minimum(np.cumsum(part * totals[:, order], axis=1), limit), axis=1, prepend=0.0)
                bracket[:, i] = held @ rates[order]
                if bracket is low:
                    low[:, i] /= 1.0 + np.maximum(0.0, held.sum(axis=1) / limit - weight)
        return cls(low, high)

    def pick(self, rows: Ints) -> Brackets:
        """Return the brackets of some layouts."""
        return Brackets(self.low[rows], self.high[rows])


def highest(kind: str, weights: Floats, brackets: Brackets, nash: Floats) -> Floats:
    """Return what the utilitarian or egalitarian welfare of each market is at most.

    *nash* is what the weighted mean of the logarithms of the utilities is at most. Shape [T].
    """
    low = np.log(brackets.low)
    slack = np.maximum(nash - low @ weights, 0.0) + 1e-12
    if kind == "egalitarian":
        units = np.log(weights * len(weights))
        order = np.argsort(low - units, axis=1, kind="stable")
        mass = weights[order]
        filled = np.cumsum(mass * np.take_along_axis(low - units, order, axis=1), axis=1) + slack[:, None]
        level = (filled / np.cumsum(mass, axis=1)).min(axis=1)
        return np.asarray(np.exp(np.minimum(level, (np.log(brackets.high) - units).min(axis=1))))
    rise = np.minimum(np.log(brackets.high) - low, slack[:, None] / weights)
    with np.errstate(divide="ignore", invalid="ignore"):  # a chord lies above the exponential function
        chord = brackets.low * np.where(rise > 1e-12, np.expm1(rise) / rise, 1.0)
    order = np.argsort(-chord, axis=1, kind="stable")
    room = np.take_along_axis(weights * rise, order, axis=1)
    taken = np.diff(np.minimum(np.cumsum(room, axis=1), slack[:, None]), axis=1, prepend=0.0)
    return np.asarray(brackets.low @ weights + (taken * np.take_along_axis(chord, order, axis=1)).sum(axis=1))
