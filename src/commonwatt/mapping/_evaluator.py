"""Makespans of mappings, and the whole timeline of one: what ``decoder`` computes, as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.mapping._decoder import decode, play, raised
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._goal import Goal
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import costs_of
from commonwatt.model.arrays import Floats, Ints

__all__ = ["MappingTimeline", "makespan", "makespans", "timeline"]


@dataclass(frozen=True)
class MappingTimeline:
    """What happens when: K intervals in which the same jobs run. Times in cycles, bandwidth in GB/s."""

    start: Floats  # [J]
    end: Floats  # [J]
    edges: Floats  # [K + 1]
    requested: Floats  # [K], by all running jobs together
    used: Floats  # [K]
    running: Ints  # [K, A], the job, -1 for none
    granted: Floats  # [K, A]

    @property
    def makespan(self) -> float:
        """When the last job ends."""
        return float(self.edges[-1])


def makespans(problem: MappingProblem, mappings: Mapping) -> Floats:
    """Return the makespan of each of a population of mappings ([P]), infinite where a job cannot run, in cycles."""
    return costs_of(problem, mappings, Goal(precedence=problem.goal.precedence))


def makespan(problem: MappingProblem, mapping: Mapping) -> float:
    """Return the makespan of one mapping, in cycles."""
    return float(makespans(problem, Mapping(mapping.accelerator[None], mapping.priority[None]))[0])


def timeline(problem: MappingProblem, mapping: Mapping) -> MappingTimeline:
    """Return who runs what with how much bandwidth from when to when; every job must be where it can run."""
    jobs, accelerators = problem.latency.shape
    start, end, edges, asked = np.zeros(jobs), np.zeros(jobs), np.zeros(2 * jobs + 1), np.zeros(2 * jobs)
    graph, limit = problem.goal.precedence, problem.system_bandwidth
    priority = raised(mapping.priority, graph.order, graph.at, graph.follows)
    order, first = decode(mapping.accelerator, priority, accelerators, graph.order)
    _, count = play(
        problem.latency, problem.bandwidth, limit, order, first, graph.waits, graph.at, graph.follows,
        start, end, edges, asked,
    )  # fmt: skip
    edges, asked = edges[: count + 1], asked[:count]
    running = np.full((count, accelerators), -1, dtype=np.int64)
    granted = np.zeros((count, accelerators))
    part = limit / np.maximum(asked, limit)
    for j, a in enumerate(mapping.accelerator.tolist()):
        span = slice(*np.searchsorted(edges, [start[j], end[j]]).tolist())
        running[span, a] = j
        granted[span, a] = problem.bandwidth[j, a] * part[span]
    return MappingTimeline(start, end, edges, asked, np.minimum(asked, limit), running, granted)
