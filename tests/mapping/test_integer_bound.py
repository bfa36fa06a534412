"""No mapping is below the bound with integers; its solutions are mappings; loads and queues count as they should."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.mapping import _order_bound as order_module
from commonwatt.mapping._assignment import annealed_loads, ordered, packed
from commonwatt.mapping._auto import Auto
from commonwatt.mapping._baselines import List
from commonwatt.mapping._encoding import Mapping, check
from commonwatt.mapping._goal import Goal, Precedence
from commonwatt.mapping._integer_bound import PROVEN, IntegerBound, sharp_bound
from commonwatt.mapping._lower_bound import lower_bound
from commonwatt.mapping._order_bound import order_bound
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._queues import QueueAnnealing, _count, _filled, _played, _shift, _swap, is_plain, table_of
from commonwatt.mapping._scoring import makespan, makespans
from tests.mapping import literal


def rng(seed=0):
    return np.random.default_rng(seed)


def alike(latency, request, system=1000.0):
    """Equal sub-accelerators: one row of latencies, in as many columns as *request* is wide."""
    table = np.tile(np.array(latency, float)[:, None], (1, request))
    return MappingProblem(table, np.zeros_like(table), system)


@pytest.mark.slow
@settings(max_examples=40)
@given(literal.problems(jobs=5, accelerators=2, least_request=0.0), st.floats(0.3, 3.0))
def test_no_mapping_is_below_it(problem, part):
    """Whatever the threshold, and whatever makespan is taken to be known."""
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    integers = IntegerBound(problem, lower_bound(problem))
    integers.at(part * best)
    integers.at(best)
    for _ in range(4):
        integers.sharpen(best)
    assert integers.bound <= best
    assert order_bound(problem, part * best) <= best
    assert order_bound(problem, best) <= best
    assert lower_bound(problem) <= sharp_bound(problem, best) <= best


@pytest.mark.long
@pytest.mark.parametrize(("seed", "batches"), [(0, 60), pytest.param(1, 150, marks=pytest.mark.long)])
def test_few_types_on_few_kinds(seed, batches):
    """Jobs and sub-accelerators that are alike, where whole numbers matter; by brute force, and often it is reached."""
    drawn, met, better = rng(seed), 0, 0
    every = list(literal.all_mappings(MappingProblem(np.ones((5, 3)), np.ones((5, 3)), 1.0)))
    stacked = Mapping(np.stack([m.accelerator for m in every]), np.stack([m.priority for m in every]))
    for _ in range(batches):
        kinds = drawn.integers(1, 60, (2, 2)).astype(float), np.exp(drawn.uniform(-4, 1, (2, 2)))
        job, place = drawn.integers(2, size=5), drawn.integers(2, size=3)
        problem = MappingProblem(kinds[0][job][:, place], kinds[1][job][:, place], float(drawn.choice([0.5, 4.0])))
        best, bound = makespans(problem, stacked).min(), lower_bound(problem)
        sharp = sharp_bound(problem, best)
        assert sharp <= best
        assert order_bound(problem, best) <= best
        met += best <= sharp * (1 + PROVEN)
        better += sharp > bound * (1 + 1e-4)
    assert met > batches / 3
    assert better > batches / 5


@pytest.mark.slow
def test_dependencies_do_not_break_it():
    goal = Goal(precedence=Precedence.of(4, [[], [0], [], [2]]))
    for seed in range(15):
        drawn = rng(seed)
        problem = MappingProblem(
            drawn.integers(1, 30, (4, 2)).astype(float), np.exp(drawn.uniform(-2, 1, (4, 2))), 2.0, goal=goal
        )
        best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
        assert sharp_bound(problem, best) <= best


def test_counting_by_hand():
    """Five jobs of 10 on two: three must share one. The program alone says 25, counting says 30."""
    problem = alike([10.0] * 5, 2)
    integers = IntegerBound(problem, 0.0)
    integers.at(31.0)
    assert integers.bound == pytest.approx(25, rel=1e-6)
    integers.at(30.0)
    assert integers.bound == pytest.approx(30, rel=1e-6)
    found = Auto(3000).solve(problem, rng())
    assert (found.cost, found.optimal) == (30.0, True)


def test_counting_knows_what_holds_up_all():
    """Six of 4,097 and one of 2,049 on two, and one of 10 cycles that requests 11 times what there is: E is 100."""
    problem = MappingProblem(
        np.tile(np.array([4097.0] * 6 + [2049.0, 10.0])[:, None], (1, 2)),
        np.tile(np.array([0.0] * 7 + [11.0])[:, None], (1, 2)), 1.0,
    )  # fmt: skip
    integers = IntegerBound(problem, lower_bound(problem))
    integers.at(14_439.4)
    assert integers.bound == pytest.approx(3 * 4097 + 2049 + 100, rel=1e-4)


def test_one_long_job_that_needs_the_slow_one_to_itself():
    """Moving any single job makes it worse; the program puts the long one where everything else is slow."""
    latency = np.array([[60.0, 70.0]] + [[10.0, 35.0]] * 6)
    problem = MappingProblem(latency, np.zeros_like(latency), 1.0)
    counts = IntegerBound(problem, 0.0).at(75.0)
    assert counts is not None
    best = min(makespan(problem, mapping) for mapping in packed(problem, counts))
    assert best == 70.0
    found = Auto(2500).solve(problem, rng())
    assert (found.cost, found.optimal) == (70.0, True)


def test_a_long_job_runs_beside_all_that_others_request():
    """Two jobs of 30 cycles at 0.3, and three of 10 at twice the bandwidth: X is 2.3 with one long job beside."""
    latency = np.array([30.0, 30.0, 10.0, 10.0, 10.0])
    request = np.array([0.3, 0.3, 2.0, 2.0, 2.0])
    problem = MappingProblem(np.tile(latency[:, None], (1, 2)), np.tile(request[:, None], (1, 2)), 1.0)
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    bound = order_bound(problem, best)
    assert lower_bound(problem) < 0.99 * bound
    assert bound <= best


@pytest.mark.slow
@given(literal.problems(jobs=5, accelerators=2), st.integers(0, 20))
def test_any_prices_certify_a_bound(problem, seed):
    """Whatever the linear program answers, the bound stays below the best mapping."""
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    drawn = rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "_prices", lambda _, types: drawn.random(types))
        patch.setattr(order_module, "ROUNDS", 5)
        assert order_bound(problem, best) <= best


def test_packings_are_mappings_of_the_program():
    drawn = rng(3)
    row = drawn.integers(1, 100, (30, 3)).astype(float)
    problem = MappingProblem(row[:, [0, 0, 1, 2]], 3 * drawn.random((30, 3))[:, [0, 0, 1, 2]], 2.0)
    integers = IntegerBound(problem, lower_bound(problem))
    counts = integers.at(List("longest", "eft").solve(problem, rng()).cost)
    assert counts is not None
    some = list(packed(problem, counts))
    assert len(some) == 3 * 2 * 2 * 3
    for mapping in some:
        check(problem, mapping)
        for t, members in enumerate(counts.members):
            on = mapping.accelerator[members]
            assert [int(np.isin(on, places).sum()) for places in counts.places] == counts.jobs[t].tolist()


def test_a_program_that_is_too_large_is_left_out():
    problem = MappingProblem(rng().random((600, 2)) + 0.5, np.zeros((600, 2)), 1.0)
    integers = IntegerBound(problem, 5.0)
    assert integers.at(1000.0) is None
    assert not integers.sharpen(1000.0)
    assert integers.bound == 5.0


@pytest.mark.slow
@given(literal.mapped(jobs=8))
def test_annealed_loads_say_what_no_order_beats(case):
    problem, mapping = case
    accelerator, least = annealed_loads(problem, mapping.accelerator, 200, rng())
    for found in ordered(problem, accelerator, rng()):
        check(problem, found)
        assert makespan(problem, found) >= least * (1 - 1e-9)


@pytest.mark.slow
@given(literal.mapped(jobs=8), st.integers(0, 10))
def test_moves_on_queues_count_as_the_evaluator_does(case, seed):
    """After any moves, taken or refused: places, loads and the makespan are those of the queues."""
    problem, mapping = case
    t, drawn, jobs = table_of(problem), rng(seed), len(problem)
    orders = literal.queues(problem, mapping)
    first = np.cumsum([0, *map(len, orders)])
    q = _filled(t, np.array([j for order in orders for j in order], dtype=np.int64), first, np.zeros(jobs, bool))
    _count(t, q)
    worth = makespan(problem, mapping)
    for _ in range(10):
        one, two = drawn.integers(jobs), drawn.integers(jobs)
        limit = worth * drawn.choice([0.9, 1.1, 10.0])
        to = int(drawn.choice(np.flatnonzero(problem.possible[one])))
        found = _swap(t, q, one, two, limit) if drawn.random() < 0.5 else _shift(t, q, one, to, drawn.random(), limit)
        if found < np.inf:
            assert found <= limit
            worth = found
        now = Mapping(q.where, q.at.astype(float))
        assert [q.queue[a, : q.length[a]].tolist() for a in range(len(q.length))] == literal.queues(problem, now)
        assert makespan(problem, now) == pytest.approx(worth, rel=1e-9)
        loads = [t.latency[q.where == a, a].sum() for a in range(len(q.length))]
        assert q.load == pytest.approx(np.array(loads), rel=1e-9, abs=1e-9)
    exact = _played(t, q.queue, q.length, q.load.max(), q.total[1], np.inf)
    assert exact == pytest.approx(worth, rel=1e-9)
    assert _played(t, q.queue, q.length, q.load.max(), q.total[1], worth * 0.99) == np.inf


def test_annealing_on_queues_improves_and_keeps_its_budget():
    drawn = rng(1)
    problem = MappingProblem(drawn.integers(1, 100, (40, 4)).astype(float), 4 * drawn.random((40, 4)), 4.0)
    start = List("fcfs", "rr").solve(problem, rng())
    found = QueueAnnealing(9000).improve(problem, start, rng())
    assert found.evaluations == 9000
    assert found.cost == makespan(problem, found.best) < 0.8 * start.cost
    same = QueueAnnealing(9000).improve(problem, start, rng())
    assert (same.best.accelerator == found.best.accelerator).all()
    assert QueueAnnealing(9000, reached=np.inf).improve(problem, start, rng()).evaluations == 0


def test_what_is_plain():
    problem = MappingProblem(np.ones((2, 1)), np.ones((2, 1)), 1.0)
    assert is_plain(problem)
    assert not is_plain(problem.with_goal(Goal(objective="tail")))
    assert not is_plain(problem.with_goal(Goal(precedence=Precedence.of(2, [[1], []]))))
    fixed = np.array([-1, -1])
    assert is_plain(problem.with_goal(Goal(), fixed, np.array([np.nan, np.nan])))
    assert not is_plain(problem.with_goal(Goal(), fixed, np.array([np.nan, 1.0])))
    assert not is_plain(problem.with_goal(Goal(), fixed, np.array([np.nan, -1.0])))
    assert is_plain(problem.with_goal(Goal(), np.array([-1, 0]), np.array([np.nan, -1.0])))
    assert not is_plain(problem.with_goal(Goal(), np.array([0, 0]), np.array([-2.0, -1.0])))
    assert not is_plain(problem.with_goal(Goal(targets=np.ones(1))))


def test_auto_stops_at_the_bound_and_says_so():
    found = Auto(10**9).solve(alike([7.0] * 8, 4), rng())
    assert (found.cost, found.optimal) == (14.0, True)
    assert found.bound == pytest.approx(14.0, rel=1e-6)
    assert found.evaluations < 1000


@pytest.mark.slow
def test_a_time_limit_is_used_up_in_rounds_that_fit():
    """By a clock that goes on with each question: all of it is spent, and no more."""
    drawn = rng(2)
    problem = MappingProblem(drawn.random((30, 3)) + 0.1, 2 * drawn.random((30, 3)), 1.0)
    ticks = itertools.count()
    found = Auto(10**9, used=lambda: next(ticks) / 400).solve(problem, rng(), lambda: next(ticks) < 400)
    assert 0 < found.evaluations < 400 * 2000
    assert 400 <= next(ticks) < 420


def test_progress_is_told():
    heard = []
    drawn = rng(2)
    problem = MappingProblem(drawn.random((30, 3)) + 0.1, 2 * drawn.random((30, 3)), 1.0)
    found = Auto(5000, report=lambda best, bound: heard.append((best, bound))).solve(problem, rng())
    assert [best for best, _ in heard] == sorted((best for best, _ in heard), reverse=True)
    assert heard[-1] == (found.cost, found.bound)
    assert found.cost in {cost for _, cost in found.history}
    random = makespans(problem, Mapping.random(problem, 50, rng()))
    assert (random >= heard[-1][1]).all()
