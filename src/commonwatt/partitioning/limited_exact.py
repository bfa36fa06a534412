"""Linear markets in which tenants are limited: from a point near the equilibrium to the equilibrium itself.

At an equilibrium it is known who holds what, which goods are sold out and who is at its limit; with that known, prices,
shares and what a budget buys solve as many equations as there are unknowns. Newton's method on these equations, in
relative changes and with the least change where more than one solution exists, ends at rounding error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats

__all__ = ["State", "exact", "without_crumbs"]

MOST_STEPS = 12


@dataclass(frozen=True)
class State:
    """Shares and prices near an equilibrium, and how much each is off its bound.

    Attributes
    ----------
    shares, lacking
        Units each tenant holds, and how much of a unit's price it would lose by buying one. Shapes [N, K].
    prices, left
        Of each good: price and what is not sold. Shapes [K].
    limit_prices, room
        Of each tenant: price of its limit, and room below it. Shapes [N].
    """

    shares: Floats
    prices: Floats
    limit_prices: Floats
    lacking: Floats
    left: Floats
    room: Floats


def without_crumbs(rates: Floats, prices: Floats, limit_prices: Floats) -> tuple[Floats, Floats]:
    """Return the prices with 0 in place of those that are next to nothing for everybody who pays them."""
    paid = np.where(rates > 0, prices + limit_prices[:, None], np.inf)
    cut = 5e-10  # below the residual that is asked for
    return (
        np.where(prices <= cut * paid.min(axis=0), 0.0, prices),
        np.where(limit_prices <= cut * paid.min(axis=1), 0.0, limit_prices),
    )


def exact(
    weights: Floats, rates: Floats, supplies: Floats, limits: Floats, near: State, lean: float = 1.0
) -> tuple[Floats, Floats, Floats]:
    """Return shares, prices and prices of limits of the equilibrium close to *near*; 0 or more, not checked further.

    Arguments as in :func:`commonwatt.partitioning.linear_market.solve`; weights sum to 1. Where both a share and what
    it lacks to be bought are small, *lean* decides: it is bought if the share is more than *lean* times what it lacks.
    """
    paid = near.prices + near.limit_prices[:, None]
    bought = (rates > 0) & (near.shares * paid / weights[:, None] > lean * near.lacking / paid)
    usable = np.where(rates > 0, paid, np.inf)
    sold = near.prices / usable.min(axis=0) > near.left / supplies
    at_limit = np.isfinite(limits) & (near.limit_prices / usable.min(axis=1) > near.room / limits)
    system = _System(weights, rates, supplies, limits, bought, sold, at_limit)
    return system.run(near)


class _System:
    """Equations of an equilibrium in which it is known what is bought, sold out and at its limit."""

    def __init__(
        self,
        weights: Floats,
        rates: Floats,
        supplies: Floats,
        limits: Floats,
        bought: Bools,
        sold: Bools,
        at_limit: Bools,
    ) -> None:
        self.w, self.rates = weights, rates
        self.i, self.k = np.nonzero(bought)
        self.r = rates[self.i, self.k]
        self.goods, self.tenants = np.flatnonzero(sold), np.flatnonzero(at_limit)
        self.m, self.l = supplies[self.goods], limits[self.tenants]
        self.good_row, self.limit_row = np.cumsum(sold) - 1, np.cumsum(at_limit) - 1
        self.on_sold, self.on_limit = np.flatnonzero(sold[self.k]), np.flatnonzero(at_limit[self.i])

    def run(self, near: State) -> tuple[Floats, Floats, Floats]:
        """Solve, beginning at *near*."""
        n, k = self.rates.shape
        x, p, q = near.shares[self.i, self.k], np.zeros(k), np.zeros(n)
        p[self.goods], q[self.tenants] = near.prices[self.goods], near.limit_prices[self.tenants]
        with np.errstate(all="ignore"):  # what ends in no number is thrown away by whoever checks it
            worth = self.w / np.bincount(self.i, self.r * x, minlength=n)  # money a unit of utility costs
            for step in range(MOST_STEPS):
                matrix, sides = self._equations(x, p, q, worth)
                if not (np.isfinite(matrix).all() and np.isfinite(sides).all()):
                    break
                found = np.linalg.lstsq(matrix, sides, rcond=1e-13)[0]
                dx, dp, dq, du = np.split(found, np.cumsum([len(x), len(self.goods), len(self.tenants)]))
                x, worth = x * (1.0 + dx), worth * (1.0 + du)
                p[self.goods] *= 1.0 + dp
                q[self.tenants] *= 1.0 + dq
                if step > 2 and np.abs(sides).max() < 1e-15:
                    break
        shares = np.zeros((n, k))
        shares[self.i, self.k] = x
        return np.maximum(shares, 0.0), np.maximum(p, 0.0), np.maximum(q, 0.0)

    def _equations(self, x: Floats, p: Floats, q: Floats, worth: Floats) -> tuple[Floats, Floats]:
        """Derivatives by relative changes of all unknowns, and what is missing in each equation, relatively."""
        pairs, goods, limits, n = len(x), len(self.goods), len(self.tenants), len(self.w)
        first = np.cumsum([0, pairs, goods, limits])
        rows, tenants = np.arange(pairs), first[3] + np.arange(n)
        gains = worth[self.i] * self.r
        at, own = self.on_sold, self.good_row[self.k[self.on_sold]]
        held, whose = self.on_limit, self.limit_row[self.i[self.on_limit]]
        matrix = np.zeros((first[3] + n,) * 2)
        matrix[rows, first[3] + self.i] = 1.0  # a unit costs what it gains
        matrix[at, first[1] + own] = -p[self.k[at]] / gains[at]
        matrix[held, first[2] + whose] = -q[self.i[held]] / gains[held]
        matrix[first[1] + own, at] = x[at] / self.m[own]  # what is for sale is sold
        matrix[first[2] + whose, held] = x[held] / self.l[whose]  # who is at its limit holds as much
        earned = gains * x / self.w[self.i]
        spent = np.bincount(self.i, earned, minlength=n)
        matrix[first[3] + self.i, rows] = earned  # and budgets are spent
        matrix[tenants, tenants] = spent
        by_good = np.bincount(self.k, x, minlength=self.rates.shape[1])[self.goods]
        by_tenant = np.bincount(self.i, x, minlength=n)[self.tenants]
        paid = (p[self.k] + q[self.i]) / gains
        return matrix, np.concatenate([paid - 1.0, 1.0 - by_good / self.m, 1.0 - by_tenant / self.l, 1.0 - spent])
