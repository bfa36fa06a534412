"""Expected beginnings and ends against a literal simulation of the same rule."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.engine import Start
from commonwatt.controlplane.start_conditions import Waiting, expected_times
from commonwatt.model.errors import EngineError
from commonwatt.service.serializers import job_document
from commonwatt.store.records import RequestKind
from tests.controlplane.bench import Bench, node

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


def test_an_end_that_is_not_known_is_the_start_of_nobody():
    waiting = [Waiting(0, 0.0, [(0, 2, math.inf), (1, 1, math.inf)]), Waiting(1, 1.0, [(0, 2, 10.0)])]
    found = expected_times(NOW_S, [0, 0], [(math.inf, 0, 2), (NOW_S + 5, 1, 1)], waiting)
    assert found == {0: (NOW_S + 5, math.inf), 1: (math.inf, math.inf)}


def test_a_job_with_a_time_to_begin_takes_its_turn_after_the_others():
    later, now = Waiting(0, 0.0, [(0, 1, 10.0)], NOW_S + 100), Waiting(1, 1.0, [(0, 1, 10.0)])
    found = expected_times(NOW_S, [1], [], [later, now])
    assert found == {1: (NOW_S, NOW_S + 10), 0: (NOW_S + 100, NOW_S + 110)}


@pytest.fixture
def bench(tmp_path):
    made = []

    def begin(**changes):
        made.append(Bench(tmp_path, nodes=[node("n")], **changes))
        return made[0]

    yield begin
    for one in made:
        one.close()


def expected(b, job):
    found = job_document(b.row(job), b.builder.snapshot(b.snapshot(), b.clock(), None))
    return found["expected_start_s"], found["expected_end_s"]


def test_a_job_that_may_not_start_is_not_expected_to(bench):
    b = bench(live={"tenant_limits": {"b": {"running_jobs": 1}}})
    at_s = b.clock() + 7200.0
    first = b.submit(1000.0, tenant="b")
    begins = b.submit(begin=datetime.fromtimestamp(at_s, UTC).isoformat())
    depends, held, beyond = b.submit(after={first: "afterok"}), b.submit(), b.submit(tenant="b")
    b.ask(RequestKind.HOLD, job=held)
    b.settle()
    assert b.status(first) == "running"
    assert expected(b, begins) == (at_s, at_s + 100.0)
    for job in (depends, held, beyond):
        assert b.status(job) == "waiting"
        assert expected(b, job) == (None, None), b.row(job).reason
    b.advance(1001.0)
    b.settle()
    assert b.status(depends) == b.status(beyond) == "running"
    assert None not in expected(b, begins)


def test_a_job_is_not_expected_to_start_while_its_budget_is_used_up(bench):
    b = bench(live={"tenant_limits": {"b": {"gpu_hours": 0.001}}})
    b.submit(100.0, tenant="b")
    b.settle()
    b.advance(101.0)
    b.settle()
    spent, other = b.submit(tenant="b"), b.submit(500.0, gpus=2)
    b.settle()
    assert (b.row(spent).reason, b.status(other)) == ("budget", "running")
    assert expected(b, spent) == (None, None)


def test_a_job_whose_start_was_refused_is_not_expected_to_start_now(bench):
    b = bench()
    apply = b.engine.apply

    def refuse(commands):
        if any(isinstance(command, Start) for command in commands):
            msg = "its node does not wake"
            raise EngineError(msg)
        return apply(commands)

    b.engine.apply = refuse
    job = b.submit()
    b.settle(5)
    assert b.status(job) == "waiting"
    assert expected(b, job) == (None, None)
    b.engine.apply = apply
    b.advance(120.0)
    b.settle()
    assert b.status(job) == "running"


def test_an_estimate_of_some_seconds_ago_moves_with_the_clock(bench):
    b = bench(policies=[{"solver": "fifo"}])
    running = b.submit(1000.0, gpus=2)
    b.settle()
    waiting = b.submit(100.0, gpus=2)
    b.settle()
    end_s = b.row(running).expected_end_s
    assert expected(b, waiting) == (end_s, end_s + 100.0)
    b.advance(1015.0)
    assert expected(b, waiting) == (b.clock(), b.clock() + 100.0)
