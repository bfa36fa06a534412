"""Linear markets without limits: a primal-dual interior point method, for many markets at once.

Tenants are eliminated by hand, so that a step costs one system with as many equations as there are goods. Each tenant
is centred on its own weight, which keeps the relative precision of the smallest budget.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Bools, Floats

__all__ = ["Interior", "gaps"]

MOST_STEPS = 200
PATIENCE = 8
"""Steps without anything getting better after which a market is left as it is."""


def gaps(weights: Floats, rates: Floats, shares: Floats, prices: Floats) -> Floats:
    """Return by how much the log welfare of each market is at most larger than that of *shares* (weak duality).

    Shapes as in :class:`Interior`; all supplies are 1. Shape [B].
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(rates > 0, rates / prices[:, None, :], 0.0).max(axis=2)
    bound = np.where(rates.any(axis=1), prices, 0.0).sum(axis=1) + np.log(weights * best) @ weights - 1.0
    return np.asarray(bound - np.log((rates * shares).sum(axis=2)) @ weights)


class Interior:
    """Newton's method on the central path of markets whose goods all have supply 1.

    ``x`` [B, N, K] are the shares, ``p`` [B, K] the prices of each market; weights [N] are the same for all, rates are
    [B, N, K]. A good that nobody can use keeps its price. ``boldness`` is by which factor a good step shrinks the
    products, ``close`` the error relative to each budget at which a market is left.
    """

    def __init__(self, weights: Floats, rates: Floats, boldness: float, close: float = 1e-14) -> None:
        b, n, k = rates.shape
        self.w, self.r, self.close = weights, rates, close
        self.can: Bools = rates > 0
        self.traded: Bools = np.asarray(self.can.any(axis=1))  # [B, K]
        self.x = np.where(self.can, 0.5 / n, 0.0)
        u = (rates * self.x).sum(axis=2)
        self.p = np.maximum((weights[:, None] * rates / u[:, :, None]).max(axis=1), 1e-3 / k)
        self.z = np.where(self.can, weights[:, None] / np.where(self.can, self.x, 1.0), 1.0)
        self.s = np.where(self.traded, 1.0 - self.x.sum(axis=1), 0.0)  # what is left of each good
        self.boldness, self.centring = boldness, np.full(b, boldness)
        self.going = np.ones(b, dtype=bool)

    def run(self) -> None:
        """Follow the paths until products are at rounding error, or nothing gets better."""
        best, best_at = np.full(len(self.x), np.inf), np.zeros(len(self.x), dtype=int)
        kept_x, kept_p = self.x, self.p
        for step in range(MOST_STEPS):
            error = self._error()
            better = error < best
            best, best_at = np.where(better, error, best), np.where(better, step, best_at)
            kept_x = np.where(better[:, None, None], self.x, kept_x)
            kept_p = np.where(better[:, None], self.p, kept_p)
            self.going &= (error >= self.close) & (step - best_at <= PATIENCE)
            if not self.going.any() or not self._newton():
                break
        self.p = kept_p
        self.x = kept_x / np.where(self.traded, kept_x.sum(axis=1), 1.0)[:, None, :]

    def _dual(self) -> Floats:
        """How far each bundle is from being the best at the prices, to first order. Shape [B, N, K]."""
        u = (self.r * self.x).sum(axis=2)
        gains = self.w[:, None] * self.r / u[:, :, None]
        return np.where(self.can, self.p[:, None, :] - self.z - gains, 0.0)

    def _missing(self) -> Floats:
        return np.where(self.traded, 1.0 - self.x.sum(axis=1) - self.s, 0.0)

    def _error(self) -> Floats:
        """The largest product or residual of each market, relative to each tenant's budget."""
        tenants = np.maximum((self.x * self.z).sum(axis=2), np.abs(self._dual() * self.x).sum(axis=2)) / self.w
        goods = np.maximum(np.abs(self._missing()), self.s * self.p)
        return np.asarray(np.maximum(tenants.max(axis=1), goods.max(axis=1)))

    def _newton(self) -> bool:
        """Take one step in each market; false if rounding errors leave none."""
        w, x, z, s, p = self.w[:, None], np.where(self.can, self.x, 1.0), self.z, self.s, self.p
        # everything is sold: what is left goes to 0 whatever the price
        products = (self.x * z / w).sum(axis=(1, 2)) + s.sum(axis=1)
        centre = self.centring * products / (self.can.sum(axis=(1, 2)) + self.traded.sum(axis=1))
        wanted = centre[:, None, None] * w / x - z
        g = np.where(self.can, wanted - self._dual(), 0.0)
        square = np.where(self.can, x / z, 0.0)
        side = self.r * square
        u = (self.r * self.x).sum(axis=2)
        small = (1.0 / (u * u / self.w + (side * self.r).sum(axis=2)))[:, :, None]  # [B, N, 1]
        whole = -np.swapaxes(side * small, 1, 2) @ side
        diagonal = np.arange(p.shape[1])
        whole[:, diagonal, diagonal] += np.where(self.traded, square.sum(axis=1) + s / p, 1.0)

        def bundles(by: Floats) -> Floats:
            return np.asarray(square * by - side * (small * (side * by).sum(axis=2, keepdims=True)))

        left = np.where(self.traded, centre[:, None] - s, 0.0)
        try:
            dp = np.linalg.solve(whole, (bundles(g).sum(axis=1) + left - self._missing())[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            return False
        dx = bundles(np.where(self.can, g - dp[:, None, :], 0.0))
        dz = np.where(self.can, wanted - z / x * dx, 0.0)
        return self._step(dx, dp, dz, left - s / p * dp)

    def _step(self, dx: Floats, dp: Floats, dz: Floats, ds: Floats) -> bool:
        longest = np.full(len(self.p), np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            for at, by in ((self.x, dx), (self.z, dz), (self.p, dp), (self.s, ds)):
                ratios = np.where(by < 0, at / -by, np.inf).reshape(len(at), -1)
                longest = np.minimum(longest, ratios.min(axis=1))
        t = np.minimum(1.0, (1.0 - 0.2 * self.boldness) * longest)
        self.going &= np.isfinite(dp).all(axis=1) & np.isfinite(dx).all(axis=(1, 2)) & (t >= 1e-8)
        if not self.going.any():
            return False
        self.centring = np.where(t > 0.8, self.boldness, max(0.3, self.boldness))
        going, one, two = self.going, t[:, None], t[:, None, None]
        self.x = np.where(going[:, None, None], self.x + two * dx, self.x)
        self.z = np.where(going[:, None, None], self.z + two * dz, self.z)
        self.p = np.where(going[:, None], self.p + one * dp, self.p)
        self.s = np.where(going[:, None], self.s + one * ds, self.s)
        return True
