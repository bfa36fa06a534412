"""The equilibrium to full precision: Newton's method on all of its conditions at once, from inside.

With ``m_i = 1 / sqrt(lambda_i)`` (lambda: what money is worth to tenant i) and a slack ``s_ic`` that says by how much a
core cluster is too dear for a tenant, an equilibrium is::

    x (1 - F) + F = m sqrt(k F / (p - s))      the marginal utility of a share is lambda (p - s)
    x s = 0,  x >= 0,  s >= 0                  nothing is bought that is too dear
    sum_c p_c x_ic = b_i                       budgets are spent
    sum_i x_ic = P_c                           core clusters are sold

The product ``x s = 0`` is softened to ``x s = tau b_i B_c`` (B_c: the part of all money that core cluster c took so
far), and tau goes to 0 as Newton steps succeed, shares and slacks kept positive: an interior-point method. By concavity
a solution at tau is within about tau of each tenant's best utility, relative to it. Shares and
slacks are eliminated pair by pair and m tenant by tenant, which leaves one system in the C prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning.best_response import blocks
from commonwatt.partitioning.problem import Market
from commonwatt.partitioning.utility import marginal

__all__ = ["Polished", "polish"]

_BOUNDARY = 0.995  # part of the way to a bound that a step may go
_FINEST = 1e-13
_LEAST_PART = 1e-9
_PATIENCE = 25
_EXACT, _NEAR = 1e-13, 1e-7  # errors: of one of them is nothing left; below the other Newton's steps converge


@dataclass
class _Point:
    """An inner point: prices [C], m [N], shares and slacks [N, C], all positive, and slacks below prices."""

    prices: Floats
    m: Floats
    shares: Floats
    slacks: Floats


@dataclass(frozen=True)
class Polished:
    """What Newton's method came to."""

    prices: Floats  # [C]
    shares: Floats  # [N, C], summing to the PEs of each core cluster
    steps: int
    error: float  # largest relative error of a budget, a market or a marginal utility before the last step
    tau: float
    history: list[Floats]  # prices after each step


def polish(
    market: Market, bids: Floats, *, steps: int = 100, start: float = 1e-3, shrink: float = 0.03, keep: int = 1000
) -> Polished:  # fmt: skip
    """Go from *bids* to the equilibrium near them. Every core cluster must be of use to somebody.

    tau begins at *start* and becomes *shrink* times smaller with a step that goes all the way.

    Stops after so many *steps* at the latest: ``error`` and ``tau`` tell how far it got.
    """
    part = np.maximum(bids.sum(axis=0), _LEAST_PART)
    point = _inside(market, bids, start * part)
    ways = np.empty_like(bids), np.empty_like(bids)
    tau, error, last, taken = start, np.inf, np.inf, 0
    history: list[Floats] = []
    while taken < steps and not (tau <= _FINEST and _settled(error, last)):
        if taken == _PATIENCE and tau >= start:
            break  # bids are too far from any equilibrium
        last = error
        error, to_prices, to_m = _direction(market, point, tau * part, ways)
        length = _length(market, point, to_prices, to_m, ways)
        point.prices = point.prices + length * to_prices
        point.m = point.m + length * to_m
        for array, way in zip((point.shares, point.slacks), ways, strict=True):
            way *= length
            array += way
        taken += 1
        if len(history) < keep:
            history.append(point.prices)
        if error < 1.0:
            tau = max(_FINEST, tau * (shrink if length > 0.9 else max(shrink, 0.3) if length > 0.5 else 1.0))
    return Polished(*_bare(market, point), taken, error, tau, history)


def _bare(market: Market, at: _Point) -> tuple[Floats, Floats]:
    """Return prices and shares without what tau has put in: prices that suit who buys, and nothing for the others."""
    held = market.rate > 0
    least = np.where(held, at.slacks, np.inf).min(axis=0)
    prices = at.prices - least
    spent = at.shares * prices / market.budgets[:, None]
    held &= spent > 1e-3 * (at.slacks - least) / prices
    shares = np.where(held, at.shares, 0.0)
    return prices, shares * (market.pe_count / shares.sum(axis=0))


def _settled(error: float, last: float) -> bool:
    """Tell whether steps have become as small as rounding lets them."""
    return error < _EXACT or (error < _NEAR and error > 0.3 * last)


def _inside(market: Market, bids: Floats, tau: Floats) -> _Point:
    """Make *bids* an inner point with all products of share and slack at tau times the budget."""
    prices = bids.sum(axis=0) / market.pe_count
    soft = market.budgets[:, None] * tau
    of_use = market.rate > 0
    shares = np.where(of_use, np.maximum(bids, 2.0 * soft) / prices, 0.0)
    slacks = np.divide(soft, shares, out=np.zeros_like(shares), where=of_use)
    k, f = market.rate, market.parallel_fraction
    worth = (bids / prices * marginal(k, f, bids / prices)).sum(axis=1)
    return _Point(prices, np.sqrt(market.budgets / worth), shares, slacks)


def _direction(
    market: Market, at: _Point, tau: Floats, ways: tuple[Floats, Floats]
) -> tuple[float, Floats, Floats]:  # fmt: skip
    """Return the error of a point, and Newton's direction for prices and m; those of shares and slacks go to *ways*."""
    n, c = at.shares.shape
    p = at.prices
    matrix, right, error = np.zeros((c, c)), market.pe_count.copy(), 0.0
    fixed, over, gift = np.empty(n), np.empty(n), np.zeros(c)
    for rows in blocks(market):
        v, r, g, off = _pairs(market, at, rows, tau)
        x, b = at.shares[rows], market.budgets[rows]
        ways[0][rows], ways[1][rows] = v, r
        short = b - x @ p
        whole = (v * g) @ p
        fixed[rows], over[rows] = (short - (v * r) @ p) / whole, 1.0 / whole
        vg = v * g
        matrix += (vg * over[rows][:, None]).T @ (p * v - x)
        gift += vg.T @ fixed[rows] + (v * r).sum(axis=0)
        matrix[np.arange(c), np.arange(c)] -= v.sum(axis=0)
        right -= x.sum(axis=0)
        error = max(error, off, float(np.abs(short / b).max()))
    error = max(error, float(np.abs(right / market.pe_count).max()))
    to_prices = p * np.linalg.solve(matrix * p * p[:, None], p * (right - gift))
    to_m = np.empty(n)
    for rows in blocks(market):
        x, s = at.shares[rows], at.slacks[rows]
        v, r = ways[0][rows].copy(), ways[1][rows].copy()
        to_m[rows] = fixed[rows] + over[rows] * ((p * v - x) @ to_prices)
        g = 2.0 * (p - s) / at.m[rows][:, None]
        way = v * (r + g * to_m[rows][:, None] - to_prices)
        ways[0][rows] = way
        soft = market.budgets[rows][:, None] * tau - s * way
        ways[1][rows] = np.divide(soft, x, out=np.zeros_like(x), where=x > 0) - s
    return error, to_prices, to_m


def _pairs(market: Market, at: _Point, rows: slice, tau: Floats) -> tuple[Floats, Floats, Floats, float]:
    """Return v, r and g of ``dx = v (r + g dm - dp)`` for each pair, and the largest error of a marginal utility."""
    s, m = at.slacks[rows], at.m[rows][:, None]
    k, f = market.rate[rows], market.parallel_fraction[rows]
    of_use = k > 0
    x = np.where(of_use, at.shares[rows], 1.0)
    own = at.prices - s  # the price at which a tenant would hold just this share
    below = x * (1.0 - f) + f
    wanted = np.where(of_use, m * np.sqrt(k * f / own), below)
    wide = 2.0 * own / wanted
    miss = below - wanted
    v = of_use / (wide * (1.0 - f) + s / x + ~of_use)
    r = market.budgets[rows][:, None] * tau / x - s - miss * wide
    return v, r, 2.0 * own / m, float(np.abs(miss / below).max())


def _length(market: Market, at: _Point, to_prices: Floats, to_m: Floats, ways: tuple[Floats, Floats]) -> float:
    """Return how far to go: all the way, or nearly to where something would no longer be positive."""
    fastest = max(float((-to_prices / at.prices).max()), float((-to_m / at.m).max()))
    for rows in blocks(market):
        of_use = market.rate[rows] > 0
        x, s = np.where(of_use, at.shares[rows], 1.0), np.where(of_use, at.slacks[rows], 1.0)
        to_x, to_s = ways[0][rows], ways[1][rows]
        for speed in (-to_x / x, -to_s / s, (to_s - to_prices) / np.where(of_use, at.prices - s, 1.0)):
            fastest = max(fastest, float(np.max(speed, where=of_use, initial=0.0)))
    return min(1.0, _BOUNDARY / fastest) if fastest > 0 else 1.0
