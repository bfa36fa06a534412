"""All schedules of a small problem, and the best of them: the oracle of the solvers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from commonwatt.model.errors import SolverError
from commonwatt.placement._objective import check
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule


def all_schedules(problem: PlacementProblem) -> Iterator[Schedule]:
    options = []
    for j in range(len(problem)):
        ways: list[tuple[int, tuple[int, ...]]] = [(POSTPONED, ())]
        for r in range(problem.start[j], problem.start[j + 1]):
            if r == problem.stay[j]:
                ways.append((r, tuple(problem.nodes_held(j))))
                continue
            able = [n for n in range(len(problem.node_names)) if problem.node_class[n] == problem.klass[r]]
            ways += [(r, nodes) for nodes in combinations(able, int(problem.width[r]))]
        options.append(ways)
    for choice in product(*options):
        schedule = Schedule.empty(problem)
        for j, (row, nodes) in enumerate(choice):
            schedule.choice[j] = row
            schedule.nodes[problem.slot_start[j] : problem.slot_start[j] + len(nodes)] = nodes
        try:
            check(problem, schedule)
        except SolverError:
            continue
        yield schedule


def late_in_words(problem: PlacementProblem, j: int, begins_s: float, time_s: float) -> float:
    """Mean lateness of a job that begins so long from now and is expected to run *time_s*."""
    outcomes = [1.0] if problem.outcomes is None else problem.outcomes[j]
    ends_s = [problem.now_s + begins_s + time_s * outcome for outcome in outcomes]
    return sum(max(0.0, end_s - problem.due_s[j]) for end_s in ends_s) / len(ends_s)


def worth_in_words(problem: PlacementProblem, schedule: Schedule) -> float:
    """The objective, ANDREAS eq. (1), once more, written down independently, one node and one job at a time."""
    total = 0.0
    ends = {}
    for j in range(len(problem)):
        row = schedule.choice[j]
        rows = [r for r in range(problem.start[j], problem.start[j + 1]) if r != problem.stay[j]] or [problem.stay[j]]
        if row == POSTPONED:
            slow = max(problem.time_s[r] for r in rows)
            late = late_in_words(problem, j, problem.interval_s, slow)
            total += problem.postponement_penalty * problem.weight[j] * late if problem.weight[j] else 0.0
        else:
            ends[j] = problem.time_s[row]
            late = late_in_words(problem, j, 0.0, problem.time_s[row])
            total += problem.weight[j] * late if problem.weight[j] else 0.0
    for n in range(len(problem.node_names)):
        here = [j for j in ends if n in schedule.nodes_of(problem, j)]
        if here:
            first = min(here, key=lambda j: (ends[j], j))
            total += problem.node_cost[schedule.choice[first]]
    return float(total)


def best_objective(problem: PlacementProblem) -> float:
    return min(worth_in_words(problem, s) for s in all_schedules(problem))


def used_gpus(problem: PlacementProblem, schedule: Schedule) -> np.ndarray:
    used = np.zeros(len(problem.node_names), dtype=int)
    for j in range(len(problem)):
        if schedule.choice[j] != POSTPONED:
            used[schedule.nodes_of(problem, j)] += problem.per_node[schedule.choice[j]]
    return used
