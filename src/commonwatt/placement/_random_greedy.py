"""Randomized greedy: Algorithm 1 of ANDREAS.

Candidates are built by the greedy procedure with random swaps in the order of jobs and random choices of
configuration; the best of them under the objective is kept. The first candidates are built without
randomness, so the result is never worse than the plain greedy. Where jobs are running, candidates also
differ in how readily those lose their GPUs (``_construct``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import Budget, KeepGoing, always, njit, ranked
from commonwatt.placement._arrays import Candidate, copy, keep, prepare
from commonwatt.placement._construct import DISPLACE, DISPLACE_LAST, NEVER_DISPLACE, construct
from commonwatt.placement._problem import PlacementProblem, PlacementSearch, Schedule

__all__ = ["Greedy", "RandomGreedy", "candidates", "swap_chances", "swap_neighbours"]


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

    plans: ClassVar[bool] = False
    leaves_room: ClassVar[bool] = False
    by_objective: ClassVar[bool] = True

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> PlacementSearch:
        """Return the best schedule found; *keep_going* is asked between batches of candidates."""
        jobs = len(problem)
        if not jobs:
            return PlacementSearch(Schedule.empty(problem), 0.0, 0)
        c = prepare(problem)
        modes = _modes(problem)
        search = Greedy(
            ranked(-problem.pressure_s), swap_chances(problem.weight, self.swap), np.array(self.explore), modes,
            np.full(jobs, -1), c.given.copy(),
        )  # fmt: skip
        budget = self.iterations
        if self.placements is not None:
            budget = max(len(modes), min(budget, self.placements // jobs))
        worth, done = np.inf, 0
        for begin, done in Budget(budget, keep_going).batches(max(20_000 // jobs, len(modes))):
            worth = candidates(c, search, begin, done, worth, rng)
        return PlacementSearch(c.schedule(search.choice, search.given), float(worth), done)


class Greedy(NamedTuple):
    """How candidates differ, and the best of them so far."""

    order: Ints  # [J] jobs, the most pressing first
    swap: Floats  # [J] chance of each to be swapped with the next
    explore: Floats  # rates, cycled over the candidates
    modes: Ints  # how readily running jobs lose their GPUs, cycled too
    choice: Ints  # [J] rows of the best
    given: Ints  # its nodes


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


def _modes(problem: PlacementProblem) -> Ints:
    if problem.locked:
        return np.array([NEVER_DISPLACE], dtype=np.int64)
    running = bool((problem.stay >= 0).any())
    return np.array([DISPLACE, DISPLACE_LAST, NEVER_DISPLACE] if running else [DISPLACE], dtype=np.int64)


@njit(cache=True, nogil=True)
def candidates(c: Candidate, search: Greedy, first: int, upto: int, worth: float, rng: np.random.Generator) -> float:
    """Build candidates *first* to *upto*; returns the least cost, *worth* before; the best is left in *search*."""
    base, swap, explore, modes, choice, given = search
    order = base.copy()
    for it in range(first, upto):
        copy(base, order)
        rate = 0.0
        if it >= len(modes):
            rate = explore[(it // len(modes)) % len(explore)]
            swap_neighbours(order, swap, rng)
        value = construct(c, order, modes[it % len(modes)], rate, rng)
        if value < worth:
            worth = value
            keep(c, choice, given)
    return worth
