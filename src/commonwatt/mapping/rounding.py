"""A start that knows bandwidth: the linear program behind the lower bound, rounded to a mapping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from commonwatt.mapping.encoding import Mapping
from commonwatt.mapping.lower_bound import shared_out
from commonwatt.mapping.problem import Problem
from commonwatt.mapping.search import KeepGoing, Search, always, score

__all__ = ["Rounding"]


@dataclass(frozen=True)
class Rounding:
    """Each job goes where the linear program has most of it, of equals to the one with the least load, longest first.

    The program knows loads, volumes, and that a job that asks for more than all bandwidth holds up the others, but no
    order: priorities are random. Pairs that take longer than *longest* alone, such as a known makespan, are left out.
    """

    longest: float = np.inf

    def solve(self, problem: Problem, rng: Generator, keep_going: KeepGoing = always) -> Search:  # noqa: ARG002
        """Build the one mapping."""
        alone = problem.alone
        least, most = alone.min(axis=1).max(), alone[np.isfinite(alone)].max()
        shares = shared_out(problem, float(min(max(self.longest, least), most)))
        chosen = shares >= shares.max(axis=1, keepdims=True) - 1e-9
        latency = np.where(chosen, problem.latency, 0.0).max(axis=1)
        free, accelerator = np.zeros(problem.accelerators), np.empty(len(problem), dtype=np.int64)
        for j in np.argsort(-latency, kind="stable").tolist():
            a = int(np.argmin(np.where(chosen[j], free + problem.latency[j], np.inf)))
            accelerator[j] = a
            free[a] += problem.latency[j, a]
        return score(problem, Mapping(accelerator[None], rng.random(len(problem))[None]))
