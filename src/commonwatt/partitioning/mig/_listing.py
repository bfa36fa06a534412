"""Markets on all sets of instances, compared by a welfare that is not concave, from the most promising set on.

Sets come with a bound that needs no solving. Without limits many markets
are solved at once, roughly: with shares that reach utilities u' and a log welfare that is d below its bound, the true
utilities ``u = u' exp(t)`` satisfy ``sum_i w_i exp(-t_i) <= 1`` (no shares improve on an equilibrium, to first order)
and ``sum_i w_i t_i <= d``, so ``sum_i w_i (exp(-t_i) - 1 + t_i) <= d``: a bound on every welfare. Only sets whose bound
is above the best welfare found are solved to rounding error.

**Bounds.** Utilities in the market on a set are bounded without solving it. From below: without limits no tenant does
worse than with its part of every instance (its budget buys that). With limits, prices p and fees q of the limits l
satisfy ``p @ m <= 1 - q_i l_i``; so the bundle of a tenant's part of every instance, cut down to the limit (a part t of
it), costs at most ``w_i (1 + max(0, t - w_i))``, and the tenant does no worse than with this bundle divided by as much.
From above: at the prices of any other layout nobody gets a unit of utility for less than its best instance asks, and
all tenants together can spend no more than everything costs.

**Rough solutions**, of many markets at once and to a stated closeness, take the same compiled steps as ``_newton``.
One by one, with all checks, a market of 10 tenants and 5 kinds of instance takes 2.1 ms; here it takes 0.07 ms. A
listing compares thousands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import ArgumentError, InputError
from commonwatt.optimize import njit
from commonwatt.partitioning._comparison import welfare
from commonwatt.partitioning._curves import Pieces, Point
from commonwatt.partitioning._demand import respond
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._newton import follow
from commonwatt.partitioning._solve import Equilibrium, solve
from commonwatt.partitioning.mig._problem import MigProblem

__all__ = [
    "MOST_COUNTS",
    "Listing",
    "all_counts",
    "approximate_equilibria",
    "certified",
    "constant",
    "gaps",
    "highest",
    "least_utilities",
    "on_layout",
]

# -- rough solutions


_STEPS = 100


def approximate_equilibria(weights: Floats, rates: Floats, close: float) -> tuple[Floats, Floats]:
    """Return shares [B, N, K] and prices [B, K] near the equilibria of linear markets whose goods have supply 1.

    *weights* [N] sum to 1 and are the same for all, *rates* are [B, N, K]; a good nobody can use is not divided.
    *close* is the distance from the equilibrium at which a market is left.
    """
    shares, prices = np.zeros_like(rates), np.ones((len(rates), rates.shape[2]))
    _all(weights, rates, close, shares, prices)
    sold = shares.sum(axis=1, keepdims=True)
    return np.asarray(shares / np.where(sold > 0, sold, 1.0)), prices


def gaps(weights: Floats, rates: Floats, shares: Floats, prices: Floats) -> Floats:
    """Return by how much the log welfare of each market is at most larger than that of *shares* (weak duality).

    Shapes as in ``roughly``. Shape [B].
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(rates > 0, rates / prices[:, None, :], 0.0).max(axis=2)
    bound = np.where(rates.any(axis=1), prices, 0.0).sum(axis=1) + np.log(weights * best) @ weights - 1.0
    return np.asarray(bound - np.log((rates * shares).sum(axis=2)) @ weights)


@njit(cache=True, error_model="numpy")
def _all(weights: Floats, rates: Floats, close: float, shares: Floats, prices: Floats) -> None:
    for b in range(len(rates)):
        _one(weights, rates[b], close, shares[b], prices[b])


@njit(cache=True, error_model="numpy")
def _one(weights: Floats, rates: Floats, close: float, shares: Floats, prices: Floats) -> None:
    """Lay out the pieces of one market as ``Pieces.of`` does, and follow its path."""
    n, k = rates.shape
    goods = np.flatnonzero(np.array([rates[:, c].max() > 0.0 for c in range(k)]))
    size = len(goods)
    first, cluster = np.zeros(n + 1, np.int64), np.empty(n * size, np.int64)
    shape, part = np.zeros((5, n * size)), np.zeros(size)
    for i in range(n):
        e = first[i]
        for c in range(size):
            if rates[i, goods[c]] > 0.0:
                cluster[e] = c
                shape[0, e] = rates[i, goods[c]] / rates[i].sum()
                e += 1
        first[i + 1] = e
        part[cluster[first[i] : e]] += weights[i] / (e - first[i])
    pairs = first[n]
    cluster, shape = cluster[:pairs], np.ascontiguousarray(shape[:, :pairs])
    shape[1] = np.inf
    tenant_of, soft = np.empty(pairs, np.int64), np.empty(pairs)
    for i in range(n):
        for e in range(first[i], first[i + 1]):
            tenant_of[e], soft[e] = i, weights[i] / (first[i + 1] - first[i]) * part[cluster[e]]
    none, p = np.zeros(n), part.copy()
    pieces = Pieces(
        first, tenant_of, cluster, shape, np.ones(size), weights, np.full(n, np.inf), part, np.zeros(size), none, soft,
        np.ones(n),
    )  # fmt: skip
    y, tenant = np.ones((4, pairs)), np.zeros((4, n))
    tenant[0] = 1.0
    respond(pieces, p, none, 1.0, y[0], tenant[0])
    y[2] = soft / y[0]
    follow(pieces, Point(p, np.zeros(size), tenant, y), 1.0, 0.05, close, np.empty((_STEPS, size)))
    prices[goods] = p
    for i in range(n):
        for e in range(first[i], first[i + 1]):
            shares[i, goods[cluster[e]]] = y[0, e]


# -- bounds


MOST_COUNTS = 600_000
RESIDUAL = 1e-9
"""Largest residual of a market."""


def all_counts(problem: MigProblem, most: int = MOST_COUNTS) -> tuple[Ints, Ints]:
    """Return all counts of instances by class that serve every tenant, and the fewest instances drained for each.

    Shapes [T, K] and [T]. Raises ``InputError`` if there are more than *most*, or none.
    """
    radix = np.ones(len(problem.classes))
    for group in problem.groups:
        radix += len(group.members) * np.max([choice.counts for choice in group.choices], axis=0)
    too_many = ArgumentError(
        f"nash, as these GPUs can be cut into more than {most:,} different sets of instances", field="welfare"
    )
    if radix.prod() >= 2.0**62:
        raise too_many
    powers = np.cumprod([1, *radix[:-1].astype(np.int64)])  # counts are the digits of a number
    codes, drained = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for group in problem.groups:
        steps = np.array([choice.counts @ powers for choice in group.choices])
        gone = np.array([choice.drained for choice in group.choices])
        for _ in group.members:
            wider = (codes[:, None] + steps).ravel()
            codes, place = np.unique(wider, return_inverse=True)
            fewest = np.full(len(codes), np.iinfo(np.int64).max)
            np.minimum.at(fewest, place, (drained[:, None] + gone).ravel())
            drained = fewest
            if len(codes) > most:
                raise too_many
    totals = codes[:, None] // powers % radix.astype(np.int64)
    served = ((totals @ (problem.rates > 0).T) > 0).all(axis=1)
    if not served.any():
        raise InputError("a layout with an instance for every tenant", field="tenants")
    return totals[served], drained[served]


def least_utilities(problem: MigProblem, totals: Ints) -> Floats:
    """Return what utilities in the market on layouts with *totals* ([T, K]) are at least. Shape [T, N]."""
    least = np.zeros((len(totals), len(problem.weights)))
    for i, (weight, rates, limit) in enumerate(zip(problem.weights, problem.rates, problem.limits, strict=True)):
        order = np.argsort(-rates, kind="stable")
        order = order[rates[order] > 0]
        instances = np.diff(np.minimum(np.cumsum(weight * totals[:, order], axis=1), limit), axis=1, prepend=0.0)
        least[:, i] = instances @ rates[order] / (1.0 + np.maximum(0.0, instances.sum(axis=1) / limit - weight))
    return least


def highest(kind: str, problem: MigProblem, market: Equilibrium, totals: Ints, least: Floats) -> Floats:
    """Return what the utilitarian or egalitarian welfare of markets with *totals* is at most, by a market's prices.

    *least* is what utilities are at least there ([T, N]). Shape [T].
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        cheap = problem.rates / (market.prices + market.limit_prices[:, None])
    unit = 1.0 / np.where(problem.rates > 0, cheap, 0.0).max(axis=1)  # money a unit of utility costs at least
    at_limit = np.where(np.isfinite(problem.limits), problem.limits, 0.0) @ market.limit_prices
    money = totals @ market.prices + at_limit
    if kind == "utilitarian":
        rest = np.maximum(money - least @ unit, 0.0)
        return np.asarray(least @ problem.weights + rest * (problem.weights / unit).max())
    level = problem.weights * len(problem.weights)
    order = np.argsort(least / level, axis=1, kind="stable")  # who is worst off is raised first
    spent = np.take_along_axis(least * unit, order, axis=1)
    raised = money[:, None] - spent.sum(axis=1, keepdims=True) + np.cumsum(spent, axis=1)
    return np.asarray((raised / np.cumsum((level * unit)[order], axis=1)).min(axis=1))


def on_layout(problem: MigProblem, totals: Ints | Floats) -> Equilibrium:
    """Return the market on one layout, or on parts of instances.

    Classes it has none of have a price, too: what the first unit is worth.
    """
    here = totals > 0
    rates = problem.rates[:, here]
    market = Market.make(totals[here].astype(float), problem.weights, rates, np.ones_like(rates), problem.limits)
    equilibrium = solve(market, tolerance=RESIDUAL)
    shares = np.zeros_like(problem.rates)
    shares[:, here] = equilibrium.shares
    worth = (
        problem.weights[:, None] * problem.rates / equilibrium.utilities[:, None] - equilibrium.limit_prices[:, None]
    )
    prices = np.maximum(worth.max(axis=0), 0.0)
    prices[here] = equilibrium.prices
    return replace(equilibrium, prices=prices, shares=shares)


def constant(
    weights: Floats, rates: Floats, limits: Floats, prices: Floats, limit_prices: Floats
) -> float:  # fmt: skip
    """Return a: the Nash welfare of the market on every set is at most ``a + prices @ totals`` (weak duality)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        cheap = rates / (prices + limit_prices[:, None])
    best = np.where(rates > 0, cheap, 0.0).max(axis=1)
    at_limit = np.where(np.isfinite(limits), limits, 0.0) @ limit_prices
    return float(at_limit + weights @ np.log(weights * best) - 1.0)


# -- the listing


TOLERANCE = 1e-7
AT_ONCE, FEW_AT_ONCE = 128, 16
ROUGHLY = 1e-10
LOOKED_AT = 10_000
"""Sets whose bounds one market's prices may lower."""
SPREAD = 8
"""Markets whose prices bound all sets."""


def certified(kind: str, weights: Floats, utilities: Floats, gap: Floats) -> Floats:
    """Return what the welfare of equilibria is at most, given feasible utilities near theirs.

    *utilities* are [B, N], *gap* [B] is by how much their Nash welfare is at most below the best. Infinite where that
    says nothing.
    """
    slack = np.maximum(gap, 0.0) + 1e-13
    spread = np.sqrt(slack / 0.36)[:, None]  # exp(-t) - 1 + t >= 0.36 t^2 for t between -1 and 1
    if kind == "egalitarian":
        bound = (utilities * np.exp(spread / np.sqrt(weights)) / (weights * len(weights))).min(axis=1)
    else:  # Cauchy and Schwarz, and exp(t) <= 1 + t + 0.72 t^2
        second = 0.72 * utilities.max(axis=1) * spread[:, 0] ** 2
        bound = utilities @ weights + np.sqrt((utilities**2) @ weights) * spread[:, 0] + second
    return np.where(slack <= 0.3 * weights.min(), bound, np.inf)


class Listing:
    """All sets of instances, and how far they have been compared.

    Raises ``InputError`` if there are too many, or none that serves every tenant.
    """

    def __init__(self, problem: MigProblem, kind: str) -> None:
        self.problem, self.kind = problem, kind
        self.totals, drained = all_counts(problem)
        self._penalties = problem.drain_penalty * drained
        self._least = least_utilities(problem, self.totals)
        self._bounds = np.full(len(self.totals), np.inf)
        self._open: Ints = np.arange(len(self.totals))
        self.tried = 0
        self.best = -np.inf
        self._exactly(int(np.argmax(self._least @ problem.weights - self._penalties)))

    def bound(self) -> float:
        """Return what no set's welfare exceeds."""
        return max(self.best, float(self._bounds[self._open].max(initial=-np.inf)))

    def go_on(self) -> bool:
        """Compare some more sets; false if none is left that could be better."""
        self._open = self._open[self._bounds[self._open] > self.best + TOLERANCE]
        at_once = AT_ONCE if np.isinf(self.problem.limits).all() else FEW_AT_ONCE
        order = np.argsort(-self._bounds[self._open], kind="stable")[:at_once]
        rows = self._open[order]
        if not len(rows):
            return False
        self._exactly(int(rows[0]))  # its prices bound the sets like it
        if np.isinf(self.problem.limits).all():
            self._roughly(rows[1:])
        for row in rows[np.argsort(-self._bounds[rows], kind="stable")].tolist():
            if self._bounds[row] > self.best + TOLERANCE:
                self._exactly(row)
        self._open = np.setdiff1d(self._open, rows, assume_unique=True)
        return True

    def _roughly(self, rows: Ints) -> None:
        weights = self.problem.weights
        worth = self.problem.rates * self.totals[rows][:, None, :]
        scale = worth.max(axis=2, keepdims=True)
        if not len(rows):
            return
        shares, prices = approximate_equilibria(weights, worth / scale, ROUGHLY)
        gap = gaps(weights, worth / scale, shares, prices)
        most = certified(self.kind, weights, (worth * shares).sum(axis=2), gap)
        self._bounds[rows] = np.minimum(self._bounds[rows], most - self._penalties[rows])
        self.tried += len(rows)

    def _exactly(self, row: int) -> None:
        market: Equilibrium = on_layout(self.problem, self.totals[row])
        self.tried += 1
        value = welfare(self.kind, self.problem.weights, market.utilities) - float(self._penalties[row])
        if value > self.best:
            self.best, self.best_at, self.market = value, row, market
        others = self._open
        if len(others) > LOOKED_AT and self.tried > SPREAD:  # the most promising ones: others are looked at later
            others = others[np.argpartition(-self._bounds[others], LOOKED_AT)[:LOOKED_AT]]
        most = highest(self.kind, self.problem, market, self.totals[others], self._least[others])
        self._bounds[others] = np.minimum(self._bounds[others], most - self._penalties[others])
        self._bounds[row] = value
