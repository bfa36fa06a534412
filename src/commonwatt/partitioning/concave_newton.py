"""The equilibrium of a market of pieces: Newton's method on all of its conditions at once, from inside.

Every piece of a curve (see ``curves``) is bought for itself. With ``l_i`` for what money is worth to tenant i, an
equilibrium is, for each piece and its share x up to its width w, ::

    g'(x) = l p - z + v,   x z = 0,   (w - x) v = 0      nothing too dear is bought, all of what is cheap
    l (b - sum p x) = 0                                  budgets are spent, or money is worth nothing: tenants are sated
    p (P - sum x) = 0                                    core clusters are sold, or cost nothing

and everything 0 or more. The five products are softened to tau times what they are likely to be, and tau goes to 0 as
Newton steps succeed. Pieces are eliminated one by one and tenants too: a step costs one system in the C prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.partitioning import _concave_steps as steps
from commonwatt.partitioning.curves import Curves

__all__ = ["Pieces", "Point", "Step", "centred", "direction", "polish"]

_BOUNDARY = 0.995  # part of the way to a bound that a step may go
_FINEST = 1e-13
_GOLDEN = 0.6180339887498949
_EXACT, _NEAR = 1e-13, 1e-9
_ROUGH, _ROUNDED = 1e-4, 1e-5  # errors below the first may be rounding of shares only: what they weigh beside tau


@dataclass(frozen=True)
class Pieces:
    """The pieces of all tenants in one row, tenant by tenant; speedups in units of ``scale`` by tenant."""

    first: Ints  # where each tenant's begin, [N + 1]
    tenant: Ints  # [E]
    cluster: Ints  # [E]
    shape: Floats  # slope, width, bend, linear, square, [5, E]
    pe_count: Floats  # [C]
    budgets: Floats  # [N]
    part: Floats  # of all money, likely spent on each core cluster, [C]
    weight: Floats  # of each piece's softness, [E]
    scale: Floats  # [N]

    @classmethod
    def of(cls, curves: Curves, pe_count: Floats, budgets: Floats, unlike: float = 0.0) -> Pieces:
        """Lay out *curves*; every core cluster must be of use to somebody, and every tenant can use one.

        *unlike* makes the softness of pieces differ by up to so many powers of e either way.
        """
        on = (curves.slope > 0) & (curves.width > 0)
        tenant, cluster, _ = np.nonzero(on)
        arrays = (curves.slope, curves.width, curves.bend, curves.linear, curves.square)
        shape = np.stack([array[on] for array in arrays])
        count = np.bincount(tenant, minlength=len(budgets))
        scale = curves.speedups(budgets[:, None] * pe_count).sum(axis=1) / budgets
        shape[[0, 2]] /= scale[tenant]
        of_use = curves.of_use
        part = (budgets[:, None] * of_use / of_use.sum(axis=1, keepdims=True)).sum(axis=0)
        first = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
        spread = np.exp(unlike * (2.0 * (np.arange(len(tenant)) * _GOLDEN % 1.0) - 1.0))
        weight = (budgets / count)[tenant] * part[cluster] * spread
        return cls(first, tenant, cluster, shape, pe_count, budgets, part, weight, scale)

    def shares(self, x: Floats) -> Floats:
        """Return what pieces add up to. Shape [N, C]."""
        found = np.zeros((len(self.budgets), len(self.pe_count)))
        np.add.at(found, (self.tenant, self.cluster), x)
        return found


@dataclass
class Point:
    """An inner point: everything positive."""

    prices: Floats  # [C]
    left: Floats  # PEs not sold, [C]
    money: Floats  # l, [N]
    over: Floats  # money kept, [N]
    x: Floats  # [E], as the rest
    room: Floats  # what a piece is wider, 1 where it has no end
    z: Floats  # how much too dear
    v: Floats  # how much cheaper than it is worth


@dataclass(frozen=True)
class Step:
    """A direction, before prices are solved for, and how far off the point is."""

    matrix: Floats  # [C, C]
    right: Floats  # [C]
    way: Floats  # [N, C]
    fixed: Floats  # [2, N]
    stiff: Floats  # [E]
    pull: Floats  # [E]
    error: float


def centred(pieces: Pieces, prices: Floats, tau: float, money: Floats | None = None) -> Point:
    """Return the point where every tenant answers *prices* as best it can with bounds softened by *tau*."""
    soft, keep = tau * pieces.weight, tau * pieces.budgets
    x, worth = np.empty(len(soft)), np.ones(len(keep)) if money is None else money.copy()
    steps.respond(pieces.first, pieces.cluster, pieces.shape, pieces.budgets, prices, soft, keep, x, worth)
    width = pieces.shape[1]
    ends = np.isfinite(width)
    room = np.where(ends, np.maximum(np.where(ends, width, 2.0) - x, 1e-15), 1.0)
    return Point(prices, tau * pieces.part / prices, worth, keep / worth, x, room, soft / x, soft / room)


def direction(pieces: Pieces, at: Point, tau: float) -> Step:
    """Return Newton's step from *at* towards the point of *tau*."""
    n, c = len(pieces.budgets), len(pieces.pe_count)
    stiff, pull, fixed = np.empty(len(at.x)), np.empty(len(at.x)), np.empty((2, n))
    held, spread, gift, diagonal = np.empty((n, c)), np.empty((n, c)), np.empty(c), np.empty(c)
    error = steps.sides(
        pieces.first, pieces.cluster, pieces.shape, pieces.budgets, at.x, at.room, at.z, at.v, at.money, at.over,
        at.prices, tau * pieces.weight, tau * pieces.budgets, stiff, pull, fixed, held, spread, gift, diagonal,
    )  # fmt: skip
    p = at.prices
    short = pieces.pe_count - held.sum(axis=0) - at.left
    way = held - at.money[:, None] * p * spread
    pulled = spread * p
    matrix = (pulled * fixed[1][:, None]).T @ way
    matrix[np.arange(c), np.arange(c)] = at.left / p + diagonal
    right = tau * pieces.part / p - at.left - short + gift - pulled.T @ fixed[0]
    error = max(error, float(np.abs(short / pieces.pe_count).max()))
    return Step(matrix, right, way, fixed, stiff, pull, error)


def polish(
    pieces: Pieces, at: Point, tau: float, *, shrink: float = 0.1, limit: int = 100, history: list[Floats] | None = None
) -> tuple[Point, int, float]:  # fmt: skip
    """Go from *at* to the equilibrium near it; return the best point, the steps taken and how far it is."""
    best, least, last, taken = at, np.inf, np.inf, 0
    while taken < limit:
        taken += 1
        step = direction(pieces, at, tau)
        far = max(tau, step.error * (_ROUNDED if step.error < _ROUGH else 1.0))
        if far < least:
            best, least = at, far
        settled = step.error < _EXACT or (step.error < _NEAR and step.error > 0.3 * last)
        lost = least < 1e-8 and step.error > 1e-3  # nothing but rounding is left
        if not np.isfinite(step.error) or (tau <= _FINEST and settled) or lost:
            break
        last = step.error
        try:
            at, length = _moved(pieces, at, tau, step)
        except np.linalg.LinAlgError:
            break
        if not length > 0:
            break
        if history is not None:
            history.append(at.prices)
        if step.error < 0.1:
            tau = max(_FINEST, tau * (shrink if length > 0.9 else max(shrink, 0.3) if length > 0.5 else 1.0))
    return best, taken, least


def _moved(pieces: Pieces, at: Point, tau: float, step: Step) -> tuple[Point, float]:
    """Return the point after a step, and how much of it was possible."""
    p = at.prices
    to_prices = p * np.linalg.solve(step.matrix * p, step.right)
    to_money = step.fixed[0] + step.fixed[1] * (step.way @ to_prices)
    to_x, to_z, to_v = np.empty_like(at.x), np.empty_like(at.x), np.empty_like(at.x)
    to_over = np.empty_like(at.over)
    steps.direct(
        pieces.first, pieces.cluster, pieces.shape, pieces.budgets, at.x, at.room, at.z, at.v, at.money, at.over, p,
        tau * pieces.weight, tau * pieces.budgets, step.stiff, step.pull, to_money, to_prices, to_x, to_z, to_v,
        to_over,
    )  # fmt: skip
    to_left = tau * pieces.part / p - at.left - at.left / p * to_prices
    fastest = steps.longest(pieces.shape, at.x, at.room, at.z, at.v, to_x, to_z, to_v)
    for now, way in ((p, to_prices), (at.money, to_money), (at.over, to_over), (at.left, to_left)):
        fastest = max(fastest, float((-way / now).max()))
    if not np.isfinite(fastest):
        return at, 0.0
    t = min(1.0, _BOUNDARY / fastest) if fastest > 0 else 1.0
    ends = np.isfinite(pieces.shape[1])
    return Point(
        p + t * to_prices, at.left + t * to_left, at.money + t * to_money, at.over + t * to_over, at.x + t * to_x,
        at.room - t * np.where(ends, to_x, 0.0), at.z + t * to_z, at.v + t * to_v,
    ), t  # fmt: skip
