"""A sharper lower bound with integers, and how many jobs of each type go to each kind of sub-accelerator.

Jobs with equal rows of the job table are one *type*, sub-accelerators with equal columns one *kind*. The program of
``lower_bound`` with a whole number ``n[t, k]`` of jobs of each type on each kind,

    minimise z,  sum over k of n[t, k] = number of jobs of type t
    E = sum of e n,   sum of v n <= z,   sum over t of l n[t, k] + c[k] E <= c[k] z   for kind k of c[k] copies,
    sum over k of l n[t, k] / (number of jobs of t) + E <= z   for the types of the longest jobs,

holds for every mapping with z its makespan M: the facts of ``lower_bound`` hold for the jobs as they are, and these are
sums of them: over the copies of a kind, or the mean over the jobs of a type, each a chain by itself.

**Counting.** Let M < t. Let f be the least excess a job can have, and F the sum of these over all jobs. On any
sub-accelerator ``sum of l + E <= M < t``, so with ``w = l + e - f`` the sum of w over its jobs is below ``T = t - F``.
For a whole number h the sum of ``floor(h w / T)`` is then below h, hence at most h - 1: at h = 2 two jobs longer than
T / 2 cannot share one, nor can h jobs longer than T / h. Summed over a kind of c copies it is at most (h - 1) c. No
pair with ``l max(1, x) >= t`` is used. With these rows added for one t the program's optimum z(t) bounds M only if
M < t, so for every t

    M >= min(t, z(t)),

and where no n satisfies the rows M >= t. The best t is sought by bisection between the bound and the best makespan
known.

HiGHS solves the program, to 1e-9 in each row of coefficients at most of the order of 1, and says how far below its
optimum may be; the bound is what it says less one part in 1e7. It may stop at a number of nodes or, if the caller wants
it to, after a time: what it has proven by then holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.mapping._lower_bound import lower_bound
from commonwatt.mapping._order_bound import order_bound
from commonwatt.mapping._problem import MappingProblem
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import SolverError
from commonwatt.optimize import Program, Solution, ranked

__all__ = ["ORDER_FROM", "PROVEN", "Counts", "IntegerBound", "sharp_bound"]

PROVEN = 1e-6
"""A makespan that is above the bound by no more than this part of it counts as optimal."""
MARGIN = 1e-7
SOLVED = 2e-8
MOST_CUTS = 12
RESOLUTION = 1e-5
SINGLE_TYPES = 20
LARGEST = 300
"""Pairs of types and kinds up to which the program is solved."""
NODES = 100
SHARPENED = 3
"""Thresholds ``sharp_bound`` tries."""
ORDER_FROM = 1e-3
"""Gap from which the bound that knows order is computed."""


@dataclass(frozen=True)
class Counts:
    """A solution of the program: how many jobs of each type on each kind.

    Attributes
    ----------
    jobs
        Numbers of jobs. Shape [T, K].
    members
        The jobs of each type.
    places
        The sub-accelerators of each kind.
    horizon
        ``z - E``: no load of a mapping as good as the program's optimum is above it, in cycles.
    """

    jobs: Ints
    members: list[list[int]]
    places: list[Ints]
    horizon: float


class IntegerBound:
    """The best bound so far, and the program that improves it; *nodes* and *time_limit_s* limit each solution."""

    def __init__(
        self, problem: MappingProblem, bound: float, *, nodes: int = NODES, time_limit_s: float | None = None
    ) -> None:
        table = np.hstack([problem.latency, problem.bandwidth])
        rows, kind_of = np.unique(table, axis=0, return_inverse=True)
        columns = np.vstack([rows[:, : problem.accelerators], rows[:, problem.accelerators :]])
        kinds, place_of = np.unique(columns, axis=1, return_inverse=True)
        self.latency, self.request = kinds[: len(rows)], kinds[len(rows) :] / problem.system_bandwidth
        self.members = [np.flatnonzero(kind_of.ravel() == t).tolist() for t in range(len(rows))]
        self.places = [np.flatnonzero(place_of.ravel() == k) for k in range(kinds.shape[1])]
        self.alone = self.latency * np.maximum(1.0, self.request)
        self.bound, self.nodes, self.time_limit_s = bound, nodes, time_limit_s
        self._failed = np.inf  # the least threshold that was not reached

    def at(self, threshold: float) -> Counts | None:
        """Improve the bound by the program at *threshold* cycles; return its solution, if it has any.

        At the makespan of a known mapping the solution is where to look for a better one.
        """
        threshold *= 1 - MARGIN  # so that rounding of jobs that fill it exactly cannot matter
        if self.latency.size > LARGEST or threshold <= self.bound:
            return None
        allowed = self.alone < threshold * (1 - 1e-12)
        if not allowed.any(axis=1).all() or self._excess(allowed) >= threshold:
            self.prove(threshold)
            return None
        pairs = np.argwhere(allowed)
        solution = self._solve(allowed, threshold)
        if solution is None:
            return None
        if solution.status == "infeasible":
            self.prove(threshold)
            return None
        self.prove(min(1.0, solution.bound * (1 - MARGIN)) * threshold)
        if solution.x is None:
            return None
        jobs = np.zeros(self.latency.shape, dtype=np.int64)
        jobs[pairs[:, 0], pairs[:, 1]] = np.round(solution.x[: len(pairs)]).astype(np.int64)
        excess, longest = solution.x[len(pairs) :]
        return Counts(jobs, self.members, self.places, float((longest - excess) * threshold))

    def sharpen(self, makespan: float) -> bool:
        """Try one more threshold between the bound and the *makespan* of a mapping; false if none is left to try."""
        low, high = self.bound, min(makespan, self._failed)
        if self.latency.size > LARGEST or high <= low * (1 + RESOLUTION):
            return False
        middle = float(np.sqrt(low * high))
        self.at(middle)
        if self.bound < middle * (1 - 2 * MARGIN):
            self._failed = middle
        return True

    def _excess(self, allowed: Bools) -> float:
        """Return the least sum of the excess of all jobs, in cycles."""
        latency = np.where(allowed, self.latency, 0.0)
        excess = np.where(allowed, latency * np.maximum(0.0, self.request - 1.0), np.inf).min(axis=1)
        return float(excess @ np.array([len(jobs) for jobs in self.members]))

    def prove(self, bound: float) -> None:
        """Take over a bound proven elsewhere."""
        self.bound = max(self.bound, bound)

    def _solve(self, allowed: Bools, threshold: float) -> Solution | None:
        program = self._program(allowed, threshold)
        try:
            return program.minimise(gap=SOLVED, most_nodes=self.nodes, time_limit_s=self.time_limit_s)
        except SolverError:
            return None

    def _program(self, allowed: Bools, threshold: float) -> Program:
        """Return the program in units of *threshold*: numbers of jobs of the allowed pairs, E, z."""
        scaled = np.where(allowed, self.latency, 0.0) / threshold
        excess = scaled * np.maximum(0.0, self.request - 1.0)
        often = np.array([len(jobs) for jobs in self.members], dtype=np.float64)
        least = often * np.where(allowed, excess, np.inf).min(axis=1)
        weight = scaled + excess - (least / often)[:, None]
        t, k = np.nonzero(allowed)
        program = Program()
        number = program.columns(np.zeros(len(t)), high=often[t], whole=True)
        all_excess, longest = program.columns([0.0, 1.0])
        program.rows(t, number, 1.0, often, often)
        program.row(np.append(number, all_excess), np.append(excess[t, k], -1.0), -np.inf, 0.0)
        program.row(np.append(number, longest), np.append((scaled * self.request)[t, k], -1.0), -np.inf, 0.0)
        shortest = np.where(allowed, self.alone, np.inf).min(axis=1)
        for one in ranked(-shortest)[:SINGLE_TYPES].tolist():
            of = t == one
            program.row(
                np.append(number[of], [all_excess, longest]), np.append(scaled[one, k[of]] / often[one], [1.0, -1.0]),
                -np.inf, 0.0,
            )  # fmt: skip
        for kind, places in enumerate(self.places):
            of, copies = k == kind, float(len(places))
            program.row(
                np.append(number[of], [all_excess, longest]), np.append(scaled[t[of], kind], [copies, -copies]),
                -np.inf, 0.0,
            )  # fmt: skip
            self._count(program, number[of], weight[t[of], kind] / (1.0 - least.sum()), copies)
        return program

    @staticmethod
    def _count(program: Program, number: Ints, part: Floats, copies: float) -> None:
        for h in range(2, MOST_CUTS + 1):
            times = np.floor(h * part * (1 - 1e-12))
            some = times > 0
            if some.any():
                program.row(number[some], times[some], -np.inf, (h - 1) * copies)


def sharp_bound(problem: MappingProblem, makespan: float) -> float:
    """Return the bound of the linear program or, if *makespan* is above, that of the program with integers, in cycles.

    *makespan* is that of a mapping. A few thresholds below it are tried.
    """
    integers = IntegerBound(problem, lower_bound(problem))
    if makespan > integers.bound * (1 + PROVEN):
        integers.at(makespan)
    if makespan > integers.bound * (1 + ORDER_FROM):
        integers.prove(order_bound(problem, makespan))
    for _ in range(SHARPENED):
        if makespan > integers.bound * (1 + PROVEN):
            integers.sharpen(makespan)
    return integers.bound
