"""What a schedule would change, for a controller that only says so; and schedules that keep off drained nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from commonwatt.control.events import Event, EventKind
from commonwatt.model.arrays import Ints
from commonwatt.placement.explain import Explainer
from commonwatt.placement.problem import POSTPONED, Problem, Schedule

__all__ = ["advice", "without_nodes"]


def advice(problem: Problem, schedule: Schedule, handles: Ints, now_s: float) -> Iterator[Event]:
    """Yield what *schedule* would start, move and preempt, each with its reason."""
    explainer = Explainer(problem, schedule)
    for j in np.flatnonzero(schedule.choice != problem.stay):
        row, runs = int(schedule.choice[j]), problem.stay[j] >= 0
        placed = EventKind.WOULD_MOVE if runs else EventKind.WOULD_START
        kind = EventKind.WOULD_PREEMPT if row == POSTPONED else placed
        why = explainer.explain(int(j))
        nodes = tuple(int(n) for n in schedule.nodes_of(problem, int(j)))
        gpus = 0 if row == POSTPONED else problem.gpus_of(row)
        yield Event(now_s, kind, int(handles[j]), nodes, gpus, why.reason, why.sentence)


def without_nodes(problem: Problem, schedule: Schedule, drained: Collection[int]) -> Schedule:
    """Return *schedule* without what would begin on *drained* nodes; jobs that are there may stay.

    A job that would move to one stays where it is, if its place is still free, and is postponed otherwise.
    """
    entering = [
        int(j)
        for j in np.flatnonzero((schedule.choice != problem.stay) & (schedule.choice != POSTPONED))
        if not set(schedule.nodes_of(problem, int(j)).tolist()).isdisjoint(drained)
    ]
    if not entering:
        return schedule
    kept = Schedule(schedule.choice.copy(), schedule.nodes.copy())
    kept.choice[entering] = POSTPONED
    free = problem.node_gpus.copy()
    nodes, gpus = kept.occupancy(problem)
    np.subtract.at(free, nodes, gpus)
    for j in entering:
        first = int(problem.slot_start[j])
        kept.nodes[first : int(problem.slot_start[j + 1])] = -1
        if problem.stay[j] < 0:
            continue
        held, each = problem.nodes_held(j), int(problem.per_node[problem.stay[j]])
        if (free[held] >= each).all():
            free[held] -= each
            kept.choice[j] = problem.stay[j]
            kept.nodes[first : first + len(held)] = held
    return kept
