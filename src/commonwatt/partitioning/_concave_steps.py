"""The arithmetic of ``concave_newton``: one pass over all pieces, tenant by tenant."""

from __future__ import annotations

import numpy as np
from numba import njit

from commonwatt.model.arrays import Floats, Ints

__all__ = ["direct", "longest", "respond", "sides"]


@njit(cache=True)
def sides(
    first: Ints, cluster: Ints, shape: Floats, budgets: Floats, x: Floats, room: Floats, z: Floats, w: Floats,
    money: Floats,
    over: Floats, prices: Floats, soft: Floats, keep: Floats, v: Floats, rho: Floats, fixed: Floats,
    held: Floats, spread: Floats, gift: Floats, diagonal: Floats,
) -> float:  # fmt: skip
    """Eliminate pieces and tenants: fill *v*, *rho*, *fixed* (by tenant, 2 rows), *held*, *spread*, *gift*.

    *shape* is [5, E]: slope, width, bend, linear, square. Returns the largest relative error of a marginal utility or
    budget. Then ``dx = v (rho - p dl - l dp)`` and ``dl = fixed[0] + fixed[1] (held - l p spread) dp``.
    """
    error = 0.0
    held[:] = 0.0
    spread[:] = 0.0
    gift[:] = 0.0
    diagonal[:] = 0.0
    rest = np.empty(len(prices))
    for i in range(len(budgets)):
        spent, bound, square = 0.0, 0.0, 0.0
        for e in range(first[i], first[i + 1]):
            c, y = cluster[e], x[e]
            slope, width, bend, linear, quad = shape[0, e], shape[1, e], shape[2, e], shape[3, e], shape[4, e]
            below = 1.0 + y * (linear + quad * y)
            mixed = slope * quad + bend * linear
            top = slope - y * (2.0 * bend + mixed * y)
            own = top / (below * below)
            bent = (-2.0 * (bend + mixed * y) * below - 2.0 * top * (linear + 2.0 * quad * y)) / (below * below * below)
            asked = money[i] * prices[c]
            stiff = z[e] / y - min(bent, 0.0)
            pull = soft[e] / y
            off = own - asked + z[e]
            if width < np.inf:
                stiff += w[e] / room[e]
                pull -= soft[e] / room[e]
                off -= w[e]
            error = max(error, abs(off) / max(own, asked))
            v[e] = 1.0 / stiff
            rho[e] = own - asked + pull
            spent += prices[c] * y
            bound += prices[c] * v[e] * rho[e]
            square += prices[c] * prices[c] * v[e]
            held[i, c] += y
            spread[i, c] += v[e]
            gift[c] += v[e] * rho[e]
        miss = budgets[i] - spent - over[i]
        error = max(error, abs(miss) / budgets[i])
        whole = over[i] / money[i] + square
        _others(prices, spread[i], over[i] / money[i], rest)
        for c in range(len(prices)):
            diagonal[c] += spread[i, c] * (money[i] * rest[c] + prices[c] * held[i, c]) / whole
        fixed[0, i] = (keep[i] / money[i] - over[i] - miss + bound) / whole
        fixed[1, i] = 1.0 / whole
    return error


@njit(cache=True)
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


@njit(cache=True)
def direct(
    first: Ints, cluster: Ints, shape: Floats, budgets: Floats, x: Floats, room: Floats, z: Floats, w: Floats,
    money: Floats,
    over: Floats, prices: Floats, soft: Floats, keep: Floats, v: Floats, rho: Floats, to_money: Floats,
    to_prices: Floats, to_x: Floats, to_z: Floats, to_w: Floats, to_over: Floats,
) -> None:  # fmt: skip
    """Fill in the direction of everything eliminated."""
    for i in range(len(budgets)):
        for e in range(first[i], first[i + 1]):
            c = cluster[e]
            to_x[e] = v[e] * (rho[e] - prices[c] * to_money[i] - money[i] * to_prices[c])
            to_z[e] = soft[e] / x[e] - z[e] - z[e] / x[e] * to_x[e]
            if shape[1, e] < np.inf:
                to_w[e] = soft[e] / room[e] - w[e] + w[e] / room[e] * to_x[e]
            else:
                to_w[e] = 0.0
        to_over[i] = keep[i] / money[i] - over[i] - over[i] / money[i] * to_money[i]


@njit(cache=True)
def longest(
    shape: Floats, x: Floats, room: Floats, z: Floats, w: Floats, to_x: Floats, to_z: Floats, to_w: Floats
) -> float:  # fmt: skip
    """Return how fast the fastest of the pieces' variables goes to its bound, relative to its distance."""
    fastest = 0.0
    for e in range(len(x)):
        fastest = max(fastest, -to_x[e] / x[e], -to_z[e] / z[e])
        if shape[1, e] < np.inf:
            fastest = max(fastest, to_x[e] / room[e], -to_w[e] / w[e])
    return fastest


@njit(cache=True)
def _softened(
    slope: float, width: float, bend: float, linear: float, square: float, soft: float, value: float
) -> float:
    """Return the y with ``g'(y) + soft / y - soft / (width - y) = value``: its left side falls in y."""
    low, high = 0.0, width
    if width == np.inf:
        high = max(1.0, 2.0 * soft / value)
        while _excess(slope, width, bend, linear, square, soft, value, high)[0] > 0.0:
            low = high
            high *= 4.0
    y = 0.5 * (low + high)
    for _ in range(200):
        off, steep = _excess(slope, width, bend, linear, square, soft, value, y)
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


@njit(cache=True)
def _excess(
    slope: float, width: float, bend: float, linear: float, square: float, soft: float, value: float, y: float
) -> tuple[float, float]:  # fmt: skip
    """Return how much the softened marginal speedup at *y* is above *value*, and its slope."""
    below = 1.0 + y * (linear + square * y)
    mixed = slope * square + bend * linear
    top = slope - y * (2.0 * bend + mixed * y)
    off = top / (below * below) + soft / y - value
    steep = -2.0 * ((bend + mixed * y) * below + top * (linear + 2.0 * square * y)) / (below * below * below)
    steep -= soft / (y * y)
    if width < np.inf:
        off -= soft / (width - y)
        steep -= soft / ((width - y) * (width - y))
    return off, steep


@njit(cache=True)
def respond(
    first: Ints, cluster: Ints, shape: Floats, budgets: Floats, prices: Floats, soft: Floats, keep: Floats,
    x: Floats, money: Floats,
) -> None:  # fmt: skip
    """Fill *x* and *money* (which is also where to begin): what each tenant wants where bounds are softened."""
    for i in range(len(budgets)):
        low, high = 0.0, np.inf
        at = money[i]
        for _ in range(200):
            spent, fall = 0.0, 0.0
            for e in range(first[i], first[i + 1]):
                p = prices[cluster[e]]
                x[e] = _softened(shape[0, e], shape[1, e], shape[2, e], shape[3, e], shape[4, e], soft[e], at * p)
                spent += p * x[e]
                fall += (
                    p
                    * p
                    / _excess(shape[0, e], shape[1, e], shape[2, e], shape[3, e], shape[4, e], soft[e], at * p, x[e])[1]
                )
            off = budgets[i] - spent - keep[i] / at  # rises with what money is worth
            if off < 0.0:
                low = at
            else:
                high = at
            better = at - off / (keep[i] / (at * at) - fall)
            if not low < better < high:
                better = 4.0 * at if high == np.inf else (0.25 * at if low == 0.0 else 0.5 * (low + high))
            if abs(better - at) <= 1e-14 * at:
                break
            at = better
        money[i] = at
