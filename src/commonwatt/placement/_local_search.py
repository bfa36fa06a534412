"""Local search on top of the randomized greedy: ruin and recreate. Ours, beyond the paper.

A step takes a few jobs out of the schedule and puts them back one by one, each where it adds least to the
objective; a step that makes nothing worse is kept. Taking out one job and putting it back is a move or a resize,
two are a swap, a postponed one among them is an insertion or an exchange. What is taken out is close together:
the jobs of one or two nodes, and postponed jobs that could use the room.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from commonwatt.model.arrays import Ints
from commonwatt.optimize import Budget, KeepGoing, always, njit
from commonwatt.placement._arrays import Candidate, Records, copy, prepare, reset
from commonwatt.placement._neighbourhood import candidate_cost, empty_slots, insert, insert_best, remove
from commonwatt.placement._problem import POSTPONED, PlacementProblem, PlacementSearch, Schedule
from commonwatt.placement._random_greedy import RandomGreedy

__all__ = ["LocalSearch"]

MOST_REMOVED = 12


@dataclass(frozen=True)
class LocalSearch:
    """Parameters of the local search.

    Attributes
    ----------
    start
        The randomized greedy it starts from; the result is never worse.
    steps
        Ruin-and-recreate steps.
    look
        Nodes of equal room tried when a job is put back.
    """

    start: RandomGreedy = field(default_factory=RandomGreedy)
    steps: int = 20_000
    look: int = 8

    plans: ClassVar[bool] = False
    leaves_room: ClassVar[bool] = True
    by_objective: ClassVar[bool] = True

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> PlacementSearch:
        """Return the best schedule found."""
        initial = self.start.solve(problem, rng, keep_going)
        if not len(problem):
            return initial
        c = prepare(problem)
        slots, done, cost = _load(c, problem, initial.best), 0, initial.cost
        for begin, done in Budget(self.steps, keep_going).batches(2_000):
            cost = _improve(c, slots, problem.locked, done - begin, self.look, rng)
        return PlacementSearch(c.schedule(c.jobs["choice"].copy(), c.given), float(cost), initial.evaluations + done)


def _load(c: Candidate, problem: PlacementProblem, schedule: Schedule) -> Ints:
    """Enter *schedule* as the candidate *c*, nothing claimed; return its slots."""
    slots, choice = empty_slots(c), c.rows_of(schedule.choice)
    reset(c._replace(stay_nodes=c.stay_nodes[:0]))
    for j in np.flatnonzero(schedule.choice != POSTPONED):
        nodes = schedule.nodes_of(problem, j)
        c.picked[: len(nodes)] = nodes
        insert(c.jobs, c.rows, c.nodes, c.lists, c.given, slots, c.picked, int(j), int(choice[j]))
    return slots


@njit(cache=True, nogil=True)
def _improve(c: Candidate, slots: Ints, locked: bool, steps: int, look: int, rng: np.random.Generator) -> float:
    """Do *steps* steps; returns the objective."""
    jobs, rows, nodes, lists, stay_nodes, given, picked, _ = c
    taken = np.empty(MOST_REMOVED, dtype=np.int64)
    was_row = np.empty(MOST_REMOVED, dtype=np.int64)
    was_nodes = np.empty((MOST_REMOVED, len(picked)), dtype=np.int64)
    worth = candidate_cost(jobs, rows, nodes, given)
    for _ in range(steps):
        count = _choose(jobs, nodes, slots, given, taken, locked, rng)
        added = 0.0
        for i in range(count):
            job = jobs[taken[i]]
            was_row[i] = job.choice
            if job.choice >= 0:
                for w in range(rows[job.choice].width):
                    was_nodes[i, w] = given[job.slot + w]
                added += remove(jobs, rows, nodes, lists, given, slots, taken[i])
        noise = 0.3 if rng.random() < 0.5 else 0.0
        for i in range(count - 1, -1, -1):
            k = rng.integers(0, i + 1)
            taken[i], taken[k] = taken[k], taken[i]
            was_row[i], was_row[k] = was_row[k], was_row[i]
            for w in range(len(picked)):
                was_nodes[i, w], was_nodes[k, w] = was_nodes[k, w], was_nodes[i, w]
        for i in range(count):
            added += insert_best(jobs, rows, nodes, lists, stay_nodes, given, slots, picked, taken[i], look, noise, rng)
        if added <= 0.0:
            worth += added
            continue
        for i in range(count):
            if jobs[taken[i]].choice >= 0:
                remove(jobs, rows, nodes, lists, given, slots, taken[i])
        for i in range(count):
            if was_row[i] >= 0:
                copy(was_nodes[i], picked)
                insert(jobs, rows, nodes, lists, given, slots, picked, taken[i], was_row[i])
    return worth


@njit(cache=True, nogil=True)
def _choose(
    jobs: Records, nodes: Records, slots: Ints, given: Ints, taken: Ints, locked: bool, rng: np.random.Generator
) -> int:
    """Choose the jobs a step takes out: those of one or two nodes, and some others; returns how many."""
    count = 0
    for _ in range(rng.integers(0, 3)):
        slot = slots[len(given) + rng.integers(0, len(nodes)), 1]
        while slot >= 0 and count < MOST_REMOVED - 3:
            count = _add(jobs, taken, count, slots[slot, 2], locked)
            slot = slots[slot, 1]
    for _ in range(1 + rng.integers(0, 3)):
        count = _add(jobs, taken, count, int(rng.integers(0, len(jobs))), locked)
    return count


@njit(cache=True, nogil=True)
def _add(jobs: Records, taken: Ints, count: int, j: int, locked: bool) -> int:
    if locked and jobs[j].stay >= 0:
        return count
    for i in range(count):
        if taken[i] == j:
            return count
    taken[count] = j
    return count + 1
