"""Looking ahead: plan all known jobs to their end in many ways, carry out the start of the cheapest plan. Ours.

Eq. (1) of ANDREAS sees one rescheduling interval, and prices a postponement by the slowest way to run the job, so
under load it prefers long jobs; solving it better makes the whole simulation dearer (docs/explanation/placement.md).
The cost of a plan is an estimate of what really counts: all energy and all tardiness until the last known job has
ended.

Plans differ in the order of jobs, in the price put on GPU time and in whether running jobs may lose their GPUs:

- order: pressure (eq. 2), and apparent tardiness cost, ``omega_j / w_j * exp(-max(0, slack_j) / (k * mean time))``
  with ``w_j`` the GPU time the job takes, for several ``k`` (A. Vepsalainen and T. Morton, Management Science 33(8),
  1987);
- price: multiples of ``sum of omega over pressing jobs / GPUs of the cluster``, what delaying everybody by the time
  one GPU is held costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import KeepGoing, always, njit, ranked
from commonwatt.placement._arrays import Candidate, Records, copy, keep, prepare
from commonwatt.placement._construct import DISPLACE, NEVER_DISPLACE
from commonwatt.placement._list_schedule import Plan, Room, efforts, finish, start_now
from commonwatt.placement._problem import PlacementProblem, PlacementSearch, Schedule
from commonwatt.placement._steady import steady_start

__all__ = ["MAY_WAIT", "NEVER_WAIT", "Lookahead"]

Styles = tuple[tuple[float, bool], ...]
MAY_WAIT: Styles = ((np.inf, False), (1.0, True))
NEVER_WAIT: Styles = ((np.inf, False), (np.inf, True))


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
    slowdown_price
        What it costs if a job takes once more its run time, currency; more than 0: steady plans, see ``_steady``.
    """

    patience: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0)
    prices: tuple[float, ...] = (1.0, 2.0)
    styles: Styles = MAY_WAIT
    moves: int = 0
    least_gain: float = 0.05
    slowdown_price: float = 0.0

    plans: ClassVar[bool] = True
    leaves_room: ClassVar[bool] = False

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> PlacementSearch:
        """Return the start of the cheapest plan found, and what that plan costs."""
        if not len(problem):
            return PlacementSearch(Schedule.empty(problem), 0.0, 0)
        c = prepare(problem, reachable=True)
        gpu_s, value = _gpu_time(problem)
        if self.slowdown_price > 0.0:
            price = _base_price(problem, value)
            return steady_start(problem, c, self.slowdown_price, (gpu_s, value), (price, self.patience))
        effort, room = efforts(problem, c, value), Room.of(c, len(value), problem)
        ways = Ways(
            _orders(problem, gpu_s, self.patience),
            np.array(self.prices) * _base_price(problem, value),
            _displaces(problem),
            np.array([_waits(problem, margin) for margin, _ in self.styles]),
            np.array([fill for _, fill in self.styles]),
        )
        cost, o, p, displace, w = _try_plans(c, ways, effort, room)
        if self.moves and keep_going():
            plan = Plan(ways.orders[o].copy(), ways.prices[p], displace, ways.waits_s[w], ways.fills[w], align=False)
            cost = _try_moves(c, plan, effort, room, cost, self.moves, self.least_gain, rng)
        tried = len(ways.orders) * len(ways.prices) * len(ways.displaces) * len(ways.waits_s) + self.moves
        return PlacementSearch(c.schedule(room.choice, room.given), float(cost), tried)


class Ways(NamedTuple):
    """Values of the fields of a plan, all combinations of which are tried."""

    orders: Ints  # [O, J]
    prices: Floats  # [P]
    displaces: Ints
    waits_s: Floats  # [W, J]
    fills: Bools  # [W]


def _displaces(problem: PlacementProblem) -> Ints:
    """Whether running jobs may lose their GPUs to jobs whose turn comes earlier: ways to try."""
    if problem.locked:
        return np.array([NEVER_DISPLACE])
    return np.array([DISPLACE, NEVER_DISPLACE] if (problem.stay >= 0).any() else [DISPLACE])


def _waits(problem: PlacementProblem, margin: float) -> Floats:
    """Seconds from now each job waits for a thrifty configuration, [J]."""
    if np.isinf(margin):
        return np.full(len(problem), -np.inf)
    return -problem.pressure_s - margin * np.where(np.isfinite(problem.fastest_s), problem.fastest_s, 0.0)


def _gpu_time(problem: PlacementProblem) -> tuple[Floats, Floats]:
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


def _base_price(problem: PlacementProblem, value: Floats) -> float:
    """What delaying every pressing job costs, per second and GPU of value 1."""
    gpus = problem.node_gpus if problem.background is None else problem.node_gpus + problem.background.gpus
    worth = float((gpus * value[problem.node_class]).sum())
    return problem.pressing_weight / worth if worth > 0 else 0.0


def _orders(problem: PlacementProblem, gpu_s: Floats, patience: tuple[float, ...]) -> Ints:
    """Orders of the jobs, one a row: by pressure, then by apparent tardiness cost."""
    orders = [ranked(-problem.pressure_s)]
    slack_s = np.maximum(0.0, -problem.pressure_s)
    urgency = np.log(np.maximum(problem.weight, 1e-300)) - np.log(gpu_s)
    mean_s = float(problem.fastest_s.mean())
    for k in patience:
        orders.append(ranked(-(urgency - slack_s / (k * mean_s))))
    return np.array(orders)


@njit(cache=True, nogil=True)
def _try_plans(c: Candidate, ways: Ways, effort: Records, room: Room) -> tuple[float, int, int, int, int]:
    """Try every combination; returns the least cost and the plan it belongs to."""
    orders, prices, displaces, waits_s, fills = ways
    best = (np.inf, 0, 0, DISPLACE, 0)
    for o in range(len(orders)):
        for p in range(len(prices)):
            for displace in displaces:
                for w in range(len(waits_s)):
                    plan = Plan(orders[o], prices[p], displace, waits_s[w], fills[w], align=False)
                    cost = start_now(c, plan, effort, room)
                    cost += finish(c, plan, effort, room)
                    if cost < best[0]:
                        best = (cost, o, p, displace, w)
                        keep(c, room.choice, room.given)
    return best


@njit(cache=True, nogil=True)
def _try_moves(
    c: Candidate, plan: Plan, effort: Records, room: Room, best: float, moves: int, least_gain: float,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """Take one job out of the order and put it elsewhere, *moves* times; keep what gains enough."""
    order, price, displace, waits_s, fill, align = plan
    trial_order = order.copy()
    trial = Plan(trial_order, price, displace, waits_s, fill, align)
    for _ in range(moves):
        copy(order, trial_order)
        i, k = rng.integers(0, len(order)), rng.integers(0, len(order))
        j = trial_order[i]
        step = 1 if k > i else -1
        for x in range(i, k, step):
            trial_order[x] = trial_order[x + step]
        trial_order[k] = j
        cost = start_now(c, trial, effort, room)
        cost += finish(c, trial, effort, room)
        if cost < best * (1.0 - least_gain):
            best = cost
            copy(trial_order, order)
            keep(c, room.choice, room.given)
    return best
