"""Linear markets without limits: a primal-dual interior point method.

Tenants are eliminated by hand, so that a step costs one system with as many equations as there are goods. Each tenant
is centred on its own weight, which keeps the relative precision of the smallest budget.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Bools, Floats

__all__ = ["Interior"]

MOST_STEPS = 200


class Interior:
    """Newton's method on the central path of a market whose goods all have supply 1.

    ``x`` [N, K] are the shares, ``p`` [K] the prices; ``boldness`` is by which factor a good step shrinks the products.
    """

    def __init__(self, weights: Floats, rates: Floats, boldness: float) -> None:
        n, k = rates.shape
        self.w, self.r = weights, rates
        self.can: Bools = rates > 0
        self.x = np.where(self.can, 0.5 / n, 0.0)
        u = (rates * self.x).sum(axis=1)
        self.p = np.maximum((weights[:, None] * rates / u[:, None]).max(axis=0), 1e-3 / k)
        self.z = np.where(self.can, weights[:, None] / np.where(self.can, self.x, 1.0), 1.0)
        self.s = 1.0 - self.x.sum(axis=0)  # what is left of each good
        self.boldness = self.centring = boldness

    def run(self) -> None:
        """Follow the path until products are at rounding error, or nothing gets better."""
        best, best_at, kept = np.inf, 0, (self.x, self.p)
        for step in range(MOST_STEPS):
            error = self._error()
            if error < best:
                best, best_at, kept = error, step, (self.x, self.p)
            if error < 1e-14 or step - best_at > 8 or not self._newton():
                break
        self.x, self.p = kept
        self.x = self.x / self.x.sum(axis=0)

    def _dual(self) -> Floats:
        """How far each bundle is from being the best at the prices, to first order. Shape [N, K]."""
        u = (self.r * self.x).sum(axis=1)
        return np.where(self.can, self.p - self.z - self.w[:, None] * self.r / u[:, None], 0.0)

    def _error(self) -> float:
        """The largest product or residual, relative to each tenant's budget."""
        parts = (self.x * self.z).sum(axis=1), np.abs(self._dual() * self.x).sum(axis=1)
        relative = max(float((part / self.w).max()) for part in parts)
        goods = np.maximum(np.abs(1.0 - self.x.sum(axis=0) - self.s), self.s * self.p)
        return max(relative, float(goods.max()))

    def _newton(self) -> bool:
        """Take one step; false if rounding errors leave none."""
        w, x, z = self.w[:, None], np.where(self.can, self.x, 1.0), self.z
        # everything is sold: what is left goes to 0 whatever the price
        centre = self.centring * float((self.x * z / w).sum() + self.s.sum()) / (self.can.sum() + len(self.s))
        missing = 1.0 - self.x.sum(axis=0) - self.s
        g = np.where(self.can, centre * w / x - z - self._dual(), 0.0)
        square = np.where(self.can, x / z, 0.0)
        side = self.r * square
        u = (self.r * self.x).sum(axis=1)
        small = 1.0 / (u * u / self.w + (side * self.r).sum(axis=1))  # [N]
        whole = np.diag(square.sum(axis=0) + self.s / self.p) - (side * small[:, None]).T @ side

        def bundles(by: Floats) -> Floats:
            return square * by - side * (small * (side * by).sum(axis=1))[:, None]

        try:
            dp = np.linalg.solve(whole, bundles(g).sum(axis=0) + centre - self.s - missing)
        except np.linalg.LinAlgError:
            return False
        dx = bundles(np.where(self.can, g - dp, 0.0))
        dz = np.where(self.can, centre * w / x - z - z / x * dx, 0.0)
        return self._step(dx, dp, dz, centre - self.s - self.s / self.p * dp)

    def _step(self, dx: Floats, dp: Floats, dz: Floats, ds: Floats) -> bool:
        can = self.can
        pairs = ((self.x[can], dx[can]), (self.z[can], dz[can]), (self.p, dp), (self.s, ds))
        longest = min((float((at[by < 0] / -by[by < 0]).min()) for at, by in pairs if (by < 0).any()), default=np.inf)
        t = min(1.0, (1.0 - 0.2 * self.boldness) * longest)
        if not np.isfinite(dp).all() or not np.isfinite(dx).all() or t < 1e-8:
            return False
        self.centring = self.boldness if t > 0.8 else max(0.3, self.boldness)
        self.x, self.p = self.x + t * dx, self.p + t * dp
        self.z, self.s = self.z + t * dz, self.s + t * ds
        return True
