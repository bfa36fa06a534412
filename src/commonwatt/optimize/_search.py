"""When a search stops, what it returns, and which of equal candidates it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.random import PCG64, Generator

from commonwatt.model.arrays import Ints

__all__ = ["Budget", "Incumbent", "KeepGoing", "SearchResult", "Solver", "always", "ranked", "seeded", "within"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Problem_contra = TypeVar("Problem_contra", contravariant=True)
KeepGoing = Callable[[], bool]


def always() -> bool:
    """Keep going: the number of evaluations alone ends the search."""
    return True


def within(seconds: float | None, clock: Callable[[], float]) -> KeepGoing:
    """Keep going until *seconds* have passed by *clock*, from now on; without a limit if ``None``."""
    if seconds is None:
        return always
    end_s = clock() + seconds
    return lambda: clock() < end_s


def seeded(seed: int) -> Generator:
    """Return a generator of random numbers: the one of ``numpy.random.default_rng`` for *seed*."""
    return Generator(PCG64(seed))


def ranked(*keys: Any) -> Ints:  # noqa: ANN401
    """Return indices by the first of *keys* ([N] each), then the next; ties go to the lower index. Shape [N].

    This is the tie rule of every decision: of equals, the one listed first wins. A loop that keeps the least so far
    follows it by replacing only what is strictly greater, as ``Incumbent`` does.
    """
    return np.lexsort(keys[::-1])


@dataclass(frozen=True)
class SearchResult(Generic[T_co]):
    """What a search returns.

    Attributes
    ----------
    best
        The best candidate.
    cost
        Its value under what the search minimises.
    evaluations
        Candidates evaluated; 1 for a rule that builds a single one.
    history
        After how many evaluations the best so far was found, and its cost, at each improvement.
    optimal, bound
        Whether the best is proven optimal, and a proven lower bound on the cost; ``None`` if nothing is proven.
    """

    best: T_co
    cost: float
    evaluations: int = 1
    history: tuple[tuple[int, float], ...] = ()
    optimal: bool | None = None
    bound: float | None = None


class Solver(Protocol[Problem_contra, T_co]):
    """Problem in, decision out: no clock, no files, randomness only from *rng*."""

    def solve(self, problem: Problem_contra, rng: Generator, keep_going: KeepGoing = always) -> SearchResult[T_co]:
        """Return the best candidate; *keep_going* is asked now and then. At least one candidate is evaluated."""
        ...


@dataclass(frozen=True)
class Budget:
    """When a search stops: evaluations spent, time over, or a cost reached that is good enough.

    Attributes
    ----------
    evaluations
        Candidates at most.
    keep_going
        Asked between evaluations; the search stops once it says no. See ``within``.
    reached
        The search stops at this cost: a target, or a bound no candidate can beat.
    """

    evaluations: int
    keep_going: KeepGoing = always
    reached: float = -np.inf

    def allows(self, spent: int, cost: float) -> bool:
        """Whether another evaluation may follow *spent* ones, the best of which has *cost*."""
        return spent < self.evaluations and cost > self.reached and self.keep_going()

    def batches(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of at most *size* evaluations, from and up to; one at least, whatever the time."""
        done = 0
        while done < self.evaluations and (done == 0 or self.keep_going()):
            upto = min(self.evaluations, done + size)
            yield done, upto
            done = upto


class Incumbent(Generic[T]):
    """The best candidate so far, its cost, and what was spent; a candidate of equal cost does not replace it."""

    def __init__(self, budget: Budget, start: SearchResult[T] | None = None) -> None:
        self.budget = budget
        self._best: T | None = None if start is None else start.best
        self.cost = np.inf if start is None else start.cost
        self.spent = 0
        self.history: list[tuple[int, float]] = []

    @property
    def best(self) -> T:
        """The best candidate; only after the first one was offered."""
        assert self._best is not None
        return self._best

    @property
    def left(self) -> int:
        """Evaluations left."""
        return self.budget.evaluations - self.spent

    def goes_on(self) -> bool:
        """Whether the budget allows another evaluation; always before there is a candidate."""
        return self._best is None or self.budget.allows(self.spent, self.cost)

    def offer(self, candidate: T, cost: float, *, at: int = 1, of: int = 1) -> None:
        """Count *of* evaluations, the best of which was the *at*-th: *candidate*, of *cost*."""
        if self._best is None or cost < self.cost:
            self._best, self.cost = candidate, cost
            self.history.append((self.spent + at, cost))
        self.spent += of

    def take(self, search: SearchResult[T]) -> SearchResult[T]:
        """Count a whole search, and its improvements; returns it."""
        better = [(self.spent + at, cost) for at, cost in search.history if self._best is None or cost < self.cost]
        self.history += better
        self.spent += search.evaluations
        if self._best is None or search.cost < self.cost:
            self._best, self.cost = search.best, search.cost
        return search

    def result(self) -> SearchResult[T]:
        """Return the best candidate and what was spent."""
        return SearchResult(self.best, self.cost, self.spent, tuple(self.history))
