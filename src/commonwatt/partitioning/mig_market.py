"""Layouts by a market: tenants take turns on instances, instances have prices, Nash welfare picks the layout.

On one layout the market is linear (:mod:`commonwatt.partitioning.linear_market`). Its welfare is concave in the number
of instances of each class, and the prices of one layout bound the welfare of every other: ``V(m) <= a + p @ m``. So a
program over layouts under such bounds, one more for each layout tried, ends at the best layout with a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import comb, prod

import numpy as np

from commonwatt.model.arrays import Ints
from commonwatt.model.errors import InputError
from commonwatt.partitioning.linear_market import Equilibrium, solve
from commonwatt.partitioning.mig_integer import welfare
from commonwatt.partitioning.mig_problem import MigProblem
from commonwatt.partitioning.mig_program import LayoutProgram

__all__ = ["TimeShares", "all_layouts", "on_layout", "solve_market"]

TOLERANCE = 1e-7
MOST_LAYOUTS = 3000


@dataclass(frozen=True)
class TimeShares:
    """Layouts, prices and time shares.

    Attributes
    ----------
    picked
        How many GPUs of each group take each choice.
    totals
        Instances of each class. Shape [K].
    market
        The equilibrium; shares are in instances, prices those of one instance. Shapes [N, K], [K].
    value, bound
        Welfare less the penalty of draining, and what no layout exceeds.
    optimal
        Whether bound and value are the same, up to ``TOLERANCE``.
    tried
        Layouts whose market was solved.
    """

    picked: list[list[int]]
    totals: Ints  # [K]
    market: Equilibrium
    value: float
    bound: float
    optimal: bool
    tried: int


def on_layout(problem: MigProblem, totals: Ints) -> Equilibrium:
    """Return the market on one layout, with prices for the classes it has none of too: what the first unit is worth."""
    here = totals > 0
    found = solve(problem.weights, problem.rates[:, here], totals[here].astype(float), problem.limits)
    shares = np.zeros_like(problem.rates)
    shares[:, here] = found.shares
    worth = problem.weights[:, None] * problem.rates / found.utilities[:, None] - found.limit_prices[:, None]
    prices = np.maximum(worth.max(axis=0), 0.0)
    prices[here] = found.prices
    return Equilibrium(
        prices, found.limit_prices, shares, found.utilities, found.residual, found.log_welfare, found.bound
    )


def solve_market(problem: MigProblem, kind: str = "nash", left_s: Callable[[], float] | None = None) -> TimeShares:
    """Return the layouts whose market has the largest welfare.

    Raises ``InputError`` if *kind* is not ``nash`` and there are too many layouts to compare one by one.
    """
    return _by_bounds(problem, left_s) if kind == "nash" else _one_by_one(problem, kind)


def _by_bounds(problem: MigProblem, left_s: Callable[[], float] | None) -> TimeShares:
    program = LayoutProgram(problem)
    theta = program.column(1.0, -100.0, 100.0)
    for row in problem.rates:
        columns, values = program.supply((row > 0).astype(float))
        program.row(columns, values, 1.0, np.inf)
    best: TimeShares | None = None
    seen: set[tuple[int, ...]] = set()
    bound = np.inf
    while True:
        solved = program.solve(None if left_s is None or best is None else left_s())
        bound = min(bound, solved.bound)
        if solved.x is None:
            break
        picked = program.picked(solved.x)
        totals = problem.totals(picked)
        market = on_layout(problem, totals)
        value = market.log_welfare + sum(program.gain[i] * round(solved.x[i]) for i in range(len(program.counts)))
        if best is None or value > best.value:
            best = TimeShares(picked, totals, market, value, bound, optimal=False, tried=0)
        again = tuple(totals.tolist()) in seen
        seen.add(tuple(totals.tolist()))
        if bound - best.value <= TOLERANCE or again or not solved.optimal:
            break
        columns, values = program.supply(market.prices)
        constant = _constant(problem, market)
        program.row([theta, *columns], [1.0, *(-v for v in values)], -np.inf, constant)
    if best is None:
        raise InputError("a layout with an instance for every tenant", field="tenants")
    closed = bound - best.value <= TOLERANCE
    return TimeShares(best.picked, best.totals, best.market, best.value, max(bound, best.value), closed, len(seen))


def _constant(problem: MigProblem, market: Equilibrium) -> float:
    """The part of the bound that does not depend on the layout."""
    with np.errstate(divide="ignore", invalid="ignore"):
        cheap = problem.rates / (market.prices + market.limit_prices[:, None])
    best = np.where(problem.rates > 0, cheap, 0.0).max(axis=1)
    at_limit = np.where(np.isfinite(problem.limits), problem.limits, 0.0) @ market.limit_prices
    return float(at_limit + problem.weights @ np.log(problem.weights * best) - 1.0)


def all_layouts(problem: MigProblem) -> Iterator[list[list[int]]]:
    """Yield every way to cut all GPUs; GPUs that are alike are not told apart."""
    per_group = []
    for group in problem.groups:
        ways = combinations_with_replacement(range(len(group.choices)), len(group.members))
        per_group.append([[way.count(c) for c in range(len(group.choices))] for way in ways])
    yield from (list(parts) for parts in product(*per_group))


def _one_by_one(problem: MigProblem, kind: str) -> TimeShares:
    ways = prod(comb(len(g.choices) + len(g.members) - 1, len(g.members)) for g in problem.groups)
    if ways > 20 * MOST_LAYOUTS:
        raise InputError(f"nash, as these GPUs can be cut in {ways:,} ways", field="--welfare", value=kind)
    best: TimeShares | None = None
    solved: dict[tuple[int, ...], Equilibrium | None] = {}
    for picked in all_layouts(problem):
        if len(solved) > MOST_LAYOUTS:
            raise InputError(
                f"nash, as these GPUs have more than {MOST_LAYOUTS} layouts", field="--welfare", value=kind
            )
        totals = problem.totals(picked)
        key = tuple(totals.tolist())
        if key not in solved:
            served = (problem.rates[:, totals > 0] > 0).any(axis=1).all()
            solved[key] = on_layout(problem, totals) if served else None
        market = solved[key]
        if market is None:
            continue
        penalty = problem.drain_penalty * sum(
            n * choice.drained
            for group, numbers in zip(problem.groups, picked, strict=True)
            for choice, n in zip(group.choices, numbers, strict=True)
        )
        value = welfare(kind, problem.weights, market.utilities) - penalty
        if best is None or value > best.value:
            best = TimeShares(picked, totals, market, value, value, optimal=True, tried=0)
    if best is None:
        raise InputError("a layout with an instance for every tenant", field="tenants")
    return TimeShares(best.picked, best.totals, best.market, best.value, best.value, optimal=True, tried=len(solved))
