"""Algorithm 1 as it stands in the paper, remaining volumes counted down; and every mapping of a small problem."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from commonwatt.mapping._encoding import Mapping, from_orders
from commonwatt.mapping._problem import MappingProblem


def queues(problem, mapping):
    """Jobs of each sub-accelerator in the order they run."""
    ranked = sorted(range(len(problem)), key=lambda j: (mapping.priority[j], j))
    return [[j for j in ranked if mapping.accelerator[j] == a] for a in range(problem.accelerators)]


def makespan(problem, mapping):
    """Makespan by volumes. Requests must be above 0: the paper divides by them."""
    waiting = queues(problem, mapping)
    left, now = {}, 0.0
    while True:
        for a, queue in enumerate(waiting):
            if a not in left and queue:
                j = queue.pop(0)
                left[a] = (problem.latency[j, a] * problem.bandwidth[j, a], problem.bandwidth[j, a])
        if not left:
            return now
        asked = sum(request for _, request in left.values())
        granted = {
            a: request if asked <= problem.system_bandwidth else request * problem.system_bandwidth / asked
            for a, (_, request) in left.items()
        }
        runtime, ends = min((volume / granted[a], a) for a, (volume, _) in left.items())
        left = {a: (volume - runtime * granted[a], request) for a, (volume, request) in left.items() if a != ends}
        now += max(0.0, runtime)


def all_mappings(problem):
    """Every assignment with every order, for a handful of jobs."""
    places = [np.flatnonzero(row).tolist() for row in problem.possible]
    for where in itertools.product(*places):
        groups = [[j for j, at in enumerate(where) if at == a] for a in range(problem.accelerators)]
        for orders in itertools.product(*map(itertools.permutations, groups)):
            yield from_orders(len(problem), [list(order) for order in orders])


@st.composite
def problems(draw, jobs=8, accelerators=3, least_request=0.1, impossible=True):
    shape = draw(st.integers(1, jobs)), draw(st.integers(1, accelerators))
    size = shape[0] * shape[1]
    latency = np.array(draw(st.lists(st.integers(1, 200), min_size=size, max_size=size)), float).reshape(shape)
    request = np.array(
        draw(st.lists(st.floats(least_request, 20), min_size=size, max_size=size)), float
    ).reshape(shape)  # fmt: skip
    if impossible and shape[1] > 1:
        holes = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size))).reshape(shape)
        holes[np.arange(shape[0]), np.array(draw(st.integers(0, shape[1] - 1)))] = False
        latency, request = np.where(holes, np.inf, latency), np.where(holes, 0.0, request)
    return MappingProblem(latency, request, draw(st.sampled_from([0.5, 4.0, 16.0, 1000.0])))


@st.composite
def mapped(draw, **more):
    """A problem and a mapping; priorities are often equal."""
    problem = draw(problems(**more))
    places = [np.flatnonzero(row).tolist() for row in problem.possible]
    accelerator = np.array([draw(st.sampled_from(place)) for place in places])
    priority = np.array([draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])) for _ in places])
    return problem, Mapping(accelerator, priority)
