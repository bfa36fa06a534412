"""Linear markets in which tenants are limited: an interior point method that keeps relative precision.

Newton's method on the central path, as :mod:`commonwatt.partitioning.linear_interior`, but for relative changes of all
unknowns, with one dense system a step. Its entries stay near 1 however small prices, shares and budgets become, which
matters as prices of goods and of limits may be interchangeable. A step costs the third power of the number of pairs of
tenant and good, so this is for markets with up to about a thousand pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.partitioning.limited_exact import State

__all__ = ["follow_path"]

MOST_STEPS = 120
PATIENCE = 60
"""Steps without anything getting better after which the method gives up."""
CLOSE = 1e-13


def follow_path(weights: Floats, rates: Floats, supplies: Floats, limits: Floats, boldness: float, kind: str) -> State:
    """Return where the path ends, or the best point on it where rounding ends it early.

    Parameters
    ----------
    weights, rates, supplies, limits
        As in :func:`commonwatt.partitioning.linear_market.solve`; weights sum to 1, each good is of use to somebody,
        limits that cannot bind are infinite.
    boldness
        By which factor a good step shrinks the products, between 0 and 1.
    kind
        Where goods are centred: ``even``, all on the same product of price and what is left; ``money``, on what is
        paid for them.
    """
    path = _Path(weights, rates, supplies, limits)
    best, best_at, state = np.inf, 0, path.state()
    step = 1.0
    for number in range(MOST_STEPS):
        now = path.look(kind)
        if now.error < best:
            best, best_at, state = now.error, number, path.state()
        if best < CLOSE or number - best_at > PATIENCE:
            break
        shrink = boldness if step > 0.8 else max(0.4, boldness)
        step = path.advance(now, shrink, 1.0 - 0.2 * boldness)
        if not step > 1e-9:
            break
    return state


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

    def __init__(self, weights: Floats, rates: Floats, supplies: Floats, limits: Floats) -> None:
        self.w, self.m, self.shape = weights, supplies, rates.shape
        self.i, self.k = np.nonzero(rates > 0)
        self.r = rates[self.i, self.k] / rates.max(axis=1)[self.i]
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

    def state(self) -> State:
        shares, lacking, q, v = np.zeros(self.shape), np.ones(self.shape), np.zeros(len(self.w)), np.ones(len(self.w))
        shares[self.i, self.k], lacking[self.i, self.k] = self.x, self.z
        q[self.bound], v[self.bound] = self.q, self.v
        return State(shares, self.p, q, lacking, self.s, v)

    def look(self, kind: str) -> _Look:
        """Measure the point."""
        gains = self.w[self.i] * self.r / self._by_tenant(self.r * self.x)[self.i]
        paid = self._paid()
        centre = np.full(len(self.m), 1.0 / len(self.m)) if kind == "even" else self._by_good(self.x * paid)
        left = self.m - self._by_good(self.x) - self.s
        room = self.l - self._by_tenant(self.x)[self.bound] - self.v
        return _Look(
            gains, self.x * self.z / self.w[self.i], self.p * self.s / centre, self.q * self.v / self.w[self.bound],
            (paid - self.z - gains) / gains, left / self.m, room / self.l,
        )  # fmt: skip

    def advance(self, now: _Look, shrink: float, most: float) -> float:
        """Go at most the part *most* of the way to the boundary; returns the part of Newton's step taken."""
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
        step = min(1.0, most / steepest) if steepest > 0 else 1.0
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
