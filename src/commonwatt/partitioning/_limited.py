"""Linear markets with limits where ``_newton`` stalls: the same path in relative changes of all unknowns.

Prices of core clusters and of limits may be interchangeable, and budgets differ by orders of magnitude: then
eliminating tenants loses the digits that decide. Here a step is one dense system whose entries stay near 1 however
small prices, shares and budgets become. It costs the third power of the number of pairs of tenant and core cluster, so
this is for up to about a thousand pairs, and is tried second: of 3,000 random markets with ties and weights over six
orders of magnitude ``_newton`` and the crossover leave 67 unsolved, this path none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.partitioning._pieces import Pieces, Point

__all__ = ["follow_path"]

MOST_STEPS = 120
PATIENCE = 60
"""Steps without anything getting better after which the method gives up."""
CLOSE = 1e-13
_SHRINK = 0.1  # of the products, by a good step
_BOUNDARY = 0.98  # part of the way to the boundary that a step may go


def follow_path(pieces: Pieces) -> Point:
    """Return the best point on the path of straight endless *pieces*."""
    path = _Path(pieces)
    best, best_at, point = np.inf, 0, path.point()
    step = 1.0
    for number in range(MOST_STEPS):
        now = path.look()
        if now.error < best:
            best, best_at, point = now.error, number, path.point()
        if best < CLOSE or number - best_at > PATIENCE:
            break
        step = path.advance(now, _SHRINK if step > 0.8 else 0.4)
        if not step > 1e-9:
            break
    return point


@dataclass(frozen=True)
class _Look:
    """Products, in units of their places on the path, and residuals at a point."""

    gains: Floats  # what a unit would gain, of each pair
    pairs: Floats
    goods: Floats
    holds: Floats
    off_pairs: Floats
    off_goods: Floats
    off_limits: Floats

    @property
    def mean(self) -> float:
        products = np.concatenate([self.pairs, self.goods, self.holds])
        return float(products.mean())

    @property
    def error(self) -> float:
        parts = [self.pairs, self.goods, self.holds, np.abs(self.off_pairs)]
        parts += [np.abs(self.off_goods), np.abs(self.off_limits)]
        return max(float(part.max()) for part in parts if part.size)


class _Path:
    """A point on the way.

    Of each pair: shares ``x``, and what they lack to be bought ``z``. Of each good: prices ``p`` and what is left
    ``s``. Of each limit: prices ``q`` and room ``v``.
    """

    def __init__(self, pieces: Pieces) -> None:
        weights, supplies, limits = pieces.budgets, pieces.pe_count, pieces.limits
        self.w, self.m, self.limits = weights, supplies, limits
        self.i, self.k, self.r = pieces.tenant, pieces.cluster, pieces.shape[0]
        self.bound: Ints = np.flatnonzero(np.isfinite(limits))
        self.l = limits[self.bound]
        place = np.full(len(weights), -1)
        place[self.bound] = np.arange(len(self.bound))
        self.pair_limit = place[self.i]  # of each pair its row among the limits, -1 for none
        self.held = np.flatnonzero(self.pair_limit >= 0)
        x = 0.5 * supplies[self.k] * weights[self.i] / self._by_good(weights[self.i])[self.k]
        with np.errstate(divide="ignore"):
            self.x = x * np.minimum(1.0, 0.5 * limits / self._by_tenant(x))[self.i]
        gains = weights[self.i] * self.r / self._by_tenant(self.r * self.x)[self.i]
        self.p = np.zeros(len(supplies))
        np.maximum.at(self.p, self.k, 1.5 * gains)
        self.q = weights[self.bound] / self.l
        self.z = self._paid() - gains
        self.s = supplies - self._by_good(self.x)
        self.v = self.l - self._by_tenant(self.x)[self.bound]

    def _by_good(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.k, values, minlength=len(self.m)), dtype=float)

    def _by_tenant(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.i, values, minlength=len(self.w)), dtype=float)

    def _paid(self) -> Floats:
        """Price of the good and of the limit together, of each pair."""
        return self.p[self.k] + np.append(self.q, 0.0)[self.pair_limit]

    def point(self) -> Point:
        """Return where it is, as ``_newton`` does."""
        money, fee, gap = self._by_tenant(self.r * self.x) / self.w, np.zeros(len(self.w)), np.ones(len(self.w))
        fee[self.bound], gap[self.bound] = self.q, self.v
        ones = np.ones_like(self.x)
        y = np.stack([self.x, ones, self.z * money[self.i], 0.0 * ones])
        return Point(self.p.copy(), self.s.copy(), np.stack([money, 0.0 * money, fee, gap]), y)

    def look(self) -> _Look:
        """Measure the point."""
        gains = self.w[self.i] * self.r / self._by_tenant(self.r * self.x)[self.i]
        paid = self._paid()
        left = self.m - self._by_good(self.x) - self.s
        room = self.l - self._by_tenant(self.x)[self.bound] - self.v
        return _Look(
            gains, self.x * self.z / self.w[self.i], len(self.m) * self.p * self.s,
            self.q * self.v / self.w[self.bound], (paid - self.z - gains) / gains, left / self.m, room / self.l,
        )  # fmt: skip

    def advance(self, now: _Look, shrink: float) -> float:
        """Go towards *shrink* times the mean product; return the part of Newton's step taken."""
        target = shrink * now.mean
        drop = [target / products - 1.0 for products in (now.pairs, now.goods, now.holds)]
        matrix = self._matrix(now.gains)
        sides = np.concatenate([
            self.z * drop[0] / now.gains - now.off_pairs,
            now.off_goods - self.s * drop[1] / self.m,
            now.off_limits - self.v * drop[2] / self.l,
        ])  # fmt: skip
        try:
            found = np.linalg.solve(matrix, sides)
        except np.linalg.LinAlgError:
            found = np.linalg.lstsq(matrix, sides, rcond=1e-15)[0]
        if not np.isfinite(found).all():
            return 0.0
        dx, dp, dq = np.split(found, [len(self.x), len(self.x) + len(self.p)])
        by = [dx, dp, dq, drop[0] - dx, drop[1] - dp, drop[2] - dq]
        steepest = max(-float(change.min(initial=0.0)) for change in by)
        step = min(1.0, _BOUNDARY / steepest) if steepest > 0 else 1.0
        self.x, self.p, self.q, self.z, self.s, self.v = (
            at * (1.0 + step * change)
            for at, change in zip((self.x, self.p, self.q, self.z, self.s, self.v), by, strict=True)
        )
        return step

    def _matrix(self, gains: Floats) -> Floats:
        """Derivatives of the residuals by relative changes of shares, prices and prices of limits."""
        pairs, goods, limits = len(self.x), len(self.p), len(self.q)
        rows, held, own = np.arange(pairs), self.held, self.pair_limit[self.held]
        matrix = np.zeros((pairs + goods + limits,) * 2)
        utility = self._by_tenant(self.r * self.x)[self.i]
        same = self.i[:, None] == self.i[None, :]
        matrix[:pairs, :pairs] = np.where(same, (self.r * self.x)[None, :] / utility[:, None], 0.0)
        matrix[rows, rows] += self.z / gains
        matrix[rows, pairs + self.k] = self.p[self.k] / gains
        matrix[held, pairs + goods + own] = self.q[own] / gains[held]
        matrix[pairs + self.k, rows] = self.x / self.m[self.k]
        matrix[pairs + goods + own, held] = self.x[held] / self.l[own]
        last = np.arange(pairs, pairs + goods + limits)
        matrix[last, last] = -np.concatenate([self.s / self.m, self.v / self.l])
        return matrix
