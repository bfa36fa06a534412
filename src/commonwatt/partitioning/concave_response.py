"""What a tenant of any concave curve would buy at given prices, and how far from that it is.

The least bundle among the best is meant: who has all that can make it faster keeps the rest of its money. What its
money is worth (lambda) is found by bisection to the last bit: at any more it would spend too little, at any less too
much. Where it is indifferent between straight pieces, the two bundles are mixed so that the budget is just spent.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning.curves import Curves
from commonwatt.partitioning.problem import Market

__all__ = ["best_response", "residual"]

_FREE = 1e-30  # of all money for a PE: as good as nothing
_ROUNDS = 200
_MUCH = 1e6  # times what there is: nobody looks further


def best_response(prices: Floats, market: Market, curves: Curves) -> tuple[Floats, Floats]:
    """Return the best shares at *prices* ([C], 0 or more) for each budget, [N, C], and what money is worth, [N].

    It is 0 to who keeps some.
    """
    p, budgets = np.maximum(prices, _FREE), market.budgets
    first = curves.marginal(np.zeros(market.rate.shape)) / p
    high = 2.0 * first.max(axis=1)
    low = high * 1e-40
    sated = (_held(curves, low[:, None] * p, market) * p).sum(axis=1) <= budgets
    for _ in range(_ROUNDS):
        middle = np.sqrt(low * high)
        if ((middle <= low) | (middle >= high)).all():
            break
        over = (_held(curves, middle[:, None] * p, market) * p).sum(axis=1) > budgets
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    least, most = _held(curves, high[:, None] * p, market), _held(curves, low[:, None] * p, market)
    spent, more = (least * p).sum(axis=1), (most * p).sum(axis=1)
    part = np.divide(budgets - spent, more - spent, out=np.ones_like(spent), where=more > budgets)
    shares = least + np.clip(part, 0.0, 1.0)[:, None] * (most - least)
    return shares, np.where(sated, 0.0, high)


def _held(curves: Curves, value: Floats, market: Market) -> Floats:
    return np.minimum(curves.held(value), _MUCH * market.pe_count)


def residual(market: Market, curves: Curves, prices: Floats, shares: Floats) -> tuple[float, Floats]:
    """Return how far *prices* and *shares* are from an equilibrium, and what money is worth to each tenant, [N].

    The largest of: the relative gain a tenant would have from its best response; by how much it overspends, or spends
    though it has all it can use, relative to its budget; by how much more of a core cluster is held than there is, or
    less though it has a price (as a part of it, or of what those who can use it have: what is less).
    """
    best, money = best_response(prices, market, curves)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = (market.total(best) / market.total(shares) - 1.0).max()
        all_of_it = np.nan_to_num(np.where(curves.of_use, curves.most() * prices, 0.0), nan=0.0, posinf=np.inf)
    needed = np.minimum(market.budgets, all_of_it.sum(axis=1))
    wasted = ((shares @ prices - needed) / market.budgets).max()
    left = 1.0 - shares.sum(axis=0) / market.pe_count
    purse = (curves.of_use * market.budgets[:, None]).sum(axis=0)
    unsold = np.maximum(-left, np.minimum(left, prices * market.pe_count / purse)).max()
    return float(max(gain, wasted, unsold, 0.0)), money
