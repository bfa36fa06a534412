"""Randomized greedy: Algorithm 1 of ANDREAS.

Candidates are built by the greedy procedure with random swaps in the order of jobs and random choices of
configuration; the best of them under the objective is kept. The first candidates are built without
randomness, so the result is never worse than the plain greedy. Where jobs are running, candidates also
differ in how readily those lose their GPUs (``_construct``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from commonwatt.model.arrays import Floats, Ints
from commonwatt.placement._arrays import Records, prepare
from commonwatt.placement._construct import DISPLACE, DISPLACE_LAST, NEVER_DISPLACE, construct
from commonwatt.placement._search import KeepGoing, Search, always
from commonwatt.placement.problem import Problem, Schedule

__all__ = ["RandomGreedy", "swap_chances", "swap_neighbours"]


@dataclass(frozen=True)
class RandomGreedy:
    """Parameters of the randomized greedy.

    Attributes
    ----------
    iterations
        MaxIt_RG: number of candidates.
    placements
        Budget of job placements over all candidates, if any; deterministic, unlike a time limit.
    explore
        Rates at which a job's configuration is drawn at random, cycled over the candidates.
    swap
        How readily a job is swapped with the next in the order: with probability ``swap * w / (w + w_j)``, ``w`` the
        mean tardiness weight, so that heavier jobs are swapped less.
    """

    iterations: int = 1000
    placements: int | None = None
    explore: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03)
    swap: float = 0.5

    def solve(self, problem: Problem, rng: np.random.Generator, keep_going: KeepGoing = always) -> Search:
        """Return the best schedule found; *keep_going* is asked between batches of candidates."""
        jobs = len(problem)
        if not jobs:
            return Search(Schedule.empty(problem), 0)
        a = prepare(problem)
        order = np.argsort(-problem.pressure_s, kind="stable")
        swap = swap_chances(problem.weight, self.swap)
        choice, given = np.full(jobs, -1), a.given.copy()
        modes = _modes(problem)
        budget = self.iterations
        if self.placements is not None:
            budget = max(len(modes), min(budget, self.placements // jobs))
        batch = max(1, 20_000 // jobs)
        worth, done = np.inf, 0
        while done < budget and (done == 0 or keep_going()):
            upto = min(budget, max(done + batch, len(modes)))
            worth = _candidates(
                a.jobs, a.rows, a.nodes, a.lists, a.held, a.given, a.picked, a.node_order, order, swap,
                np.array(self.explore), modes, done, upto, worth, choice, given, rng,
            )  # fmt: skip
            done = upto
        return Search(a.schedule(choice, given), done)


def swap_chances(weight: Floats, most: float) -> Floats:
    """Chance of each job to be swapped with the next: ``most`` without weight, half of it at the mean weight."""
    mean = float(weight.mean())
    return most * mean / (mean + weight) if mean > 0 else np.full(len(weight), most)


@njit(cache=True, nogil=True)
def swap_neighbours(order: Ints, chance: Floats, rng: np.random.Generator) -> None:
    """Go through *order* once; swap each job with the next, in place, with its *chance*."""
    for i in range(len(order) - 1):
        if rng.random() < chance[order[i]]:
            order[i], order[i + 1] = order[i + 1], order[i]


def _modes(problem: Problem) -> Ints:
    if problem.locked:
        return np.array([NEVER_DISPLACE], dtype=np.int64)
    running = bool((problem.stay >= 0).any())
    return np.array([DISPLACE, DISPLACE_LAST, NEVER_DISPLACE] if running else [DISPLACE], dtype=np.int64)


@njit(cache=True, nogil=True)
def _candidates(
    jobs: Records,
    rows: Records,
    nodes: Records,
    lists: Ints,
    held: Ints,
    given: Ints,
    picked: Ints,
    node_order: Ints,
    base: Ints,
    swap: Floats,
    explore: Floats,
    modes: Ints,
    first: int,
    upto: int,
    worth: float,
    best_choice: Ints,
    best_given: Ints,
    rng: np.random.Generator,
) -> float:
    """Build candidates *first* to *upto*; the best so far is left in *best_choice* and *best_given*."""
    order = base.copy()
    for it in range(first, upto):
        order[:] = base
        rate = 0.0
        mode = modes[it % len(modes)]
        if it >= len(modes):
            rate = explore[(it // len(modes)) % len(explore)]
            swap_neighbours(order, swap, rng)
        value = construct(jobs, rows, nodes, lists, held, given, picked, node_order, order, mode, rate, rng)
        if value < worth:
            worth = value
            for j in range(len(jobs)):
                best_choice[j] = jobs[j].choice
            best_given[:] = given
    return worth
