"""Markets on all sets of instances, compared by a welfare that is not concave, from the most promising set on.

Sets come with a bound that needs no solving (:mod:`commonwatt.partitioning.mig._bounds`). Without limits many markets
are solved at once, roughly: with shares that reach utilities u' and a log welfare that is d below its bound, the true
utilities ``u = u' exp(t)`` satisfy ``sum_i w_i exp(-t_i) <= 1`` (no shares improve on an equilibrium, to first order)
and ``sum_i w_i t_i <= d``, so ``sum_i w_i (exp(-t_i) - 1 + t_i) <= d``: a bound on every welfare. Only sets whose bound
is above the best welfare found are solved to rounding error.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.partitioning._solve import Equilibrium
from commonwatt.partitioning._welfare import welfare
from commonwatt.partitioning.mig._bounds import all_counts, highest, least_utilities, on_layout
from commonwatt.partitioning.mig._problem import MigProblem
from commonwatt.partitioning.mig._rough import gaps, roughly

__all__ = ["Listing", "certified"]

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
        shares, prices = roughly(weights, worth / scale, ROUGHLY)
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
