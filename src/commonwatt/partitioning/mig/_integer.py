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
from commonwatt.partitioning._comparison import welfare
from commonwatt.partitioning.mig._problem import LayoutProgram, MigDecision, MigProblem

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
                f"a whole instance to be left for it; no layout of the {len(problem.gpus)} GPUs has one when {others} "
                "(mode market lets tenants take turns)",
                field=f"tenants.{name}", value=name,
            )  # fmt: skip
    return InputError("an answer within the time limit", field="--time-limit")
