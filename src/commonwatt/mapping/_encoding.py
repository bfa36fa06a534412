"""G#, section 4.2.2: a mapping is two genomes, one gene of each for every job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._problem import MappingProblem
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import MappingFile

__all__ = ["Mapping", "check", "from_orders", "stacked"]


@dataclass(frozen=True)
class Mapping:
    """Where and in what order jobs run: one mapping ([J]) or a population of them ([P, J]).

    On its sub-accelerator a job of lower priority value runs first; among equals the one of lower index.
    """

    accelerator: Ints  # [..., J]
    priority: Floats  # [..., J]

    @classmethod
    def of(cls, file: MappingFile, problem: MappingProblem) -> Mapping:
        """Return the mapping of a file; raises ``InputError`` unless every job of *problem* is where it can run."""
        made = cls(np.array(file.accelerator, dtype=np.int64), np.array(file.priority, dtype=np.float64))
        check(problem, made)
        return made

    @classmethod
    def random(cls, problem: MappingProblem, size: int, rng: Generator) -> Mapping:
        """Return *size* mappings whose genes are drawn evenly; jobs only go where they can run. Shape [size, J]."""
        shape = (size, len(problem))
        count = problem.possible.sum(axis=1)
        where = np.argsort(~problem.possible, axis=1, kind="stable")  # those that can run the job first
        pick = np.minimum((rng.random(shape) * count).astype(np.int64), count - 1)
        return cls(where[np.arange(len(problem)), pick], rng.random(shape))

    def __len__(self) -> int:
        return len(self.accelerator)

    def __getitem__(self, index: Any) -> Mapping:  # noqa: ANN401
        return Mapping(self.accelerator[index], self.priority[index])


def check(problem: MappingProblem, mapping: Mapping) -> None:
    """Raise ``InputError`` unless *mapping* places every job of *problem* where it can run."""
    jobs = len(problem)
    for name, genes in (("accelerator", mapping.accelerator), ("priority", mapping.priority)):
        if genes.shape != (jobs,):
            raise InputError(f"one entry for each of the {jobs} jobs", field=name, value=f"{len(genes)} of them")
    for j, a in enumerate(mapping.accelerator.tolist()):
        if not 0 <= a < problem.accelerators:
            raise InputError(
                f"a sub-accelerator from 0 to {problem.accelerators - 1}", field=f"accelerator.{j}", value=a
            )
        if len(problem.fixed) and problem.fixed[j] not in {-1, a}:
            expected = f"{problem.fixed[j]}, as the problem's 'fixed' says"
            raise InputError(expected, field=f"accelerator.{j}", value=a)
        if not problem.possible[j, a]:
            there = ", ".join(map(str, np.flatnonzero(problem.possible[j]).tolist()))
            raise InputError(f"a sub-accelerator job {j} can run on ({there})", field=f"accelerator.{j}", value=a)
    for j in np.flatnonzero(~np.isfinite(mapping.priority)).tolist():
        raise InputError("a finite number", field=f"priority.{j}", value=mapping.priority[j])


def stacked(mappings: Sequence[Mapping]) -> Mapping:
    """Return single mappings as one population."""
    return Mapping(np.stack([m.accelerator for m in mappings]), np.stack([m.priority for m in mappings]))


def from_orders(jobs: int, orders: list[list[int]]) -> Mapping:
    """Return the mapping that runs on each sub-accelerator the jobs of its list, in that order."""
    accelerator, priority = np.zeros(jobs, dtype=np.int64), np.zeros(jobs)
    for a, order in enumerate(orders):
        accelerator[order] = a
        priority[order] = (np.arange(len(order)) + 0.5) / max(1, len(order))
    return Mapping(accelerator, priority)
