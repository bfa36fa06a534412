"""Gavel: shares of time on each GPU type by a linear program, kept over rounds; Themis as it states it.

``x[j, k]`` is the part of its time job ``j`` has on class ``k``. Every policy has the constraints

    sum over k of x[j, k] <= 1,    sum over j of gpus[j] x[j, k] <= GPUs of k,    x >= 0

and its own objective. In each round jobs come in order of ``x[j, k]`` over the share of the class' time they have
received so far, until the GPUs are given away. Jobs do not share a GPU.

Sources: D. Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads" (Gavel,
OSDI 2020), sections 4 and 5; K. Mahajan et al., "Themis: Fair and efficient GPU cluster scheduling" (NSDI 2020), whose
finish-time fairness Gavel minimises instead of auctioning GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.policies import Objective
from commonwatt.optimize import KeepGoing, Program, ranked
from commonwatt.placement._peers import Entry, Menu, Peer, in_strict_order, received_by
from commonwatt.placement._problem import PlacementProblem

__all__ = ["Gavel", "equal_share", "shares"]

ROUNDED = 5  # digits of a share that count
PRECISION = 1e-6  # of the worst finish-time fairness, and of a makespan


@dataclass(frozen=True)
class Gavel(Peer):
    """Gavel with one of its policies.

    Attributes
    ----------
    objective
        ``max-min``: the least speed of a job against what it would have with an equal share of every class (least
        attained service that knows types). ``finish-time``: the worst finish-time fairness. ``min-jct``: the sum of
        completion times. ``makespan``: the end of all jobs. ``max-sum``: iterations per second of all jobs.
        ``fifo``: order of arrival on the fastest free type, chosen anew in each round; no job before an earlier one.
    """

    objective: Objective = "max-min"

    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: np.random.Generator, keep_going: KeepGoing  # noqa: ARG002
    ) -> Sequence[Entry]:  # fmt: skip
        """Jobs and classes by priority."""
        if self.objective == "fifo":
            return in_strict_order(menu, ranked(problem.submit_s), menu.room)
        x = shares(problem, menu, self.objective)
        had, half_s = received_by(problem), problem.interval_s / 2  # a new job counts as if it had half a round
        received = (had.job_s + half_s) / (had.class_s + half_s * had.jobs)
        priority = x / received
        jobs, classes = x.shape
        order = ranked(-priority.T.ravel(), -x.T.ravel())  # ties to the earlier class, then to the earlier job
        return [(int(i % jobs), int(i // jobs)) for i in order[: jobs * classes]]


def shares(problem: PlacementProblem, menu: Menu, objective: Objective) -> Floats:
    """Return the part of its time each job is to have on each class, [J, K]; 0 where it cannot run.

    Raises ``InputError`` if the objective needs what is not known of a job.
    """
    x = np.zeros(menu.row.shape)
    able = np.flatnonzero((menu.row >= 0).any(axis=1))  # others have no room even alone, as where nodes are down
    if len(able):
        x[able] = _shares_of(problem, menu.only(able), able, objective)
    return x


def _shares_of(problem: PlacementProblem, menu: Menu, jobs: Ints, objective: Objective) -> Floats:
    """Shares of *jobs*, whose *menu* it is."""
    rate = 1.0 / menu.whole_s  # whole jobs per second
    lp = _Shares(menu)
    match objective:
        case "max-min":
            usual = (rate * menu.room / menu.room.sum()).sum(axis=1)  # each class in proportion to its GPUs
            x = lp.most_equal(rate * menu.gpus[:, None] / usual[:, None])
        case "max-sum":
            x = lp.most(rate * _iterations(problem)[jobs, None])
        case "finish-time":
            x = _finish_time(problem, problem.submit_s[jobs], menu, lp, rate)
        case "makespan":
            x = lp.most_equal(rate / menu.left[:, None])
        case _:
            x = _completion(menu, lp, rate)
    return np.where(menu.row >= 0, np.clip(np.round(x, ROUNDED), 0.0, 1.0), 0.0)


def equal_share(menu: Menu) -> Floats:
    """Return the time of each job on each class if all had an equal share of the GPUs of every class, [J, K]."""
    x = menu.room[None, :] / (len(menu.gpus) * menu.gpus[:, None])
    return np.asarray(x / np.maximum(1.0, x.sum(axis=1, keepdims=True)))


def _iterations(problem: PlacementProblem) -> Floats:
    iterations = problem.iterations
    unknown = np.ones(len(problem), dtype=bool) if iterations is None else np.isnan(iterations)
    if iterations is None or unknown.any():
        name = problem.job_names[int(np.argmax(unknown))]
        raise InputError(
            "its training iterations, by which objective max-sum counts", field=f"jobs.{name}.iterations", value="none"
        )
    return iterations


def _finish_time(problem: PlacementProblem, submit_s: Floats, menu: Menu, lp: _Shares, rate: Floats) -> Floats:
    """Minimise the worst of (age + time to the end) / time with an equal share of the GPUs, by bisection.

    With an equal share too a job begins at the next round, with a restart.
    """
    left, age_s, round_s = menu.left, problem.now_s - submit_s, problem.interval_s
    begin_s = round_s - submit_s % round_s + menu.restart_s
    alone_s = begin_s + 1.0 / (rate * equal_share(menu)).sum(axis=1)

    def needed(worst: float) -> Floats:
        return left / np.maximum(worst * alone_s - age_s, 1e-9)

    low = float((age_s / alone_s).max())
    high = max(1.0, 2.0 * low)
    while not lp.feasible(rate, needed(high)):
        low, high = high, 2.0 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if lp.feasible(rate, needed(middle)) else (middle, high)
    return lp.most_equal(rate / needed(high)[:, None])


def _completion(menu: Menu, lp: _Shares, rate: Floats, cuts: int = 24) -> Floats:
    """Minimise the sum of times to the end, convex in the speeds, within 3%: by tangents at speeds up to 1/3000."""
    fastest = rate.max(axis=1)
    return lp.least_time(rate / fastest[:, None], menu.left / fastest, [2.0 ** (-i / 2) for i in range(cuts)])


class _Shares:
    """Linear programs over the shares that there are."""

    def __init__(self, menu: Menu) -> None:
        self.menu = menu
        job, klass = np.nonzero(menu.row >= 0)
        self.at = job.astype(np.int64), klass.astype(np.int64)
        self.shape = menu.row.shape

    def most(self, worth: Floats) -> Floats:
        """Maximise the sum of ``worth * x``."""
        program, x = self._program(-worth[self.at])
        return self._solved(program, x)

    def most_equal(self, worth: Floats) -> Floats:
        """Maximise the least over jobs of the sum over classes of ``worth * x``."""
        scale = worth[self.at].max()
        program, x = self._program(np.zeros(len(self.at[0])))
        (least,) = program.columns(-1.0, low=-np.inf)
        jobs = len(self.menu.gpus)
        row = np.concatenate((self.at[0], np.arange(jobs)))
        column = np.concatenate((x, np.full(jobs, least)))
        value = np.concatenate((worth[self.at] / scale, np.full(jobs, -1.0)))
        program.rows(row, column, value, np.zeros(jobs), np.full(jobs, np.inf))
        return self._solved(program, x)

    def feasible(self, rate: Floats, needed: Floats) -> bool:
        """Whether every job can have at least the speed it *needed*."""
        if (needed > rate.max(axis=1)).any():
            return False
        program, x = self._program(np.zeros(len(self.at[0])))
        value = rate[self.at] / needed[self.at[0]]
        program.rows(self.at[0], x, value, np.ones(len(needed)), np.full(len(needed), np.inf))
        return program.minimise().x is not None

    def least_time(self, rate: Floats, left_s: Floats, points: Sequence[float]) -> Floats:
        """Minimise the sum of ``left_s / speed``, each bounded below by its tangents at the speeds *points*."""
        program, x = self._program(np.zeros(len(self.at[0])))
        jobs = len(left_s)
        time = program.columns(left_s / left_s.max())
        for speed in points:
            row = np.concatenate((self.at[0], np.arange(jobs)))
            column = np.concatenate((x, time))
            value = np.concatenate((rate[self.at] / speed**2, np.ones(jobs)))
            program.rows(row, column, value, np.full(jobs, 2.0 / speed), np.full(jobs, np.inf))
        return self._solved(program, x)

    def _program(self, cost: Floats) -> tuple[Program, Ints]:
        program = Program()
        x = program.columns(cost / max(1e-300, float(np.abs(cost).max(initial=0.0))))
        jobs, classes = self.shape
        program.rows(self.at[0], x, 1.0, np.full(jobs, -np.inf), np.ones(jobs))
        gpus = self.menu.gpus[self.at[0]].astype(float)
        program.rows(self.at[1], x, gpus, np.full(classes, -np.inf), self.menu.room.astype(float))
        return program, x

    def _solved(self, program: Program, x: Ints) -> Floats:
        solution = program.minimise(method="centre").x
        if solution is None:
            solution = program.minimise().x
        result = np.zeros(self.shape)
        if solution is not None:
            result[self.at] = solution[x]
        return result
