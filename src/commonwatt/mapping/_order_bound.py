"""A lower bound that knows what can run at the same time.

By the clock tau (see ``decoder``) the makespan is the integral of ``max(1, X)``, X being the sum of the requests of the
jobs that run, in units of the system bandwidth. At every moment some *configuration* runs: at most one job on each sub-
accelerator. Let ``y[S] >= 0`` be for how long, by tau, configuration S runs in all, and ``n[S, t, k]`` how many jobs of
type t it has on kind k. Every job is run to its end, so

    M = sum over S of max(1, X[S]) y[S],   for all t: sum over S, k of n[S, t, k] y[S] / l[t, k] >= number of jobs of t.

The least such sum, over all y, is below no mapping's makespan. It sees what loads and volume do not: that a job which
needs half of the bandwidth leaves the other half idle unless something suits it, and that a long job runs beside all
that others request. The longest jobs count as types of their own, of which a configuration has one at most; of other
types it may have more than there are, which only makes the bound weaker.

**Certificate.** For any prices ``pi[t] >= 0`` let ``v`` be the largest value of ``sum of pi[t] / l[t, k] over S less
max(1, X[S])`` of all configurations, or 0. As ``max(1, X) >= 1``, the sum of prices over S is at most ``(1 + v) max(1,
X[S])``; hence ``M >= sum of pi[t] (number of jobs of t) / (1 + v)``. v is found exactly, by dynamic programming over
sub-accelerators with the bandwidth requested so far, in steps of 1 / ``STEPS`` and rounded down, which is on the safe
side. A linear program over the configurations found so far sets the prices (column generation); its rounding cannot
make the bound wrong.
Pairs whose ``l max(1, x)`` is a known makespan or more are left out: if one is used, M is not less.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from commonwatt.mapping._problem import MappingProblem
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import SolverError
from commonwatt.optimize import Program, njit, ranked

__all__ = ["order_bound"]

STEPS = 1000
SINGLES = 2
"""Longest jobs that are types of their own."""
ROUNDS = 60
ENOUGH = 5e-5
LARGEST = 60
"""Pairs of types and kinds up to which the bound is computed."""


@njit(cache=True)
def _best(
    gain: Floats, units: Ints, kind: Ints, taken: Ints, first_type: int, steps: int, units_taken: int, gain_taken: float
) -> tuple[float, Ints]:
    """Return the best configuration's value and its types on each sub-accelerator, -1 for none.

    Types from *first_type* on may run on sub-accelerators that are not *taken* by single jobs; *units* are requests.
    """
    types, places = len(gain), len(kind)
    worth = np.full((places + 1, steps + 1), -np.inf)
    pick, before = np.full((places, steps + 1), -1), np.zeros((places, steps + 1), np.int64)
    at = min(units_taken, steps)
    worth[0, at] = gain_taken - (units_taken - at) / steps
    for a in range(places):
        k = kind[a]
        for s in range(steps + 1):
            now = worth[a, s]
            if now == -np.inf:
                continue
            if now > worth[a + 1, s]:
                worth[a + 1, s], pick[a, s], before[a, s] = now, -1, s
            if taken[a] >= 0:
                continue
            for t in range(first_type, types):
                if gain[t, k] <= 0.0:
                    continue
                to, then = s + units[t, k], now + gain[t, k]
                if to > steps:
                    then -= (to - steps) / steps
                    to = steps
                if then > worth[a + 1, to]:
                    worth[a + 1, to], pick[a, to], before[a, to] = then, t, s
    s = int(np.argmax(worth[places]))
    value, chosen = worth[places, s] - 1.0, taken.copy()
    for a in range(places - 1, -1, -1):
        if taken[a] < 0:
            chosen[a] = pick[a, s]
        s = before[a, s]
    return value, chosen


@dataclass(frozen=True)
class _Types:
    """Latencies, in units of the known makespan, and requests of types on kinds; single jobs come first."""

    latency: Floats  # [T, K], infinite where not allowed
    units: Ints  # [T, K]
    jobs: Floats  # [T]
    kind: Ints  # [A]
    singles: int

    @classmethod
    def of(cls, problem: MappingProblem, makespan: float) -> _Types:
        latency = np.where(problem.alone < makespan, problem.latency, np.inf) / makespan
        table = np.vstack([latency, problem.bandwidth / problem.system_bandwidth])
        kinds, kind = np.unique(table, axis=1, return_inverse=True)
        jobs = len(problem)
        singles = ranked(-problem.alone.min(axis=1))[: min(SINGLES, jobs - 1)]
        rest = np.setdiff1d(np.arange(jobs), singles)
        rows, often = np.unique(np.hstack([kinds[:jobs], kinds[jobs:]])[rest], axis=0, return_counts=True)
        rows = np.vstack([np.hstack([kinds[:jobs], kinds[jobs:]])[singles], rows])
        latency, request = rows[:, : kinds.shape[1]], rows[:, kinds.shape[1] :]
        units = np.where(np.isfinite(latency), np.floor(request * STEPS * (1 - 1e-12)), 0).astype(np.int64)
        return cls(latency, units, np.append(np.ones(len(singles)), often), kind.ravel(), len(singles))

    def placements(self) -> list[Ints]:
        """Return where the single jobs may be, up to equal sub-accelerators: type on each one, -1 for none."""
        placements: list[Ints] = []
        options = [(-1, *np.flatnonzero(np.isfinite(row)).tolist()) for row in self.latency[: self.singles]]
        for kinds in itertools.product(*options):
            taken, fits = np.full(len(self.kind), -1), True
            for t, k in enumerate(kinds):
                if k >= 0:
                    free = np.flatnonzero((self.kind == k) & (taken < 0))
                    fits = fits and len(free) > 0
                    if len(free):
                        taken[free[0]] = t
            if fits:
                placements.append(taken)
        return placements

    def priced(self, prices: Floats, placements: list[Ints]) -> list[tuple[float, Ints]]:
        """Return the best configuration for each placement of the single jobs, and its value."""
        gain = prices[:, None] / self.latency
        configurations = []
        for taken in placements:
            at = np.flatnonzero(taken >= 0)
            units = int(self.units[taken[at], self.kind[at]].sum())
            value = float(gain[taken[at], self.kind[at]].sum())
            configurations.append(_best(gain, self.units, self.kind, taken, self.singles, STEPS, units, value))
        return configurations

    def column(self, chosen: Ints) -> tuple[float, Ints, Floats]:
        """Return cost, types and rates (parts of all jobs of the type run in one unit of time) of a configuration."""
        at = np.flatnonzero(chosen >= 0)
        types, kinds = chosen[at], self.kind[at]
        rate = np.zeros(len(self.jobs))
        np.add.at(rate, types, 1.0 / self.latency[types, kinds] / self.jobs[types])
        some = np.flatnonzero(rate)
        return max(1.0, float(self.units[types, kinds].sum()) / STEPS), some, rate[some]


def order_bound(problem: MappingProblem, makespan: float) -> float:
    """Return the bound, in cycles: no mapping takes less; *makespan* is that of one, or any other time.

    0 if the program would be too large.
    """
    if not (problem.alone < makespan).any(axis=1).all():
        return makespan
    types = _Types.of(problem, makespan)
    if types.latency.size > LARGEST:
        return 0.0
    placements = types.placements()
    columns = []
    for t, row in enumerate(types.latency):
        alone = np.full(len(types.kind), -1)
        alone[int(np.flatnonzero(types.kind == np.argmin(row))[0])] = t
        columns.append(types.column(alone))
    best = 0.0
    for _ in range(ROUNDS):
        prices = _prices(columns, len(types.jobs))
        if prices is None:
            break
        configurations = types.priced(prices / types.jobs, placements)
        value = max(0.0, *(value for value, _ in configurations))
        best = max(best, float(prices.sum()) / (1.0 + value))
        if value < ENOUGH:
            break
        columns += [types.column(chosen) for worth, chosen in configurations if worth > ENOUGH]
    return min(makespan, best * makespan) * (1 - 1e-9)


def _prices(columns: list[tuple[float, Ints, Floats]], types: int) -> Floats | None:
    program = Program()
    places = program.columns([cost for cost, _, _ in columns])
    program.rows(
        np.concatenate([rows for _, rows, _ in columns]),
        np.repeat(places, [len(rows) for _, rows, _ in columns]),
        np.concatenate([rates for _, _, rates in columns]), np.ones(types), np.inf,
    )  # fmt: skip
    try:
        solution = program.minimise(tolerance=1e-7)
    except SolverError:
        return None
    return None if solution.x is None else np.maximum(0.0, solution.duals)
