"""Fairness and efficiency of shares: each function returns the size of a violation, 0 if there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning._market import Market

__all__ = ["best_weighted", "envy", "pareto_violation", "sharing_incentive_violation"]


def sharing_incentive_violation(market: Market, shares: Floats) -> float:
    """Return the largest relative loss of a tenant against its entitlement (sharing incentive, Theorem 3.4.4)."""
    return max(0.0, float((1.0 - market.total(shares) / market.total(market.entitlement())).max()))


def envy(market: Market, shares: Floats) -> float:
    """Return the largest relative gain of a tenant from another's shares, scaled by the ratio of their weights.

    It is 0 in an equilibrium, where the scaled shares cost exactly the tenant's budget.
    """
    own = market.total(shares)
    worst = 0.0
    for i, had in enumerate(own):
        others = shares * (market.budgets[i] / market.budgets)[:, None]
        would = _by(market, i).total(others).max()
        worst = max(worst, float(would / had - 1.0) if had > 0 else np.inf)
    return worst


def _by(market: Market, i: int) -> Market:
    """Return the market in which every tenant has the speedups of tenant *i*."""
    rows = np.full(len(market.budgets), i)
    return replace(market, rate=market.rate[rows], curves=market.curves.rows(rows))


def pareto_violation(market: Market, shares: Floats, rounds: int = 200) -> float:
    """Return an upper bound on the t for which other shares raise every utility by the factor 1 + t.

    The maximum of any weighted sum of relative utilities bounds 1 + t. The weights move towards the tenants with the
    smallest gain over *rounds* rounds, and the smallest bound is returned. 0, up to rounding, proves Pareto efficiency.
    """
    had = market.total(shares)
    if not (had > 0).all():
        return np.inf
    steep = (market.rate > 0) * market.curves.marginal(shares * (1.0 - 1e-9)) * shares
    worth = steep.sum(axis=1) / market.budgets
    factors = had / worth  # an equilibrium's own: 1 / lambda, times utility
    least = np.inf
    for number in range(rounds):
        factors /= factors.sum()
        ratio = market.total(best_weighted(market, factors / had)) / had
        least = min(least, float(factors @ ratio) - 1.0)
        if least < 1e-12:
            break
        factors *= np.exp(-np.clip(ratio - ratio.mean(), -20.0, 20.0) / (1.0 + number) ** 0.5)
    return max(0.0, least)


def best_weighted(market: Market, factors: Floats) -> Floats:
    """Return the shares that maximise the sum of utilities times *factors* ([N]). Shape [N, C].

    On each core cluster all holders have the same marginal value, found by bisection; tenants with equal marginal
    values divide what is left in proportion.
    """
    curves = market.curves
    scale = factors[:, None]
    high = np.where(market.usable, (scale * curves.marginal(np.zeros_like(market.rate))).max(axis=0), 1.0)
    low = high * 1e-14
    for _ in range(120):
        middle = np.sqrt(low * high)
        over = curves.held(middle / scale).sum(axis=0) > market.pe_count
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    least, most = curves.held(high / scale), np.minimum(curves.held(low / scale), market.pe_count)
    room, left = (most - least).sum(axis=0), market.pe_count - least.sum(axis=0)
    part = np.divide(left, room, out=np.zeros_like(left), where=room > 0)
    return np.asarray(least + (most - least) * np.clip(part, 0.0, 1.0))
