"""Proportional response: prices from bids, bids from prices, over and over (eq. 3.4 and Definition 3.4.1).

A bid changes in proportion to the bid factor ``U = sqrt(F k p) x / (x (1 - F) + F)``, for tenants who all follow
Amdahl's law. (The thesis prints ``F / f`` for
``F k`` and, in the definition, puts s under the root, which has other fixed points.) Since ``U^2`` is the bid times
``x s'(x)``, a fixed point has the same marginal utility of money wherever a tenant bids: that is its best response.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning._market import Market

__all__ = ["Bidding", "bid", "equal_bids", "respond"]

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


def bid(
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
