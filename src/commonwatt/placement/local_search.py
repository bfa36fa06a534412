"""Local search on top of the randomized greedy: ruin and recreate. Ours, beyond the paper.

A step takes a few jobs out of the schedule and puts them back one by one, each where it adds least to the
objective; a step that makes nothing worse is kept. Taking out one job and putting it back is a move or a resize,
two are a swap, a postponed one among them is an insertion or an exchange. What is taken out is close together:
the jobs of one or two nodes, and postponed jobs that could use the room.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from commonwatt.model.arrays import Ints
from commonwatt.placement._arrays import Arrays, Records, prepare, reset
from commonwatt.placement._neighbourhood import candidate_cost, insert, insert_best, remove
from commonwatt.placement._search import KeepGoing, Search, always
from commonwatt.placement.problem import POSTPONED, Problem, Schedule
from commonwatt.placement.random_greedy import RandomGreedy

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

    def solve(self, problem: Problem, rng: np.random.Generator, keep_going: KeepGoing = always) -> Search:
        """Return the best schedule found."""
        found = self.start.solve(problem, rng, keep_going)
        if not len(problem):
            return found
        a = prepare(problem)
        slots, tops = _load(a, problem, found.schedule)
        scratch = np.zeros((3, len(a.picked)), dtype=np.int64)
        done = 0
        batch = 2_000
        while done < self.steps and (done == 0 or keep_going()):
            upto = min(self.steps, done + batch)
            _improve(
                a.jobs, a.rows, a.nodes, a.lists, a.held, a.given, slots, tops, a.picked, scratch[0], problem.locked,
                upto - done, self.look, rng,
            )  # fmt: skip
            done = upto
        return Search(a.schedule(a.jobs["choice"].copy(), a.given), found.iterations + done)


def _load(a: Arrays, problem: Problem, schedule: Schedule) -> tuple[Ints, Ints]:
    """Enter *schedule* as the candidate of *a*; nothing is claimed."""
    slots = np.full((len(a.given), 3), -1, dtype=np.int64)
    tops = np.full(len(a.nodes), -1, dtype=np.int64)
    choice = a.rows_of(schedule.choice)
    reset(a.jobs, a.rows, a.nodes, a.lists, a.held[:0], a.node_order)
    for j in np.flatnonzero(schedule.choice != POSTPONED):
        nodes = schedule.nodes_of(problem, j)
        a.picked[: len(nodes)] = nodes
        insert(a.jobs, a.rows, a.nodes, a.lists, a.given, slots, tops, a.picked, int(j), int(choice[j]))
    return slots, tops


@njit(cache=True, nogil=True)
def _improve(
    jobs: Records,
    rows: Records,
    nodes: Records,
    lists: Ints,
    held: Ints,
    given: Ints,
    slots: Ints,
    tops: Ints,
    picked: Ints,
    kept: Ints,
    locked: bool,
    steps: int,
    look: int,
    rng: np.random.Generator,
) -> float:
    """Do *steps* steps; returns the objective."""
    taken = np.empty(MOST_REMOVED, dtype=np.int64)
    was_row = np.empty(MOST_REMOVED, dtype=np.int64)
    was_nodes = np.empty((MOST_REMOVED, len(picked)), dtype=np.int64)
    worth = candidate_cost(jobs, rows, nodes, given)
    for _ in range(steps):
        count = _choose(jobs, nodes, slots, tops, taken, locked, rng)
        added = 0.0
        for i in range(count):
            job = jobs[taken[i]]
            was_row[i] = job.choice
            if job.choice >= 0:
                width = rows[job.choice].width
                was_nodes[i, :width] = given[job.slot : job.slot + width]
                added += remove(jobs, rows, nodes, lists, given, slots, tops, taken[i])
        noise = 0.3 if rng.random() < 0.5 else 0.0
        for i in range(count - 1, -1, -1):
            k = rng.integers(0, i + 1)
            taken[i], taken[k] = taken[k], taken[i]
            was_row[i], was_row[k] = was_row[k], was_row[i]
            for w in range(len(picked)):
                was_nodes[i, w], was_nodes[k, w] = was_nodes[k, w], was_nodes[i, w]
        for i in range(count):
            added += insert_best(
                jobs, rows, nodes, lists, held, given, slots, tops, picked, kept, taken[i], look, noise, rng
            )
        if added <= 0.0:
            worth += added
            continue
        for i in range(count):
            if jobs[taken[i]].choice >= 0:
                remove(jobs, rows, nodes, lists, given, slots, tops, taken[i])
        for i in range(count):
            if was_row[i] >= 0:
                width = rows[was_row[i]].width
                picked[:width] = was_nodes[i, :width]
                insert(jobs, rows, nodes, lists, given, slots, tops, picked, taken[i], was_row[i])
    return worth


@njit(cache=True, nogil=True)
def _choose(
    jobs: Records, nodes: Records, slots: Ints, tops: Ints, taken: Ints, locked: bool, rng: np.random.Generator
) -> int:
    """Choose the jobs a step takes out: those of one or two nodes, and some others; returns how many."""
    count = 0
    for _ in range(rng.integers(0, 3)):
        slot = tops[rng.integers(0, len(nodes))]
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
