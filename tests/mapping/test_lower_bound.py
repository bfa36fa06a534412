"""No mapping is below the bound; what certifies it is checked without the linear program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.mapping import _lp
from commonwatt.mapping import lower_bound as module
from commonwatt.mapping.evaluator import makespan
from commonwatt.mapping.lower_bound import lower_bound, pigeonhole, simple_bound, weighted_bound
from commonwatt.mapping.problem import Problem
from tests.mapping import literal


@settings(max_examples=60)
@given(literal.problems(jobs=4, accelerators=3, least_request=0.0))
def test_no_mapping_is_below_it(problem):
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    bound = lower_bound(problem)
    assert bound <= best
    assert bound >= simple_bound(problem) * (1 - 1e-9)
    assert pigeonhole(problem) <= best * (1 + 1e-12)


@settings(max_examples=60)
@given(literal.mapped(jobs=6), st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda w: sum(w) > 0.1))
def test_any_weights_certify_a_bound(case, weights):
    problem, mapping = case
    u, w = np.array(weights[: problem.accelerators]), weights[3] + 0.01
    volume = problem.volume / problem.system_bandwidth
    count = np.ones(problem.accelerators, dtype=np.int64)
    assert weighted_bound(problem.alone, volume, problem.possible, u, w, count) <= makespan(problem, mapping) * (
        1 + 1e-9
    )


def test_bad_weights_only_weaken_it(monkeypatch):
    """Whatever the linear program answers, the bound stays below the best mapping."""
    problem = Problem(np.array([[3.0, 9], [4, 2], [5, 5], [1, 8]]), np.array([[9.0, 1], [5, 5], [2, 9], [8, 1]]), 8.0)
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    good = lower_bound(problem)
    rng = np.random.default_rng(1)
    for _ in range(50):
        drawn = rng.random(3)
        monkeypatch.setattr(module, "multipliers", lambda *_, u=drawn: (u[:2] / u.sum(), u[2] / u.sum()))
        assert lower_bound(problem) <= best
    assert 0.8 * best < good <= best


def test_by_hand():
    whole = np.full((5, 2), 10.0)
    assert lower_bound(Problem(whole, whole, 100.0)) == pytest.approx(30)  # three of five jobs share one of two
    assert lower_bound(Problem(whole, whole, 1.0)) == pytest.approx(500)  # all 500 bytes through 1 a cycle
    chosen = Problem(np.array([[10.0, 1000.0]] * 4), np.ones((4, 2)), 100.0)
    assert lower_bound(chosen) == pytest.approx(40)  # the slow one is out of reach of anything good


def test_a_program_without_solution_gives_even_weights():
    u, w = _lp.multipliers(np.ones((1, 2)), np.ones((1, 2)), np.array([1, 2]), np.zeros((1, 2), dtype=bool))
    assert u @ [1, 2] + w == pytest.approx(1)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (60, 1), (80, 16)])
def test_any_shape(shape):
    rng = np.random.default_rng(0)
    problem = Problem(rng.integers(1, 1000, shape).astype(float), rng.random(shape), 4.0)
    assert lower_bound(problem) >= simple_bound(problem) * (1 - 1e-9)
