"""What a tenant would buy at given prices, and how far a division is from an equilibrium: the judge of every solver.

The least bundle among the best is meant: a tenant that has all that makes it faster keeps the rest of its money. Where
it is indifferent between straight pieces, the bundles at both ends are mixed so that the budget is just spent.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Bools, Floats
from commonwatt.optimize import njit
from commonwatt.partitioning._curves import Pieces, bought, slopes
from commonwatt.partitioning._market import Market

__all__ = ["demand", "residual", "respond"]

_FREE = 1e-30  # of all money for a PE: as good as nothing
_MUCH = 1e6  # times the PEs of a core cluster: more is not looked at


def demand(market: Market, prices: Floats, fees: Floats | None = None) -> tuple[Floats, Floats]:
    """Return the best shares at *prices* ([C], 0 or more) for each budget, [N, C], and the value of money, [N].

    *fees* ([N]) are what a tenant pays for each PE beside its price. The value of money (lambda) is how much more
    speedup a tenant would have for a little more money; it is 0 for a tenant that keeps some.
    """
    pieces = Pieces.of(market.curves, market.pe_count, market.budgets)
    x, money = np.empty(len(pieces.tenant)), np.empty(len(market.budgets))
    nothing = np.zeros(len(money)) if fees is None else fees
    _demand(pieces, np.maximum(prices, _FREE), nothing, _MUCH * pieces.pe_count, x, money)
    return pieces.shares(x), money * pieces.scale


def residual(
    market: Market, prices: Floats, shares: Floats, limit_prices: Floats | None = None
) -> tuple[float, Floats]:  # fmt: skip
    """Return how far *prices* and *shares* are from an equilibrium, relative, and what money is worth to each tenant.

    The first is the largest of: the gain a tenant would have from its best response; by how much it overspends, or
    spends though it has all it can use, relative to its budget; by how much more of a core cluster is held than there
    is, or less though it has a price (as a part of it, or of what those who can use it have: what is less); and the
    same for limits. Where nobody is ever sated, money kept and PEs not sold count in full. Both are of use for prices
    and shares from anywhere. Shape of the second: [N].
    """
    on = market.usable
    if not on.all():
        return residual(market.columns(on), prices[on], shares[:, on], limit_prices)
    fees = np.zeros(len(market.budgets)) if limit_prices is None else limit_prices
    limits = np.full(len(fees), np.inf) if market.limits is None else market.limits
    curves, budgets = market.curves, market.budgets
    best, money = demand(market, prices, fees)
    most = curves.most()
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = market.total(best) / market.total(shares) - 1.0
        everything = np.nan_to_num(most * (prices + fees[:, None]), nan=0.0, posinf=np.inf).sum(axis=1)
    allocated, sold = shares.sum(axis=1), shares.sum(axis=0)
    room, left = 1.0 - allocated / limits, 1.0 - sold / market.pe_count
    at_limit = np.where(np.isfinite(limits), limits, 0.0) * fees
    spent = (shares @ prices + at_limit - np.minimum(budgets, everything)) / budgets
    purse = (curves.of_use * budgets[:, None]).sum(axis=0)
    always: Bools = np.zeros(len(prices), np.bool_)
    if np.isinf(most[curves.of_use]).all():  # nobody is ever sated
        spent, always = np.abs(spent), np.asarray((curves.of_use & np.isinf(limits)[:, None]).any(axis=0))
    unsold = np.maximum(-left, np.minimum(left, np.where(always, np.inf, prices * market.pe_count / purse)))
    below = np.maximum(-room, np.minimum(room, at_limit / budgets))
    negative = -min(float(shares.min()), float(prices.min()), float(fees.min()))
    return float(max(gain.max(), spent.max(), unsold.max(), below.max(), negative, 0.0)), money


@njit(cache=True, error_model="numpy")
def respond(
    pieces: Pieces, prices: Floats, fees: Floats, tau: float, x: Floats, money: Floats
) -> None:  # fmt: skip
    """Fill *x* and *money* (also where to begin): what each tenant wants where bounds are softened by *tau*."""
    for i in range(len(money)):
        low, high = 0.0, np.inf
        at = money[i]
        for _ in range(200):
            spent, fall = 0.0, 0.0
            for e in range(pieces.first[i], pieces.first[i + 1]):
                p = prices[pieces.cluster[e]] + fees[i]
                x[e] = _softened(pieces.shape, e, tau * pieces.weight[e], at * p)
                spent += p * x[e]
                if spent == np.inf:
                    break
                fall += p * p / _excess(pieces.shape, e, tau * pieces.weight[e], at * p, x[e])[1]
            off = pieces.budgets[i] - spent - tau * pieces.keep[i] / at  # rises with what money is worth
            if off < 0.0:
                low = at
            else:
                high = at
            better = at - off / (tau * pieces.keep[i] / (at * at) - fall) if spent < np.inf else np.nan
            if not low < better < high:
                better = 4.0 * at if high == np.inf else (0.25 * at if low == 0.0 else 0.5 * (low + high))
            if abs(better - at) <= 1e-14 * at:
                break
            at = better
        money[i] = at


@njit(cache=True, error_model="numpy")
def _softened(shape: Floats, e: int, soft: float, value: float) -> float:
    """Return the y with ``g'(y) + soft / y - soft / (width - y) = value``: its left side falls in y."""
    slope, width = shape[0, e], shape[1, e]
    if shape[2, e] == 0.0 and shape[3, e] == 0.0 and shape[4, e] == 0.0:
        if width == np.inf:
            return soft / (value - slope) if value > slope else np.inf
        d = (value - slope) * width
        root = np.sqrt(d * d + 4.0 * soft * soft)
        return 2.0 * soft * width / (2.0 * soft + (d + root if d > 0.0 else 4.0 * soft * soft / (root - d)))
    low, high = 0.0, width
    if width == np.inf:
        high = max(1.0, 2.0 * soft / value)
        while slopes(shape, e, high)[0] + soft / high > value:
            low = high
            high *= 4.0
    y = 0.5 * (low + high)
    for _ in range(200):
        off, steep = _excess(shape, e, soft, value, y)
        if off > 0.0:
            low = y
        else:
            high = y
        better = y - off / steep
        if not low < better < high:
            better = 0.5 * (low + high) if low > 0.0 else 0.1 * high
        if abs(better - y) <= 1e-15 * y:
            break
        y = better
    return y


@njit(cache=True, error_model="numpy")
def _excess(shape: Floats, e: int, soft: float, value: float, y: float) -> tuple[float, float]:
    """Return how much the softened marginal speedup at *y* is above *value*, and its slope."""
    own, bent = slopes(shape, e, y)
    off, steep = own + soft / y - value, bent - soft / (y * y)
    if shape[1, e] < np.inf:
        gap = shape[1, e] - y
        off -= soft / gap
        steep -= soft / (gap * gap)
    return off, steep


@njit(cache=True, error_model="numpy")
def _demand(
    pieces: Pieces, prices: Floats, fees: Floats, cap: Floats, x: Floats, money: Floats
) -> None:  # fmt: skip
    """Fill *x* with the least of the best bundles at *prices*, and *money* with what money is worth, 0 if some is kept.

    Spending falls with the value of money: its root is bracketed, by Newton's method where spending is smooth, to the
    last bits. Where a tenant is indifferent between straight pieces, the bundles at both ends are mixed.
    """
    first, budgets = pieces.first, pieces.budgets
    for i in range(len(budgets)):
        high = 0.0
        for e in range(first[i], first[i + 1]):
            high = max(high, pieces.shape[0, e] / (prices[pieces.cluster[e]] + fees[i]))
        high *= 2.0
        low, at = high * 1e-40, 0.5 * high
        spent = _spending(pieces, prices, fees, cap, i, low, x)[0]
        money[i] = 0.0
        if spent <= budgets[i]:
            continue
        for number in range(300):
            spent, fall = _spending(pieces, prices, fees, cap, i, at, x)
            if spent > budgets[i]:
                low = at
            else:
                high = at
            if high - low <= 1e-14 * high:
                break
            better = low
            if fall > 0.0:
                m = 1.0 / np.sqrt(at) - (spent - budgets[i]) / fall
                better = 1.0 / (m * m) if m > 0.0 else low
            if abs(better - at) <= 2e-15 * at:  # there: close the bracket from the other side
                better = at * (1.0 + 4e-15) if spent > budgets[i] else at * (1.0 - 4e-15)
            if number % 3 == 2 or not low < better < high:
                better = np.sqrt(low * high)
            at = better
        more = _spending(pieces, prices, fees, cap, i, low, x)[0]
        most = x[first[i] : first[i + 1]].copy()
        spent = _spending(pieces, prices, fees, cap, i, high, x)[0]
        part = (budgets[i] - spent) / (more - spent) if more > spent else 0.0
        for e in range(first[i], first[i + 1]):
            x[e] += min(1.0, max(0.0, part)) * (most[e - first[i]] - x[e])
        money[i] = high


@njit(cache=True, error_model="numpy")
def _spending(
    pieces: Pieces, prices: Floats, fees: Floats, cap: Floats, i: int, at: float, x: Floats
) -> tuple[float, float]:  # fmt: skip
    """Fill tenant *i*'s *x* at a value of money; return what it costs, and its slope in ``1 / sqrt(value)``."""
    spent, fall, shape = 0.0, 0.0, pieces.shape
    for e in range(pieces.first[i], pieces.first[i + 1]):
        c = pieces.cluster[e]
        p = prices[c] + fees[i]
        x[e] = bought(shape, e, at * p, cap[c])
        spent += p * x[e]
        if 0.0 < x[e] < shape[1, e] and shape[3, e] > 0.0 and shape[4, e] == 0.0:
            fall += np.sqrt(p * shape[0, e]) / shape[3, e]
    return spent, fall
