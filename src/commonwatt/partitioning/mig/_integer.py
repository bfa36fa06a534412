"""Whole instances for each tenant: the exact optimum over all layouts and assignments.

A mixed-integer program: layouts of all GPUs, instances of each class for each tenant. Nash welfare is concave in the
utilities, so its logarithms are bounded by tangents, added where the program's answer lies until nothing is gained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.partitioning._welfare import welfare
from commonwatt.partitioning.mig._problem import MigDecision, MigProblem
from commonwatt.partitioning.mig._program import LayoutProgram

__all__ = ["WholeInstances", "solve_integer"]

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
    n, k = problem.rates.shape
    program, first = _assignment(problem)
    worth = _objective(program, problem, kind, first)
    best: WholeInstances | None = None
    bound = np.inf
    for _ in range(MOST_ROUNDS):
        solved = program.solve(None if left_s is None else left_s())
        if solved.x is None:
            break
        bound = min(bound, solved.bound)
        instances = np.rint(solved.x[first : first + n * k]).astype(np.int64).reshape(n, k)
        utilities = (problem.rates * instances).sum(axis=1)
        picked = program.picked(solved.x)
        value = welfare(kind, problem.weights, utilities) - problem.penalty(picked)
        if best is None or value > best.value:
            best = WholeInstances(picked, value, bound, optimal=False, instances=instances, utilities=utilities)
        if kind != "nash" or bound - best.value <= TOLERANCE or not solved.optimal:
            break
        for i, u in enumerate(utilities):
            _tangent(program, problem, first, worth + i, i, float(u))
    if best is None:
        raise _refusal(problem)
    closed = bound - best.value <= TOLERANCE
    return replace(best, bound=max(bound, best.value), optimal=closed)


def _assignment(problem: MigProblem) -> tuple[LayoutProgram, int]:
    """Layouts, and whole instances of each class for each tenant from the column returned on."""
    n, k = problem.rates.shape
    program = LayoutProgram(problem)
    gpus = len(problem.gpus)
    first = len(program.gain)
    for i in range(n):
        for c in range(k):
            most = min(problem.limits[i], 7 * gpus) if problem.rates[i, c] > 0 else 0
            program.column(0.0, 0, most, whole=True)
    for c in range(k):
        columns, values = program.supply(np.eye(k)[c])
        mine = [first + i * k + c for i in range(n)]
        program.row(columns + mine, [-v for v in values] + [1.0] * n, -np.inf, 0.0)
    for i in range(n):
        program.row(range(first + i * k, first + (i + 1) * k), [1.0] * k, 1.0, problem.limits[i])
    return program, first


def _objective(program: LayoutProgram, problem: MigProblem, kind: str, first: int) -> int:
    """Add the columns of the welfare; returns the first."""
    n, k = problem.rates.shape
    if kind == "utilitarian":
        for i in range(n):
            for c in range(k):
                program.gain[first + i * k + c] = float(problem.weights[i] * problem.rates[i, c])
        return first
    if kind == "egalitarian":
        least = program.column(1.0, 0.0, np.inf)
        for i in range(n):
            mine = [first + i * k + c for c in range(k)]
            program.row([*mine, least], [*problem.rates[i], -problem.weights[i] * n], 0.0, np.inf)
        return least
    place = len(program.gain)
    for i in range(n):
        program.column(float(problem.weights[i]), -100.0, 100.0)
    for i in range(n):
        rates = problem.rates[i]
        lowest, highest = rates[rates > 0].min(), 7.0 * len(problem.gpus)
        for u in np.geomspace(lowest, highest, 16):
            _tangent(program, problem, first, place + i, i, float(u))
    return place


def _tangent(program: LayoutProgram, problem: MigProblem, first: int, column: int, i: int, u: float) -> None:
    """Require ``y_i <= log(u) + (u_i - u) / u``."""
    k = problem.rates.shape[1]
    mine = [first + i * k + c for c in range(k)]
    program.row([column, *mine], [1.0, *(-problem.rates[i] / u)], -np.inf, float(np.log(u)) - 1.0)


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
                f"a whole instance to be left for it; no layout of the {len(problem.gpus)} GPUs has one when {others} "
                "(mode market lets tenants take turns)",
                field=f"tenants.{name}", value=name,
            )  # fmt: skip
    return InputError("an answer within the time limit", field="--time-limit")
