"""From a point near an equilibrium to the equilibrium itself.

Near an equilibrium it shows who buys what, which core clusters are sold out, and who is at its limit or sated. With
that fixed, shares, prices, prices of limits and values of money solve as many equations as there are unknowns::

    g'(x) = l (p + q)        for every piece bought and not full
    sum x = P, sum x = L     where sold out, at the limit
    sum (p + q) x = b        who is not sated

Newton's method on these, in relative changes and with the least change where more than one solution exists, ends at
rounding error. Straight pieces need it: the path inside ends with as much rounding as prices and shares differ in size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commonwatt.model.arrays import Bools, Floats
from commonwatt.partitioning._curves import Pieces, Point, slope_at

__all__ = ["at_bounds", "crossings", "drop_negligible_prices"]

_MOST_UNKNOWNS = 1500
_LEANS = (1.0, 1e-4, 1e4)  # ways to decide what is bought where that is in doubt
_STEPS = 12
_SMALL, _SMALLER = 1e-10, 1e-3  # shares below the first are at a bound, if as much smaller than what keeps them there
_CRUMB = 5e-10  # of what a tenant pays: below the residual asked for

Crossing = tuple[Floats, Floats, Floats]
"""Prices [C], prices of limits [N], shares of the pieces [E]."""


def crossings(pieces: Pieces, at: Point) -> Iterator[Crossing]:
    """Yield what may be the equilibrium near *at*, the likeliest first; 0 or more, not checked further."""
    seen: list[Bools] = []
    for lean in _LEANS:
        system = _System(pieces, at, lean)
        if any(np.array_equal(system.pattern, other) for other in seen):
            continue
        seen.append(system.pattern)
        if 0 < system.size <= _MOST_UNKNOWNS:
            yield system.run()


class _System:
    """Equations of an equilibrium in which it is known what is bought, full, sold out, at its limit and sated."""

    def __init__(self, pieces: Pieces, at: Point, lean: float) -> None:
        self.pieces, (money, over, fee, gap) = pieces, at.tenant
        x, room, z, v = at.y
        tenant, cluster, width = pieces.tenant, pieces.cluster, pieces.shape[1]
        paid = at.prices[cluster] + fee[tenant]
        asked = money[tenant] * paid
        least_paid = np.full(len(at.prices), np.inf)
        np.minimum.at(least_paid, cluster, paid)
        cheapest = np.full(len(fee), np.inf)
        np.minimum.at(cheapest, tenant, paid)
        size = x * paid / pieces.budgets[tenant]
        if lean < 1.0:  # next to nothing of a budget may be more of a limit
            size = np.maximum(size, x / pieces.limits[tenant])
        ends = np.isfinite(width)
        self.full = ends & (v / asked > room / np.where(ends, width, 1.0))
        sated = over / pieces.budgets > money
        self.bought = (size > lean * z / asked) & ~self.full & ~sated[tenant]
        sold = at.prices / least_paid > at.left / pieces.pe_count
        at_limit = pieces.limited & (fee / cheapest > gap / pieces.limits)
        self.pattern = np.concatenate([self.full, self.bought, sold, at_limit, sated])
        self.x = np.where(self.full, width, np.where(self.bought, x, 0.0))
        if sated.any():  # what a sated tenant holds short of the end is worth nothing to it
            self.x = np.where(sated[tenant] & ~self.full, x, self.x)
        self.prices, self.fees, self.money = np.where(sold, at.prices, 0.0), np.where(at_limit, fee, 0.0), money.copy()
        self.e = np.flatnonzero(self.bought)
        self.i, self.c = tenant[self.e], cluster[self.e]
        self.goods, self.tenants = np.flatnonzero(sold), np.flatnonzero(at_limit)
        self.payers = np.flatnonzero(~sated)
        self.good_at, self.limit_at, self.payer_at = np.cumsum(sold) - 1, np.cumsum(at_limit) - 1, np.cumsum(~sated) - 1
        self.size = len(self.e) + len(self.goods) + len(self.tenants) + len(self.payers)

    def run(self) -> Crossing:
        """Solve, beginning at the point."""
        sizes = np.cumsum([len(self.e), len(self.goods), len(self.tenants)])
        with np.errstate(all="ignore"):  # what ends in no number is dropped by whoever checks it
            for step in range(_STEPS):
                matrix, sides = self._equations()
                if not (np.isfinite(matrix).all() and np.isfinite(sides).all()):
                    break
                dx, dp, dq, dl = np.split(np.linalg.lstsq(matrix, sides, rcond=1e-13)[0], sizes)
                self.x[self.e] *= 1.0 + dx
                self.prices[self.goods] *= 1.0 + dp
                self.fees[self.tenants] *= 1.0 + dq
                self.money[self.payers] *= 1.0 + dl
                if step > 2 and np.abs(sides).max() < 1e-15:
                    break
        return np.maximum(self.prices, 0.0), np.maximum(self.fees, 0.0), np.maximum(self.x, 0.0)

    def _equations(self) -> tuple[Floats, Floats]:
        """Derivatives by relative changes of all unknowns, and what is missing in each equation, relatively."""
        pieces, x = self.pieces, self.x
        tenant, cluster = pieces.tenant, pieces.cluster
        first = np.cumsum([0, len(self.e), len(self.goods), len(self.tenants)])
        slope, _, bend, linear, square = pieces.shape[:, self.e]
        own, bent = slope_at.py_func(slope, bend, linear, square, x[self.e])
        p, q, money = self.prices[self.c], self.fees[self.i], self.money[self.i]
        rows, by_money = np.arange(len(self.e)), first[3] + self.payer_at[self.i]
        matrix = np.zeros((self.size,) * 2)
        matrix[rows, rows] = bent * x[self.e] / own  # a PE costs what it brings
        matrix[rows, by_money] = -1.0
        on, under = np.isin(self.c, self.goods), np.isin(self.i, self.tenants)
        matrix[rows[on], first[1] + self.good_at[self.c[on]]] = -(money * p / own)[on]
        matrix[rows[under], first[2] + self.limit_at[self.i[under]]] = -(money * q / own)[under]
        matrix[first[1] + self.good_at[self.c[on]], rows[on]] = (x[self.e] / pieces.pe_count[self.c])[on]
        matrix[first[2] + self.limit_at[self.i[under]], rows[under]] = (x[self.e] / pieces.limits[self.i])[under]
        budgets = pieces.budgets[self.i]
        earned = own * x[self.e] / money / budgets  # budgets are spent at what pieces bring
        np.add.at(matrix, (by_money, rows), earned * (1.0 + bent * x[self.e] / own))
        np.add.at(matrix, (by_money, by_money), -earned)
        spent = np.bincount(self.i, earned, minlength=len(pieces.budgets)).astype(float)
        full = np.flatnonzero(self.full & np.isin(tenant, self.payers))
        i, c = tenant[full], cluster[full]
        for values, where, at in (
            (self.prices[c], np.isin(c, self.goods), first[1] + self.good_at[c]),
            (self.fees[i], np.isin(i, self.tenants), first[2] + self.limit_at[i]),
        ):
            cost = values * x[full] / pieces.budgets[i]
            np.add.at(matrix, (first[3] + self.payer_at[i[where]], at[where]), cost[where])
            spent += np.bincount(i, cost, minlength=len(spent))
        by_good = np.bincount(cluster, x, minlength=len(pieces.pe_count))[self.goods] / pieces.pe_count[self.goods]
        by_tenant = np.bincount(tenant, x, minlength=len(spent))[self.tenants] / pieces.limits[self.tenants]
        asked = money * (p + q) / own
        return matrix, np.concatenate([asked - 1.0, 1.0 - by_good, 1.0 - by_tenant, 1.0 - spent[self.payers]])


def at_bounds(pieces: Pieces, at: Point) -> Floats:
    """Return the shares of the pieces of an inner point, with those next to nothing 0 and those nearly full full."""
    (x, room, z, v), width = at.y, pieces.shape[1]
    paid = at.prices[pieces.cluster] + at.tenant[2][pieces.tenant]
    asked, pes = at.tenant[0][pieces.tenant] * paid, pieces.pe_count[pieces.cluster]
    spent = x * paid / pieces.budgets[pieces.tenant]
    nothing = (spent < np.minimum(_SMALL, _SMALLER * z / asked)) & (x < _SMALL * pes)
    ends = np.isfinite(width)
    wide = np.where(ends, width, 1.0)
    full = ends & (room < np.minimum(_SMALL, _SMALLER * v / asked) * wide) & (room < _SMALL * pes)
    return np.where(nothing, 0.0, np.where(full, wide, x))


def drop_negligible_prices(pieces: Pieces, prices: Floats, fees: Floats) -> tuple[Floats, Floats]:
    """Return the prices with 0 in place of those that are next to nothing for everybody who pays them."""
    paid = prices[pieces.cluster] + fees[pieces.tenant]
    least, cheapest = np.full(len(prices), np.inf), np.full(len(fees), np.inf)
    np.minimum.at(least, pieces.cluster, paid)
    np.minimum.at(cheapest, pieces.tenant, paid)
    return np.where(prices <= _CRUMB * least, 0.0, prices), np.where(fees <= _CRUMB * cheapest, 0.0, fees)
