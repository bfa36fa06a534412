"""Warm-start the mapping of a batch from that of another (section 4.3).

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

from commonwatt.mapping._baselines import means
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._gsharp import GSharp, GSharpSettings, likelihoods, mutate
from commonwatt.mapping._lower_bound import simple_bound
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import makespan
from commonwatt.mapping._search import MappingSearch, score
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import MapFile, MappingFile, MapTable, TransferFile
from commonwatt.model.map_results import MapResult
from commonwatt.optimize import KeepGoing, always, njit, ranked

__all__ = ["Match", "Transfer", "Transferred", "ranks"]

Match = Literal["rank", "nearest"]
NOWHERE = 1e30
"""Stands for the latency of a job where it cannot run, when jobs are compared."""
CHANGED = 0.1
"""Part of the genes that a mutation of a transferred mapping changes."""
MUTATED = 0.5
"""Part of the first population that is made so."""


def ranks(problem: MappingProblem) -> Ints:
    """Return the job of each rank: by mean latency where it can run, longest first, ties by index. Shape [J]."""
    return ranked(-means(problem))


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
    def learn(cls, problem: MappingProblem, mapping: Mapping) -> Transfer:
        """Return the transfer of *mapping* to other batches."""
        by_rank = ranks(problem)
        stretch = makespan(problem, mapping) / simple_bound(problem)
        return cls(mapping[by_rank], problem.latency[by_rank], problem.bandwidth[by_rank], stretch)

    @classmethod
    def of_result(cls, file: MapFile, result: MapResult) -> Transfer:
        """Return the transfer of *result*, a mapping of *file*."""
        problem, genes = MappingProblem.of(file), MappingFile(accelerator=result.accelerator, priority=result.priority)
        return cls.learn(problem, Mapping.of(genes, problem))

    @classmethod
    def of(cls, file: TransferFile, problem: MappingProblem) -> Transfer:
        """Return the transfer of a file; raises ``InputError`` if it contradicts itself or does not suit *problem*."""
        table = MapTable(latency_cycles=file.latency_cycles, bandwidth_gbs=file.bandwidth_gbs)
        batch = MappingProblem.of(MapFile(system_bandwidth_gbs=problem.system_bandwidth, table=table))
        genes = MappingFile(accelerator=file.accelerator, priority=file.priority)
        learnt = cls(Mapping.of(genes, batch), batch.latency, batch.bandwidth, file.stretch)
        learnt.apply(problem)
        return learnt

    def file(self) -> TransferFile:
        """Return the transfer as a file, which ``of`` reads."""
        rows = [[None if np.isinf(cycles) else cycles for cycles in row] for row in self.latency.tolist()]
        return TransferFile(
            accelerator=tuple(self.mapping.accelerator.tolist()), priority=tuple(self.mapping.priority.tolist()),
            latency_cycles=tuple(map(tuple, rows)), bandwidth_gbs=tuple(map(tuple, self.bandwidth.tolist())),
            stretch=self.stretch,
        )  # fmt: skip

    def tuned(self, epochs: int = 0, match: Match = "nearest", *, guard: bool = True) -> Transferred:
        """Return the algorithm that starts from here, and searches by G# for so many epochs afterwards."""
        return Transferred(self, epochs, match, guard)

    def apply(self, problem: MappingProblem, match: Match = "nearest", *, guard: bool = True) -> Mapping:
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

    def _by_rank(self, problem: MappingProblem) -> tuple[Ints, Ints]:
        """Return jobs, and the learnt rank of each."""
        places = (np.arange(len(problem)) + 0.5) * len(self.latency) / len(problem)
        return ranks(problem), places.astype(np.int64)

    def _by_distance(self, problem: MappingProblem) -> tuple[Ints, Ints]:
        """Return jobs, and the learnt job nearest to each."""
        times = -(-len(problem) // len(self.latency))
        source = np.tile(_features(self.latency, self.bandwidth), (times, 1))
        here = _features(problem.latency, problem.bandwidth)
        apart = np.abs(here[:, None, :] - source[None, :, :]).sum(axis=2)
        return np.arange(len(problem)), _cheapest_pairs(apart) % len(self.latency)


@njit(cache=True)
def _cheapest_pairs(cost: Floats) -> Ints:
    """Return a column for each row, all different, of least total *cost*; shape [R, C] with R <= C.

    Each row in turn takes a column by a shortest augmenting path over reduced costs (Jonker and Volgenant 1987), in
    O(R^2 C). Of equally near columns an unpaired one ends the path; otherwise the first is taken.
    """
    rows, columns = cost.shape
    column_of, row_of = np.full(rows, -1), np.full(columns, -1)
    row_price, column_price = np.zeros(rows), np.zeros(columns)
    for start in range(rows):
        distance, previous = np.full(columns, np.inf), np.full(columns, -1)
        done = np.zeros(columns, dtype=np.bool_)
        row, length, column = start, 0.0, -1
        while row >= 0:
            column = -1
            for c in range(columns):
                if done[c]:
                    continue
                through = length + cost[row, c] - row_price[row] - column_price[c]
                if through < distance[c]:
                    distance[c], previous[c] = through, row
                if (
                    column < 0
                    or distance[c] < distance[column]
                    or (distance[c] == distance[column] and row_of[c] < 0 <= row_of[column])
                ):
                    column = c
            length, done[column], row = distance[column], True, row_of[column]
        row_price[start] += length
        for c in range(columns):
            if done[c]:
                column_price[c] -= length - distance[c]
                if row_of[c] >= 0:
                    row_price[row_of[c]] += length - distance[c]
        while row != start:
            row = previous[column]
            row_of[column], column_of[row], column = row, column, column_of[row]
    return column_of


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
    settings: GSharpSettings = field(default_factory=GSharpSettings)

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:
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
