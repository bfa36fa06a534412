"""What a tenant would buy at given prices, exactly: the judge of every equilibrium.

At the marginal utility of money lambda a tenant holds ``x_c = (m sqrt(k F / p) - F) / (1 - F)`` of a core cluster with
F < 1, where ``m = 1 / sqrt(lambda)``, or nothing if that is negative. Its spending is piecewise linear, convex and
increasing in m, so that Newton's method finds the m that spends the budget in a few steps, with no error but rounding.
A core cluster with F = 1 is bought without limit from ``m = sqrt(p / k)`` on: it takes all that is left.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning.problem import Market
from commonwatt.partitioning.utility import total

__all__ = ["best_response", "blocks", "gains"]

_ELEMENTS = 1 << 18


def blocks(market: Market) -> Iterator[slice]:
    """Yield rows of tenants in blocks whose arrays stay in the processor's cache."""
    step = max(1, _ELEMENTS // market.rate.shape[1])
    for start in range(0, len(market.budgets), step):
        yield slice(start, start + step)


def best_response(
    prices: Floats, budgets: Floats, rate: Floats, parallel_fraction: Floats
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return the shares that maximise each tenant's utility at *prices* (positive, [C]), and its value of money.

    The second array is lambda, [N]: how much more speedup a tenant would have for a little more money.
    """
    curved = (parallel_fraction < 1.0) & (rate > 0)
    below = np.where(curved, 1.0 - parallel_fraction, 1.0)
    slope = np.where(curved, np.sqrt(rate * parallel_fraction * prices) / below, 0.0)
    fixed = np.where(curved, parallel_fraction * prices / below, 0.0)
    linear = np.where((parallel_fraction >= 1.0) & (rate > 0), prices / np.where(rate > 0, rate, 1.0), np.inf)
    cheapest = linear.argmin(axis=1)
    rows = np.arange(len(budgets))
    limit = np.sqrt(linear[rows, cheapest])
    m = np.minimum(_spend(slope, fixed, budgets), limit)
    bids = np.where(curved, np.maximum(m[:, None] * slope - fixed, 0.0), 0.0)
    left = budgets - bids.sum(axis=1)
    bids[rows, cheapest] += np.where(m >= limit, np.maximum(left, 0.0), 0.0)
    bids *= (budgets / bids.sum(axis=1))[:, None]  # a little is lost where F is all but 1
    return bids / prices, m**-2.0


def _spend(slope: Floats, fixed: Floats, budgets: Floats) -> Floats:
    """Return m with sum_c max(0, m slope - fixed) = budget, infinite where nothing has a slope."""
    with np.errstate(divide="ignore", invalid="ignore"):
        start = np.where(slope > 0, (fixed + budgets[:, None]) / slope, np.inf)
        m = start.min(axis=1)  # one of them alone would spend it all: not too low
        for _ in range(slope.shape[1] + 2):
            on = m[:, None] * slope > fixed
            better = (budgets + (fixed * on).sum(axis=1)) / (slope * on).sum(axis=1)
            better = np.where(np.isfinite(m), np.minimum(better, m), m)
            if not (better < m).any():
                break
            m = better
    return m


def gains(market: Market, prices: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Return how much each tenant would gain by its best response at *prices*, relative, and its value of money.

    Both have shape [N]. A gain of 0 means that the shares are optimal; rounding can make it slightly negative.
    """
    gain, money = np.empty(len(market.budgets)), np.empty(len(market.budgets))
    on = market.usable
    for rows in blocks(market):
        k, f = market.rate[rows][:, on], market.parallel_fraction[rows][:, on]
        best, money[rows] = best_response(prices[on], market.budgets[rows], k, f)
        had = total(k, f, shares[rows][:, on])
        with np.errstate(divide="ignore"):
            gain[rows] = total(k, f, best) / had - 1.0
    return gain, money
