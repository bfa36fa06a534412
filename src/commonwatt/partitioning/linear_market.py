"""The market of linear utilities (Eisenberg and Gale), to machine precision.

Tenants take turns on goods, so what a good is worth to a tenant is linear in its share of it. With budgets w, rates
r and supplies m, the equilibrium maximises ``sum_i w_i log(sum_k r_ik x_ik)`` over shares with ``sum_i x_ik <= m_k``;
the multipliers of the supplies are the prices. A tenant may also be limited to ``limit_i`` units of all goods together
(somebody with one program to run cannot be in two places at a time): then it may not spend its whole budget, the
prices still are those at which its bundle is the best for what it spends.

Solved by a primal-dual interior point method; tenants are eliminated by hand, so that a step costs one K x K system.
Each tenant is centred on its own weight, which keeps the relative precision of the smallest budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.errors import InputError, SolverError

__all__ = ["Equilibrium", "residual", "solve"]

TOLERANCE = 1e-9
LIMITED_TOLERANCE = 1e-5
"""With limits, prices of goods and of limits may be interchangeable; rounding errors weigh more."""
MOST_STEPS = 200


@dataclass(frozen=True)
class Equilibrium:
    """Prices and shares of a linear market; budgets are scaled to sum to 1.

    Attributes
    ----------
    prices
        Of one unit of each good; 0 where nobody can use it. Shape [K].
    limit_prices
        What a tenant at its limit would pay for one more unit of time, whatever the good; 0 elsewhere. Shape [N].
    shares
        Units of each good each tenant holds. Shape [N, K].
    utilities
        Rate each tenant reaches. Shape [N].
    residual
        Largest relative gain a tenant still has at the prices with its budget, and largest clearing or budget error.
    log_welfare
        ``sum_i w_i log(u_i)``, weights scaled to sum to 1.
    bound
        No shares reach a larger log welfare (weak duality).
    steps
        Newton steps taken.
    """

    prices: Floats  # [K]
    limit_prices: Floats  # [N]
    shares: Floats  # [N, K]
    utilities: Floats  # [N]
    residual: float
    log_welfare: float
    bound: float
    steps: int


def solve(weights: Floats, rates: Floats, supplies: Floats, limits: Floats | None = None) -> Equilibrium:
    """Return the equilibrium of a market.

    Parameters
    ----------
    weights
        Budgets, positive. Shape [N].
    rates
        What one unit of each good is worth to each tenant, 0 or more, not all 0. Shape [N, K].
    supplies
        Units of each good, positive. Shape [K].
    limits
        Most units of all goods together that each tenant can hold; infinity for none. Shape [N].

    Raises
    ------
    InputError
        No tenants or goods, a weight, rate, supply or limit out of range, a tenant to whom nothing is worth anything.
    SolverError
        No equilibrium within ``TOLERANCE`` was found; the message has the residual.
    """
    weights, rates, supplies = (np.asarray(a, dtype=float) for a in (weights, rates, supplies))
    limits = np.full(len(weights), np.inf) if limits is None else np.asarray(limits, dtype=float)
    _check(weights, rates, supplies, limits)
    scaled = weights / weights.sum()
    useful = (rates > 0).any(axis=0)
    gained = rates[:, useful] * supplies[useful]
    scale = gained.max(axis=1)
    limited = limits < np.where(rates > 0, supplies, 0.0).sum(axis=1)
    tried = []
    for boldest in (0.05, 0.2, 0.5):  # where rounding errors end the path early, take it more slowly
        inner = _Interior(scaled, gained / scale[:, None], supplies[useful], np.where(limited, limits, np.inf), boldest)
        inner.run()
        shares = np.zeros_like(rates)
        shares[:, useful] = inner.x * supplies[useful]
        prices = np.zeros(len(supplies))
        prices[useful] = inner.p / supplies[useful]
        error = residual(scaled, rates, supplies, shares, prices, inner.q, limits)
        if error < (LIMITED_TOLERANCE if limited.any() else TOLERANCE):
            return _answer(scaled, rates, supplies, limits, shares, prices, error, inner)
        tried.append(error)
    msg = f"the market did not settle: residual {min(tried):.3g}"
    raise SolverError(msg)


def _answer(
    weights: Floats,
    rates: Floats,
    supplies: Floats,
    limits: Floats,
    shares: Floats,
    prices: Floats,
    error: float,
    inner: _Interior,
) -> Equilibrium:
    utilities = (rates * shares).sum(axis=1)
    paid = prices + inner.q[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(rates > 0, rates / paid, 0.0).max(axis=1)
    spent_on_limits = np.where(np.isfinite(limits), limits, 0.0) * inner.q
    bound = float(prices @ supplies + spent_on_limits.sum() + weights @ np.log(weights * best) - 1.0)
    return Equilibrium(
        prices, inner.q, shares, utilities, error, float(weights @ np.log(utilities)), bound, inner.steps
    )


def residual(
    weights: Floats,
    rates: Floats,
    supplies: Floats,
    shares: Floats,
    prices: Floats,
    limit_prices: Floats | None = None,
    limits: Floats | None = None,
) -> float:
    """Return how far shares and prices are from an equilibrium; 0 is perfect. Weights must sum to 1.

    The largest of: relative gain in utility that a tenant's best bundle for its money would bring, supply of a good
    with a price that is not sold or is sold twice (relative), and money not spent or not had (relative to the budget).
    """
    q = np.zeros(len(weights)) if limit_prices is None else limit_prices
    bounds = np.full(len(weights), np.inf) if limits is None else limits
    at_limit = np.where(np.isfinite(bounds), bounds, 0.0) * q
    utilities = (rates * shares).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(rates > 0, rates / (prices + q[:, None]), 0.0).max(axis=1)
        gains = best * weights / utilities - 1.0
    sold = shares.sum(axis=0)
    priced = prices > 0
    clearing = np.where(priced, np.abs(sold / supplies - 1.0), np.maximum(sold / supplies - 1.0, 0.0))
    if limits is not None:  # a good may be left over, if its price is next to nothing
        clearing = np.minimum(clearing, np.maximum(sold / supplies - 1.0, 0.0) + prices * (supplies - sold).clip(0))
        over = np.maximum(shares.sum(axis=1) / bounds - 1.0, 0.0).max()
    else:
        over = 0.0
    budgets = np.abs((shares @ prices + at_limit) / weights - 1.0)
    negative = max(0.0, -float(shares.min()), -float(prices.min()))
    return float(max(gains.max(), clearing.max(), budgets.max(), over, negative))


def _check(weights: Floats, rates: Floats, supplies: Floats, limits: Floats) -> None:
    n, k = len(weights), len(supplies)
    if n == 0 or k == 0 or rates.shape != (n, k) or limits.shape != (n,):
        raise InputError("one row of rates for each tenant and one column for each good", value=rates.shape)
    for name, values, lowest in (("weights", weights, 0.0), ("supplies", supplies, 0.0), ("limits", limits, 0.0)):
        if not (values > lowest).all() or (name != "limits" and not np.isfinite(values).all()):
            raise InputError("positive numbers", field=name, value=values.tolist())
    if not (rates >= 0).all() or not np.isfinite(rates).all():
        raise InputError("numbers, 0 or more", field="rates", value=float(rates.min()))
    nothing = np.flatnonzero(~(rates > 0).any(axis=1))
    if len(nothing):
        raise InputError("at least one good that is worth something", field=f"tenants.{nothing[0]}", value="none")


class _Interior:
    """Newton's method on the central path of a market whose goods all have supply 1."""

    def __init__(self, weights: Floats, rates: Floats, amounts: Floats, limits: Floats, boldest: float) -> None:
        n, k = rates.shape
        self.w, self.r = weights, rates
        self.a = amounts  # units of time in one good
        self.can: Bools = rates > 0
        self.limited: Bools = np.isfinite(limits)
        self.limits = np.where(self.limited, limits, 1.0)
        room = np.where(self.limited, 0.5 * self.limits / amounts.sum(), 0.5 / n)
        self.x = np.where(self.can, np.minimum(0.5 / n, room)[:, None], 0.0)
        u = (rates * self.x).sum(axis=1)
        self.p = np.maximum((weights[:, None] * rates / u[:, None]).max(axis=0), 1e-3 / k)
        self.q = np.where(self.limited, weights / self.limits, 0.0)
        self.z = np.where(self.can, weights[:, None] / np.where(self.can, self.x, 1.0), 1.0)
        self.s = 1.0 - self.x.sum(axis=0)  # what is left of each good
        self.v = np.where(self.limited, self.limits - self.x @ amounts, 1.0)  # and of each limit
        self.boldest = self.centring = boldest
        self.steps = 0

    def run(self) -> None:
        """Follow the path until products are at rounding error, or nothing gets better."""
        best, best_at, kept = np.inf, 0, (self.x, self.p, self.q)
        for step in range(MOST_STEPS):
            error = self._error()
            if error < best:
                best, best_at, kept = error, step, (self.x, self.p, self.q)
            if error < 1e-14 or step - best_at > 8 or not self._newton():
                break
            self.steps += 1
        self.x, self.p, self.q = kept
        if self.limited.any():  # rounding must not hand out more than there is
            self.x = self.x / np.maximum(self.x.sum(axis=0), 1.0)
            self.x = self.x / np.where(self.limited, np.maximum(self.x @ self.a / self.limits, 1.0), 1.0)[:, None]
        else:
            self.x = self.x / self.x.sum(axis=0)

    def _dual(self) -> Floats:
        """How far each bundle is from being the best at the prices, to first order. Shape [N, K]."""
        u = (self.r * self.x).sum(axis=1)
        gains = self.w[:, None] * self.r / u[:, None]
        return np.where(self.can, self.p + np.outer(self.q, self.a) - self.z - gains, 0.0)

    def _error(self) -> float:
        """The largest product or residual, relative to each tenant's budget."""
        parts = (self.x * self.z).sum(axis=1), np.abs(self._dual() * self.x).sum(axis=1), self.q * self.v
        relative = max(float((part / self.w).max()) for part in parts)
        goods = np.maximum(np.abs(1.0 - self.x.sum(axis=0) - self.s), self.s * self.p)
        return max(relative, float(goods.max()))

    def _newton(self) -> bool:
        """Take one step; false if rounding errors leave none."""
        w, x, z = self.w[:, None], np.where(self.can, self.x, 1.0), self.z
        # without limits everything is sold: what is left goes to 0 whatever the price
        per = np.full(len(self.p), 1.0 / len(self.p)) if self.limited.any() else self.p
        products = float((self.x * z / w).sum() + (self.s * self.p / per).sum() + (self.q * self.v / self.w).sum())
        centre = self.centring * products / (self.can.sum() + len(self.s) + self.limited.sum())
        missing = 1.0 - self.x.sum(axis=0) - self.s
        owed = np.where(self.limited, centre * self.w / np.where(self.limited, self.q, 1.0), 0.0)
        room = np.where(self.limited, self.limits - self.x @ self.a - owed, 0.0)
        g = np.where(self.can, centre * w / x - z - self._dual(), 0.0)
        square, sides, small = self._tenants(x, z)
        flat = sides.reshape(-1, len(self.p))  # [2N, K]
        whole = np.diag(square.sum(axis=0) + self.s / self.p) - flat.T @ (small @ sides).reshape(flat.shape)
        held, _ = _bundles(square, sides, small, g, room)
        try:
            dp = np.linalg.solve(whole, held.sum(axis=0) + centre * per / self.p - self.s - missing)
        except np.linalg.LinAlgError:
            return False
        dx, dual = _bundles(square, sides, small, np.where(self.can, g - dp, 0.0), room)
        dz = np.where(self.can, centre * w / x - z - z / x * dx, 0.0)
        dq = np.where(self.limited, dual[:, 1], 0.0)
        dv = np.where(self.limited, owed - self.v - self.v / np.where(self.limited, self.q, 1.0) * dq, 0.0)
        return self._step(dx, dp, dz, dq, centre * per / self.p - self.s - self.s / self.p * dp, dv)

    def _tenants(self, x: Floats, z: Floats) -> tuple[Floats, Floats, Floats]:
        """Parts of each tenant's system: a diagonal [N, K], two rows of it [N, 2, K], an inverse [N, 2, 2].

        The rows are its rates (its utility) and the units of time in each good (its limit).
        """
        square = np.where(self.can, x / z, 0.0)
        u = (self.r * self.x).sum(axis=1)
        times = np.outer(self.limited, self.a)
        sides = np.stack([self.r * square, times * square], axis=1)
        one = u * u / self.w
        two = np.where(self.limited, self.v / np.where(self.limited, self.q, 1.0), 1.0)
        rr, rt, tt = (
            (a * b).sum(axis=1) for a, b in ((sides[:, 0], self.r), (sides[:, 0], times), (sides[:, 1], times))
        )
        crossed = self._crossed(square)
        determinant = crossed + one * tt + two * rr + one * two  # by Cauchy and Binet: nothing cancels
        small = np.array([[tt + two, -rt], [-rt, rr + one]]).transpose(2, 0, 1) / determinant[:, None, None]
        return square, sides, small

    def _crossed(self, square: Floats) -> Floats:
        """Sum over pairs of goods of the squared areas between rates and times. Shape [N]."""
        found = np.zeros(len(self.w))
        for i in np.flatnonzero(self.limited):
            area = np.outer(self.r[i], self.a)
            found[i] = 0.5 * (np.outer(square[i], square[i]) * (area - area.T) ** 2).sum()
        return found

    def _step(self, dx: Floats, dp: Floats, dz: Floats, dq: Floats, ds: Floats, dv: Floats) -> bool:
        can, limited = self.can, self.limited
        pairs = (
            (self.x[can], dx[can]), (self.z[can], dz[can]), (self.p, dp), (self.s, ds),
            (self.q[limited], dq[limited]), (self.v[limited], dv[limited]),
        )  # fmt: skip
        longest = min((float((at[by < 0] / -by[by < 0]).min()) for at, by in pairs if (by < 0).any()), default=np.inf)
        t = min(1.0, (1.0 - 0.2 * self.boldest) * longest)
        if not np.isfinite(dp).all() or not np.isfinite(dx).all() or t < 1e-8:
            return False
        self.centring = self.boldest if t > 0.8 else max(0.3, self.boldest)
        self.x, self.p, self.z = self.x + t * dx, self.p + t * dp, self.z + t * dz
        self.q, self.s, self.v = self.q + t * dq, self.s + t * ds, self.v + t * dv
        return True


def _bundles(square: Floats, sides: Floats, small: Floats, g: Floats, room: Floats) -> tuple[Floats, Floats]:
    """Return the change of each tenant's bundle under *g*, and of its two multipliers."""
    pulled = np.einsum("isk,ik->is", sides, g)
    pulled[:, 1] -= room
    dual = np.einsum("irs,is->ir", small, pulled)
    return square * g - np.einsum("irk,ir->ik", sides, dual), dual
