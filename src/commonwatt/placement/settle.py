"""Last touches to a schedule that leave nothing worse: no job is stopped or moved for nothing."""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Index, Ints
from commonwatt.placement.problem import POSTPONED, Problem, Schedule

__all__ = ["filled", "without_idle_evictions", "without_idle_moves"]


def without_idle_evictions(problem: Problem, schedule: Schedule) -> Schedule:
    """Keep running every job that was postponed although the GPUs it holds are given to nobody.

    eq. (1) can prefer stopping a job that is not urgent; an eviction must make room for somebody.
    """
    evicted = np.flatnonzero((problem.stay >= 0) & (schedule.choice == POSTPONED))
    if not len(evicted):
        return schedule
    choice, nodes = schedule.choice.copy(), schedule.nodes.copy()
    free = _free_gpus(problem, schedule)
    for job in evicted:
        held, per_node = problem.nodes_held(job), problem.per_node[problem.stay[job]]
        if np.all(free[held] >= per_node):
            free[held] -= per_node
            _stay(problem, job, choice, nodes)
    return Schedule(choice, nodes)


def without_idle_moves(problem: Problem, schedule: Schedule) -> Schedule:
    """Leave in place every moved job whose move does not pay for itself, if its old place can be spared.

    A move pays if the job's own energy and tardiness cost less after it, restart and lost work included. Random choices
    that eq. (1) does not see (it counts one job a node) would otherwise move jobs to and fro. Jobs that were given
    such a place get another node of the same class; only where there is none, the move takes place.
    """
    moved = (problem.stay >= 0) & (schedule.choice != POSTPONED) & (schedule.choice != problem.stay)
    late_s = problem.now_s + problem.time_s - problem.due_s[problem.row_job]
    own_cost = problem.run_cost + problem.weight[problem.row_job] * np.maximum(0.0, late_s)
    back = [int(j) for j in np.flatnonzero(moved & (own_cost[problem.stay] <= own_cost[schedule.choice]))]
    if not back:
        return schedule
    enter = np.flatnonzero((schedule.choice != POSTPONED) & (schedule.choice != problem.stay))
    others = [int(j) for j in enter[np.argsort(-problem.pressure_s[enter], kind="stable")] if j not in set(back)]
    choice, nodes = schedule.choice.copy(), schedule.nodes.copy()
    for job in back:
        _stay(problem, job, choice, nodes)
    for job in others:
        choice[job] = POSTPONED
    free = _free_gpus(problem, Schedule(choice, nodes))
    homeless = []
    for job in others:
        row, where = schedule.choice[job], schedule.nodes_of(problem, job)
        if np.any(free[where] < problem.per_node[row]):
            where = _best_fit(problem, row, free)
        if len(where):
            choice[job] = row
            nodes[problem.slot_start[job] : problem.slot_start[job] + len(where)] = where
            free[where] -= problem.per_node[row]
        else:
            homeless.append(job)
    return schedule if homeless else Schedule(choice, nodes)


def _best_fit(problem: Problem, row: int, free: Ints) -> Ints:
    """Nodes for configuration *row*, those with the least sufficient room; none if there are not enough."""
    fit = np.flatnonzero((problem.node_class == problem.klass[row]) & (free >= problem.per_node[row]))
    return (
        fit[np.argsort(free[fit], kind="stable")][: problem.width[row]] if len(fit) >= problem.width[row] else fit[:0]
    )


def _free_gpus(problem: Problem, schedule: Schedule) -> Ints:
    """GPUs of each node that *schedule* leaves free, [N]."""
    free = problem.node_gpus.copy()
    nodes, gpus = schedule.occupancy(problem)
    np.subtract.at(free, nodes, gpus)
    return free


def _stay(problem: Problem, job: Index, choice: Ints, nodes: Ints) -> None:
    first, last = problem.slot_start[job], problem.slot_start[job + 1]
    held = problem.nodes_held(job)
    choice[job] = problem.stay[job]
    nodes[first:last] = -1
    nodes[first : first + len(held)] = held


def filled(problem: Problem, schedule: Schedule) -> Schedule:
    """Start postponed jobs that still fit, the most pressing first, each in the best configuration that fits.

    "It is always better to execute jobs as soon as resources are available" (ANDREAS, on (4n)).
    """
    waiting = np.flatnonzero(schedule.choice == POSTPONED)
    if not len(waiting):
        return schedule
    choice, nodes = schedule.choice.copy(), schedule.nodes.copy()
    free = _free_gpus(problem, schedule)
    for job in waiting[np.argsort(-problem.pressure_s[waiting], kind="stable")]:
        if not free.any():
            break
        rows = np.arange(problem.start[job], problem.start[job + 1])
        late = problem.now_s + problem.time_s[rows] >= problem.due_s[job]
        for row in rows[np.lexsort((np.where(late, problem.time_s[rows], problem.run_cost[rows]), late))]:
            if row == problem.stay[job]:
                continue
            taken = _best_fit(problem, row, free)
            if len(taken):
                free[taken] -= problem.per_node[row]
                choice[job] = row
                nodes[problem.slot_start[job] : problem.slot_start[job] + len(taken)] = taken
                break
    return Schedule(choice, nodes)
