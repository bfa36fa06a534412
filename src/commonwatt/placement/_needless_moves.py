"""Undo moves and evictions that gain nothing."""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Index, Ints
from commonwatt.optimize import ranked
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule

__all__ = [
    "drop_needless_moves", "filled", "without_gainless_evictions", "without_idle_evictions", "without_idle_moves",
]  # fmt: skip


def drop_needless_moves(
    problem: PlacementProblem,
    schedule: Schedule,
    *,
    planned: bool = False,
    fill: bool = False,
    by_objective: bool = False,
) -> Schedule:
    """Return *schedule* without moves and evictions that gain nothing.

    Parameters
    ----------
    planned
        The moves of the schedule were weighed against each other. See ``without_idle_moves``.
    fill
        Start waiting jobs that still fit.
    by_objective
        The schedule is the best by eq. (1) that was found. See ``without_gainless_evictions``.
    """
    moved = schedule if schedule.weighed else without_idle_moves(problem, schedule, planned=planned)
    kept = without_idle_evictions(problem, without_gainless_evictions(problem, moved) if by_objective else moved)
    return filled(problem, kept) if fill else kept


def without_idle_evictions(problem: PlacementProblem, schedule: Schedule) -> Schedule:
    """Keep running every job that was postponed although no other job takes its GPUs.

    Eq. (1) can prefer stopping a job that is not urgent; an eviction must make room for another job.
    """
    evicted = np.flatnonzero((problem.stay >= 0) & (schedule.choice == POSTPONED))
    if not len(evicted):
        return schedule
    choice, nodes = schedule.choice.copy(), schedule.nodes.copy()
    free = schedule.free_gpus(problem)
    for job in evicted:
        own_nodes, per_node = problem.nodes_held(job), problem.per_node[problem.stay[job]]
        if np.all(free[own_nodes] >= per_node):
            free[own_nodes] -= per_node
            _stay(problem, job, choice, nodes)
    return Schedule(choice, nodes)


def without_gainless_evictions(problem: PlacementProblem, schedule: Schedule) -> Schedule:
    """Keep running every job that was postponed for waiting jobs of no weight alone: they wait in its place.

    Waiting costs these nothing by eq. (1), which takes what ends first on a node, and counts no work that is lost: of
    jobs without due dates, one that runs would be stopped for any that is expected to end sooner.
    """
    evicted = np.flatnonzero((problem.stay >= 0) & (schedule.choice == POSTPONED))
    waited = (problem.stay < 0) & (schedule.choice != POSTPONED)
    if not len(evicted) or not (waited & (problem.weight == 0)).any():
        return schedule
    choice, nodes = schedule.choice.copy(), schedule.nodes.copy()
    wait = np.zeros(len(problem), dtype=bool)
    for job in evicted[ranked(-problem.pressure_s[evicted])].tolist():
        now = Schedule(choice, nodes)
        own, free = problem.nodes_held(job), now.free_gpus(problem)
        light = np.flatnonzero(waited & (choice != POSTPONED) & (problem.weight == 0))
        light = np.array([j for j in light if np.isin(now.nodes_of(problem, j), own).any()], dtype=np.int64)
        for other in light:
            free[now.nodes_of(problem, other)] += problem.per_node[choice[other]]
        if len(light) and np.all(free[own] >= problem.per_node[problem.stay[job]]):
            choice[light], wait[light] = POSTPONED, True
            _stay(problem, job, choice, nodes)
    return filled(problem, Schedule(choice, nodes), among=wait)  # there may be room elsewhere


def without_idle_moves(problem: PlacementProblem, schedule: Schedule, *, planned: bool = False) -> Schedule:
    """Move running jobs only where that pays, or to make room for a job that does not run.

    A move pays if the job's own energy and tardiness cost less after it, restart and lost work included. Random choices
    that eq. (1) does not see (it counts one job a node) would otherwise move jobs to and fro. A move that pays is made
    only into free room; in a *planned* schedule, whose moves were weighed against each other, also where it makes other
    running jobs move, as long as somebody has to wait. Jobs that were given the place of one that stays get
    another node of the same class, or another configuration if that costs them no more than the moves it saves.
    """
    moved = (problem.stay >= 0) & (schedule.choice != POSTPONED) & (schedule.choice != problem.stay)
    if not moved.any():
        return schedule
    late_s = problem.late_s(problem.row_job, problem.now_s + problem.time_s, problem.time_s)
    own_cost = problem.run_cost + problem.weight[problem.row_job] * late_s
    movers = np.flatnonzero(moved)
    gain = own_cost[problem.stay[movers]] - own_cost[schedule.choice[movers]]
    gains = {int(j): float(g) for j, g in zip(movers, gain, strict=True)}
    settling = _Settling(problem, schedule, own_cost, gains)
    if planned and (schedule.choice == POSTPONED).any():
        settling.at_home = {job for job, g in gains.items() if g <= 0}
    return settling.settled()


class _Settling:
    """Undoes moves as long as the jobs that start still fit."""

    def __init__(self, problem: PlacementProblem, schedule: Schedule, own_cost: Floats, gain: dict[int, float]) -> None:
        self.problem, self.schedule, self.own_cost, self.gain = problem, schedule, own_cost, gain
        self.at_home = set(gain)
        self.homes: dict[int, list[int]] = {}  # movers that hold GPUs of a node now
        for job in gain:
            for node in problem.nodes_held(job):
                self.homes.setdefault(int(node), []).append(job)
        enters = (schedule.choice != POSTPONED) & (schedule.choice != problem.stay)
        entering = np.flatnonzero(enters)
        self.entering = [int(j) for j in entering[ranked(-problem.pressure_s[entering])]]

    def settled(self) -> Schedule:
        while self.at_home:
            homeless = self._place()
            if not homeless:
                for job in sorted(self.at_home, key=lambda j: (-self.gain[j], j)):
                    if self.gain[job] > 0:
                        self._move(job)
                return Schedule(self.choice, self.nodes)
            needed = {host for job in homeless for host in self._hosts(self.schedule.nodes_of(self.problem, job))}
            if not needed:
                break
            self.at_home -= needed
        return self.schedule

    def _hosts(self, nodes: Ints) -> set[int]:
        """Jobs kept at home on *nodes*."""
        return {job for node in nodes for job in self.homes.get(int(node), ()) if job in self.at_home}

    def _place(self) -> list[int]:
        """Place every job that runs; returns those that do not fit."""
        problem = self.problem
        self.choice, self.nodes = self.schedule.choice.copy(), self.schedule.nodes.copy()
        for job in self.at_home:
            _stay(problem, job, self.choice, self.nodes)
        others = [job for job in self.entering if job not in self.at_home]
        self.choice[others] = POSTPONED
        self.free = Schedule(self.choice, self.nodes).free_gpus(problem)
        homeless = []
        for job in others:
            row, where = int(self.schedule.choice[job]), self.schedule.nodes_of(problem, job)
            if np.any(self.free[where] < problem.per_node[row]):
                row, where = self._another_place(job, row, sum(-self.gain[host] for host in self._hosts(where)))
            if len(where):
                self._give(job, row, where)
            else:
                homeless.append(job)
        return homeless

    def _another_place(self, job: int, given: int, saved: float) -> tuple[int, Ints]:
        """Room that costs *job* at most *saved* more than the configuration it was *given*; none if there is none."""
        problem, cost = self.problem, self.own_cost
        rows = np.arange(problem.start[job], problem.start[job + 1])
        rows = rows[(cost[rows] <= cost[given] + saved) & (rows != given)]
        for row in (given, *rows[ranked(cost[rows])]):
            where = problem.nodes_held(job) if row == problem.stay[job] else _best_fit(problem, row, self.free)
            if len(where) and np.all(self.free[where] >= problem.per_node[row]):
                return int(row), where
        return given, where[:0]

    def _move(self, job: int) -> None:
        """Move a job to the configuration it was given, if there is room."""
        row = int(self.schedule.choice[job])
        where = _best_fit(self.problem, row, self.free)
        if len(where):
            self.free[self.problem.nodes_held(job)] += self.problem.per_node[self.problem.stay[job]]
            self._give(job, row, where)

    def _give(self, job: int, row: int, where: Ints) -> None:
        self.choice[job] = row
        first, last = self.problem.slot_start[job], self.problem.slot_start[job + 1]
        self.nodes[first:last] = -1
        self.nodes[first : first + len(where)] = where
        self.free[where] -= self.problem.per_node[row]


def _best_fit(problem: PlacementProblem, row: Index, free: Ints) -> Ints:
    """Nodes for configuration *row*, those with the least sufficient room; none if there are not enough."""
    fit = problem.room(row, free)
    return fit[ranked(free[fit])][: problem.width[row]]


def _stay(problem: PlacementProblem, job: Index, choice: Ints, nodes: Ints) -> None:
    first, last = problem.slot_start[job], problem.slot_start[job + 1]
    own_nodes = problem.nodes_held(job)
    choice[job] = problem.stay[job]
    nodes[first:last] = -1
    nodes[first : first + len(own_nodes)] = own_nodes


def filled(
    problem: PlacementProblem, schedule: Schedule, *, among: Bools | None = None, free: Ints | None = None,
    rows: Bools | None = None,
) -> Schedule:  # fmt: skip
    """Start postponed jobs that still fit, the most pressing first, each in the best configuration that fits.

    "It is always better to execute jobs as soon as resources are available" (ANDREAS, on (4n)).

    Parameters
    ----------
    among
        Jobs that may start, [J]; all if ``None``.
    free
        GPUs of each node they may have, [N]; all that are free if ``None``.
    rows
        Configurations they may have, [C]; all if ``None``.
    """
    waiting = np.flatnonzero(schedule.choice == POSTPONED if among is None else (schedule.choice == POSTPONED) & among)
    if not len(waiting):
        return schedule
    choice, nodes = schedule.choice.copy(), schedule.nodes.copy()
    free = schedule.free_gpus(problem) if free is None else free.copy()
    for job in waiting[ranked(-problem.pressure_s[waiting])]:
        if not free.any():
            break
        own = np.arange(problem.start[job], problem.start[job + 1])
        if rows is not None:
            own = own[rows[own]]
        late = problem.now_s + problem.time_s[own] >= problem.due_s[job]
        for row in own[ranked(late, np.where(late, problem.time_s[own], problem.run_cost[own]))]:
            if row == problem.stay[job]:
                continue
            taken = _best_fit(problem, row, free)
            if len(taken):
                free[taken] -= problem.per_node[row]
                choice[job] = row
                nodes[problem.slot_start[job] : problem.slot_start[job] + len(taken)] = taken
                break
    return Schedule(choice, nodes)
