"""The market of linear utilities (Eisenberg and Gale), to machine precision, with limits on what a tenant can hold.

Tenants take turns on goods, so what a good is worth to a tenant is linear in its share of it. With budgets w, rates
r and supplies m, the equilibrium maximises ``sum_i w_i log(sum_k r_ik x_ik)`` over shares with ``sum_i x_ik <= m_k``;
the multipliers of the supplies are the prices.

A tenant may also be limited to ``limit_i`` units of all goods together (somebody with one program to run cannot be in
two places at a time). The program then has a multiplier ``q_i`` for each limit, and its optimum is a market of this
kind: tenant i pays ``p_k + q_i`` for a unit of good k, of which ``p_k`` goes to whoever sells it and ``q_i`` to nobody;
at these prices it spends its whole budget, and no other bundle is worth as much to it for the same money. ``q_i`` is 0
unless the tenant is at its limit. So what it does not spend on goods is ``q_i limit_i``, the part of its budget that
has become useless to it, and for what it does spend (``w_i - q_i limit_i``) its bundle is the best within its limit at
the prices p alone. A good that is left over has price 0. It is *not* the market in which whoever has money left
outbids others for the fastest goods until budgets are used up: that one need not maximise any welfare. Utilities are
unique; prices of goods and limits need not be (where everybody is at its limit and all is sold, a constant can go from
one to the other).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.errors import InputError, SolverError
from commonwatt.partitioning.limited_exact import exact, without_crumbs
from commonwatt.partitioning.limited_interior import follow_path
from commonwatt.partitioning.linear_interior import Interior

__all__ = ["Equilibrium", "residual", "solve"]

TOLERANCE = 1e-9
ENOUGH = 1e-11
"""At this residual no other way to solve a market with limits is tried."""
LEANS = (1.0, 1e-4, 1e4)
"""Ways to decide what is bought where that is in doubt."""


@dataclass(frozen=True)
class Equilibrium:
    """Prices and shares of a linear market; budgets are scaled to sum to 1.

    Attributes
    ----------
    prices
        Of one unit of each good; 0 where nobody can use it. Shape [K].
    limit_prices
        What a tenant at its limit pays for each unit beside the price of the good, and would pay for one more unit of
        room; 0 elsewhere. Shape [N].
    shares
        Units of each good each tenant holds. Shape [N, K].
    utilities
        Rate each tenant reaches. Shape [N].
    residual
        Largest relative gain a tenant still has at the prices with its budget, and largest clearing or budget error.
    log_welfare
        ``sum_i w_i log(u_i)``, weights scaled to sum to 1.
    bound
        No shares reach a larger log welfare (weak duality).
    """

    prices: Floats  # [K]
    limit_prices: Floats  # [N]
    shares: Floats  # [N, K]
    utilities: Floats  # [N]
    residual: float
    log_welfare: float
    bound: float


def solve(weights: Floats, rates: Floats, supplies: Floats, limits: Floats | None = None) -> Equilibrium:
    """Return the equilibrium of a market.

    Parameters
    ----------
    weights
        Budgets, positive. Shape [N].
    rates
        What one unit of each good is worth to each tenant, 0 or more, not all 0. Shape [N, K].
    supplies
        Units of each good, positive. Shape [K].
    limits
        Most units of all goods together that each tenant can hold; infinity for none. Shape [N].

    Raises
    ------
    InputError
        No tenants or goods, a weight, rate, supply or limit out of range, a tenant to whom nothing is worth anything.
    SolverError
        No equilibrium within ``TOLERANCE`` was found; the message has the residual.
    """
    weights, rates, supplies = (np.asarray(a, dtype=float) for a in (weights, rates, supplies))
    limits = np.full(len(weights), np.inf) if limits is None else np.asarray(limits, dtype=float)
    _check(weights, rates, supplies, limits)
    scaled = weights / weights.sum()
    useful: Bools = np.asarray((rates > 0).any(axis=0))
    limits = np.where(limits < np.where(rates > 0, supplies, 0.0).sum(axis=1), limits, np.inf)
    market = scaled, rates[:, useful], supplies[useful], limits
    found = _limited(*market) if np.isfinite(limits).any() else _unlimited(*market)
    if not found[0] < TOLERANCE:
        msg = f"the market did not settle: residual {found[0]:.3g}"
        raise SolverError(msg)
    return _answer(scaled, rates, supplies, limits, useful, *found)


_Found = tuple[float, Floats, Floats, Floats]
"""Residual, shares, prices, prices of limits."""


def _unlimited(weights: Floats, rates: Floats, supplies: Floats, limits: Floats) -> _Found:
    gained = rates * supplies
    tried = []
    for boldness in (0.05, 0.2, 0.5):  # where rounding errors end the path early, take it more slowly
        inner = Interior(weights, (gained / gained.max(axis=1)[:, None])[None], boldness)
        inner.run()
        shares, prices, none = inner.x[0] * supplies, inner.p[0] / supplies, np.zeros(len(weights))
        error = residual(weights, rates, supplies, shares, prices, none, limits)
        tried.append((error, shares, prices, none))
        if error < TOLERANCE:
            break
    return min(tried, key=lambda one: one[0])


def _limited(weights: Floats, rates: Floats, supplies: Floats, limits: Floats) -> _Found:
    market = weights, rates, supplies, limits
    best: _Found | None = None
    for shares, p, q in _candidates(*market):
        prices, limit_prices = without_crumbs(rates, p, q)
        error = residual(weights, rates, supplies, shares, prices, limit_prices, limits)
        if best is None or error < best[0] or np.isnan(best[0]):
            best = error, shares, prices, limit_prices
        if best[0] < ENOUGH:
            break
    assert best is not None
    return best


def _candidates(
    weights: Floats, rates: Floats, supplies: Floats, limits: Floats
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Yield shares, prices and prices of limits that may be the equilibrium, the likeliest first."""
    market = weights, rates, supplies, limits
    for kind, boldness in (("even", 0.1), ("money", 0.1), ("even", 0.5), ("money", 0.5)):
        near = follow_path(*market, boldness, kind)
        for lean in LEANS:
            yield exact(*market, near, lean)
        yield near.shares, near.prices, near.limit_prices


def _answer(
    weights: Floats,
    rates: Floats,
    supplies: Floats,
    limits: Floats,
    useful: Bools,
    error: float,
    bought: Floats,
    priced: Floats,
    limit_prices: Floats,
) -> Equilibrium:
    shares, prices = np.zeros_like(rates), np.zeros(len(supplies))
    shares[:, useful], prices[useful] = bought, priced
    utilities = (rates * shares).sum(axis=1)
    best = _worth(rates, prices, limit_prices)
    bound = float(prices @ supplies + _at_limit(limits, limit_prices).sum() + weights @ np.log(weights * best) - 1.0)
    return Equilibrium(prices, limit_prices, shares, utilities, error, float(weights @ np.log(utilities)), bound)


def _worth(rates: Floats, prices: Floats, limit_prices: Floats) -> Floats:
    """Return what a tenant's best good gives for a unit of money. Shape [N]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(rates > 0, rates / (prices + limit_prices[:, None]), 0.0).max(axis=1))


def _at_limit(limits: Floats, limit_prices: Floats) -> Floats:
    """Return what each tenant does not spend on goods. Shape [N]."""
    return np.where(np.isfinite(limits), limits, 0.0) * limit_prices


def residual(
    weights: Floats,
    rates: Floats,
    supplies: Floats,
    shares: Floats,
    prices: Floats,
    limit_prices: Floats | None = None,
    limits: Floats | None = None,
) -> float:
    """Return how far shares and prices are from an equilibrium; 0 is perfect. Weights must sum to 1.

    The largest of these, all relative: gain in utility that a tenant's best bundle for its money would bring, supply of
    a good not sold (unless its price is 0) or sold twice, a limit exceeded or (unless its price is 0) not reached, and
    money not spent or not had.
    """
    q = np.zeros(len(weights)) if limit_prices is None else limit_prices
    bounds = np.full(len(weights), np.inf) if limits is None else limits
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = _worth(rates, prices, q) * weights / (rates * shares).sum(axis=1) - 1.0
    sold, held = shares.sum(axis=0) / supplies - 1.0, shares.sum(axis=1) / bounds - 1.0
    clearing = np.where(prices > 0, np.abs(sold), sold)
    limiting = np.where(q > 0, np.abs(held), held)
    budgets = np.abs((shares @ prices + _at_limit(bounds, q)) / weights - 1.0)
    negative = -min(float(shares.min()), float(prices.min()), float(q.min()))
    return float(max(gains.max(), clearing.max(), limiting.max(), budgets.max(), negative, 0.0))


def _check(weights: Floats, rates: Floats, supplies: Floats, limits: Floats) -> None:
    n, k = len(weights), len(supplies)
    if n == 0 or k == 0 or rates.shape != (n, k) or limits.shape != (n,):
        raise InputError("one row of rates for each tenant and one column for each good", value=rates.shape)
    for name, values, lowest in (("weights", weights, 0.0), ("supplies", supplies, 0.0), ("limits", limits, 0.0)):
        if not (values > lowest).all() or (name != "limits" and not np.isfinite(values).all()):
            raise InputError("positive numbers", field=name, value=values.tolist())
    if not (rates >= 0).all() or not np.isfinite(rates).all():
        raise InputError("numbers, 0 or more", field="rates", value=float(rates.min()))
    nothing = np.flatnonzero(~(rates > 0).any(axis=1))
    if len(nothing):
        raise InputError("at least one good that is worth something", field=f"tenants.{nothing[0]}", value="none")
