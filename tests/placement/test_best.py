"""The solver ``best``: never worse than what it is made of, and its bound is one."""

import numpy as np
import pytest

from commonwatt.placement import Exact, objective
from commonwatt.placement import _solve_file as module
from commonwatt.placement._local_search import LocalSearch
from commonwatt.placement._solve_file import Best
from tests.placement.made import crowded_problem


@pytest.mark.parametrize("seed", range(6))
def test_small_problems_are_solved_to_the_optimum(seed):
    problem = crowded_problem(nodes=2, jobs=5, seed=seed)
    found, exact = (solver.solve(problem, np.random.default_rng(0)) for solver in (Best(), Exact()))
    assert found.optimal
    assert found.cost == pytest.approx(exact.cost)
    assert found.cost == pytest.approx(objective(problem, found.best).total)


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_larger_ones_is_below_the_optimum(seed, monkeypatch):
    problem = crowded_problem(nodes=3, jobs=6, seed=seed)
    optimum = Exact().solve(problem, np.random.default_rng(0)).cost
    monkeypatch.setattr(module, "MOST_EXACT", 0)
    found = Best(LocalSearch(steps=200)).solve(problem, np.random.default_rng(0))
    assert 0 < found.bound <= optimum * (1 + 1e-9) <= found.cost * (1 + 2e-9)
    assert found.optimal == (found.cost <= found.bound * (1 + 1e-9))


def test_one_that_is_too_large_has_no_bound(monkeypatch):
    problem = crowded_problem(nodes=3, jobs=6, seed=0)
    monkeypatch.setattr(module, "MOST_BOUNDED", 0)
    found = Best(LocalSearch(steps=200)).solve(problem, np.random.default_rng(0))
    assert (found.bound, found.optimal) == (None, None)


@pytest.mark.slow
def test_a_tree_that_is_cut_off_leaves_a_bound(monkeypatch):
    """More often than not the tree of such a problem has many nodes."""
    monkeypatch.setattr(module, "MOST_NODES", 1)
    problem = crowded_problem(nodes=6, jobs=12, seed=1)
    found = Best().solve(problem, np.random.default_rng(0))
    optimum = Exact().solve(problem, np.random.default_rng(0)).cost
    assert found.bound is None or found.bound <= optimum * (1 + 1e-9)
    assert found.cost >= optimum * (1 - 1e-9)
