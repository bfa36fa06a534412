"""The least makespan of a small batch, by branch and bound.

By the clock of ``decoder`` every job takes its no-stall latency, and ``M = integral of max(1, X)``, X being what
running jobs request in units of the system bandwidth. What a partial schedule has cost by then does not depend on what
comes later. So schedules are built moment by moment: whenever a sub-accelerator is through with a job, it takes one of
those left, or none any more. A branch ends where what is spent and a lower bound on the rest reach the best known. The
rest takes at least as long as

- each running job, and each job left on the open sub-accelerator where it would end first, alone;
- all that is left to be moved, each job at its least volume, at the whole bandwidth;
- what is left to be run, each job at its shortest, divided by the open sub-accelerators, and by how much each job holds
  up all others as it requests more bandwidth than there is, wherever it runs.

A state is not looked at again unless it is reached earlier: the jobs left, and what each sub-accelerator runs and for
how much longer. Equal sub-accelerators may change places in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._auto import Auto
from commonwatt.mapping._encoding import from_orders
from commonwatt.mapping._lower_bound import lower_bound
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import enough
from commonwatt.mapping._search import MappingSearch, score
from commonwatt.model.errors import InputError
from commonwatt.optimize import KeepGoing, always, ranked

__all__ = ["BranchAndBound"]

ROUNDING = 1e-12
MOST_STATES = 2_000_000
"""States kept to be known again."""
ASKED_EVERY = 1000


@dataclass(frozen=True)
class BranchAndBound:
    """Branch and bound from what ``auto`` finds with a budget of mappings; the search itself ends with time only."""

    budget: int = 3000

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:
        """Return the best mapping, ``optimal`` if nothing ended the search early.

        Raises ``InputError`` unless the makespan is what counts, with jobs that are independent and priorities free.
        """
        goal = problem.goal
        if goal.objective != "latency":
            raise InputError("latency, for an exact search", field="objective", value=goal.objective)
        if goal.precedence:
            raise InputError("jobs that are independent, for an exact search", field="after")
        if len(problem.priority) and not np.isnan(problem.priority).all():
            raise InputError("priorities that are free, for an exact search", field="fixed.priority")
        start = Auto(min(self.budget, 3000)).solve(problem, rng, keep_going)
        if start.cost <= max(lower_bound(problem) * (1 + 2 * ROUNDING), enough(problem)):
            return replace(start, optimal=start.cost > enough(problem))
        tree = _Tree(problem, start.cost, keep_going)
        finished = tree.run()
        if tree.orders is None:
            return replace(start, optimal=finished)
        search = score(problem, from_orders(len(problem), tree.orders)[None])
        history = (*start.history, (start.evaluations + 1, search.cost))
        return replace(search, evaluations=start.evaluations + 1, history=history, optimal=finished)


class _Stopped(Exception):  # noqa: N818
    """No time is left."""


class _Tree:
    def __init__(self, problem: MappingProblem, makespan: float, keep_going: KeepGoing) -> None:
        self.jobs, self.places = problem.latency.shape
        self.latency = problem.latency.tolist()
        self.request = (problem.bandwidth / problem.system_bandwidth).tolist()
        self.best, self.orders = makespan, None
        self.keep_going, self.nodes = keep_going, 0
        table = np.vstack([problem.latency, problem.bandwidth])
        self.kind = np.unique(table, axis=1, return_inverse=True)[1].ravel().tolist()
        shortest = problem.alone.min(axis=1)
        self.first = ranked(-shortest).tolist()  # long jobs are tried first
        with np.errstate(invalid="ignore"):
            excess = np.where(problem.possible, problem.latency * np.maximum(0.0, np.array(self.request) - 1.0), np.inf)
        self.excess = excess.min(axis=1).tolist()
        self.alone = problem.alone.tolist()
        self.volume = (problem.volume.min(axis=1) / problem.system_bandwidth).tolist()
        self.seen: dict[tuple[object, ...], float] = {}

    orders: list[list[int]] | None

    def run(self) -> bool:
        """Search; true unless time ended it."""
        try:
            self._go(0.0, [0.0] * self.places, [0.0] * self.places, [True] * self.places, set(range(self.jobs)),
                     [[] for _ in range(self.places)])  # fmt: skip
        except _Stopped:
            return False
        return True

    def _go(
        self,
        spent: float,
        left: list[float],
        asks: list[float],
        is_open: list[bool],
        waiting: set[int],
        orders: list[list[int]],
    ) -> None:
        self.nodes += 1
        if self.nodes % ASKED_EVERY == 0 and not self.keep_going():
            raise _Stopped
        if not waiting:
            total = spent + _finish(left, asks)
            if total < self.best * (1 - ROUNDING):
                self.best, self.orders = total, [list(order) for order in orders]
            return
        if spent + self._rest(left, asks, is_open, waiting) >= self.best * (1 - ROUNDING) or self._is_repeat(
            spent, left, asks, is_open, waiting
        ):
            return
        free = next((a for a in range(self.places) if is_open[a] and left[a] == 0.0), None)
        if free is None:
            running = [a for a in range(self.places) if left[a] > 0.0]
            if not any(is_open):
                return
            step = min(left[a] for a in running)
            speed = max(1.0, sum(asks[a] for a in running))
            after = [rest - step if rest > step * (1 + ROUNDING) else 0.0 for rest in left]
            self._go(spent + step * speed, after, asks, is_open, waiting, orders)
            return
        for j in self.first:
            if j in waiting and self.latency[j][free] < np.inf:
                waiting.remove(j)
                orders[free].append(j)
                kept = asks[free]
                left[free], asks[free] = self.latency[j][free], self.request[j][free]
                self._go(spent, list(left), list(asks), is_open, waiting, orders)
                left[free], asks[free] = 0.0, kept
                orders[free].pop()
                waiting.add(j)
        shut = list(is_open)
        shut[free] = False
        if any(shut):
            self._go(spent, left, asks, shut, waiting, orders)

    def _is_repeat(
        self, spent: float, left: list[float], asks: list[float], is_open: list[bool], waiting: set[int]
    ) -> bool:
        places = sorted(
            (self.kind[a], is_open[a], left[a], asks[a] if left[a] > 0.0 else 0.0) for a in range(self.places)
        )
        key = (frozenset(waiting), tuple(places))
        if self.seen.get(key, np.inf) <= spent:
            return True
        if len(self.seen) < MOST_STATES:
            self.seen[key] = spent
        return False

    def _rest(self, left: list[float], asks: list[float], is_open: list[bool], waiting: set[int]) -> float:
        """What the rest takes at least."""
        places = [a for a in range(self.places) if is_open[a]]
        volume = excess = 0.0
        longest = max(left)
        load = sum(left[a] for a in places)
        for rest, request in zip(left, asks, strict=True):
            volume += rest * request
            excess += rest * max(0.0, request - 1.0)
        for j in waiting:
            volume += self.volume[j]
            excess += self.excess[j]
            load += min(self.latency[j][a] for a in places)
            longest = max(longest, min(left[a] + self.alone[j][a] for a in places))
        return max(longest, volume, load / len(places) + excess, max(left) + excess)


def _finish(left: list[float], asks: list[float]) -> float:
    """Return what running jobs take until the last ends, if none follow."""
    spent = now = 0.0
    running = sorted((rest, request) for rest, request in zip(left, asks, strict=True) if rest > 0.0)
    total = sum(request for _, request in running)
    for rest, request in running:
        spent += (rest - now) * max(1.0, total)
        now, total = rest, total - request
    return spent
