"""No mapping is below the bound; what certifies it is checked without the linear program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from commonwatt.mapping import _lower_bound as module
from commonwatt.mapping._auto import Auto
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._goal import Goal, Precedence
from commonwatt.mapping._lower_bound import (
    Relaxed,
    Weights,
    lower_bound,
    pigeonhole,
    relaxed,
    simple_bound,
    weighted_bound,
)
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import makespan, makespans
from tests.mapping import literal


@pytest.mark.slow
@settings(max_examples=60)
@given(literal.problems(jobs=4, accelerators=3, least_request=0.0))
def test_no_mapping_is_below_it(problem):
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    bound = lower_bound(problem)
    assert bound <= best
    assert bound >= simple_bound(problem) * (1 - 1e-9)
    assert pigeonhole(problem) <= best * (1 + 1e-12)


@pytest.mark.long
@settings(max_examples=200)
@given(literal.mapped(jobs=6), st.lists(st.floats(0, 1), min_size=6, max_size=6).filter(lambda w: sum(w) > 0.1))
def test_any_weights_certify_a_bound(case, drawn):
    problem, mapping = case
    chains = [np.array([0]), np.array([len(problem) - 1])]
    weights = Weights(np.array(drawn[: problem.accelerators]), np.array(drawn[3:5]), drawn[5] + 0.01)
    count = np.ones(problem.accelerators, dtype=np.int64)
    request = problem.bandwidth / problem.system_bandwidth
    bound = weighted_bound(problem.latency, request, problem.possible, count, chains, weights)
    assert bound <= makespan(problem, mapping) * (1 + 1e-9)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "batches"), [(0, 500), pytest.param(1, 1000, marks=pytest.mark.long)])
def test_small_batches_with_little_bandwidth(seed, batches):
    """By brute force; and it is never below the bound without excess and chains, whose linear program SciPy solves."""
    rng, worst, better = np.random.default_rng(seed), np.inf, 0
    every = list(literal.all_mappings(MappingProblem(np.ones((4, 2)), np.ones((4, 2)), 1.0)))
    stacked = Mapping(np.stack([m.accelerator for m in every]), np.stack([m.priority for m in every]))
    for n in range(batches):
        latency = np.exp(rng.uniform(0, 4, (4, 2)))
        problem = MappingProblem(latency, np.exp(rng.uniform(-3, 2, (4, 2))), float(rng.choice([0.3, 1.0, 3.0])))
        best, bound = makespans(problem, stacked).min(), lower_bound(problem)
        assert bound <= best
        worst = min(worst, best / bound)
        if n % 5 == 0:
            plain = without_excess(problem)
            assert bound >= plain * (1 - 1e-9)
            better += bound > plain * 1.01
    assert worst < 1 + 1e-9  # it is reached
    assert better > batches / 50


def without_excess(problem):
    """The weights' bound over loads and volume alone, all pairs allowed."""
    jobs, places = problem.latency.shape
    alone, volume = problem.alone, problem.volume / problem.system_bandwidth
    rows = [np.append(np.where(np.arange(places) == a, alone, 0.0).ravel(), -1.0) for a in range(places)]
    rows.append(np.append(volume.ravel(), -1.0))
    whole = np.hstack([np.kron(np.eye(jobs), np.ones(places)), np.zeros((jobs, 1))])
    cost = np.append(np.zeros(jobs * places), 1.0)
    return linprog(cost, A_ub=np.array(rows), b_ub=np.zeros(places + 1), A_eq=whole, b_eq=np.ones(jobs)).fun


def test_a_chain_counts_with_what_others_ask_for_beyond_all():
    """Two jobs of 10, one after the other, and one that alone takes 5 times its latency of 4."""
    goal = Goal(precedence=Precedence.of(3, [[], [0], []]))
    problem = MappingProblem(
        np.array([[10.0, 10], [10, 10], [4, 4]]), np.array([[0.0, 0], [0, 0], [5, 5]]), 1.0, goal=goal
    )
    assert lower_bound(problem) == pytest.approx(20 + 4 * 4)
    assert Auto(500).solve(problem, np.random.default_rng(0)).cost == pytest.approx(36)


def test_bad_weights_only_weaken_it(monkeypatch):
    """Whatever the linear program answers, the bound stays below the best mapping."""
    problem = MappingProblem(
        np.array([[3.0, 9], [4, 2], [5, 5], [1, 8]]), np.array([[9.0, 1], [5, 5], [2, 9], [8, 1]]), 8.0
    )
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    good = lower_bound(problem)
    rng = np.random.default_rng(1)
    for _ in range(50):
        drawn = rng.random(7)
        answer = Relaxed(Weights(drawn[:2], drawn[2:6], drawn[6]), np.ones((4, 2)) / 2)
        monkeypatch.setattr(module, "relaxed", lambda *_, answer=answer: answer)
        assert lower_bound(problem) <= best
    assert 0.8 * best < good <= best


def test_by_hand():
    whole = np.full((5, 2), 10.0)
    assert lower_bound(MappingProblem(whole, whole, 100.0)) == pytest.approx(30)  # three of five jobs share one of two
    assert lower_bound(MappingProblem(whole, whole, 1.0)) == pytest.approx(500)  # all 500 bytes through 1 a cycle
    chosen = MappingProblem(np.array([[10.0, 1000.0]] * 4), np.ones((4, 2)), 100.0)
    assert lower_bound(chosen) == pytest.approx(40)  # the slow one is out of reach of anything good


def test_a_program_without_solution_gives_even_weights():
    one, nowhere = np.ones((1, 2)), np.zeros((1, 2), dtype=bool)
    weights, _ = relaxed(one, one, one, np.array([1, 2]), nowhere, [np.array([0])])
    assert weights.load @ [1, 2] + weights.chain.sum() + weights.volume == pytest.approx(1)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (60, 1), (80, 16)])
def test_any_shape(shape):
    rng = np.random.default_rng(0)
    problem = MappingProblem(rng.integers(1, 1000, shape).astype(float), rng.random(shape), 4.0)
    assert lower_bound(problem) >= simple_bound(problem) * (1 - 1e-9)
