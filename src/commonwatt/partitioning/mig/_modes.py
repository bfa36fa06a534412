"""The two modes: whole instances for each tenant, and time shares of instances by a market.

**Whole instances** are the exact optimum over all layouts and assignments.

A mixed-integer program: layouts of all GPUs, instances of each class for each tenant. Nash welfare is concave in the
utilities, so its logarithms are bounded by tangents, added where the program's answer lies until nothing is gained.

**Time shares** are layouts by a market: tenants take turns on instances, which have prices; welfare picks the layout.

On one layout the market is linear (:mod:`commonwatt.partitioning._solve`). Its Nash welfare is concave in the
number of instances of each class, and the prices of one layout bound the welfare of every other: ``V(m) <= a + p @ m``.
So a program over layouts under such bounds, one more for each layout tried, ends at the best layout with a proof. The
first bounds come from layouts in which GPUs may be cut in parts: for a whole fleet these nearly decide.

Utilitarian and egalitarian welfare of a market's utilities are not concave: sets of instances are listed and compared
(:mod:`commonwatt.partitioning.mig._listing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import ArgumentError, InputError
from commonwatt.model.units import plural
from commonwatt.partitioning._comparison import welfare
from commonwatt.partitioning._solve import Equilibrium
from commonwatt.partitioning.mig._listing import Listing, constant, on_layout
from commonwatt.partitioning.mig._problem import LayoutProgram, MigDecision, MigProblem

__all__ = ["TimeShares", "WholeInstances", "solve_integer", "solve_market"]

TOLERANCE = 1e-8
MOST_ROUNDS = 60


@dataclass(frozen=True)
class WholeInstances(MigDecision):
    """Layouts and whole instances for each tenant.

    Attributes
    ----------
    instances
        Instances of each class that each tenant has. Shape [N, K].
    utilities
        Speed of each tenant in units of its best instance. Shape [N].
    """

    instances: Ints  # [N, K]
    utilities: Floats  # [N]


def solve_integer(problem: MigProblem, kind: str = "nash", left_s: Callable[[], float] | None = None) -> WholeInstances:
    """Return the best layouts and assignment of whole instances; every tenant gets at least one.

    *left_s* says how many seconds are left. Raises ``InputError`` naming the tenant that no layout has room for.
    """
    program, mine = _assignment(problem, problem.weights[:, None] * problem.rates if kind == "utilitarian" else None)
    worth = _welfare_columns(program, problem, kind, mine)
    best: WholeInstances | None = None
    bound = np.inf
    for _ in range(MOST_ROUNDS):
        solved = program.solve(None if left_s is None else left_s())
        if solved.x is None:
            break
        bound = min(bound, -solved.bound)
        instances = np.rint(solved.x[mine]).astype(np.int64)
        utilities = (problem.rates * instances).sum(axis=1)
        picked = program.picked(solved.x)
        value = welfare(kind, problem.weights, utilities) - problem.penalty(picked)
        if best is None or value > best.value:
            best = WholeInstances(picked, value, bound, optimal=False, instances=instances, utilities=utilities)
        if kind != "nash" or bound - best.value <= TOLERANCE or solved.status != "optimal":
            break
        for i, u in enumerate(utilities):
            _tangent(program, worth[i], mine[i], problem.rates[i], float(u))
    if best is None:
        raise _refusal(problem)
    closed = bound - best.value <= TOLERANCE
    return replace(best, bound=max(bound, best.value), optimal=closed)


def _assignment(problem: MigProblem, worth: Floats | None = None) -> tuple[LayoutProgram, Ints]:
    """Return layouts and whole instances of each class for each tenant, and the columns of these ([N, K]).

    *worth* ([N, K]) is the gain of an instance.
    """
    n, k = problem.rates.shape
    program = LayoutProgram(problem)
    most = np.where(problem.rates > 0, np.minimum(problem.limits, 7 * len(problem.gpus))[:, None], 0.0)
    gain = np.zeros((n, k)) if worth is None else worth
    mine = program.columns(-gain.ravel(), high=most.ravel(), whole=True).reshape(n, k)
    for c in range(k):
        columns, values = program.supply(np.eye(k)[c])
        program.row(np.append(columns, mine[:, c]), np.append(-values, np.ones(n)), -np.inf, 0.0)
    for i in range(n):
        program.row(mine[i], np.ones(k), 1.0, problem.limits[i])
    return program, mine


def _welfare_columns(program: LayoutProgram, problem: MigProblem, kind: str, mine: Ints) -> Ints:
    """Add the columns of the welfare and return them: one for each tenant, one for all, or none."""
    n = len(problem.weights)
    if kind == "utilitarian":
        return np.zeros(0, dtype=np.int64)
    if kind == "egalitarian":
        least = program.columns(-1.0)
        for i in range(n):
            program.row(np.append(mine[i], least), np.append(problem.rates[i], -problem.weights[i] * n), 0.0, np.inf)
        return least
    logs = program.columns(-problem.weights, low=-100.0, high=100.0)
    for i, rates in enumerate(problem.rates):
        for u in np.geomspace(rates[rates > 0].min(), 7.0 * len(problem.gpus), 16):
            _tangent(program, logs[i], mine[i], rates, float(u))
    return logs


def _tangent(program: LayoutProgram, log: int, mine: Ints, rates: Floats, u: float) -> None:
    """Require ``y_i <= log(u) + (u_i - u) / u``."""
    program.row(np.append(log, mine), np.append(1.0, -rates / u), -np.inf, float(np.log(u)) - 1.0)


def _refusal(problem: MigProblem) -> InputError:
    """Find the first tenant, the hungriest for memory first, that no layout has an instance left for."""
    order = np.argsort((problem.rates > 0).sum(axis=1), kind="stable")
    for count in range(1, len(order) + 1):
        chosen = np.sort(order[:count])
        smaller = MigProblem(
            tuple(problem.tenants[i] for i in chosen), problem.gpus, problem.weights[chosen], problem.speeds[chosen],
            problem.rates[chosen], problem.limits[chosen], problem.classes, problem.groups, 0.0,
        )  # fmt: skip
        if _assignment(smaller)[0].solve().x is None:
            name = problem.tenants[int(order[count - 1])]
            others = f"{count - 1} other tenant{'s have' if count != 2 else ' has'} theirs"
            return InputError(
                f"a whole instance to be left for it; no layout of the {plural(len(problem.gpus), 'GPU')} has one when "
                f"{others} (mode market lets tenants take turns)",
                field=f"tenants.{name}", value=name,
            )  # fmt: skip
    return ArgumentError("an answer within the time limit", field="time_limit_s")


# -- time shares


CLOSE = 1e-7
MIXED_GAP = 2e-8  # of the program with integers: its bound is then near enough to be closed


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
    closed = bound - listing.best <= CLOSE
    picked = _with_counts(problem, totals)
    return TimeShares(picked, listing.best, bound, closed, totals=totals, market=listing.market, tried=listing.tried)


def _by_prices(problem: MigProblem, left_s: Callable[[], float] | None) -> TimeShares:
    program = LayoutProgram(problem)
    theta = int(program.columns(-1.0, low=-100.0, high=100.0)[0])
    for row in problem.rates:
        columns, values = program.supply((row > 0).astype(float))
        program.row(columns, values, 1.0, np.inf)
    bound, picked = _in_parts(problem, program, theta, left_s)
    best: TimeShares | None = None
    seen: set[tuple[int, ...]] = set()
    while True:
        ended = "optimal"
        if picked is None:
            solved = program.solve(None if left_s is None or best is None else left_s(), gap=MIXED_GAP)
            bound, ended = min(bound, -solved.bound), solved.status
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
        if bound - best.value <= CLOSE or again or ended != "optimal":
            break
        _bounded(problem, program, theta, market)
        picked = None
    if best is None:
        raise InputError("a layout with an instance for every tenant", field="tenants")
    closed = bound - best.value <= CLOSE
    return replace(best, bound=max(bound, best.value), optimal=closed, tried=len(seen))


def _bounded(problem: MigProblem, program: LayoutProgram, theta: int, market: Equilibrium) -> None:
    """Bound the welfare of all layouts by the prices of one."""
    columns, values = program.supply(market.prices)
    most = constant(problem.weights, problem.rates, problem.limits, market.prices, market.limit_prices)
    program.row(np.append(theta, columns), np.append(1.0, -values), -np.inf, most)


def _in_parts(
    problem: MigProblem, program: LayoutProgram, theta: int, left_s: Callable[[], float] | None
) -> tuple[float, list[list[int]] | None]:
    """Bound the welfare where GPUs may be cut in parts, and return that bound and the best such layouts, rounded.

    This is quick: programs without integers, whose prices bound whole layouts nearly as well. ``None``: rounded, they
    leave somebody without an instance.
    """
    bound, best = np.inf, -np.inf
    parts: Floats | None = None
    for _ in range(MOST_ROUNDS):
        if left_s is not None and left_s() <= 0:
            break
        solved = program.minimise(relaxed=True)
        if solved.x is None or solved.status != "optimal":
            break
        bound = min(bound, -solved.bound)
        numbers, supply = program.parts(solved.x)
        market = on_layout(problem, supply)
        value = welfare("nash", problem.weights, market.utilities) - float(program.penalties @ numbers)
        if value > best:
            best, parts = value, numbers
        if bound - best <= CLOSE:
            break
        _bounded(problem, program, theta, market)
    picked = None if parts is None else program.rounded(parts)
    if picked is None or not ((problem.rates > 0) @ problem.totals(picked) > 0).all():
        return bound, None
    return bound, picked


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
