"""The market of any concave curves: whoever finds the equilibrium, the residual judges it.

Speedups may have a peak, so that a tenant may have all it can use: it then keeps the rest of its money, and core
clusters of which all have enough cost nothing. With prices p of 0 or more an equilibrium means that

- every bundle is the best its tenant can pay, and the least among the best,
- no more is held than there is, and all of what has a price.

There is one for all concave curves: in a box of prices excess demand is upper hemicontinuous, so that some prices
solve its variational inequality, and nobody can pay those at the far sides of the box. Nobody is worse off than with
its entitlement (which it could pay: prices sum to the budgets at most), nobody would rather have another's bundle by
weight, and none can be better off without another's loss, all as in the market of Amdahl's law.

Newton's method (``concave_newton``) finds it from where all tenants answer starting prices; where it fails, the path
of softened markets is followed (``concave_path``). Rounding errors of the shares, which weigh most where budgets differ
by orders, are taken out by a linear program over all shares that are best at the prices (``_settle``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from commonwatt.model.arrays import Floats
from commonwatt.partitioning.concave_newton import Pieces, Point, centred, polish
from commonwatt.partitioning.concave_path import follow
from commonwatt.partitioning.concave_response import residual
from commonwatt.partitioning.curves import Curves, held_by
from commonwatt.partitioning.problem import Market

__all__ = ["Found", "find"]

# Where Newton's method begins (tau), how boldly it goes on (0: along the path) and how unlike pieces are softened,
# until one works.
_TRIES = ((1.0, 0.1, 0.0), (100.0, 0.3, 0.0), (10.0, 0.0, 0.0), (1000.0, 0.0, 0.0), (10.0, 0.0, 1.0), (10.0, 0.0, 2.0))
_NOTHING = 1e-10  # of a budget: spent on a piece by rounding only
_BANDS = (1e-9, 1e-8, 1e-7)  # relative differences of marginal values that count as none
_HOPELESS = 0.1


@dataclass(frozen=True)
class Found:
    """What was found, and how far it is from an equilibrium."""

    prices: Floats
    shares: Floats
    money: Floats
    residual: float
    steps: int
    history: tuple[Floats, ...]


def find(market: Market, curves: Curves, tolerance: float, limit: int) -> Found:
    """Return the best of what Newton's method and the path come to; every core cluster must be of use."""
    best: Found | None = None
    steps = 0
    for tau, shrink, unlike in _TRIES:
        pieces = Pieces.of(curves, market.pe_count, market.budgets, unlike)
        done: tuple[Point | None, int, float]
        history: list[Floats] = [pieces.part / market.pe_count]
        try:
            with np.errstate(all="ignore"):
                if shrink:
                    start = centred(pieces, pieces.part / market.pe_count, tau)
                    done = polish(pieces, start, tau, shrink=shrink, limit=min(limit - steps, 200), history=history)
                else:
                    done = follow(pieces, tau=tau, limit=limit - steps) or (None, 0, np.inf)
        except np.linalg.LinAlgError:
            continue
        steps += done[1]
        if done[0] is not None and np.isfinite(done[0].prices).all():
            found = _judged(market, curves, pieces, done[0], steps, tolerance, (*history, done[0].prices))
            best = found if best is None or found.residual < best.residual else best
        if steps >= limit or (best is not None and best.residual <= tolerance):
            break
    if best is None:
        shares = market.budgets[:, None] * market.pe_count
        prices = np.full(len(market.pe_count), 1.0 / market.pe_count.sum())
        off, money = residual(market, curves, prices, shares)
        return Found(prices, shares, money, off, steps, (prices,))
    return best


def _judged(
    market: Market, curves: Curves, pieces: Pieces, at: Point, steps: int, tolerance: float, history: tuple[Floats, ...]
) -> Found:  # fmt: skip
    pes, width = market.pe_count[pieces.cluster], pieces.shape[1]
    nothing = (at.x * at.prices[pieces.cluster] < _NOTHING * market.budgets[pieces.tenant]) & (at.x < _NOTHING * pes)
    full = np.isfinite(width) & (at.room < _NOTHING * np.minimum(width, pes))
    shares = pieces.shares(np.where(nothing, 0.0, np.where(full, width, at.x)))
    off, money = residual(market, curves, at.prices, shares)
    judged = np.where(money > 0, money * pieces.scale, at.money)
    for band, worths in ((band, worths) for band in _BANDS for worths in (at.money, judged)):
        if off <= min(tolerance, 1e-9) or off > _HOPELESS:
            break
        settled = _settle(market, pieces, at, worths, band)
        if settled is not None:
            again, worth = residual(market, curves, at.prices, settled)
            if again < off:
                shares, money, off = settled, worth, again
    return Found(at.prices, shares, money, off, steps, history)


def _settle(market: Market, pieces: Pieces, at: Point, money: Floats, band: float) -> Floats | None:
    """Return those shares of all best at the prices with which budgets and core clusters come out best."""
    value = money[pieces.tenant] * at.prices[pieces.cluster]
    low, high = (held_by(pieces.shape, value * by) for by in (1.0 + band, 1.0 - band))
    high = np.maximum(low, np.minimum(high, market.pe_count[pieces.cluster]))
    count, n, c = len(value), len(market.budgets), len(market.pe_count)
    cost = at.prices[pieces.cluster] / market.budgets[pieces.tenant]
    each = np.arange(count)
    sold = at.prices * market.pe_count > band * market.budgets.min()
    thrifty = at.over < band * market.budgets  # the others keep money: they only must not overspend
    parts = []
    right = []
    for sign, which in ((1.0, np.ones(n, bool)), (-1.0, thrifty)):
        parts.append((np.where(which[pieces.tenant], sign * cost, 0.0), pieces.tenant))
        right.append(np.where(which, sign, 0.0))
    for sign, which in ((1.0, np.ones(c, bool)), (-1.0, sold)):
        parts.append((np.where(which, sign / market.pe_count, 0.0)[pieces.cluster], n + pieces.cluster))
        right.append(np.where(which, sign, 0.0))
    blocks = [(parts[0], parts[2]), (parts[1], parts[3])]
    rows = np.concatenate([block[1] + place * (n + c) for place, pair in enumerate(blocks) for block in pair])
    values = np.concatenate([block[0] for pair in blocks for block in pair])
    off = np.arange(2 * (n + c))
    table = coo_array(
        (
            np.append(values, np.full(len(off), -1.0)),
            (np.append(rows, off), np.append(np.tile(each, 4), np.full(len(off), count))),
        ),
        shape=(len(off), count + 1),
    )
    limits = np.concatenate([right[0], right[2], right[1], right[3]])
    done = linprog(
        np.append(np.zeros(count), 1.0), A_ub=table.tocsr(), b_ub=limits,
        bounds=np.column_stack([np.append(low, 0.0), np.append(high, np.inf)]), method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )  # fmt: skip
    return pieces.shares(done.x[:-1]) if done.x is not None else None
