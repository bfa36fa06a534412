"""What is learnt from one batch, kept for the next (section 4.3).

The paper ranks jobs by their mean latency over the sub-accelerators, the longest first, and keeps the schedule by rank
(``sched_rank``): where the job of each rank runs, and with what priority. On another batch the job of a rank takes over
these genes. Ours:

- ``nearest``: jobs of both batches are paired so that logarithms of their latencies and volumes on all sub-accelerators
  differ least in total, as the mean says little where sub-accelerators are unlike.
- A job that would take longer alone than the whole batch should goes to where it is fastest. The whole batch should
  take as many times its simple lower bound as the batch that was learnt from did. So does a job that cannot run where
  it is sent.
- Batches of another size take the ranks evenly, or the learnt jobs several times.
- The first population of fine-tuning is the transferred mapping, mutations of it for the first half, and what G# begins
  with for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.random import Generator
from scipy.optimize import linear_sum_assignment

from commonwatt.mapping.encoding import Mapping
from commonwatt.mapping.evaluator import makespan
from commonwatt.mapping.gsharp import GSharp, Settings
from commonwatt.mapping.lower_bound import simple_bound
from commonwatt.mapping.operators import likelihoods, mutate
from commonwatt.mapping.problem import Problem
from commonwatt.mapping.search import KeepGoing, Search, always, score
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError

__all__ = ["Match", "Transfer", "Transferred", "ranks"]

Match = Literal["rank", "nearest"]
NOWHERE = 1e30
"""Stands for the latency of a job where it cannot run, when jobs are compared."""
CHANGED = 0.1
"""Part of the genes that a mutation of a transferred mapping changes."""
MUTATED = 0.5
"""Part of the first population that is made so."""


def ranks(problem: Problem) -> Ints:
    """Return the job of each rank: by mean latency where it can run, longest first, ties by index. Shape [J]."""
    can = problem.possible
    mean = np.where(can, problem.latency, 0.0).sum(axis=1) / can.sum(axis=1)
    return np.argsort(-mean, kind="stable")


@dataclass(frozen=True)
class Transfer:
    """A schedule by rank, and the jobs it was learnt from.

    Attributes
    ----------
    mapping
        Genes by rank. Shape [J].
    latency, bandwidth
        Cycles, infinite where a job cannot run, and GB/s of the jobs by rank. Shape [J, A].
    stretch
        Makespan over the simple lower bound.
    """

    mapping: Mapping
    latency: Floats  # [J, A]
    bandwidth: Floats  # [J, A]
    stretch: float

    @classmethod
    def learn(cls, problem: Problem, mapping: Mapping) -> Transfer:
        """Keep what *mapping* shows."""
        by_rank = ranks(problem)
        stretch = makespan(problem, mapping) / simple_bound(problem)
        return cls(mapping[by_rank], problem.latency[by_rank], problem.bandwidth[by_rank], stretch)

    def apply(self, problem: Problem, match: Match = "nearest", *, guard: bool = True) -> Mapping:
        """Return a mapping of another batch on as many sub-accelerators, without evaluating any.

        Without *guard* only jobs that cannot run where they are sent go elsewhere. Raises ``InputError`` if the numbers
        of sub-accelerators differ.
        """
        if problem.accelerators != self.latency.shape[1]:
            raise InputError(
                f"{problem.accelerators} sub-accelerators, as the problem has", field="transfer",
                value=self.latency.shape[1],
            )  # fmt: skip
        jobs, learnt = self._by_rank(problem) if match == "rank" else self._by_distance(problem)
        accelerator, priority = np.empty(len(problem), dtype=np.int64), np.empty(len(problem))
        accelerator[jobs], priority[jobs] = self.mapping.accelerator[learnt], self.mapping.priority[learnt]
        alone, sent = problem.alone, np.arange(len(problem))
        longest = self.stretch * simple_bound(problem) if guard else np.inf
        away = ~(alone[sent, accelerator] <= longest) | ~problem.possible[sent, accelerator]
        return Mapping(np.where(away, alone.argmin(axis=1), accelerator), priority)

    def _by_rank(self, problem: Problem) -> tuple[Ints, Ints]:
        """Return jobs, and the learnt rank of each."""
        places = (np.arange(len(problem)) + 0.5) * len(self.latency) / len(problem)
        return ranks(problem), places.astype(np.int64)

    def _by_distance(self, problem: Problem) -> tuple[Ints, Ints]:
        """Return jobs, and the learnt job nearest to each."""
        times = -(-len(problem) // len(self.latency))
        known = np.tile(_features(self.latency, self.bandwidth), (times, 1))
        here = _features(problem.latency, problem.bandwidth)
        apart = np.abs(here[:, None, :] - known[None, :, :]).sum(axis=2)
        jobs, learnt = linear_sum_assignment(apart)
        return jobs, learnt % len(self.latency)


def _features(latency: Floats, bandwidth: Floats) -> Floats:
    """Logarithms of latencies and volumes. Shape [J, 2 A]."""
    can = np.isfinite(latency)
    finite = np.where(can, latency, NOWHERE)
    return np.log(np.hstack([finite, np.where(can, finite * np.maximum(bandwidth, 1e-9), 1.0)]))


@dataclass(frozen=True)
class Transferred:
    """A transferred mapping, fine-tuned by G# for so many epochs, 0 for none."""

    transfer: Transfer
    epochs: int = 0
    match: Match = "nearest"
    guard: bool = True
    settings: Settings = field(default_factory=Settings)

    def solve(self, problem: Problem, rng: Generator, keep_going: KeepGoing = always) -> Search:
        """Transfer and fine-tune; an epoch is a population evaluated."""
        first = self.transfer.apply(problem, self.match, guard=self.guard)
        if self.epochs == 0:
            return score(problem, first[None])
        likely = likelihoods(problem, self.settings.power, self.settings.even)
        seeds = [first]
        while len(seeds) < MUTATED * self.settings.population:
            seeds.append(Mapping(first.accelerator.copy(), first.priority.copy()))
            mutate(seeds[-1].accelerator, seeds[-1].priority, CHANGED, likely, rng)
        budget = self.epochs * self.settings.population
        return GSharp(budget, self.settings, tuple(seeds)).solve(problem, rng, keep_going)
