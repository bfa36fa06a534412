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
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning import _steps as steps
from commonwatt.partitioning._demand import respond
from commonwatt.partitioning._pieces import Pieces, Point

__all__ = ["centred", "placed", "polish", "system"]

_WORTH_KEEPING = 1e-4  # distances below this: a point to come back to
_FEW = 20
"""Core clusters up to which the loop is compiled: 15 times as fast at 5, 3 to 5 times at 10, no faster from 30 on."""


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


def system(pieces: Pieces, at: Point, tau: float, work: steps.NewtonWork) -> tuple[Floats, Floats, float]:
    """Return matrix and right side for the change of prices from *at* towards the point of *tau*, and the error."""
    error = steps.eliminate(pieces, at, tau, work)
    p, limited, inverse = at.prices, pieces.limited, work.inverse
    right = tau * pieces.left / p - at.left - work.short + work.gift
    bent = at.tenant[0][:, None] * work.spread
    pulled = work.spread * work.paid
    way = work.held - at.tenant[0][:, None] * pulled
    matrix = (pulled * inverse[2][:, None]).T @ way
    right -= pulled.T @ inverse[0]
    if limited.any():
        bent, pulled, way, inner = bent[limited], pulled[limited], way[limited], inverse[:, limited, None]
        matrix += (bent * inner[4]).T @ way - (pulled * inner[3] + bent * inner[5]).T @ bent
        right -= bent.T @ inner[1, :, 0]
    matrix[np.diag_indices(len(p))] = at.left / p + work.diagonal
    return matrix, right, error


def polish(
    pieces: Pieces, at: Point, tau: float, *, shrink: float = 0.1, limit: int = 100, history: list[Floats] | None = None
) -> tuple[Point, int, float]:  # fmt: skip
    """Go from *at*, which is moved, to the equilibrium near it; return the best point, the steps, and how far it is.

    tau becomes *shrink* times smaller with a step that goes all the way. *history* gets the prices after each step.
    """
    if len(at.prices) <= _FEW:
        prices = np.empty((limit, len(at.prices)))
        taken, least = steps.follow(pieces, at, tau, shrink, 0.0, prices)
        if history is not None:
            history.extend(prices[:taken])
        return at, taken, least
    work = steps.workspace(len(pieces.weight), len(pieces.budgets), len(at.prices))
    best, least, last, taken = at, np.inf, np.inf, 0
    while taken < limit:
        matrix, right, error = system(pieces, at, tau, work)
        far = steps.distance(tau, error)
        if far < least:
            best, least = at.copy() if far < _WORTH_KEEPING else at, far
        if steps.finished(tau, error, last, least):
            break
        last = error
        try:
            length = steps.advance(pieces, at, tau, work, at.prices * np.linalg.solve(matrix * at.prices, right))
        except np.linalg.LinAlgError:
            break
        if not length > 0:
            break
        taken += 1
        if history is not None:
            history.append(at.prices.copy())
        if error < 0.1:
            tau = steps.shrunk(tau, length, shrink)
    return best, taken, least
