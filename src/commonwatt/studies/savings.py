"""Savings over several periods and seeds, and how far they can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.study_results import SavingInterval

__all__ = ["interval", "mean", "saved_pct", "t_quantile"]

LEVEL = 0.95


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; ``None`` if any of *values* is unknown, or if there are none."""
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers and len(numbers) == len(values) else None


def saved_pct(ours: Sequence[float | None], theirs: Sequence[float | None]) -> float | None:
    """Return by how many percent the sum of *ours* is less than that of *theirs*; ``None`` if unknown."""
    a, b = mean(ours), mean(theirs)
    return None if a is None or b is None or b <= 0 else 100.0 * (b - a) / b


def interval(ours: Floats, theirs: Floats) -> SavingInterval | None:
    """Return the confidence interval of ``saved_pct`` from a table of periods and seeds.

    The unit is the period: seeds of one period share its jobs, and are averaged. With one period only, the unit is the
    seed, and the interval says nothing of other weeks. The standard error is that of the delete-one jackknife of the
    ratio, and the quantile Student's with one degree of freedom less than units (J. Tukey, 1958).

    Parameters
    ----------
    ours, theirs
        Energy or cost, [weeks, seeds]; NaN: unknown.

    Returns
    -------
    SavingInterval or None
        ``None`` for one period and one seed, and where something is unknown.
    """
    weeks, seeds = ours.shape
    if weeks * seeds < 2 or np.isnan(ours).any() or np.isnan(theirs).any():
        return None
    over: tuple[Floats, Floats] = (ours.mean(axis=1), theirs.mean(axis=1)) if weeks > 1 else (ours[0], theirs[0])
    a, b = over
    units = len(a)
    if (b <= 0).any():
        return None
    whole = 100.0 * (1.0 - a.sum() / b.sum())
    without = 100.0 * (1.0 - (a.sum() - a) / (b.sum() - b))
    error = math.sqrt((units - 1) / units * float(((without - without.mean()) ** 2).sum()))
    half = t_quantile(0.5 + LEVEL / 2, units - 1) * error
    return SavingInterval(
        low=whole - half, high=whole + half, level=LEVEL, over="weeks" if weeks > 1 else "seeds", units=units
    )


def t_quantile(p: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution for ``0.5 < p < 1``, by bisection on its distribution."""
    low, high = 0.0, 1.0
    while _t_distribution(high, degrees) < p:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_distribution(middle, degrees) < p else (low, middle)
    return (low + high) / 2


def _t_distribution(t: float, degrees: int) -> float:
    """Distribution for whole degrees of freedom, in closed form (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 if odd else 0, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    if odd:
        return 0.5 + (angle + (sine * total if degrees > 1 else 0.0)) / math.pi
    return 0.5 + sine * total / 2
