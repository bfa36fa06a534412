"""Last touches to a schedule that leave nothing worse: no job is stopped or moved for nothing."""

from __future__ import annotations

import numpy as np

from commonwatt.placement.problem import POSTPONED, Problem, Schedule

__all__ = ["filled", "without_idle_evictions"]


def without_idle_evictions(problem: Problem, schedule: Schedule) -> Schedule:
    """Keep running every job that was postponed although the GPUs it holds are given to nobody.

    eq. (1) can prefer stopping a job that is not urgent; an eviction must make room for somebody.
    """
    evicted = np.flatnonzero((problem.stay >= 0) & (schedule.choice == POSTPONED))
    if not len(evicted):
        return schedule
    choice, nodes = schedule.choice.copy(), schedule.nodes.copy()
    free = problem.node_gpus.copy()
    for job in np.flatnonzero(choice != POSTPONED):
        free[schedule.nodes_of(problem, job)] -= problem.per_node[choice[job]]
    for job in evicted:
        held, per_node = problem.nodes_held(job), problem.per_node[problem.stay[job]]
        if np.all(free[held] >= per_node):
            free[held] -= per_node
            choice[job] = problem.stay[job]
            nodes[problem.slot_start[job] : problem.slot_start[job] + len(held)] = held
    return Schedule(choice, nodes)


def filled(problem: Problem, schedule: Schedule) -> Schedule:
    """Start postponed jobs that still fit, the most pressing first, each in the best configuration that fits.

    "It is always better to execute jobs as soon as resources are available" (ANDREAS, on (4n)).
    """
    waiting = np.flatnonzero(schedule.choice == POSTPONED)
    if not len(waiting):
        return schedule
    choice, nodes = schedule.choice.copy(), schedule.nodes.copy()
    free = problem.node_gpus.copy()
    for job in np.flatnonzero(choice != POSTPONED):
        free[schedule.nodes_of(problem, job)] -= problem.per_node[choice[job]]
    for job in waiting[np.argsort(-problem.pressure_s[waiting], kind="stable")]:
        if not free.any():
            break
        rows = np.arange(problem.start[job], problem.start[job + 1])
        late = problem.now_s + problem.time_s[rows] >= problem.due_s[job]
        for row in rows[np.lexsort((np.where(late, problem.time_s[rows], problem.run_cost[rows]), late))]:
            if row == problem.stay[job]:
                continue
            fit = np.flatnonzero((problem.node_class == problem.klass[row]) & (free >= problem.per_node[row]))
            if len(fit) >= problem.width[row]:
                taken = fit[np.argsort(free[fit], kind="stable")][: problem.width[row]]
                free[taken] -= problem.per_node[row]
                choice[job] = row
                nodes[problem.slot_start[job] : problem.slot_start[job] + len(taken)] = taken
                break
    return Schedule(choice, nodes)
