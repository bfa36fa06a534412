"""Amdahl's utility of a share of a core cluster: how fast, how much faster with more, and how much to buy.

A tenant with the share x (in PEs, real-valued) of a core cluster runs ``s(x) = k x / (x (1 - F) + F)`` times as fast as
on one base PE (eq. 3.2), k being the average frequency of a PE for that tenant over the base frequency. Over core
clusters speedups add up (eq. 3.3). All functions are elementwise over arrays of one shape, or of shapes that broadcast.

F = 0 makes s a step, whose every equilibrium is a limit: it is read as ``LEAST_F``. F above ``MOST_F`` is read
as 1: the two differ by less than a billionth of the speedup for each PE held.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats

__all__ = ["LEAST_F", "MOST_F", "marginal", "settled", "speedups", "total"]

LEAST_F = 1e-6
MOST_F = 1.0 - 1e-9


def settled(parallel_fraction: Floats) -> Floats:
    """Return *parallel_fraction* with what is 0 or as good as 1 made exact, as the market reads it."""
    fractions = np.maximum(parallel_fraction, LEAST_F)
    return np.where(fractions > MOST_F, 1.0, fractions)


def speedups(rate: Floats, parallel_fraction: Floats, shares: Floats) -> Floats:
    """Return s(x), eq. (3.2); a share of 0 gives 0, also where F = 0."""
    below = shares * (1.0 - parallel_fraction) + parallel_fraction
    return np.divide(rate * shares, below, out=np.zeros(np.broadcast_shapes(below.shape, rate.shape)), where=below > 0)


def marginal(rate: Floats, parallel_fraction: Floats, shares: Floats) -> Floats:
    """Return s'(x) = k F / (x (1 - F) + F)^2: finite at x = 0, so that a tenant may rightly buy nothing."""
    return rate * parallel_fraction / (shares * (1.0 - parallel_fraction) + parallel_fraction) ** 2


def total(rate: Floats, parallel_fraction: Floats, shares: Floats) -> Floats:
    """Return each tenant's utility, the sum of its speedups over core clusters (eq. 3.3). Shape [N] of [N, C]."""
    return speedups(rate, parallel_fraction, shares).sum(axis=-1)
