"""The market on one layout, and what its prices say of every other."""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Ints
from commonwatt.partitioning.linear_market import Equilibrium, solve
from commonwatt.partitioning.mig_problem import MigProblem

__all__ = ["constant", "on_layout"]


def on_layout(problem: MigProblem, totals: Ints) -> Equilibrium:
    """Return the market on one layout, with prices for the classes it has none of too: what the first unit is worth."""
    here = totals > 0
    found = solve(problem.weights, problem.rates[:, here], totals[here].astype(float), problem.limits)
    shares = np.zeros_like(problem.rates)
    shares[:, here] = found.shares
    worth = problem.weights[:, None] * problem.rates / found.utilities[:, None] - found.limit_prices[:, None]
    prices = np.maximum(worth.max(axis=0), 0.0)
    prices[here] = found.prices
    return Equilibrium(
        prices, found.limit_prices, shares, found.utilities, found.residual, found.log_welfare, found.bound
    )


def constant(problem: MigProblem, market: Equilibrium) -> float:
    """Return a, where ``a + prices @ totals`` is at least the Nash welfare of the market on every layout."""
    with np.errstate(divide="ignore", invalid="ignore"):
        cheap = problem.rates / (market.prices + market.limit_prices[:, None])
    best = np.where(problem.rates > 0, cheap, 0.0).max(axis=1)
    at_limit = np.where(np.isfinite(problem.limits), problem.limits, 0.0) @ market.limit_prices
    return float(at_limit + problem.weights @ np.log(problem.weights * best) - 1.0)
