"""The equilibrium of a market of pieces: Newton's method on all of its conditions at once, from inside.

Every piece of a curve (see ``_curves``) is bought for itself. With ``l_i`` for the value of money to tenant i and
``q_i`` for the price of its limit, an equilibrium is, for each piece and its share x up to its width w::

    g'(x) = l (p + q) - z + v,   x z = 0,   (w - x) v = 0    nothing too dear is bought, all of what is cheap
    l (b - sum (p + q) x) = 0                                budgets are spent, or the tenant is sated
    q (L - sum x) = 0                                        limits are reached, or cost nothing
    p (P - sum x) = 0                                        core clusters are sold, or cost nothing

and everything 0 or more. The products are softened to tau times their likely size, and tau goes to 0 as Newton steps
succeed. Where all pieces are endless (Amdahl's law, linear) nobody is sated and everything is sold: there budgets and
markets are equations from the start, which saves half of the steps; with other pieces that loses its way. Pieces are
eliminated one by one, then tenants, so that a step costs one system in the C prices.

The loop is written once. For few core clusters it runs compiled; for many it runs in Python, where the system of the
prices is assembled by matrix products.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from commonwatt.model.arrays import Floats
from commonwatt.optimize import njit
from commonwatt.partitioning._curves import Pieces, Point, slopes
from commonwatt.partitioning._demand import respond

__all__ = ["NewtonWork", "assembled", "centred", "eliminate", "follow", "placed", "polish", "workspace"]

_PATIENCE, _MORE_PATIENCE = 80, 300  # steps without anything getting better, with few core clusters and many
_BOUNDARY = 0.995  # part of the way to a bound that a step may go
_FINEST = 1e-13
_EXACT, _NEAR = 1e-13, 1e-9
_WORTH_KEEPING = 1e-4  # distances below this: a point to come back to
_FEW = 20  # core clusters up to which the loop runs compiled
_ROUGH, _ROUNDED = 1e-4, 1e-5  # errors below the first may be rounding of shares only: what they weigh beside tau


class NewtonWork(NamedTuple):
    """What is left of a step when pieces and tenants are eliminated."""

    v: Floats  # with rho: dx = v (rho - paid dl - l (dp + dq)), [E]
    rho: Floats  # [E]
    inverse: Floats  # constants of dl and dq, and the inverse of a tenant's two equations, [6, N]
    shares: Floats  # shares, [N, C]
    paid: Floats  # p + q, [N, C]
    spread: Floats  # sums of v, [N, C]
    sold: Floats  # [C]
    gift: Floats  # sums of v rho, [C]
    diagonal: Floats  # of the system of prices, without differences, [C]
    short: Floats  # PEs neither held nor left, [C]


@njit(cache=True, error_model="numpy")
def workspace(pieces: int, tenants: int, clusters: int) -> NewtonWork:
    """Return room for a step."""
    return NewtonWork(
        np.empty(pieces), np.empty(pieces), np.empty((6, tenants)), np.empty((tenants, clusters)),
        np.empty((tenants, clusters)), np.empty((tenants, clusters)), np.empty(clusters), np.empty(clusters),
        np.empty(clusters), np.empty(clusters),
    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def eliminate(pieces: Pieces, at: Point, tau: float, work: NewtonWork) -> float:
    """Eliminate pieces and tenants, which fills *work*; return the largest relative error of an equation."""
    first, cluster, shape, budgets, limits = pieces.first, pieces.cluster, pieces.shape, pieces.budgets, pieces.limits
    y, tenant, prices = at.y, at.tenant, at.prices
    v, rho, inverse, shares, spread, diagonal = work.v, work.rho, work.inverse, work.shares, work.spread, work.diagonal
    error = 0.0
    shares[:] = 0.0
    spread[:] = 0.0
    work.paid[:] = 0.0
    work.gift[:] = 0.0
    work.sold[:] = 0.0
    diagonal[:] = 0.0
    rest = np.empty(len(prices))
    for i in range(len(budgets)):
        money, fee = tenant[0, i], tenant[2, i]
        spent, bound, s2, s1, s0, g0, total = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for e in range(first[i], first[i + 1]):
            c, x, soft = cluster[e], y[0, e], tau * pieces.weight[e]
            own, bent = slopes(shape, e, x)
            asked = money * (prices[c] + fee)
            paid = prices[c] + fee
            stiff = y[2, e] / x - bent
            pull = soft / x
            off = own - asked + y[2, e]
            if shape[1, e] < np.inf:
                stiff += y[3, e] / y[1, e]
                pull -= soft / y[1, e]
                off -= y[3, e]
            error = max(error, abs(off) / max(own, asked))
            v[e] = 1.0 / stiff
            rho[e] = own - asked + pull
            push = v[e] * rho[e]
            spent += paid * x
            total += x
            bound += paid * push
            g0 += push
            s2 += paid * paid * v[e]
            s1 += paid * v[e]
            s0 += v[e]
            shares[i, c] += x
            work.paid[i, c] = paid
            spread[i, c] += v[e]
            work.sold[c] += x
            work.gift[c] += push
        miss = budgets[i] - spent - tenant[1, i]
        error = max(error, abs(miss) / budgets[i])
        base = tenant[1, i] / money
        one = tau * pieces.keep[i] / money - tenant[1, i] - miss + bound
        if limits[i] == np.inf:
            whole = base + s2
            inverse[0, i], inverse[1, i] = one / whole, 0.0
            inverse[2, i], inverse[3, i], inverse[4, i], inverse[5, i] = 1.0 / whole, 0.0, 0.0, 0.0
            _others(work.paid[i], spread[i], base, rest)
            for c in range(len(prices)):
                diagonal[c] += spread[i, c] * (money * rest[c] + work.paid[i, c] * shares[i, c]) / whole
            continue
        lack = limits[i] - total - tenant[3, i]
        error = max(error, abs(lack) / limits[i])
        two = g0 + tau * budgets[i] / fee - tenant[3, i] - lack
        a11, a12, a21, a22 = base + s2, money * s1 - total, s1, money * s0 + tenant[3, i] / fee
        apart = 0.0  # s2 less s1^2 / s0, without the difference
        for e in range(first[i], first[i + 1]):
            apart += v[e] * (work.paid[i, cluster[e]] - s1 / s0) ** 2
        det = money * s0 * apart + s1 * total + base * a22 + s2 * tenant[3, i] / fee
        inverse[2, i], inverse[3, i] = a22 / det, -a12 / det
        inverse[4, i], inverse[5, i] = -a21 / det, a11 / det
        inverse[0, i] = inverse[2, i] * one + inverse[3, i] * two
        inverse[1, i] = inverse[4, i] * one + inverse[5, i] * two
        for c in range(len(prices)):
            paid, bent = work.paid[i, c], money * spread[i, c]
            way = shares[i, c] - bent * paid
            by_money = inverse[2, i] * way - inverse[3, i] * bent
            by_fee = inverse[4, i] * way - inverse[5, i] * bent
            diagonal[c] += bent + spread[i, c] * paid * by_money + bent * by_fee
    for c in range(len(prices)):
        work.short[c] = pieces.pe_count[c] - at.left[c] - work.sold[c]
        error = max(error, abs(work.short[c]) / pieces.pe_count[c])
    return error


@njit(cache=True, error_model="numpy")
def _others(prices: Floats, spread: Floats, base: float, rest: Floats) -> None:
    """Sum *base* and all ``p^2 spread`` but a core cluster's own, without taking differences."""
    total = base
    for c in range(len(prices)):
        rest[c] = total
        total += prices[c] * prices[c] * spread[c]
    total = 0.0
    for c in range(len(prices) - 1, -1, -1):
        rest[c] += total
        total += prices[c] * prices[c] * spread[c]


@njit(cache=True, error_model="numpy")
def _assemble(pieces: Pieces, at: Point, tau: float, work: NewtonWork, matrix: Floats, right: Floats) -> None:
    """Fill the system of the prices; ``assembled`` does the same by matrix products, for many core clusters."""
    prices, left, inverse, shares, spread, paid = at.prices, at.left, work.inverse, work.shares, work.spread, work.paid
    n, size = shares.shape
    matrix[:] = 0.0
    for c in range(size):
        right[c] = tau * pieces.left[c] / prices[c] - left[c] - work.short[c] + work.gift[c]
    for i in range(n):
        money, limited = at.tenant[0, i], pieces.limits[i] < np.inf
        for d in range(size):
            bent = money * spread[i, d]
            way = shares[i, d] - bent * paid[i, d]
            by_money, by_fee = inverse[2, i] * way, 0.0
            if limited:
                by_money -= inverse[3, i] * bent
                by_fee = inverse[4, i] * way - inverse[5, i] * bent
            for c in range(size):
                matrix[c, d] += spread[i, c] * (paid[i, c] * by_money + money * by_fee)
            right[d] -= spread[i, d] * (paid[i, d] * inverse[0, i] + money * inverse[1, i])
    for c in range(size):
        matrix[c, c] = left[c] / prices[c] + work.diagonal[c]


@njit(cache=True, error_model="numpy")
def _solve_dense(matrix: Floats, right: Floats) -> bool:
    """Solve in place by elimination with pivots; false where the matrix is singular. For a few dozen unknowns."""
    size = len(right)
    for k in range(size):
        best = k
        for r in range(k + 1, size):
            if abs(matrix[r, k]) > abs(matrix[best, k]):
                best = r
        if not abs(matrix[best, k]) > 0.0:
            return False
        if best != k:
            for c in range(k, size):
                matrix[k, c], matrix[best, c] = matrix[best, c], matrix[k, c]
            right[k], right[best] = right[best], right[k]
        for r in range(k + 1, size):
            factor = matrix[r, k] / matrix[k, k]
            if factor != 0.0:
                for c in range(k + 1, size):
                    matrix[r, c] -= factor * matrix[k, c]
                right[r] -= factor * right[k]
    for k in range(size - 1, -1, -1):
        for c in range(k + 1, size):
            right[k] -= matrix[k, c] * right[c]
        right[k] /= matrix[k, k]
    return True


@njit(cache=True, error_model="numpy")
def advance(pieces: Pieces, at: Point, tau: float, work: NewtonWork, to_prices: Floats) -> float:
    """Move everything along Newton's direction, nearly to the first bound at most; return the length of the step."""
    first, cluster, shape, limits = pieces.first, pieces.cluster, pieces.shape, pieces.limits
    prices, left, tenant, y, v, rho, inverse = at.prices, at.left, at.tenant, at.y, work.v, work.rho, work.inverse
    n, size, shares, spread, paid = len(limits), len(prices), work.shares, work.spread, work.paid
    way = np.zeros((4, n))
    fastest = 0.0
    for c in range(size):
        fastest = max(fastest, -to_prices[c] / prices[c])
        if pieces.left[c] > 0.0:
            fastest = max(fastest, 1.0 - tau * pieces.left[c] / prices[c] / left[c] + to_prices[c] / prices[c])
    for i in range(n):
        money, fee, one, two = tenant[0, i], tenant[2, i], 0.0, 0.0
        for c in range(size):
            one += (shares[i, c] - money * paid[i, c] * spread[i, c]) * to_prices[c]
            two -= money * spread[i, c] * to_prices[c]
        way[0, i] = inverse[0, i] + inverse[2, i] * one + inverse[3, i] * two
        fastest = max(fastest, -way[0, i] / money)
        if pieces.keep[i] > 0.0:
            way[1, i] = tau * pieces.keep[i] / money - tenant[1, i] * (1.0 + way[0, i] / money)
            fastest = max(fastest, -way[1, i] / tenant[1, i])
        if limits[i] < np.inf:
            way[2, i] = inverse[1, i] + inverse[4, i] * one + inverse[5, i] * two
            way[3, i] = tau * pieces.budgets[i] / fee - tenant[3, i] * (1.0 + way[2, i] / fee)
            fastest = max(fastest, -way[2, i] / fee, -way[3, i] / tenant[3, i])
        for e in range(first[i], first[i + 1]):
            c, x, soft = cluster[e], y[0, e], tau * pieces.weight[e]
            to_x = v[e] * (rho[e] - paid[i, c] * way[0, i] - money * (to_prices[c] + way[2, i]))
            rho[e] = to_x  # the direction from here on
            fastest = max(fastest, -to_x / x, 1.0 - soft / x / y[2, e] + to_x / x)
            if shape[1, e] < np.inf:
                fastest = max(fastest, to_x / y[1, e], 1.0 - soft / y[1, e] / y[3, e] - to_x / y[1, e])
    if not fastest < np.inf:
        return 0.0
    t = min(1.0, _BOUNDARY / fastest) if fastest > 0.0 else 1.0
    for c in range(size):
        if pieces.left[c] > 0.0:
            left[c] += t * (tau * pieces.left[c] / prices[c] - left[c] * (1.0 + to_prices[c] / prices[c]))
        prices[c] += t * to_prices[c]
    for e in range(len(rho)):
        x, to_x, soft = y[0, e], rho[e], tau * pieces.weight[e]
        y[2, e] += t * (soft / x - y[2, e] * (1.0 + to_x / x))
        if shape[1, e] < np.inf:
            y[3, e] += t * (soft / y[1, e] - y[3, e] * (1.0 - to_x / y[1, e]))
            y[1, e] -= t * to_x
        y[0, e] += t * to_x
    tenant += t * way
    return t


def price_step(pieces: Pieces, at: Point, tau: float, work: NewtonWork, matrix: Floats, right: Floats) -> bool:
    """Fill *right* with the relative change of prices; false where the system is singular."""
    assembled(pieces, at, tau, work, matrix, right)
    try:
        right[:] = np.linalg.solve(matrix * at.prices, right)
    except np.linalg.LinAlgError:
        return False
    return True


@overload(price_step)
def _compiled_price_step(pieces, at, tau, work, matrix, right):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
    """Do the same in compiled code: ``follow`` calls this where it is compiled."""

    def step(pieces, at, tau, work, matrix, right):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        _assemble(pieces, at, tau, work, matrix, right)
        matrix *= at.prices
        return _solve_dense(matrix, right)

    return step


def assembled(pieces: Pieces, at: Point, tau: float, work: NewtonWork, matrix: Floats, right: Floats) -> None:
    """Fill matrix and right side for the change of prices from *at*, after ``eliminate``."""
    limited, inverse = pieces.limited, work.inverse
    right[:] = tau * pieces.left / at.prices - at.left - work.short + work.gift
    bent = at.tenant[0][:, None] * work.spread
    pulled = work.spread * work.paid
    way = work.shares - at.tenant[0][:, None] * pulled
    matrix[:] = (pulled * inverse[2][:, None]).T @ way
    right -= pulled.T @ inverse[0]
    if limited.any():
        bent, pulled, way, inner = bent[limited], pulled[limited], way[limited], inverse[:, limited, None]
        matrix += (bent * inner[4]).T @ way - (pulled * inner[3] + bent * inner[5]).T @ bent
        right -= bent.T @ inner[1, :, 0]
    matrix[np.diag_indices(len(right))] = at.left / at.prices + work.diagonal


@njit(cache=True, error_model="numpy")
def follow(
    pieces: Pieces, at: Point, tau: float, shrink: float, close: float, history: Floats
) -> tuple[int, float]:  # fmt: skip
    """Do what ``polish`` does; *at* becomes the best point. Return steps and distance.

    Stops at the distance *close*. Fills *history* ([steps at most, C]) with prices.
    """
    size = len(at.prices)
    work, matrix, right = (
        workspace(len(pieces.weight), len(pieces.budgets), size), np.empty((size, size)), np.empty(size),
    )  # fmt: skip
    prices, left, tenant, y = at.prices.copy(), at.left.copy(), at.tenant.copy(), at.y.copy()
    least, last, taken, best_at, kept = np.inf, np.inf, 0, 0, False
    patience = _PATIENCE if size <= _FEW else _MORE_PATIENCE
    while taken < len(history) and taken - best_at <= patience:
        error = eliminate(pieces, at, tau, work)
        far = max(tau, error * (_ROUNDED if error < _ROUGH else 1.0))
        if far < least:
            least, best_at, kept = far, taken, far < _WORTH_KEEPING
            if kept:
                prices[:], left[:], tenant[:], y[:] = at.prices, at.left, at.tenant, at.y
        settled = error < _EXACT or (error < _NEAR and error > 0.3 * last)
        lost = not np.isfinite(error) or (least < 1e-8 and error > 1e-3)  # nothing but rounding is left
        if (tau <= _FINEST and settled) or lost or far < close:
            break
        last = error
        if not price_step(pieces, at, tau, work, matrix, right):
            break
        length = advance(pieces, at, tau, work, right * at.prices)
        if not length > 0.0:
            break
        history[taken] = at.prices
        taken += 1
        if error < 0.1:
            tau = max(_FINEST, tau * (shrink if length > 0.9 else max(shrink, 0.3) if length > 0.5 else 1.0))
    if kept:
        at.prices[:], at.left[:], at.tenant[:], at.y[:] = prices, left, tenant, y
    return taken, least


def centred(pieces: Pieces, prices: Floats, tau: float, money: Floats | None = None) -> Point:
    """Return the point where every tenant answers *prices* as best it can with bounds softened by *tau*."""
    soft, keep, limited = tau * pieces.weight, tau * pieces.keep, pieces.limited
    x, worth = np.empty(len(soft)), np.ones(len(keep)) if money is None else money.copy()
    fee = np.where(limited, pieces.budgets / np.where(limited, pieces.limits, 1.0), 0.0)
    respond(pieces, prices, fee, tau, x, worth)
    width = pieces.shape[1]
    ends = np.isfinite(width)
    room = np.where(ends, np.maximum(np.where(ends, width, 2.0) - x, 1e-15), 1.0)
    below = np.where(limited, tau * pieces.budgets / np.where(limited, fee, 1.0), 1.0)
    tenant = np.stack([worth, keep / worth, fee, below])
    return Point(prices.copy(), tau * pieces.left / prices, tenant, np.stack([x, room, soft / x, soft / room]))


def placed(pieces: Pieces, bids: Floats, prices: Floats, tau: float) -> Point:
    """Return an inner point at *bids* ([N, C]) for endless pieces without limits, one a core cluster."""
    soft, (i, c), n = tau * pieces.weight, (pieces.tenant, pieces.cluster), len(pieces.budgets)
    x = np.maximum(bids[i, c], 2.0 * soft) / prices[c]
    worth = x * pieces.shape[0] / (1.0 + pieces.shape[3] * x) ** 2
    money = np.bincount(i, worth, minlength=n) / np.bincount(i, prices[c] * x, minlength=n)
    tenant = np.stack([money, np.zeros(n), np.zeros(n), np.ones(n)])
    y = np.stack([x, np.ones_like(x), soft / x, np.zeros_like(x)])
    return Point(prices.copy(), np.zeros(len(prices)), tenant, y)


def polish(
    pieces: Pieces, at: Point, tau: float, *, shrink: float = 0.1, limit: int = 100, history: list[Floats] | None = None
) -> tuple[int, float]:  # fmt: skip
    """Move *at* to the equilibrium near it; return the steps taken and how far from it they end.

    tau becomes *shrink* times smaller with a step that goes all the way. *history* gets the prices after each step.
    """
    prices = np.empty((limit, len(at.prices)))
    run = follow if len(at.prices) <= _FEW else follow.py_func
    taken, least = run(pieces, at, tau, shrink, 0.0, prices)
    if history is not None:
        history.extend(prices[:taken])
    return taken, least
