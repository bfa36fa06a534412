"""Run times that are not certain: costs are means over outcomes, in every solver alike."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonwatt.model.explanation import PlacementExplanation
from commonwatt.placement._explain import Explainer
from commonwatt.placement._objective import check, objective
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement._solvers import SOLVERS, make_solver
from tests.placement.brute_force import all_schedules, best_objective, worth_in_words
from tests.placement.made import crowded_problem
from tests.strategies import problems

QUICK = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def uncertain(draw: st.DrawFn, most_jobs: int = 4, most_nodes: int = 3) -> PlacementProblem:
    p = draw(problems(most_jobs=most_jobs, most_nodes=most_nodes))
    count = draw(st.integers(1, 5))
    factors = st.lists(st.sampled_from([0.05, 0.5, 1.0, 3.0, 8.0]), min_size=count, max_size=count)
    drawn = np.array([draw(factors) for _ in range(len(p))]).reshape(len(p), count)
    return replace(p, outcomes=drawn / drawn.mean(axis=1, keepdims=True))


def spread_out(p: PlacementProblem, seed: int = 0) -> PlacementProblem:
    drawn = np.exp(np.random.default_rng(seed).normal(0, 1, (len(p), 10)))
    return replace(p, outcomes=drawn / drawn.mean(axis=1, keepdims=True))


@pytest.mark.slow
@QUICK
@given(p=uncertain(most_jobs=3, most_nodes=2))
def test_the_objective_is_the_mean_over_outcomes(p):
    for schedule in list(all_schedules(p))[:40]:
        assert objective(p, schedule).total == pytest.approx(worth_in_words(p, schedule), rel=1e-12, abs=1e-15)


@pytest.mark.slow
@QUICK
@given(p=uncertain(most_jobs=3))
def test_exact_is_the_best_of_all(p):
    found = make_solver("exact").solve(p, np.random.default_rng(0))
    check(p, found.best)
    assert objective(p, found.best).total == pytest.approx(best_objective(p), rel=1e-6, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random-greedy", "local-search", "fifo", "srtf", "easy"])
@QUICK
@given(p=uncertain(most_jobs=6, most_nodes=4))
def test_running_totals_of_the_loops_are_the_objective(name, p):
    found = make_solver(name, iterations=50).solve(p, np.random.default_rng(0))
    check(p, found.best)
    assert found.cost == pytest.approx(objective(p, found.best).total, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", sorted(set(SOLVERS) - {"exact"}))
def test_an_outcome_that_is_certain_changes_nothing(name):
    for seed in range(3):
        p = crowded_problem(nodes=6, jobs=20, seed=seed)
        certain = replace(p, outcomes=np.ones((len(p), 4)))
        one, two = (make_solver(name, iterations=50).solve(q, np.random.default_rng(0)) for q in (p, certain))
        assert np.array_equal(one.best.choice, two.best.choice)
        assert np.array_equal(one.best.nodes, two.best.nodes)
        assert one.cost == pytest.approx(two.cost, rel=1e-12)


def test_lateness_that_is_only_possible_has_a_price():
    p = crowded_problem(nodes=2, jobs=2, seed=0)
    p = replace(p, due_s=np.full(2, 1e5))
    in_time = Schedule.empty(p)
    in_time.choice[0], in_time.nodes[0] = p.start[0], np.flatnonzero(p.node_class == p.klass[p.start[0]])[0]
    assert objective(p, in_time).tardiness == 0.0
    wide = replace(p, outcomes=np.tile([0.0, 1000.0], (2, 1)))
    time_s = float(p.time_s[p.start[0]])
    assert objective(wide, in_time).tardiness == pytest.approx(p.weight[0] * (1000 * time_s - 1e5) / 2)


def test_shortest_remaining_time_goes_by_attained_service_where_nothing_is_known():
    p = crowded_problem(nodes=2, jobs=12, seed=4)
    served = replace(spread_out(p), attained_gpu_s=np.arange(12) * 1e5)
    choice = make_solver("srtf").solve(served, np.random.default_rng(0)).best.choice
    placed = np.flatnonzero(choice != POSTPONED)
    assert 0 < len(placed) < 12
    assert set(placed[:2]) == {0, 1}
    reverse = replace(served, attained_gpu_s=served.attained_gpu_s[::-1].copy())
    other = make_solver("srtf").solve(reverse, np.random.default_rng(0)).best.choice
    assert {10, 11} <= set(np.flatnonzero(other != POSTPONED))


def test_more_outcomes_than_there_is_room_for_are_refused():
    p = crowded_problem(nodes=2, jobs=2, seed=0)
    with pytest.raises(ValueError, match="16"):
        make_solver("fifo").solve(replace(p, outcomes=np.ones((2, 17))), np.random.default_rng(0))


def test_what_is_expected_is_said_with_how_sure_it_is():
    p = crowded_problem(nodes=2, jobs=3, seed=0)
    time_s = float(p.time_s[p.start[0]])
    p = replace(p, outcomes=np.tile(np.array([0.1, 0.4, 0.5, 3.0]), (3, 1)), due_s=np.array([2 * time_s, np.inf, 1.0]))
    schedule = Schedule.empty(p)
    for j in (0, 1):
        schedule.choice[j], schedule.nodes[p.slot_start[j]] = p.start[j], np.flatnonzero(
            p.node_class == p.klass[p.start[j]])[0]  # fmt: skip
    one, two, three = (Explainer(p, schedule).explain(j) for j in range(3))
    assert one.in_time == 0.75
    assert one.expected_s == pytest.approx(time_s)
    assert one.likely_s == pytest.approx(np.quantile(time_s * p.outcomes[0], [0.1, 0.9]))
    assert "75% likely to be in time" in one.sentence
    assert "in 8 of 10 cases" in one.sentence
    assert "over 90% likely" in replace(one, in_time=1.0).sentence
    assert "under 10% likely" in replace(one, in_time=0.0).sentence
    assert two.in_time is None
    assert "no due date" in two.sentence
    assert "is expected to be late" in three.sentence
    facts = {**asdict(one), "likely_s": list(one.likely_s)}
    assert PlacementExplanation.of(facts) == one
