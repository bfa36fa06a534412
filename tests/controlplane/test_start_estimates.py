"""Expected beginnings and ends against a literal simulation of the same rule."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.controlplane.start_conditions import Waiting, expected_times

NOW_S = 1000.0


def literally(free, ends, waiting):
    """One job after the other; for each way, try every moment at which GPUs come free."""
    taken: list[list[tuple[float, float, int]]] = [[] for _ in free]  # from, to, GPUs, by class
    came_free = [[(max(NOW_S, t), gpus) for t, klass, gpus in ends if klass == k] for k in range(len(free))]
    turn, found = [NOW_S] * len(free), {}
    for job in sorted(waiting, key=lambda w: (w.pressure, w.handle)):
        best = None
        for klass, gpus, seconds in job.ways:
            moments = {turn[klass], *(t for t, _ in came_free[klass]), *(to for _, to, _ in taken[klass])}
            for moment in sorted(t for t in moments if t >= turn[klass]):
                there = free[klass] + sum(g for t, g in came_free[klass] if t <= moment)
                there -= sum(g for _, to, g in taken[klass] if to > moment)
                if there >= gpus:
                    if best is None or moment + seconds < best[0]:
                        best = (moment + seconds, moment, klass, gpus)
                    break
        if best is not None:
            end_s, begin_s, klass, gpus = best
            taken[klass].append((begin_s, end_s, gpus))
            turn[klass] = begin_s
            found[job.handle] = (begin_s, end_s)
    return found


seconds = st.integers(1, 50).map(float)
way = st.tuples(st.integers(0, 1), st.integers(1, 5), seconds)
jobs = st.lists(
    st.tuples(st.integers(0, 5).map(float) | st.just(math.inf), st.lists(way, min_size=1, max_size=3)), max_size=9
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    free=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    ends=st.lists(st.tuples(st.integers(950, 1060).map(float), st.integers(0, 1), st.integers(1, 3)), max_size=6),
    rows=jobs,
)
def test_expected_times_are_those_of_the_rule(free, ends, rows):
    waiting = [Waiting(handle, pressure, ways) for handle, (pressure, ways) in enumerate(rows)]
    assert expected_times(NOW_S, free, ends, waiting) == literally(free, ends, waiting)


def test_many_running_jobs():
    ends = [(NOW_S + t, 0, 1) for t in range(200, 0, -1)]
    (found,) = expected_times(NOW_S, [0], ends, [Waiting(0, 0.0, [(0, 150, 10.0)])]).values()
    assert found == (NOW_S + 150, NOW_S + 160)
    assert expected_times(NOW_S, [0], ends, [Waiting(0, 0.0, [(0, 201, 10.0)])]) == {}
