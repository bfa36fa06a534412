"""The market on one set of instances, all sets the GPUs can be divided into, and bounds on the market of each set.

Utilities in the market on a set are bounded without solving it. From below: without limits no tenant does worse than
with its part of every instance (its budget buys that). With limits, prices p and fees q of the limits l satisfy
``p @ m <= 1 - q_i l_i``; so the bundle of a tenant's part of every instance, cut down to the limit (a part t of it),
costs at most ``w_i (1 + max(0, t - w_i))``, and the tenant does no worse than with this bundle divided by as much.
From above: at the prices of any other layout nobody gets a unit of utility for less than its best instance asks, and
all tenants together can spend no more than everything costs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._solve import Equilibrium, solve
from commonwatt.partitioning.mig._problem import MigProblem

__all__ = ["MOST_COUNTS", "all_counts", "constant", "highest", "least_utilities", "on_layout"]

MOST_COUNTS = 600_000
RESIDUAL = 1e-9
"""Largest residual of a market."""


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


def least_utilities(problem: MigProblem, totals: Ints) -> Floats:
    """Return what utilities in the market on layouts with *totals* ([T, K]) are at least. Shape [T, N]."""
    least = np.zeros((len(totals), len(problem.weights)))
    for i, (weight, rates, limit) in enumerate(zip(problem.weights, problem.rates, problem.limits, strict=True)):
        order = np.argsort(-rates, kind="stable")
        order = order[rates[order] > 0]
        held = np.diff(np.minimum(np.cumsum(weight * totals[:, order], axis=1), limit), axis=1, prepend=0.0)
        least[:, i] = held @ rates[order] / (1.0 + np.maximum(0.0, held.sum(axis=1) / limit - weight))
    return least


def highest(kind: str, problem: MigProblem, market: Equilibrium, totals: Ints, least: Floats) -> Floats:
    """Return what the utilitarian or egalitarian welfare of markets with *totals* is at most, by a market's prices.

    *least* is what utilities are at least there ([T, N]). Shape [T].
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        cheap = problem.rates / (market.prices + market.limit_prices[:, None])
    unit = 1.0 / np.where(problem.rates > 0, cheap, 0.0).max(axis=1)  # money a unit of utility costs at least
    at_limit = np.where(np.isfinite(problem.limits), problem.limits, 0.0) @ market.limit_prices
    money = totals @ market.prices + at_limit
    if kind == "utilitarian":
        rest = np.maximum(money - least @ unit, 0.0)
        return np.asarray(least @ problem.weights + rest * (problem.weights / unit).max())
    level = problem.weights * len(problem.weights)
    order = np.argsort(least / level, axis=1, kind="stable")  # who is worst off is raised first
    spent = np.take_along_axis(least * unit, order, axis=1)
    raised = money[:, None] - spent.sum(axis=1, keepdims=True) + np.cumsum(spent, axis=1)
    return np.asarray((raised / np.cumsum((level * unit)[order], axis=1)).min(axis=1))


def on_layout(problem: MigProblem, totals: Ints) -> Equilibrium:
    """Return the market on one layout, with prices for the classes it has none of too: what the first unit is worth."""
    here = totals > 0
    rates = problem.rates[:, here]
    market = Market.make(totals[here].astype(float), problem.weights, rates, np.ones_like(rates), problem.limits)
    found = solve(market, tolerance=RESIDUAL)
    shares = np.zeros_like(problem.rates)
    shares[:, here] = found.shares
    worth = problem.weights[:, None] * problem.rates / found.utilities[:, None] - found.limit_prices[:, None]
    prices = np.maximum(worth.max(axis=0), 0.0)
    prices[here] = found.prices
    return replace(found, prices=prices, shares=shares)


def constant(
    weights: Floats, rates: Floats, limits: Floats, prices: Floats, limit_prices: Floats
) -> float:  # fmt: skip
    """Return a: the Nash welfare of the market on every set is at most ``a + prices @ totals`` (weak duality)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        cheap = rates / (prices + limit_prices[:, None])
    best = np.where(rates > 0, cheap, 0.0).max(axis=1)
    at_limit = np.where(np.isfinite(limits), limits, 0.0) @ limit_prices
    return float(at_limit + weights @ np.log(weights * best) - 1.0)
