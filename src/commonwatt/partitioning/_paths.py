"""Other ways to an equilibrium: proportional response, and two slower ones where ``_newton`` loses its way.

**Proportional response**: prices from bids, bids from prices, over and over (eq. 3.4 and Definition 3.4.1).

A bid changes in proportion to the bid factor ``U = sqrt(F k p) x / (x (1 - F) + F)``, for tenants who all follow
Amdahl's law. (The thesis prints ``F / f`` for ``F k`` and, in the definition, puts s under the root, which has other
fixed points.) Since ``U^2`` is the bid times ``x s'(x)``, a fixed point has the same marginal utility of money wherever
a tenant bids: that is its best response.

**The path of softened markets.** For every tau there are prices at which a market softened by tau clears; from a large
tau, where there is but one such market, they form a smooth path that for almost all softenings ends in an equilibrium.
It may turn back on its way: tau rises for a while. So the path is followed by its own length (Keller's
pseudo-arclength), in the logarithms of prices and tau, with every tenant's exact answer to the prices.

**Linear markets with limits, in relative changes of all unknowns.** Prices of core clusters and of limits may be
interchangeable, and budgets differ by orders of magnitude: then eliminating tenants loses the digits that decide. Here
a step is one dense system whose entries stay near 1 however small prices, shares and budgets become. It costs the third
power of the number of pairs of tenant and core cluster, so this is for up to about a thousand pairs, and is tried
second: of 3,000 random markets with ties and weights over six orders of magnitude ``_newton`` and the crossover leave
67 unsolved, this path none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.partitioning._curves import Pieces, Point
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._newton import assembled, centred, eliminate, polish, workspace

__all__ = ["Bidding", "equal_bids", "limited_path", "respond", "run_bidding", "softened_path"]

# -- bidding


_ELEMENTS = 1 << 18


@dataclass
class Bidding:
    """Where bidding has come to."""

    bids: Floats  # [N, C], budgets summing to 1
    prices: Floats  # per PE, [C]
    iterations: int
    change: float  # largest absolute change of a price in the last iteration
    relative_change: float  # largest of the changes relative to the price
    history: list[Floats]  # prices after each iteration, the first ones before any


def _blocks(market: Market) -> Iterator[slice]:
    """Yield rows of tenants in blocks whose arrays stay in the processor's cache."""
    step = max(1, _ELEMENTS // market.rate.shape[1])
    for start in range(0, len(market.budgets), step):
        yield slice(start, start + step)


def equal_bids(market: Market) -> Floats:
    """Return bids that spread each budget evenly over the core clusters of use to the tenant. Shape [N, C]."""
    of_use = market.rate > 0
    return np.asarray(market.budgets[:, None] * of_use / of_use.sum(axis=1, keepdims=True))


def respond(market: Market, bids: Floats, prices: Floats) -> Floats:
    """Return the next bids; *bids* are left as they are."""
    new = np.empty_like(bids)
    safe = np.where(prices > 0, prices, 1.0)
    slope, linear = market.curves.slope[:, :, 0], market.curves.linear[:, :, 0]  # k / F, (1 - F) / F
    for rows in _blocks(market):
        shares = bids[rows] / safe
        factor = np.sqrt(slope[rows] * prices)
        factor *= shares
        factor /= 1.0 + shares * linear[rows]
        new[rows] = factor * (market.budgets[rows] / factor.sum(axis=1))[:, None]
    return new


def run_bidding(
    market: Market, iterations: int, change: float = 0.0, *, relative: float = 0.0, bids: Floats | None = None,
    keep: int = 1000,
) -> Bidding:  # fmt: skip
    """Bid until no price changes by more than *change*, or *relative* to itself, or for so many *iterations*.

    At most the first *keep* prices are remembered.
    """
    bids = equal_bids(market) if bids is None else bids
    prices = bids.sum(axis=0) / market.pe_count
    state = Bidding(bids, prices, 0, np.inf, np.inf, [prices])
    while state.iterations < iterations and state.change > change and state.relative_change > relative:
        state.bids = respond(market, state.bids, state.prices)
        prices = state.bids.sum(axis=0) / market.pe_count
        moved = np.abs(prices - state.prices)
        state.change = float(moved.max())
        state.relative_change = float(np.divide(moved, prices, out=np.zeros_like(moved), where=prices > 0).max())
        state.prices = prices
        state.iterations += 1
        if len(state.history) <= keep:
            state.history.append(prices)
    return state


# -- slower ways


_LONGEST, _SHORTEST = 1.0, 1e-7
_TRY_FROM = np.log(1e-2)  # tau from which on Newton's method is tried
_LEAST_TAU = np.log(1e-9)
_GOOD = 1e-9
_FIRST, _CORRECTIONS = 60, 8
_ON_IT = 1e-6  # part of a core cluster: near enough to the path

_Spot = tuple[Floats, Point, Floats]
"""Logarithms of prices and tau, [C + 1]; the point; how what is short changes by them, [C, C + 1]."""


def softened_path(pieces: Pieces, *, tau: float = 10.0, limit: int = 2000) -> tuple[Point, int, float] | None:
    """Follow the path from *tau* down; return what ``polish`` makes of its end, or None if the way is lost."""
    size = len(pieces.pe_count)
    start = np.append(np.log(pieces.part / pieces.pe_count), np.log(tau))
    solution = _correct(pieces, start, np.append(np.zeros(size), 1.0), _FIRST)
    tangent = np.append(np.zeros(size), -1.0)
    stride, tried = 0.1, 0.0
    for taken in range(1, limit + 1):
        if solution is None:
            return None
        spot, _, jacobian = solution
        way = np.linalg.svd(jacobian)[2][-1]  # along which the market stays cleared
        tangent = way if way @ tangent > 0 else -way
        solution = _correct(pieces, spot + stride * tangent, tangent, _CORRECTIONS)
        while solution is None and stride > _SHORTEST:
            stride /= 2.0
            solution = _correct(pieces, spot + stride * tangent, tangent, _CORRECTIONS)
        if solution is None:
            return None
        stride = min(_LONGEST, 1.5 * stride)
        depth = float(solution[0][-1])
        if depth < min(_TRY_FROM, tried - 1.0) or depth < _LEAST_TAU:
            tried = depth
            end = solution[1].copy()
            more, off = polish(pieces, end, float(np.exp(depth)), shrink=0.3, limit=60)
            if off < _GOOD or depth < _LEAST_TAU:
                return end, taken + more, off
    return None


def _correct(pieces: Pieces, spot: Floats, tangent: Floats, rounds: int) -> _Spot | None:
    """Go back to the path, at right angles to *tangent*; None if that does not work in so many *rounds*."""
    size, money = len(pieces.pe_count), None
    work, matrix, right, doubled = (
        workspace(len(pieces.weight), len(pieces.budgets), size), np.empty((size, size)), np.empty(size),
        np.empty(size),
    )  # fmt: skip
    for _ in range(rounds):
        tau = float(np.exp(spot[-1]))
        at = centred(pieces, np.exp(spot[:-1]), tau, money)
        eliminate(pieces, at, 2.0 * tau, work)
        assembled(pieces, at, 2.0 * tau, work, matrix, doubled)
        eliminate(pieces, at, tau, work)
        assembled(pieces, at, tau, work, matrix, right)
        money = at.tenant[0]
        if not np.isfinite(right).all():
            return None
        by_tau = doubled - right  # linear in tau
        jacobian = np.hstack([matrix * at.prices, -by_tau[:, None]]) / pieces.pe_count[:, None]
        if np.abs(right / pieces.pe_count).max() < _ON_IT:
            return spot, at, jacobian
        try:
            way = np.linalg.solve(np.vstack([jacobian, tangent]), np.append(right / pieces.pe_count, 0.0))
        except np.linalg.LinAlgError:
            return None
        longest = float(np.abs(way).max())
        if rounds == _CORRECTIONS and longest > 2.0:
            return None
        spot = spot + way * min(1.0, 1.0 / longest)
    return None


_MOST_STEPS, _PATIENCE = 120, 60  # steps in all, and without anything getting better
_CLOSE = 1e-13
_SHRINK = 0.1  # of the products, by a good step
_BOUNDARY = 0.98  # part of the way to the boundary that a step may go


def limited_path(pieces: Pieces) -> Point:
    """Return the best point on the path of straight endless *pieces* with limits."""
    path = _Limited(pieces)
    best, best_at, point, step = np.inf, 0, path.point(), 1.0
    for number in range(_MOST_STEPS):
        error = path.look()
        if error < best:
            best, best_at, point = error, number, path.point()
        if best < _CLOSE or number - best_at > _PATIENCE:
            break
        step = path.advance(_SHRINK if step > 0.8 else 0.4)
        if not step > 1e-9:
            break
    return point


class _Limited:
    """A point on the way.

    Of each pair: shares ``x``, and what they lack to be bought ``z``. Of each good: prices ``p`` and what is left
    ``s``. Of each limit: prices ``q`` and room ``v``.
    """

    def __init__(self, pieces: Pieces) -> None:
        weights, supplies, limits = pieces.budgets, pieces.pe_count, pieces.limits
        self.w, self.m, self.limits = weights, supplies, limits
        self.i, self.k, self.r = pieces.tenant, pieces.cluster, pieces.shape[0]
        self.bound: Ints = np.flatnonzero(np.isfinite(limits))
        self.l = limits[self.bound]
        place = np.full(len(weights), -1)
        place[self.bound] = np.arange(len(self.bound))
        self.pair_limit = place[self.i]  # of each pair its row among the limits, -1 for none
        self.limited = np.flatnonzero(self.pair_limit >= 0)
        x = 0.5 * supplies[self.k] * weights[self.i] / self._by_good(weights[self.i])[self.k]
        with np.errstate(divide="ignore"):
            self.x = x * np.minimum(1.0, 0.5 * limits / self._by_tenant(x))[self.i]
        gains = weights[self.i] * self.r / self._by_tenant(self.r * self.x)[self.i]
        self.p = np.zeros(len(supplies))
        np.maximum.at(self.p, self.k, 1.5 * gains)
        self.q = weights[self.bound] / self.l
        self.z = self._paid() - gains
        self.s = supplies - self._by_good(self.x)
        self.v = self.l - self._by_tenant(self.x)[self.bound]

    def _by_good(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.k, values, minlength=len(self.m)), dtype=float)

    def _by_tenant(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.i, values, minlength=len(self.w)), dtype=float)

    def _paid(self) -> Floats:
        """Price of the good and of the limit together, of each pair."""
        return self.p[self.k] + np.append(self.q, 0.0)[self.pair_limit]

    def point(self) -> Point:
        """Return where it is, as ``_newton`` does."""
        money, fee, gap = self._by_tenant(self.r * self.x) / self.w, np.zeros(len(self.w)), np.ones(len(self.w))
        fee[self.bound], gap[self.bound] = self.q, self.v
        ones = np.ones_like(self.x)
        y = np.stack([self.x, ones, self.z * money[self.i], 0.0 * ones])
        return Point(self.p.copy(), self.s.copy(), np.stack([money, 0.0 * money, fee, gap]), y)

    def look(self) -> float:
        """Measure the point: products in units of their places on the path, residuals; return the largest."""
        self.gains = self.w[self.i] * self.r / self._by_tenant(self.r * self.x)[self.i]
        left = self.m - self._by_good(self.x) - self.s
        room = self.l - self._by_tenant(self.x)[self.bound] - self.v
        self.products = (
            self.x * self.z / self.w[self.i], len(self.m) * self.p * self.s, self.q * self.v / self.w[self.bound],
        )  # fmt: skip
        self.off = (self._paid() - self.z - self.gains) / self.gains, left / self.m, room / self.l
        return max(float(np.abs(part).max(initial=0.0)) for part in (*self.products, *self.off))

    def advance(self, shrink: float) -> float:
        """Go towards *shrink* times the mean product; return the part of Newton's step taken."""
        target = shrink * float(np.concatenate(self.products).mean())
        drop = [target / products - 1.0 for products in self.products]
        matrix = self._matrix()
        sides = np.concatenate([
            self.z * drop[0] / self.gains - self.off[0],
            self.off[1] - self.s * drop[1] / self.m,
            self.off[2] - self.v * drop[2] / self.l,
        ])  # fmt: skip
        try:
            direction = np.linalg.solve(matrix, sides)
        except np.linalg.LinAlgError:
            direction = np.linalg.lstsq(matrix, sides, rcond=1e-15)[0]
        if not np.isfinite(direction).all():
            return 0.0
        dx, dp, dq = np.split(direction, [len(self.x), len(self.x) + len(self.p)])
        by = [dx, dp, dq, drop[0] - dx, drop[1] - dp, drop[2] - dq]
        steepest = max(-float(change.min(initial=0.0)) for change in by)
        step = min(1.0, _BOUNDARY / steepest) if steepest > 0 else 1.0
        self.x, self.p, self.q, self.z, self.s, self.v = (
            at * (1.0 + step * change)
            for at, change in zip((self.x, self.p, self.q, self.z, self.s, self.v), by, strict=True)
        )
        return step

    def _matrix(self) -> Floats:
        """Derivatives of the residuals by relative changes of shares, prices and prices of limits."""
        pairs, goods, limits = len(self.x), len(self.p), len(self.q)
        rows, limited, own, gains = np.arange(pairs), self.limited, self.pair_limit[self.limited], self.gains
        matrix = np.zeros((pairs + goods + limits,) * 2)
        utility = self._by_tenant(self.r * self.x)[self.i]
        same = self.i[:, None] == self.i[None, :]
        matrix[:pairs, :pairs] = np.where(same, (self.r * self.x)[None, :] / utility[:, None], 0.0)
        matrix[rows, rows] += self.z / gains
        matrix[rows, pairs + self.k] = self.p[self.k] / gains
        matrix[limited, pairs + goods + own] = self.q[own] / gains[limited]
        matrix[pairs + self.k, rows] = self.x / self.m[self.k]
        matrix[pairs + goods + own, limited] = self.x[limited] / self.l[own]
        last = np.arange(pairs, pairs + goods + limits)
        matrix[last, last] = -np.concatenate([self.s / self.m, self.v / self.l])
        return matrix
