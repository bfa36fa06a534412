"""``auto``: a portfolio of starts and annealing; with the rounded linear program, and annealing of one mapping."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._assignment import annealed_loads, ordered, packed
from commonwatt.mapping._baselines import List
from commonwatt.mapping._encoding import Mapping, stacked
from commonwatt.mapping._gsharp import GSharp, likelihoods, somewhere
from commonwatt.mapping._integer_bound import ORDER_FROM, PROVEN, IntegerBound
from commonwatt.mapping._lower_bound import lower_bound, shared_out
from commonwatt.mapping._order_bound import order_bound
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._queues import QueueAnnealing, is_plain
from commonwatt.mapping._scoring import Terms, cost, enough, makespan, terms
from commonwatt.mapping._search import Algorithm, MappingSearch, score
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.optimize import Budget, Incumbent, KeepGoing, always, njit, ranked

__all__ = ["Annealing", "Auto", "Report", "Rounding", "anneal", "warmed"]

CHUNK = 500
"""Evaluations between two questions whether to keep going."""


@njit(cache=True)
def _change(
    accelerator: Ints, priority: Floats, one: int, two: int, likely: Floats, fixed: Floats, rng: Generator
) -> None:
    """Make one move: job *one* swapped with *two* (7 in 10), to a random place (2 in 10), to a random priority."""
    draw = rng.random()
    if draw < 0.7:
        accelerator[one], accelerator[two] = accelerator[two], accelerator[one]
        priority[one], priority[two] = priority[two], priority[one]
    else:
        priority[one] = rng.random()
        if draw < 0.9:
            accelerator[one] = somewhere(one, likely, rng)
    if len(fixed) > 0:
        if draw < 0.7 and not (np.isnan(fixed[one]) and np.isnan(fixed[two])):  # neither takes over a fixed priority
            priority[one], priority[two] = priority[two], priority[one]
        for j in (one, two):
            if not np.isnan(fixed[j]):
                priority[j] = fixed[j]


@njit(cache=True)
def anneal(
    t: Terms, likely: Floats, fixed: Floats, accelerator: Ints, priority: Floats,
    worth: float, heats: Floats, rng: Generator,
) -> tuple[Ints, Floats, float, float]:  # fmt: skip
    """Try one move for each of *heats*, relative to the cost; return the best mapping, its cost and the last.

    Jobs move to sub-accelerators by *likely*, as in ``operators``.

    *accelerator* and *priority*, of cost *worth*, are changed to where the search has gone.
    """
    jobs = len(accelerator)
    best_a, best_p, best = accelerator.copy(), priority.copy(), worth
    for heat in heats:
        one, two = int(rng.random() * jobs), int(rng.random() * jobs)
        old = accelerator[one], priority[one], accelerator[two], priority[two]
        _change(accelerator, priority, one, two, likely, fixed, rng)
        new_worth = cost(t, accelerator, priority)
        if new_worth <= worth - heat * worth * np.log(1.0 - rng.random()):
            worth = new_worth
            if worth < best:
                best = worth
                for j in range(jobs):  # not best_a[:] = accelerator: Numba takes 2 s to compile its error message
                    best_a[j], best_p[j] = accelerator[j], priority[j]
        else:
            accelerator[two], priority[two] = old[2], old[3]
            accelerator[one], priority[one] = old[0], old[1]
    return best_a, best_p, best, worth


@dataclass(frozen=True)
class Annealing:
    """Annealing from a given mapping, under a budget; a move that is no worse is always made.

    The temperature, relative to the cost, falls from *hot* to *cold* evenly by its logarithm.
    """

    budget: int
    hot: float = 0.005
    cold: float = 5e-5

    def improve(
        self, problem: MappingProblem, start: MappingSearch, rng: Generator, keep_going: KeepGoing = always
    ) -> MappingSearch:
        """Return the best mapping found, no worse than *start*; evaluations and history are its own."""
        prepared, likely = terms(problem), likelihoods(problem, 1.0, 0.5)
        accelerator, priority = start.best.accelerator.copy(), start.best.priority.copy()
        worth, search = start.cost, Incumbent(Budget(self.budget, keep_going, enough(problem)), start)
        while search.goes_on():
            done = np.arange(search.spent, min(self.budget, search.spent + CHUNK)) / self.budget
            a, p, least, worth = anneal(
                prepared, likely, problem.priority, accelerator, priority, worth,
                self.hot * (self.cold / self.hot) ** done, rng,
            )  # fmt: skip
            search.offer(Mapping(a, p), least, at=len(done), of=len(done))
        return search.result()


@dataclass(frozen=True)
class Rounding:
    """Each job goes where the linear program has most of it, of equals to the one with the least load, longest first.

    The program knows loads, volumes, and that a job that requests more than all bandwidth holds up the others, but no
    order: priorities are random. Pairs that take longer than *longest* alone, such as a known makespan, are left out.
    """

    longest: float = np.inf

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:  # noqa: ARG002
        """Build the one mapping."""
        alone = problem.alone
        least, most = alone.min(axis=1).max(), alone[np.isfinite(alone)].max()
        shares = shared_out(problem, float(min(max(self.longest, least), most)))
        chosen = shares >= shares.max(axis=1, keepdims=True) - 1e-9
        latency = np.where(chosen, problem.latency, 0.0).max(axis=1)
        free, accelerator = np.zeros(problem.accelerators), np.empty(len(problem), dtype=np.int64)
        for j in ranked(-latency).tolist():
            a = int(np.argmin(np.where(chosen[j], free + problem.latency[j], np.inf)))
            accelerator[j] = a
            free[a] += problem.latency[j, a]
        return score(problem, Mapping(accelerator[None], rng.random(len(problem))[None]))


STARTS = (List("longest", "eft"), List("longest", "met"), List("sjf", "eft"), List("longest", "olb"))


LARGEST_PROGRAM = 20_000
"""Pairs of jobs and sub-accelerators up to which the linear program is solved for a start: half a second or less."""


Report = Callable[[float, float], None]
"""Called with the best cost so far and the bound on the makespan, 0 if none is known yet."""
SHARPENED = 2
"""Thresholds of the bound tried between two rounds."""
PROGRAMS_FROM = 2_000
"""Mappings of the budget from which programs with integers are solved."""


@dataclass(frozen=True)
class Auto:
    """A portfolio: rules, a rounded linear program, starts that decide where first, and annealing with restarts.

    For makespans of independent jobs (``is_plain``) annealed loads and packings of the integer program are the other
    starts; annealing works on queues. Its first rounds are short and go from several starts; then each is twice as long
    as the one before, from the best so far, hot and cold in turn, and every third from a new start. Between rounds the
    bound is improved, and the search stops when it is met. Otherwise G# has *genetic* of the budget, 10,000 evaluations
    at most, and its best and the rounded program are annealed in rounds.

    Attributes
    ----------
    budget
        Mappings to evaluate at most; a move of annealing counts as one. With the same budget and seed the search goes
        the same way.
    slice_s
        Time limit of each program with integers; without one its nodes alone limit it.
    used
        Part of the time limit that has passed, 0 to 1; rounds then fit in what is left. Only with a time limit.
    report
        Called between rounds.
    """

    budget: int = 10_000
    genetic: float = 0.3
    first_round: int = 20_000
    seeds: tuple[Mapping, ...] = ()
    slice_s: float | None = None
    used: Callable[[], float] | None = None
    report: Report | None = None

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:
        """Search; what is found is no worse than any rule it starts from, budget permitting."""
        search = Incumbent[Mapping](Budget(self.budget, keep_going, enough(problem)))
        built: list[MappingSearch] = []
        for seed in self.seeds:
            if search.goes_on():
                built.append(search.take(score(problem, seed[None])))
        aimed = (List("target", "eft"),) if problem.goal.objective == "satisfaction" else ()
        is_warm = bool(self.seeds) and self.budget < PROGRAMS_FROM  # a decision in milliseconds
        for rule in () if is_warm else (*aimed, *STARTS):
            if search.goes_on():
                built.append(search.take(rule.solve(problem, rng)))
        if is_plain(problem):
            return _Portfolio(self, problem, rng, search).run(built)
        return self._refine(problem, rng, search, built)

    def _refine(
        self, problem: MappingProblem, rng: Generator, search: Incumbent[Mapping], built: list[MappingSearch]
    ) -> MappingSearch:
        keep_going = search.budget.keep_going
        if self.seeds and self.budget < PROGRAMS_FROM:
            if search.goes_on():
                search.take(Annealing(search.left, hot=0.001).improve(problem, search.result(), rng, keep_going))
            return search.result()
        rounded = _rounded(problem, rng, search)
        if rounded is not None:
            built.append(rounded)
        share = min(int(self.genetic * self.budget), search.left, 10_000)
        if share > 0 and search.goes_on():
            seeds = tuple(each.best for each in built)
            search.take(GSharp(share, seeds=seeds).solve(problem, rng, keep_going))
        length = min(self.first_round, max(1, search.left // 2))
        for first in (search.result(), rounded):
            if first is not None and search.goes_on():
                search.take(Annealing(min(length, search.left)).improve(problem, first, rng, keep_going))
        while search.goes_on():
            length *= 2
            search.take(Annealing(min(length, search.left)).improve(problem, search.result(), rng, keep_going))
            if self.report is not None:
                self.report(search.cost, 0.0)
        return search.result()


def _rounded(problem: MappingProblem, rng: Generator, search: Incumbent[Mapping]) -> MappingSearch | None:
    if problem.latency.size > LARGEST_PROGRAM or not search.goes_on():
        return None
    return search.take(Rounding(makespan(problem, search.best)).solve(problem, rng))


class _Portfolio:
    """The search of ``Auto`` for makespans of independent jobs."""

    def __init__(self, auto: Auto, problem: MappingProblem, rng: Generator, search: Incumbent[Mapping]) -> None:
        self.auto, self.problem, self.rng, self.search = auto, problem, rng, search
        self.integers: IntegerBound | None = None
        is_short = auto.budget < PROGRAMS_FROM
        self.loads = min(200_000, (4 if is_short else 20) * auto.budget)  # moves of annealed loads

    def run(self, built: list[MappingSearch]) -> MappingSearch:
        search = self.search
        starts = [] if not self.auto.seeds else built[:1]
        if search.goes_on():
            starts += self._placed(search.best.accelerator, self.loads)
        starts += self._from_programs()
        rounded = _rounded(self.problem, self.rng, search) if self.auto.budget >= PROGRAMS_FROM else None
        if rounded is not None:
            starts.append(rounded)
        self._anneal(starts)
        best = search.result()
        if self.integers is None:
            return best
        bound = self.integers.bound
        return replace(best, bound=bound, optimal=True if best.cost <= bound * (1 + PROVEN) else None)

    def _placed(self, accelerator: Ints, moves: int) -> list[MappingSearch]:
        """Anneal loads from *accelerator*; return the best of the orders tried, if the loads allow a better one."""
        accelerator, least = annealed_loads(self.problem, accelerator, moves, self.rng)
        return self._best_of(ordered(self.problem, accelerator, self.rng)) if least < self.search.cost else []

    def _best_of(self, mappings: Iterable[Mapping]) -> list[MappingSearch]:
        some = list(itertools.islice(mappings, max(0, self.search.left)))
        if not some or not self.search.goes_on():
            return []
        return [self.search.take(score(self.problem, stacked(some)))]

    def _from_programs(self) -> list[MappingSearch]:
        """Solve the program with integers at the best makespan; return the best of its packings."""
        auto, search = self.auto, self.search
        if auto.budget < PROGRAMS_FROM or self.problem.latency.size > LARGEST_PROGRAM or not search.goes_on():
            return []
        self.integers = integers = IntegerBound(self.problem, lower_bound(self.problem), time_limit_s=auto.slice_s)
        self._prove()
        if not search.goes_on():
            return []
        counts = integers.at(search.cost)
        self._prove()
        if counts is None or not search.goes_on():
            return []
        return self._best_of(packed(self.problem, counts))

    def _prove(self) -> None:
        """Stop at the bound."""
        if self.integers is not None:
            reached = max(enough(self.problem), self.integers.bound * (1 + PROVEN))
            self.search.budget = replace(self.search.budget, reached=reached)
        self._tell()

    def _tell(self) -> None:
        if self.auto.report is not None:
            self.auto.report(self.search.cost, 0.0 if self.integers is None else self.integers.bound)

    def _round(self, start: MappingSearch, length: int, hot: float) -> MappingSearch:
        budget = self.search.budget
        moves = QueueAnnealing(min(length, self.search.left), hot=hot, reached=budget.reached)
        search = self.search.take(moves.improve(self.problem, start, self.rng, budget.keep_going))
        self._tell()
        return search

    def _anneal(self, starts: list[MappingSearch]) -> None:
        search, auto = self.search, self.auto
        length = min(auto.first_round, max(1, search.left // 4))
        began, spent = (0.0 if auto.used is None else auto.used()), search.spent
        for start in sorted(starts, key=lambda each: each.cost):
            if search.goes_on():
                self._round(start, length, hot=0.002)
        if self.integers is not None and search.goes_on() and search.cost > self.integers.bound * (1 + ORDER_FROM):
            self.integers.prove(order_bound(self.problem, search.cost))
            self._prove()
        turn = 0
        while search.goes_on():
            self._sharpen()
            length = self._fitting(2 * length, began, spent)
            if turn % 3 == 2:
                fresh = self._placed(search.best.accelerator, 2 * self.loads)
                start = fresh[0] if fresh else search.result()
                hot = 0.005
            else:
                start, hot = search.result(), (0.0005, 0.005)[turn % 3]
            if search.goes_on():
                self._round(start, length, hot)
            turn += 1

    def _fitting(self, length: int, began: float, spent: int) -> int:
        """Return how long the next round is: all that is left, if there would be no room for another of its length."""
        left = self.search.left
        if self.auto.used is not None:
            now = self.auto.used()
            pace = (self.search.spent - spent) / max(1e-9, now - began)
            left = min(left, max(2000, int(pace * (0.98 - now))))
        return left if left < 2 * length else length

    def _sharpen(self) -> None:
        for _ in range(SHARPENED):
            if self.integers is None or not self.search.goes_on() or not self.integers.sharpen(self.search.cost):
                return
            self._prove()


def warmed(algorithm: Algorithm, start: Mapping) -> Algorithm:
    """Return the same algorithm, searching from *start*; raises ``InputError`` if it does not search."""
    if not is_dataclass(algorithm) or "seeds" not in {entry.name for entry in fields(algorithm)}:
        raise InputError("an algorithm that searches", field="start", value="one that does not")
    return replace(algorithm, seeds=(start,))
