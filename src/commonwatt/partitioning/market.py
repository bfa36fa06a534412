"""The Fisher market solved: prices at which what everybody wants most is just what there is.

Proportional response comes near the equilibrium in some dozens of rounds, but can crawl for thousands: where a tenant
is nearly indifferent, and always towards a share of nothing. So after a few rounds Newton's method takes over from
where bidding is. (For other laws than Amdahl's there is no bidding: see ``concave_market``.) Whatever found them,
prices and shares are judged alike, by the ``residual``: the largest of

- the relative gain any tenant would have from its best response at the prices,
- the relative error of what is sold of any core cluster,
- the relative error of what any tenant spends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError, SolverError
from commonwatt.partitioning import concave_market
from commonwatt.partitioning.best_response import gains
from commonwatt.partitioning.concave_response import residual as concave_residual
from commonwatt.partitioning.curves import Curves
from commonwatt.partitioning.newton import polish
from commonwatt.partitioning.problem import Market
from commonwatt.partitioning.proportional import Bidding, run

__all__ = ["Equilibrium", "Method", "residual", "solve"]

Method = Literal["auto", "proportional-response"]

# Rounds of bidding, and where and how fast Newton's method goes from there, until one works.
_TRIES = ((30, 1e-3, 0.03), (200, 1e-1, 0.3), (1000, 1e-3, 0.1), (1000, 1.0, 0.5), (3000, 1e-6, 0.1))
_MANY = 10_000  # bids


@dataclass(frozen=True)
class Equilibrium:
    """A market equilibrium; budgets sum to 1."""

    prices: Floats  # per PE, [C]; 0 where nobody can use a core cluster
    shares: Floats = field(repr=False)  # in PEs, [N, C]
    utilities: Floats = field(repr=False)  # [N]
    money_values: Floats = field(repr=False)  # lambda, [N]: speedup a tenant would gain for a little more money
    residual: float
    price_change: float  # largest absolute change of a price in the last round of bidding
    rounds: int  # of bidding
    steps: int  # of Newton's method
    history: tuple[Floats, ...] = field(repr=False)  # prices from the start, those of Newton's steps last

    @property
    def iterations(self) -> int:
        """Rounds of bidding and steps of Newton's method."""
        return self.rounds + self.steps


def residual(market: Market, prices: Floats, shares: Floats) -> tuple[float, Floats]:
    """Return how far *prices* and *shares* are from an equilibrium, relative, and what money is worth to each tenant.

    Both are of use for prices and shares from anywhere. Shape of the second: [N].
    """
    if market.curves is not None:
        return concave_residual(market, market.curves, prices, shares)
    on = market.usable
    gain, money = gains(market, prices, shares)
    cleared = np.abs(shares.sum(axis=0)[on] / market.pe_count[on] - 1.0)
    spent = np.abs(shares @ prices / market.budgets - 1.0)
    return float(max(gain.max(), cleared.max(), spent.max())), money


def solve(
    market: Market, *, method: Method = "auto", tolerance: float = 1e-7, change: float | None = None,
    limit: int | None = None, rounds: int | None = None,
) -> Equilibrium:  # fmt: skip
    """Return the equilibrium of *market*; with ``curves`` by Newton's method alone, see ``concave_market``.

    Parameters
    ----------
    method
        ``auto``: bidding, then Newton's method. ``proportional-response``: bidding alone.
    tolerance
        The largest residual allowed.
    change
        With bidding alone, also the largest change of a price; 1e-9 if not given.
    limit
        Rounds of bidding at most; 30,000, or 100,000 with bidding alone.
    rounds
        How many rounds to bid before Newton's method; if not given 30, or 300 with more than 10,000 bids.

    Raises
    ------
    SolverError
        If the residual is not within the tolerance by then; the message says what it is.
    """
    if not tolerance > 0:
        raise InputError("a number above 0", field="tolerance", value=tolerance)
    small = _usable(market)
    if small.curves is not None:
        if method != "auto":
            raise InputError("auto, where not all tenants follow Amdahl's law", field="method", value=method)
        found = _concave(small, small.curves, tolerance, limit or 30_000)
    elif method == "proportional-response":
        found = _bid(small, tolerance, 1e-9 if change is None else change, limit or 100_000)
    else:
        first = rounds or (_TRIES[0][0] if small.rate.size <= _MANY else 10 * _TRIES[0][0])
        found = _bid_then_polish(small, tolerance, limit or 30_000, first)
    if not found.residual <= tolerance:
        raise SolverError(
            f"the market has not converged after {found.iterations} iterations: residual {found.residual:.2g}, "
            f"expected at most {tolerance:.2g}; allow more iterations or a larger tolerance"
        )
    return _whole(market, found)


def _bid(market: Market, tolerance: float, change: float, limit: int, state: Bidding | None = None) -> Equilibrium:
    """Bid until prices rest and the residual is small, looking at the latter ever more rarely."""
    state = run(market, min(limit, 20), change) if state is None else state
    until = state.iterations
    found = _judged(market, state, state.bids / state.prices)
    while state.iterations < limit and (found.residual > tolerance or state.change > change):
        until = min(limit, until + max(10, until // 5))
        state = _further(market, state, until)
        found = _judged(market, state, state.bids / state.prices)
    return found


def _further(market: Market, state: Bidding, until: int) -> Bidding:
    """Go on bidding up to so many rounds in all."""
    further = run(market, until - state.iterations, bids=state.bids, keep=max(0, 1000 - len(state.history)))
    further.iterations += state.iterations
    further.history = state.history + further.history[1:]
    return further


def _bid_then_polish(market: Market, tolerance: float, limit: int, rounds: int) -> Equilibrium:
    """Bid, then polish; if that fails, bid longer and try again."""
    state = run(market, 0)
    best: Equilibrium | None = None
    for number, (goal, start, shrink) in enumerate(_TRIES):
        goal = min(limit, max(goal, rounds)) if number else min(limit, rounds)
        state = _further(market, state, goal)
        found = _polished(market, state, start, shrink)
        if best is None or found.residual < best.residual:
            best = found
        if best.residual <= tolerance or state.iterations >= limit:
            break
    assert best is not None
    if best.residual > tolerance and state.iterations < limit:
        return _bid(market, tolerance, np.inf, limit, state)
    return best


def _polished(market: Market, state: Bidding, start: float, shrink: float) -> Equilibrium:
    try:
        with np.errstate(all="ignore"):
            done = polish(market, state.bids, start=start, shrink=shrink)
    except np.linalg.LinAlgError:
        return _judged(market, state, state.bids / state.prices)
    if not (np.isfinite(done.prices) & (done.prices > 0)).all():
        return _judged(market, state, state.bids / state.prices)
    return _judged(market, state, done.shares, done.prices, done.steps, done.history)


def _judged(
    market: Market, state: Bidding, shares: Floats, prices: Floats | None = None, steps: int = 0,
    further: list[Floats] | None = None,
) -> Equilibrium:  # fmt: skip
    prices = state.prices if prices is None else prices
    off, money = residual(market, prices, shares)
    utilities = market.total(shares)
    history = (*state.history, *(further or []))
    return Equilibrium(prices, shares, utilities, money, off, state.change, state.iterations, steps, history)


def _concave(market: Market, curves: Curves, tolerance: float, limit: int) -> Equilibrium:
    """Solve a market of other laws; there is no bidding."""
    found = concave_market.find(market, curves, tolerance, limit)
    change = float(np.abs(found.history[-1] - found.history[max(-2, -len(found.history))]).max())
    return Equilibrium(
        found.prices, found.shares, market.total(found.shares), found.money, found.residual, change, 0, found.steps,
        found.history[:1000],
    )  # fmt: skip


def _usable(market: Market) -> Market:
    """Leave out core clusters nobody can use."""
    on = market.usable
    if on.all():
        return market
    curves = None if market.curves is None else market.curves.columns(on)
    return Market(market.pe_count[on], market.budgets, market.rate[:, on], market.parallel_fraction[:, on], curves)


def _whole(market: Market, found: Equilibrium) -> Equilibrium:
    """Put core clusters nobody can use back in, at no price and idle."""
    on = market.usable
    if on.all():
        return found

    def spread(values: Floats) -> Floats:
        wide = np.zeros((*values.shape[:-1], len(on)))
        wide[..., on] = values
        return wide

    return Equilibrium(
        spread(found.prices), spread(found.shares), found.utilities, found.money_values, found.residual,
        found.price_change, found.rounds, found.steps, tuple(spread(prices) for prices in found.history),
    )  # fmt: skip
