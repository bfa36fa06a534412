"""Plans of completion times (ours): which job runs next, on which GPU type, and which one waits for a better type.

All known jobs are planned to their end, one after another in some order: each gets the class and the start that end it
first, around those before it, with restarts, and in rounds where decisions are bound to them. Jobs have the size they
asked for, or (``ResizingCompletion``) one of those that use GPUs well enough.
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

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import KeepGoing, always, njit, ranked
from commonwatt.placement._peers import Entry, Menu, Peer
from commonwatt.placement._problem import PlacementProblem
from commonwatt.placement._resizing import Open, Resizing, goodput

__all__ = ["Completion", "ResizingCompletion"]

MOVES = 100  # of single jobs, per decision
MOST_MOVED = 20_000  # jobs placed by moves per decision: with many jobs there are fewer moves
DEPTH = 1000  # jobs that are planned; others only fill gaps
GAIN = 1e-6  # relative, that a move must bring
LEVELS: Floats = np.array([1.0, 0.85, 0.7, 0.5, 0.3, 0.0, np.inf])  # least speed for a GPU, as a part of the most
NONE = len(LEVELS) - 1  # the level at which a job has nothing but what it runs in
RESIZES = 0.5  # share of moves that change a level
KEEPS = 0.02  # what a plan that stops or changes running jobs must save, of the cost of the best that does not
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
        options = _of_menu(problem, menu)
        plan = _Planner(problem, options, self.power).searched(rng, keep_going, self.moves)
        return _entries(problem, menu, plan, options.klass)


@dataclass(frozen=True)
class ResizingCompletion(Resizing):
    """Plans of completion times that choose the number of GPUs, too.

    A job may have those of its options whose speed for a GPU is at least a part of the most on its class: one of
    ``LEVELS``, the same for all jobs or, by moves, its own. In a plan it keeps the size that ends it first.

    Attributes
    ----------
    power, moves
        As of ``Completion``.
    """

    power: float = 1.5
    moves: int = 3 * MOVES

    def allowed(self, problem: PlacementProblem, size: Ints) -> Bools:  # noqa: ARG002
        """All configurations."""
        return np.ones(len(problem.klass), dtype=bool)

    def picked(self, problem: PlacementProblem, among: Open, rng: np.random.Generator) -> Ints:
        """What the best plan found starts now; then, for GPUs it leaves idle, jobs that start later."""
        held = problem.stay[problem.stay >= 0] if problem.locked else np.zeros(0, dtype=np.int64)
        rows = np.concatenate((among.rows, held))  # what may not be stopped is planned around
        size = problem.width[rows] * problem.per_node[rows]
        order = ranked(problem.row_job[rows], problem.klass[rows], size)
        place = np.concatenate((np.arange(len(among.rows)), np.full(len(held), -1)))[order]
        rows, size = rows[order], size[order]
        stays, time_s = rows == problem.stay[problem.row_job[rows]], problem.time_s[rows]
        options = _Options(
            np.searchsorted(problem.row_job[rows], np.arange(len(problem) + 1)), problem.klass[rows], size,
            np.where(stays, _anew_s(problem, rows), time_s), np.where(stays, time_s, np.inf),
        )  # fmt: skip
        planner = _Planner(problem, options, self.power, _efficiency(problem, rows))
        plan = planner.searched(rng, always, self.moves)
        if planner.runs.any():
            calm = planner.undisturbed()
            plan = calm if plan.cost > (1.0 - KEEPS) * calm.cost else plan
        now = place[plan.option[plan.order[plan.start_s[plan.order] <= _EXACT_S]]]
        now = now[now >= 0]
        return np.concatenate((now, self._filled(problem, among, plan, now)))

    @staticmethod
    def _filled(problem: PlacementProblem, among: Open, plan: _Plan, now: Ints) -> Ints:
        """Return what fits of *among* for other jobs, within what those that start *now* leave.

        A job that was not planned stays where it is, if it can. Others get their least number of GPUs, but one that
        *plan* starts soon waits for that.
        """
        free = among.room - np.bincount(among.klass[now], among.size[now], len(among.room)).astype(np.int64)
        restart_s = np.zeros(len(problem)) if problem.restart_s is None else problem.restart_s
        filled = []
        rest = np.setdiff1d(np.arange(len(problem)), plan.order)  # too many to be planned; those that run first
        rest = rest[ranked(problem.stay[rest] < 0, problem.submit_s[rest])]
        for j in np.concatenate((plan.order[plan.start_s[plan.order] > _EXACT_S], rest)):
            own = np.flatnonzero((among.job == j) & (among.size <= free[among.klass]))
            stays = own[among.rows[own] == problem.stay[j]]
            if plan.start_s[j] < WAITS_RESTARTS * restart_s[j] or (len(stays) and np.isinf(plan.start_s[j])):
                own = stays
            if len(own):
                o = own[ranked(among.size[own], problem.time_s[among.rows[own]])[0]]
                free[among.klass[o]] -= among.size[o]
                filled.append(int(o))
        return np.array(filled, dtype=np.int64)


def _anew_s(problem: PlacementProblem, rows: Ints) -> Floats:
    """Time of each of *rows* if its job is started anew in that shape; infinity: it cannot be."""
    size = problem.width * problem.per_node
    found = np.full(len(rows), np.inf)
    for i, r in enumerate(rows.tolist()):
        j = problem.row_job[r]
        own = np.arange(problem.start[j], problem.start[j + 1])
        own = own[(own != problem.stay[j]) & (problem.klass[own] == problem.klass[r]) & (size[own] == size[r])]
        found[i] = problem.time_s[own].min(initial=np.inf)
    return found


def _efficiency(problem: PlacementProblem, rows: Ints) -> Floats:
    """Speed for each GPU of *rows*, as a part of the most that their job has on their class."""
    job, klass = problem.row_job[rows], problem.klass[rows]
    speed = goodput(problem, rows) / (problem.width[rows] * problem.per_node[rows])
    best = np.zeros((len(problem), len(problem.class_gpus)))
    np.maximum.at(best, (job, klass), speed)
    return np.asarray(speed / best[job, klass])


class _Options(NamedTuple):
    """What jobs may have, by job and class: the place of a job's first in ``first``, [J + 1]; of each, [O]."""

    first: Ints
    klass: Ints
    gpus: Ints
    anew_s: Floats  # time if it is started there; infinity: it cannot be
    stay_s: Floats  # time if it stays; infinity: it does not run there


def _of_menu(problem: PlacementProblem, menu: Menu) -> _Options:
    """One option for each job and class, where it can run there or not."""
    jobs, classes = menu.row.shape
    klass = np.tile(np.arange(classes), jobs)
    home = klass == np.repeat(menu.home, classes)
    anew_s = np.where(menu.start >= 0, problem.time_s[np.maximum(menu.start, 0)], np.inf).ravel()
    stay_s = np.where(home, np.repeat(problem.time_s[np.maximum(problem.stay, 0)], classes), np.inf)
    return _Options(np.arange(jobs + 1) * classes, klass, np.repeat(menu.gpus, classes), anew_s, stay_s)


class _Plan(NamedTuple):
    cost: float
    order: Ints
    start_s: Floats  # [J] from now; infinity: not planned
    option: Ints  # [J]
    level: Ints  # [J] of efficiency, of those that are open to it


class _Planner:
    """Plans over *options*; with *efficiency* ([O]), a job at level ``l`` has those of at least ``LEVELS[l]``."""

    def __init__(
        self, problem: PlacementProblem, options: _Options, power: float, efficiency: Floats | None = None
    ) -> None:
        self.problem, self.options, self.power = problem, options, power
        self.room = np.bincount(problem.node_class, problem.node_gpus, len(problem.class_gpus)).astype(np.int64)
        self.efficiency = np.ones(len(options.klass)) if efficiency is None else efficiency
        self.levels = 1 if efficiency is None else NONE
        self.age_s = problem.now_s - problem.submit_s
        left_s = np.minimum(options.anew_s, options.stay_s)
        self.job = np.repeat(np.arange(len(problem)), np.diff(options.first))
        self.fastest_s, self.area_s = np.full(len(problem), np.inf), np.full(len(problem), np.inf)
        np.minimum.at(self.fastest_s, self.job, left_s)
        np.minimum.at(self.area_s, self.job, left_s * options.gpus)
        self.runs = np.zeros(len(problem), dtype=bool)
        self.runs[self.job[np.isfinite(options.stay_s)]] = True
        self.fixed = self.runs & problem.locked
        self._never_s, self._none = np.full(len(problem), np.inf), np.full(len(problem), -1, dtype=np.int64)
        self._opened: tuple[Ints | None, Bools] = None, np.zeros(0, dtype=bool)  # of which levels, which options

    def orders(self) -> list[Ints]:
        """Orders to begin with; jobs that may not be stopped come first."""
        submit_s = self.problem.submit_s
        of_life = 1.0 / (1.0 + self.age_s / self.fastest_s)
        keys = (self.fastest_s,), (self.area_s,), (submit_s,), (of_life,), ((~self.runs).astype(float), self.fastest_s)
        return [ranked(~self.fixed, *key, submit_s)[:DEPTH] for key in keys]

    def searched(self, rng: np.random.Generator, keep_going: KeepGoing, moves: int) -> _Plan:
        """Return the best plan of all orders and levels, improved by moves of single jobs."""
        best: _Plan | None = None
        for order in self.orders():
            for level in range(self.levels):
                plan = self.plan(order, np.full(len(self.problem), level, dtype=np.int64))
                best = plan if best is None or plan.cost < best.cost else best
        assert best is not None
        planned = len(best.order)
        for _ in range(min(moves, MOST_MOVED // planned) if planned > 1 or self.levels > 1 else 0):
            if not keep_going():
                break
            candidate = self.plan(*self._moved(best, rng))
            if candidate.cost < best.cost * (1.0 - GAIN):
                best = candidate
        return best

    def _moved(self, plan: _Plan, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Return the order and levels of *plan* with one job elsewhere, or at another level."""
        order, first = plan.order, int(self.fixed.sum())
        if self.levels > 1 and rng.random() < RESIZES:
            level = plan.level.copy()
            level[order[rng.integers(len(order))]] = rng.integers(self.levels)
            return order, level
        if len(order) - first < 2:
            return order, plan.level
        job, place = rng.integers(first, len(order), size=2)
        moved = order.tolist()  # at these lengths sooner than `np.insert` of `np.delete`
        moved.insert(place, moved.pop(job))
        return np.array(moved, dtype=np.int64), plan.level

    def undisturbed(self) -> _Plan:
        """Return the best plan of all orders and levels in which all running jobs go on as they are."""
        best: _Plan | None = None
        for order in self.orders():
            order = order[ranked(~self.runs[order], np.arange(len(order)))]
            for level in range(self.levels):
                plan = self.plan(order, np.where(self.runs, NONE, level))
                best = plan if best is None or plan.cost < best.cost else best
        assert best is not None
        return best

    def plan(self, order: Ints, level: Ints) -> _Plan:
        """Plan jobs in *order*, each with what is open to it at its *level* ([J])."""
        if level is not self._opened[0]:  # a move within the order keeps the levels
            self._opened = level, self.efficiency >= LEVELS[level][self.job]
        start_s, option = self._never_s.copy(), self._none.copy()
        cost = _planned(
            order, self.options, self._opened[1], self.room, self.age_s, self.problem.round_s or 0.0, self.power,
            start_s, option,
        )  # fmt: skip
        return _Plan(float(cost), order, start_s, option, level)


def _entries(problem: PlacementProblem, menu: Menu, plan: _Plan, klass: Ints) -> Sequence[Entry]:
    """Jobs the plan starts now or leaves where they are, then others for GPUs that it leaves idle."""
    later = plan.start_s > _EXACT_S
    now: list[Entry] = [(int(job), int(klass[plan.option[job]])) for job in plan.order if not later[job]]
    if problem.locked:
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
    order: Ints, options: _Options, open_: Bools, room: Ints, age_s: Floats, round_s: float, power: float,
    start_s: Floats, option: Ints,
) -> float:  # fmt: skip
    """Plan jobs in *order*; returns the cost, and sets when each starts (from now) and which option it has.

    Options that are not *open_* are passed, unless the job runs there. The free GPUs of a class are a step function of
    time: ``free[k, i]`` from ``begin[k, i]`` on, ``steps[k]`` of them.
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
        for o in range(options.first[j], options.first[j + 1]):
            k, gpus = options.klass[o], options.gpus[o]
            if room[k] < gpus:
                continue
            i = 0
            while i < steps[k]:
                stays = i == 0 and options.stay_s[o] < np.inf
                if not stays and not open_[o]:
                    break
                time_s = options.stay_s[o] if stays else options.anew_s[o]
                if begin[k, i] + time_s >= end:
                    break
                allocation_s = time_s if round_s <= 0.0 else np.ceil(time_s / round_s - 1e-9) * round_s
                short = _short_of(begin, free, steps, k, i, begin[k, i] + allocation_s, gpus)
                if short < 0:
                    end, where, from_s, until_s = begin[k, i] + time_s, o, begin[k, i], begin[k, i] + allocation_s
                    break
                i = short + 1
        if where < 0:
            continue
        start_s[j], option[j] = from_s, where
        _take(begin, free, steps, options.klass[where], from_s, until_s, options.gpus[where])
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
