"""Plans of completion times (ours): which job runs next, on which GPU type, and which one waits for a better type.

For jobs of fixed size. All known jobs are planned to their end, one after another in some order: each gets the class
and the start that end it first, around those before it, with restarts, and in rounds where decisions are bound to them.
A job may be planned to wait for a faster type. The cost of a plan is the sum over jobs of their completion times to a
power above 1, so that a long wait weighs more than several short ones (1: the mean alone). Several orders are tried,
among them shortest remaining time and shortest remaining GPU time; random moves of single jobs improve the best.

The jobs the plan starts now are started. GPUs left idle go to jobs that would wait for longer than two restarts: they
can be stopped again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import KeepGoing, njit, ranked
from commonwatt.placement._peers import Entry, Menu, Peer
from commonwatt.placement._problem import PlacementProblem

__all__ = ["Completion"]

MOVES = 100  # of single jobs, per decision
MOST_MOVED = 20_000  # jobs placed by moves per decision: with many jobs there are fewer moves
DEPTH = 1000  # jobs that are planned; others only fill gaps
GAIN = 1e-6  # relative, that a move must bring
WAITS_RESTARTS = 2.0
_EXACT_S = 1e-6


@dataclass(frozen=True)
class Completion(Peer):
    """Plans of completion times.

    Attributes
    ----------
    power
        To which completion times count: 1 for the mean, more for the long ones.
    moves
        Random moves tried per decision.
    """

    power: float = 1.5
    moves: int = MOVES

    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: np.random.Generator, keep_going: KeepGoing
    ) -> Sequence[Entry]:
        """Jobs that the best plan found starts now, then others for GPUs that it leaves idle."""
        planner = _Planner(problem, menu, self.power)
        orders = planner.orders()
        best = planner.plan(orders[0])
        for order in orders[1:]:
            best = min(best, planner.plan(order), key=lambda plan: plan.cost)
        planned = len(best.order)
        for _ in range(min(self.moves, MOST_MOVED // planned) if planned > 1 else 0):
            if not keep_going():
                break
            candidate = planner.plan(planner.moved(best.order, rng))
            if candidate.cost < best.cost * (1.0 - GAIN):
                best = candidate
        return planner.entries(best)


class _Plan(NamedTuple):
    cost: float
    order: Ints
    start_s: Floats  # [J] from now; infinity: not planned
    klass: Ints  # [J]


class _Planner:
    def __init__(self, problem: PlacementProblem, menu: Menu, power: float) -> None:
        self.problem, self.menu, self.power = problem, menu, power
        self.age_s = problem.now_s - problem.submit_s
        self.fastest_s = menu.left_s.min(axis=1)
        self.fixed = (menu.home >= 0) & problem.locked
        self.anew_s = np.where(menu.start >= 0, problem.time_s[np.maximum(menu.start, 0)], np.inf)
        self.stay_s = np.where(menu.home >= 0, problem.time_s[np.maximum(problem.stay, 0)], np.inf)

    def orders(self) -> list[Ints]:
        """Orders to begin with; jobs that may not be stopped come first."""
        problem, area_s = self.problem, self.fastest_s * self.menu.gpus
        waits, of_life = (self.menu.home < 0).astype(float), 1.0 / (1.0 + self.age_s / self.fastest_s)
        keys = ((self.fastest_s,), (area_s,), (problem.submit_s,), (of_life,), (waits, self.fastest_s))
        return [ranked(~self.fixed, *key, problem.submit_s)[:DEPTH] for key in keys]

    def moved(self, order: Ints, rng: np.random.Generator) -> Ints:
        """Return *order* with one job elsewhere."""
        first = int(self.fixed.sum())
        if len(order) - first < 2:
            return order
        job, place = rng.integers(first, len(order), size=2)
        return np.insert(np.delete(order, job), place, order[job])

    def plan(self, order: Ints) -> _Plan:
        start_s, klass = np.full(len(self.menu.gpus), np.inf), np.full(len(self.menu.gpus), -1, dtype=np.int64)
        cost = _planned(
            order, self.menu.gpus, self.menu.home, self.anew_s, self.stay_s, self.menu.room, self.age_s,
            self.problem.round_s or 0.0, self.power, start_s, klass,
        )  # fmt: skip
        return _Plan(float(cost), order, start_s, klass)

    def entries(self, plan: _Plan) -> Sequence[Entry]:
        """Jobs the plan starts now or leaves where they are, then others for GPUs that it leaves idle."""
        menu, later = self.menu, plan.start_s > _EXACT_S
        now: list[Entry] = [(int(job), int(plan.klass[job])) for job in plan.order if not later[job]]
        if self.problem.locked:
            return now
        patient = plan.start_s >= WAITS_RESTARTS * menu.restart_s
        rest = np.concatenate((plan.order, np.setdiff1d(np.arange(len(later)), plan.order)))
        return now + [
            (int(job), int(k))
            for job in rest[later[rest]]
            for k in ranked(menu.left_s[job])
            if patient[job] or menu.home[job] == k
        ]


@njit(cache=True, nogil=True)
def _planned(
    order: Ints, gpus: Ints, home: Ints, anew_s: Floats, stay_s: Floats, room: Ints, age_s: Floats, round_s: float,
    power: float, start_s: Floats, klass: Ints,
) -> float:  # fmt: skip
    """Plan jobs in *order*; returns the cost, and sets when each starts (from now) and in which class.

    The free GPUs of a class are a step function of time: ``free[k, i]`` from ``begin[k, i]`` on, ``steps[k]`` of them.
    """
    classes = len(room)
    begin = np.full((classes, 2 * len(order) + 2), np.inf)
    free = np.zeros(begin.shape, dtype=np.int64)
    steps = np.ones(classes, dtype=np.int64)
    begin[:, 0] = 0.0
    free[:, 0] = room
    cost = 0.0
    for j in order:
        end, where, from_s, until_s = np.inf, -1, 0.0, 0.0
        for k in range(classes):
            if room[k] < gpus[j]:
                continue
            i = 0
            while i < steps[k]:
                stays = i == 0 and home[j] == k
                time_s = stay_s[j] if stays else anew_s[j, k]
                if begin[k, i] + time_s >= end:
                    break
                allocation_s = time_s if round_s <= 0.0 else np.ceil(time_s / round_s - 1e-9) * round_s
                short = _short_of(begin, free, steps, k, i, begin[k, i] + allocation_s, gpus[j])
                if short < 0:
                    end, where, from_s, until_s = begin[k, i] + time_s, k, begin[k, i], begin[k, i] + allocation_s
                    break
                i = short + 1
        if where < 0:
            continue
        start_s[j], klass[j] = from_s, where
        _take(begin, free, steps, where, from_s, until_s, gpus[j])
        cost += (age_s[j] + end) ** power
    return cost


@njit(cache=True, nogil=True)
def _short_of(begin: Floats, free: Ints, steps: Ints, k: int, i: int, until_s: float, gpus: int) -> int:
    """Step from *i* on and before *until_s* with fewer free *gpus*, or -1."""
    while i < steps[k] and begin[k, i] < until_s - 1e-6:
        if free[k, i] < gpus:
            return i
        i += 1
    return -1


@njit(cache=True, nogil=True)
def _take(begin: Floats, free: Ints, steps: Ints, k: int, from_s: float, until_s: float, gpus: int) -> None:
    """Take *gpus* from *from_s*, where a step begins, to *until_s*."""
    last = 0
    while last < steps[k] and begin[k, last] < until_s - 1e-6:
        last += 1
    if last == steps[k] or begin[k, last] > until_s + 1e-6:
        for i in range(steps[k], last, -1):
            begin[k, i], free[k, i] = begin[k, i - 1], free[k, i - 1]
        begin[k, last], free[k, last] = until_s, free[k, last - 1]
        steps[k] += 1
    for i in range(last):
        if begin[k, i] >= from_s - 1e-6:
            free[k, i] -= gpus
