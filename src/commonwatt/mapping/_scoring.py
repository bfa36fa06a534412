"""What mappings cost under the goal of their problem, whole populations at a time; and the timeline of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commonwatt.mapping._decoder import decode, play, raised, stable_order
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._goal import OBJECTIVES, PENALTY, Goal
from commonwatt.mapping._problem import MappingProblem
from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import njit

__all__ = [
    "MappingTimeline",
    "Terms",
    "cost",
    "enough",
    "makespan",
    "makespans",
    "pinned",
    "population_costs",
    "satisfaction",
    "tails",
    "terms",
    "timeline",
]

_LATENCY, _ENERGY, _EDP, _SATISFACTION, _TAIL, _COMPLETION = range(len(OBJECTIVES))


class Terms(NamedTuple):
    """A problem and its goal as compiled code takes them.

    For the fields see ``MappingProblem``, ``Goal``, ``Precedence``.
    """

    latency: Floats
    bandwidth: Floats
    limit: float
    energy: Floats
    objective: int
    order: Ints
    waits: Ints
    at: Ints
    follows: Ints
    tenant: Ints
    weights: Floats
    tail: float
    place: Ints
    target: float
    targets: Floats


def terms(problem: MappingProblem, goal: Goal | None = None) -> Terms:
    """Return the problem as compiled code takes it, with another goal than its own if one is given."""
    goal = problem.goal if goal is None else goal
    graph = goal.precedence
    return Terms(
        problem.latency, problem.bandwidth, problem.system_bandwidth, problem.energy, OBJECTIVES.index(goal.objective),
        graph.order, graph.waits, graph.at, graph.follows, goal.of_tenants(len(problem)), goal.weights, goal.tail,
        goal.place, goal.target_cycles, goal.targets,
    )  # fmt: skip


@njit(cache=True)
def satisfaction(end: Floats, place: Ints, accelerators: int) -> float:
    """Return the part of jobs whose rank by *end* is less than *accelerators* off their *place*; ties by index."""
    satisfied = 0
    for rank, j in enumerate(stable_order(end)):
        if abs(rank - place[j]) < accelerators:
            satisfied += 1
    return satisfied / len(end)


@njit(cache=True)
def tails(end: Floats, tenant: Ints, tenants: int, part: float) -> Floats:
    """Return when *part* of the jobs of each tenant, rounded up to whole ones, have ended; 0 without jobs."""
    tail, jobs, ended = np.zeros(tenants), np.zeros(tenants), np.zeros(tenants)
    for t in tenant:
        jobs[t] += 1
    for j in stable_order(end):
        t = tenant[j]
        ended[t] += 1
        if ended[t] == np.ceil(part * jobs[t] * (1 - 1e-12)):
            tail[t] = end[j]
    return tail


@njit(cache=True)
def _mean(values: Floats, weights: Floats) -> float:
    total, weight = 0.0, 0.0
    for i in range(len(values)):
        total += values[i] * weights[i]
        weight += weights[i]
    return total / weight


@njit(cache=True)
def cost(t: Terms, accelerator: Ints, priority: Floats) -> float:
    """Return what one mapping costs, infinite if a job cannot run where it is."""
    nothing = np.zeros(0)
    order, first = decode(accelerator, raised(priority, t.order, t.at, t.follows), t.latency.shape[1], t.order)
    aimed = len(t.targets) > 0
    end = np.zeros(len(accelerator)) if t.objective >= _SATISFACTION or aimed else nothing
    makespan, _ = play(
        t.latency, t.bandwidth, t.limit, order, first, t.waits, t.at, t.follows, nothing, end, nothing, nothing
    )
    if makespan == np.inf or (t.objective == _LATENCY and not aimed):
        return makespan
    value, scale = 0.0, 1.0
    if t.objective == _LATENCY:
        value = makespan
    elif t.objective == _SATISFACTION:
        value = 1.0 - satisfaction(end, t.place, t.latency.shape[1])
    elif t.objective == _TAIL:
        value = _mean(tails(end, t.tenant, len(t.weights), t.tail), t.weights)
    elif t.objective == _COMPLETION:
        weight = np.empty(len(end))
        for j in range(len(end)):
            weight[j] = t.weights[t.tenant[j]]
        value = _mean(end, weight)
    else:
        for j in range(len(accelerator)):
            value += t.energy[j, accelerator[j]]
        if t.objective == _EDP:
            value *= makespan
    if t.objective != _SATISFACTION:
        scale = value
    late = 0.0 if t.objective == _LATENCY else max(0.0, makespan / t.target - 1.0)
    if aimed:
        reached = tails(end, t.tenant, len(t.weights), t.tail)
        for k in range(len(reached)):
            late += max(0.0, reached[k] / t.targets[k] - 1.0)
    return value + scale * PENALTY * late


@njit(cache=True)
def _costs(t: Terms, accelerator: Ints, priority: Floats) -> Floats:
    costs = np.empty(len(accelerator))
    for p in range(len(accelerator)):
        costs[p] = cost(t, accelerator[p], priority[p])
    return costs


def pinned(problem: MappingProblem, mappings: Mapping) -> Mapping:
    """Return the mappings with the priorities that the problem fixes, if it fixes any."""
    if not len(problem.priority):
        return mappings
    free = np.isnan(problem.priority)
    return Mapping(mappings.accelerator, np.where(free, mappings.priority, problem.priority))


def population_costs(problem: MappingProblem, mappings: Mapping, goal: Goal | None = None) -> Floats:
    """Return what each of a population of mappings costs ([P]), infinite where a job cannot run.

    *goal* stands in for the problem's own. Under the default goal a cost is a makespan, in cycles.
    """
    mappings = pinned(problem, mappings)
    return _costs(
        terms(problem, goal),
        np.ascontiguousarray(mappings.accelerator, dtype=np.int64),
        np.ascontiguousarray(mappings.priority, dtype=np.float64),
    )


def enough(problem: MappingProblem) -> float:
    """Return a cost to stop at: the target, or what no mapping can beat; minus infinity if none is known."""
    goal = problem.goal
    if goal.objective == "latency":
        return goal.target_cycles if np.isfinite(goal.target_cycles) else -np.inf
    if goal.objective == "satisfaction":
        return 0.0
    if goal.objective == "energy":
        return float(np.where(problem.possible, problem.energy, np.inf).min(axis=1).sum()) * (1 + 1e-12)
    return -np.inf


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
    return population_costs(problem, mappings, Goal(precedence=problem.goal.precedence))


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
