"""Layouts by a market: tenants take turns on instances, instances have prices, welfare picks the layout.

On one layout the market is linear (:mod:`commonwatt.partitioning._solve`). Its Nash welfare is concave in the
number of instances of each class, and the prices of one layout bound the welfare of every other: ``V(m) <= a + p @ m``.
So a program over layouts under such bounds, one more for each layout tried, ends at the best layout with a proof.

Utilitarian and egalitarian welfare of a market's utilities are not concave: sets of instances are listed and compared
(:mod:`commonwatt.partitioning.mig._listing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from commonwatt.model.arrays import Ints
from commonwatt.model.errors import InputError
from commonwatt.partitioning._comparison import welfare
from commonwatt.partitioning._solve import Equilibrium
from commonwatt.partitioning.mig._listing import Listing, constant, on_layout
from commonwatt.partitioning.mig._problem import LayoutProgram, MigDecision, MigProblem

__all__ = ["TimeShares", "solve_market"]

TOLERANCE = 1e-7


@dataclass(frozen=True)
class TimeShares(MigDecision):
    """Layouts, prices and time shares.

    Attributes
    ----------
    totals
        Instances of each class. Shape [K].
    market
        The equilibrium; shares are in instances, prices those of one instance. Shapes [N, K], [K].
    tried
        Sets of instances whose market was solved.
    """

    totals: Ints  # [K]
    market: Equilibrium
    tried: int


def solve_market(problem: MigProblem, kind: str = "nash", left_s: Callable[[], float] | None = None) -> TimeShares:
    """Return the layouts whose market has the largest welfare.

    *left_s* says how many seconds are left. Raises ``InputError`` if no layout serves every tenant, or if *kind* is not
    ``nash`` and there are too many sets of instances to list.
    """
    if kind == "nash":
        return _by_prices(problem, left_s)
    listing = Listing(problem, kind)
    while listing.go_on() and (left_s is None or left_s() > 0):
        pass
    totals, bound = listing.totals[listing.best_at], listing.bound()
    closed = bound - listing.best <= TOLERANCE
    picked = _with_counts(problem, totals)
    return TimeShares(picked, listing.best, bound, closed, totals=totals, market=listing.market, tried=listing.tried)


def _by_prices(problem: MigProblem, left_s: Callable[[], float] | None) -> TimeShares:
    program = LayoutProgram(problem)
    theta = program.columns(-1.0, low=-100.0, high=100.0)
    for row in problem.rates:
        columns, values = program.supply((row > 0).astype(float))
        program.row(columns, values, 1.0, np.inf)
    best: TimeShares | None = None
    seen: set[tuple[int, ...]] = set()
    bound = np.inf
    while True:
        solved = program.solve(None if left_s is None or best is None else left_s())
        bound = min(bound, -solved.bound)
        if solved.x is None:
            break
        picked = program.picked(solved.x)
        totals = problem.totals(picked)
        market = on_layout(problem, totals)
        value = welfare("nash", problem.weights, market.utilities) - problem.penalty(picked)
        if best is None or value > best.value:
            best = TimeShares(picked, value, bound, optimal=False, totals=totals, market=market, tried=0)
        again = tuple(totals.tolist()) in seen
        seen.add(tuple(totals.tolist()))
        if bound - best.value <= TOLERANCE or again or solved.status != "optimal":
            break
        columns, values = program.supply(market.prices)
        most = constant(problem.weights, problem.rates, problem.limits, market.prices, market.limit_prices)
        program.row(np.append(theta, columns), np.append(1.0, -values), -np.inf, most)
    if best is None:
        raise InputError("a layout with an instance for every tenant", field="tenants")
    closed = bound - best.value <= TOLERANCE
    return replace(best, bound=max(bound, best.value), optimal=closed, tried=len(seen))


def _with_counts(problem: MigProblem, totals: Ints) -> list[list[int]]:
    """Return choices of layouts with these totals that drain least."""
    program = LayoutProgram(problem)
    for c, count in enumerate(totals.tolist()):
        columns, values = program.supply(np.eye(len(totals))[c])
        program.row(columns, values, count, count)
    solved = program.solve()
    if solved.x is None:
        raise InputError("a layout with an instance for every tenant", field="tenants")
    return program.picked(solved.x)
