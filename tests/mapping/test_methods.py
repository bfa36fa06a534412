"""Searches to compare with keep their budget and repeat themselves; the exact one finds what brute force finds."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings

from commonwatt.mapping._baselines import StandardGenetic
from commonwatt.mapping._encoding import check
from commonwatt.mapping._exact import BranchAndBound
from commonwatt.mapping._external_searches import LEARNERS, NEVERGRAD, Cube, Episode, Learner, Nevergrad
from commonwatt.mapping._goal import Goal, Precedence
from commonwatt.mapping._lower_bound import lower_bound
from commonwatt.mapping._scoring import makespan
from commonwatt.mapping._solve_file import ALGORITHMS
from commonwatt.model.errors import InputError, MissingExtraError
from tests.mapping import literal
from tests.mapping.test_search import rng, sample

EXTRAS = {**dict.fromkeys(NEVERGRAD, "nevergrad"), **dict.fromkeys(LEARNERS, "stable_baselines3")}
MODELS = {"de": "search", "ppo": "rl"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NEVERGRAD, *LEARNERS, "standard-ga"])
def test_a_search_keeps_its_budget_and_repeats_itself(name):
    if name in EXTRAS:
        pytest.importorskip(EXTRAS[name])
    problem = sample(8, 3)
    budget = 12 if name in LEARNERS else 70
    one, two = (ALGORITHMS[name](budget).solve(problem, rng(3)) for _ in range(2))
    check(problem, one.best)
    assert one.evaluations == budget
    assert one.cost == makespan(problem, one.best) == two.cost
    assert one.cost >= lower_bound(problem)
    assert [n for n, _ in one.history] == sorted({n for n, _ in one.history})
    assert ALGORITHMS[name](budget).solve(problem, rng(3), lambda: False).evaluations <= 100


@pytest.mark.parametrize("name", MODELS)
def test_without_the_extra_one_line_says_what_to_install(name, monkeypatch):
    package = EXTRAS[name]
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails as if it were not there
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed; run: .*\[{MODELS[name]}\]"):
        ALGORITHMS[name](10).solve(sample(3, 2), rng())


@pytest.mark.slow
def test_a_name_that_is_none():
    pytest.importorskip("nevergrad")
    with pytest.raises(InputError, match="one of de, one-plus-one"):
        Nevergrad("dee").solve(sample(3, 2), rng())
    with pytest.raises(InputError, match="one of a2c, ppo"):
        Learner("dqn").solve(sample(3, 2), rng())


def test_every_point_of_the_cube_is_a_mapping():
    problem = sample(20, 4)
    cube = Cube(problem)
    for point in (np.zeros(40), np.ones(40), *rng().random((20, 40))):
        check(problem, cube.mapping(point))
    seen = np.array([cube.mapping(point).accelerator for point in rng().random((4000, 40))])
    for j in range(20):  # each place it can run on as often as the others
        can = np.flatnonzero(problem.possible[j])
        assert [(seen[:, j] == a).mean() for a in can] == pytest.approx([1 / len(can)] * len(can), abs=0.04)


@pytest.mark.slow
def test_differential_evolution_beats_random_sequences():
    pytest.importorskip("nevergrad")
    problem = sample(12, 3)
    found = {name: Nevergrad(name, 400).solve(problem, rng()).cost for name in ("de", "halton")}
    assert found["de"] < found["halton"]


def test_the_standard_genetic_algorithm_never_loses_its_best():
    found = StandardGenetic(1500).solve(sample(), rng())
    worths = [worth for _, worth in found.history]
    assert (np.diff(worths) < 0).all()
    assert found.cost < 0.9 * worths[0]


def test_an_episode_places_every_job_once():
    problem = sample(10, 3)
    episode = Episode(problem)
    for _ in range(2):
        assert ((episode.begin() >= 0) & (episode.seen() <= 1)).all()
        while not episode.is_over:
            episode.place(int(rng(episode._next).integers(3)), 4)
            seen = episode.seen()
            assert seen.shape == (episode.width,)
            assert ((seen >= 0) & (seen <= 1)).all()
        check(problem, episode.mapping)
        assert (episode.mapping.priority == 0.45).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_learners_spend_one_evaluation_for_each_episode_and_get_better(name):
    pytest.importorskip("stable_baselines3")
    problem = sample(8, 3)
    found = Learner(name, 300).solve(problem, rng())
    check(problem, found.best)
    assert found.evaluations == 300
    episodes = [evaluations for evaluations, _ in found.history]
    assert episodes == sorted(episodes)
    assert len(episodes) > 1


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(literal.problems(jobs=5, accelerators=3))
def test_the_exact_search_finds_what_brute_force_finds(problem):
    found = BranchAndBound(1).solve(problem, rng())  # from a bad start
    assert found.optimal
    assert found.cost == makespan(problem, found.best)
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    assert found.cost == pytest.approx(best, rel=1e-9)


def test_the_exact_search_with_equal_sub_accelerators_and_bound_jobs():
    drawn = rng(4)
    column = drawn.integers(1, 50, (6, 1)).astype(float)
    problem = sample(6, 3)
    problem = type(problem)(np.hstack([column, column, 2 * column]), drawn.random((6, 3)) * 9, 6.0)
    problem = problem.with_goal(Goal(), np.array([2, -1, -1, 0, -1, -1]), np.full(6, np.nan))
    best = min(makespan(problem, mapping) for mapping in literal.all_mappings(problem))
    found = BranchAndBound(1).solve(problem, rng())
    assert (found.optimal, found.cost) == (True, pytest.approx(best, rel=1e-9))
    assert found.best.accelerator[[0, 3]].tolist() == [2, 0]


def test_an_exact_search_that_runs_out_of_time_proves_nothing():
    problem = sample(40, 4, system=8.0)
    asked = iter([True] * 3 + [False] * 1000)
    found = BranchAndBound(300).solve(problem, rng(), lambda: next(asked))
    assert not found.optimal
    check(problem, found.best)


def test_what_the_exact_search_cannot_do_is_refused():
    problem = sample(4, 2)
    for goal, field in (
        (Goal(objective="completion"), "objective"), (Goal(precedence=Precedence.of(4, [[], [0], [], []])), "after"),
    ):  # fmt: skip
        with pytest.raises(InputError) as refused:
            BranchAndBound().solve(problem.with_goal(goal), rng())
        assert f"'{field}'" in str(refused.value)
    bound = problem.with_goal(Goal(), np.full(4, -1), np.array([0.5, np.nan, np.nan, np.nan]))
    with pytest.raises(InputError, match=r"fixed\.priority"):
        BranchAndBound().solve(bound, rng())
