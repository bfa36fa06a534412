"""Looking ahead: plan all known jobs to their end in many ways, carry out the start of the cheapest plan. Ours.

Eq. (1) of ANDREAS sees one rescheduling interval, and prices a postponement by the slowest way to run the job, so
under load it prefers long jobs; solving it better makes the whole simulation dearer (docs/placement.md). The cost of a
plan is an estimate of what really counts: all energy and all tardiness until the last known job has ended.

Plans differ in the order of jobs, in the price put on GPU time and in whether running jobs may lose their GPUs:

- order: pressure (eq. 2), and apparent tardiness cost, ``omega_j / w_j * exp(-max(0, slack_j) / (k * mean time))``
  with ``w_j`` the GPU time the job takes, for several ``k`` (A. Vepsalainen and T. Morton, Management Science 33(8),
  1987);
- price: multiples of ``sum of omega over pressing jobs / GPUs of the cluster``, what delaying everybody by the time
  one GPU is held costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.placement._arrays import Arrays, Records, prepare
from commonwatt.placement._plan import efforts, finish, start_now
from commonwatt.placement._search import KeepGoing, Search, always
from commonwatt.placement.problem import Problem, Schedule

__all__ = ["Lookahead"]


@dataclass(frozen=True)
class Lookahead:
    """Parameters of the search over plans.

    Attributes
    ----------
    patience
        The ``k`` of the orders by apparent tardiness cost.
    prices
        Multiples of the base price of GPU time.
    styles
        Ways to spend energy: a job waits for a thrifty configuration until its slack is this multiple of its least run
        time (infinity: never), and whether what it leaves of a node is taken to be used by somebody else.
    moves
        Random changes of the order of the best plan that are tried in the end.
    least_gain
        Relative gain a move must bring: small gains on paper are undone by what was not foreseen.
    """

    patience: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0)
    prices: tuple[float, ...] = (1.0, 2.0)
    styles: tuple[tuple[float, bool], ...] = ((np.inf, False), (1.0, True))
    moves: int = 0
    least_gain: float = 0.05

    def solve(self, problem: Problem, rng: np.random.Generator, keep_going: KeepGoing = always) -> Search:
        """Return the start of the cheapest plan found."""
        jobs = len(problem)
        if not jobs:
            return Search(Schedule.empty(problem), 0)
        a = prepare(problem)
        gpu_s, value = _gpu_time(problem)
        effort = efforts(problem, a, value)
        base = _base_price(problem, value)
        orders = _orders(problem, gpu_s, self.patience)
        prices = np.array(self.prices) * base
        room = _Room.of(a, len(value))
        displaces = _displaces(problem)
        waits = np.array([_waits(problem, margin) for margin, _ in self.styles])
        fills = np.array([fill for _, fill in self.styles])
        cost, order, price, displace, wait = _try_plans(
            *_candidate(a), orders, prices, displaces, waits, fills, effort, *room
        )
        if self.moves and keep_going():
            cost = _try_moves(
                *_candidate(a), orders[order].copy(), prices[price], displace, waits[wait], fills[wait], effort, *room,
                cost, self.moves, self.least_gain, rng,
            )  # fmt: skip
        tried = len(orders) * len(prices) * len(displaces) * len(waits) + self.moves
        return Search(a.schedule(room.choice, room.given), tried, planned_cost=float(cost))


class _Room(NamedTuple):
    """Scratch space of plans, and the best start so far."""

    on_until: Floats
    free: Ints
    end_s: Floats
    end_row: Ints
    queue: Ints
    choice: Ints
    given: Ints

    @classmethod
    def of(cls, a: Arrays, classes: int) -> _Room:
        jobs = len(a.jobs)
        return cls(
            on_until=np.zeros(len(a.nodes)),
            free=np.zeros(classes, dtype=np.int64),
            end_s=np.zeros(jobs),
            end_row=np.zeros(jobs, dtype=np.int64),
            queue=np.zeros(jobs, dtype=np.int64),
            choice=np.full(jobs, -1),
            given=np.full(len(a.given), -1),
        )


def _candidate(a: Arrays) -> tuple[Records, Records, Records, Ints, Ints, Ints, Ints, Ints]:
    return a.jobs, a.rows, a.nodes, a.lists, a.held, a.given, a.picked, a.node_order


def _displaces(problem: Problem) -> Bools:
    """Whether running jobs may lose their GPUs to jobs whose turn comes earlier: ways to try."""
    if problem.locked:
        return np.array([False])
    return np.array([True, False]) if (problem.stay >= 0).any() else np.array([True])


def _waits(problem: Problem, margin: float) -> Floats:
    """Seconds from now each job waits for a thrifty configuration, [J]."""
    if np.isinf(margin):
        return np.full(len(problem), -np.inf)
    return -problem.pressure_s - margin * np.where(np.isfinite(problem.fastest_s), problem.fastest_s, 0.0)


def _gpu_time(problem: Problem) -> tuple[Floats, Floats]:
    """Least GPU time of each job on the best class, [J], and the value of a GPU of each class, [K].

    A class's value is the mean, over the jobs it can run, of the GPU time they take on their best class over
    the GPU time they take here.
    """
    classes = len(problem.class_gpus)
    least = np.full((len(problem), classes), np.inf)
    np.minimum.at(least, (problem.row_job, problem.klass), problem.width * problem.per_node * problem.time_s)
    best = least.min(axis=1)
    able = np.isfinite(least)
    relative = np.where(able, best[:, None] / least, 0.0)
    value = relative.sum(axis=0) / np.maximum(able.sum(axis=0), 1)
    return best, np.where(value > 0, value, 1.0)


def _base_price(problem: Problem, value: Floats) -> float:
    """What delaying every pressing job costs, per second and GPU of value 1."""
    pressing = problem.pressure_s > -np.median(problem.fastest_s)
    gpus = float((problem.node_gpus * value[problem.node_class]).sum())
    return float(problem.weight[pressing].sum()) / gpus if gpus > 0 else 0.0


def _orders(problem: Problem, gpu_s: Floats, patience: tuple[float, ...]) -> Ints:
    """Orders of the jobs, one a row: by pressure, then by apparent tardiness cost."""
    orders = [np.argsort(-problem.pressure_s, kind="stable")]
    slack_s = np.maximum(0.0, -problem.pressure_s)
    urgency = np.log(np.maximum(problem.weight, 1e-300)) - np.log(gpu_s)
    mean_s = float(problem.fastest_s.mean())
    for k in patience:
        orders.append(np.argsort(-(urgency - slack_s / (k * mean_s)), kind="stable"))
    return np.array(orders)


@njit(cache=True, nogil=True)
def _keep(jobs: Records, given: Ints, best_choice: Ints, best_given: Ints) -> None:
    for j in range(len(jobs)):
        best_choice[j] = jobs[j].choice
    best_given[:] = given


@njit(cache=True, nogil=True)
def _try_plans(
    jobs: Records, rows: Records, nodes: Records, lists: Ints, held: Ints, given: Ints, picked: Ints, node_order: Ints,
    orders: Ints, prices: Floats, displaces: Bools, waits: Floats, fills: Bools, effort: Records,
    on_until: Floats, free: Ints, end_s: Floats, end_row: Ints, queue: Ints, best_choice: Ints, best_given: Ints,
) -> tuple[float, int, int, bool, int]:  # fmt: skip
    """Try every combination; returns the least cost and the plan it belongs to."""
    best = (np.inf, 0, 0, True, 0)
    for o in range(len(orders)):
        for p in range(len(prices)):
            for displace in displaces:
                for w in range(len(waits)):
                    cost = start_now(
                        jobs, rows, nodes, lists, held, given, picked, node_order, orders[o], displace, prices[p],
                        effort, waits[w], fills[w], on_until,
                    )  # fmt: skip
                    cost += finish(
                        jobs, rows, nodes, orders[o], prices[p], effort, waits[w], free, end_s, end_row, queue
                    )
                    if cost < best[0]:
                        best = (cost, o, p, displace, w)
                        _keep(jobs, given, best_choice, best_given)
    return best


@njit(cache=True, nogil=True)
def _try_moves(
    jobs: Records, rows: Records, nodes: Records, lists: Ints, held: Ints, given: Ints, picked: Ints, node_order: Ints,
    order: Ints, price: float, displace: bool, waits_s: Floats, fill: bool, effort: Records,
    on_until: Floats, free: Ints, end_s: Floats, end_row: Ints, queue: Ints, best_choice: Ints, best_given: Ints,
    best: float, moves: int, least_gain: float, rng: np.random.Generator,
) -> float:  # fmt: skip
    """Take one job out of the order and put it elsewhere, *moves* times; keep what gains enough."""
    trial = order.copy()
    for _ in range(moves):
        trial[:] = order
        i, k = rng.integers(0, len(order)), rng.integers(0, len(order))
        j = trial[i]
        step = 1 if k > i else -1
        for x in range(i, k, step):
            trial[x] = trial[x + step]
        trial[k] = j
        cost = start_now(
            jobs, rows, nodes, lists, held, given, picked, node_order, trial, displace, price, effort, waits_s, fill,
            on_until,
        )  # fmt: skip
        cost += finish(jobs, rows, nodes, trial, price, effort, waits_s, free, end_s, end_row, queue)
        if cost < best * (1.0 - least_gain):
            best = cost
            order[:] = trial
            _keep(jobs, given, best_choice, best_given)
    return best
