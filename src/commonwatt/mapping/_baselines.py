"""Rules without search (G#, 5.1.4 and Table 5): an order of jobs, and a choice of sub-accelerator for each in turn.

None of them looks at bandwidth: they see no-stall latencies, as the published ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._decoder import raised
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._search import MappingSearch, score
from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import KeepGoing, always, ranked

__all__ = ["ORDERS", "RULES", "List", "means"]


def means(problem: MappingProblem) -> Floats:
    """Return the mean latency of each job over the sub-accelerators that can run it, [J]."""
    possible = problem.possible
    return np.where(possible, problem.latency, 0.0).sum(axis=1) / possible.sum(axis=1)


ORDERS: dict[str, Callable[[MappingProblem, Generator], Ints]] = {
    "fcfs": lambda problem, _: np.arange(len(problem)),
    "sjf": lambda problem, _: ranked(means(problem)),
    "longest": lambda problem, _: ranked(-problem.goal.precedence.upward(means(problem))),
    "random": lambda problem, rng: rng.permutation(len(problem)),
    "target": lambda problem, _: ranked(problem.goal.place),
}
"""Jobs as they come; shortest or longest mean latency first (of a chain), ties by index; at random; as aimed for."""

# What a rule sees: when each sub-accelerator is free ([A]), the job's latencies ([A]), how many jobs came before.
_Rule = Callable[[Floats, Floats, int, Generator], int]


def _round_robin(free: Floats, latency: Floats, turn: int, rng: Generator) -> int:  # noqa: ARG001
    turns = (turn + np.arange(len(free))) % len(free)
    return int(turns[np.isfinite(latency[turns])][0])


RULES: dict[str, _Rule] = {
    "olb": lambda free, latency, _, __: int(np.argmin(np.where(np.isfinite(latency), free, np.inf))),
    "met": lambda free, latency, _, __: int(ranked(latency, free)[0]),
    "rr": _round_robin,
    "random": lambda _, latency, __, rng: int(rng.choice(np.flatnonzero(np.isfinite(latency)))),
    "eft": lambda free, latency, _, __: int(np.argmin(free + latency)),
}
"""Free first; fastest for the job, the one free first among equals; in turn; at random; first to end the job."""


@dataclass(frozen=True)
class List:
    """List scheduling: jobs in some order (of ``ORDERS``), each where a rule (of ``RULES``) puts it.

    HEFT is ``List("longest", "eft")``: the longest chain of mean latencies from a job on goes first. For independent
    jobs that is the longest-first earliest-finish rule. No job stands before one that it comes after.
    """

    order: str
    rule: str

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:  # noqa: ARG002
        """Build the one mapping."""
        graph = problem.goal.precedence
        order = ORDERS[self.order](problem, rng)
        priority = np.empty(len(order))
        priority[order] = (np.arange(len(order)) + 0.5) / len(order)
        if graph:
            lifted = raised(priority, graph.order, graph.at, graph.follows)
            order = graph.order[ranked(lifted[graph.order])]
        free, ready = np.zeros(problem.accelerators), np.zeros(len(problem))
        accelerator, rule = np.empty(len(order), dtype=np.int64), RULES[self.rule]
        for turn, j in enumerate(order.tolist()):
            a = rule(np.maximum(free, ready[j]), problem.latency[j], turn, rng)
            accelerator[j] = a
            free[a] = max(free[a], ready[j]) + problem.latency[j, a]
            for k in graph.after(j):
                ready[k] = max(ready[k], free[a])
        return score(problem, Mapping(accelerator[None], priority[None]))
