"""What holds for every solver, and exact against brute force."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._arrays import prepare
from commonwatt.placement._exact import Exact
from commonwatt.placement._local_search import LocalSearch
from commonwatt.placement._objective import check, objective
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule
from commonwatt.placement._random_greedy import Greedy, RandomGreedy, candidates
from commonwatt.placement._solvers import SOLVERS, make_solver
from tests.placement.brute_force import all_schedules, best_objective
from tests.placement.made import crowded_problem
from tests.placement.plain_greedy import plain_greedy
from tests.strategies import problems

SLOW = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def solve(name: str, p: PlacementProblem, seed: int = 0) -> Schedule:
    return make_solver(name, iterations=50).solve(p, np.random.default_rng(seed)).best


def worth(p: PlacementProblem, s: Schedule) -> float:
    return objective(p, s).total


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SOLVERS))
@SLOW
@given(p=problems(most_jobs=6, most_nodes=4))
def test_every_schedule_can_be_carried_out(name, p):
    check(p, solve(name, p))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SOLVERS))
@SLOW
@given(p=problems(most_jobs=5))
def test_same_seed_same_schedule(name, p):
    one, two = solve(name, p, seed=3), solve(name, p, seed=3)
    assert np.array_equal(one.choice, two.choice)
    assert np.array_equal(one.nodes, two.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fifo", "edf", "priority", "easy", "fair-share"])
@SLOW
@given(p=problems(most_jobs=6))
def test_schedulers_without_preemption_leave_running_jobs_alone(name, p):
    s = solve(name, p)
    for j in np.flatnonzero(p.stay >= 0):
        assert s.choice[j] == p.stay[j]


@pytest.mark.slow
@SLOW
@given(problems())
def test_exact_equals_brute_force(p):
    found = Exact().solve(p, np.random.default_rng(0))
    check(p, found.best)
    best = best_objective(p)
    assert found.optimal
    assert worth(p, found.best) == pytest.approx(best, rel=1e-7, abs=1e-12)
    assert found.bound == pytest.approx(best, rel=1e-6, abs=1e-9)


@pytest.mark.long
@SLOW
@given(problems(most_jobs=3), st.lists(st.sampled_from([0.0, 40.0, 700.0]), min_size=3, max_size=3))
def test_exact_equals_brute_force_where_nodes_must_wake_first(p, waits):
    """A gang begins when the last of its nodes is awake."""
    wait_s = np.array(waits[: len(p.node_names)])
    for j in np.flatnonzero(p.stay >= 0):
        wait_s[p.nodes_held(j)] = 0.0
    p = replace(p, node_wait_s=wait_s)
    found = Exact().solve(p, np.random.default_rng(0))
    check(p, found.best)
    best = min(worth(p, s) for s in all_schedules(p))
    assert found.optimal
    assert worth(p, found.best) == pytest.approx(best, rel=1e-7, abs=1e-12)
    assert found.bound == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_with_every_node_down_every_job_waits():
    raw = {"nodes": [{"name": "n", "count": 2, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 100}]}
    raw["jobs"] = [{"name": "gang", "tardiness_weight": 1, "times_s": {"V100": {4: 400}}}]
    for jobs in (raw["jobs"], [*raw["jobs"], {"name": "one", "tardiness_weight": 1, "times_s": {"V100": [9]}}]):
        p = PlacementProblem.of(PlaceFile.model_validate(raw | {"jobs": jobs}))
        p = replace(p, node_gpus=np.zeros(2, dtype=np.int64))
        for name in SOLVERS:
            assert (solve(name, p).choice == POSTPONED).all(), name


def test_a_gang_cannot_pretend_to_begin_later_than_its_nodes_wake():
    """It would then not be the first to end on its nodes, and the cheaper jobs beside it would count instead."""
    nodes = [{"name": "n", "count": 3, "gpu_type": "V100", "gpus": 3, "idle_w": 100, "gpu_w": 100}]
    due = {"due_s": 2000, "tardiness_weight": 1e-3}
    jobs = [{"name": "gang", **due, "times_s": {"V100": {4: 400}}}]
    jobs += [{"name": name, **due, "times_s": {"V100": [450]}} for name in ("a", "b")]
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs, "interval_s": 3000}))
    p = replace(p, node_wait_s=np.array([0.0, 0.0, 700.0]))
    found = Exact().solve(p, np.random.default_rng(0))
    best = min(worth(p, s) for s in all_schedules(p))
    assert worth(p, found.best) == pytest.approx(best)
    assert found.bound == pytest.approx(best)


@pytest.mark.slow
@SLOW
@given(problems(most_jobs=6, most_nodes=4))
def test_randomized_greedy_reports_what_its_schedule_is_worth(p):
    c = prepare(p)
    search = Greedy(
        np.argsort(-p.pressure_s, kind="stable"), np.full(len(p), 0.3), np.array([1.0, 0.2]), np.array([2, 1, 0]),
        np.full(len(p), -1), c.given.copy(),
    )  # fmt: skip
    value = candidates(c, search, 0, 30, np.inf, np.random.default_rng(1))
    assert value == pytest.approx(worth(p, c.schedule(search.choice, search.given)), rel=1e-9, abs=1e-12)


@pytest.mark.slow
@SLOW
@given(problems(most_jobs=7, most_nodes=4, running=False))
def test_the_first_candidate_is_algorithm_1_without_its_random_choices(p):
    ours = RandomGreedy(iterations=1).solve(p, np.random.default_rng(0)).best
    assert np.array_equal(ours.choice, plain_greedy(p).choice)


@pytest.mark.slow
@SLOW
@given(problems(most_jobs=6, most_nodes=4))
def test_more_candidates_are_never_worse(p):
    values = [worth(p, RandomGreedy(iterations=k).solve(p, np.random.default_rng(0)).best) for k in (1, 3, 20, 100)]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(values))


@pytest.mark.slow
@SLOW
@given(problems(most_jobs=6, most_nodes=4))
def test_local_search_is_never_worse_than_the_randomized_greedy(p):
    greedy = RandomGreedy(iterations=20)
    before = worth(p, greedy.solve(p, np.random.default_rng(5)).best)
    after = worth(p, LocalSearch(start=greedy, steps=200).solve(p, np.random.default_rng(5)).best)
    assert after <= before * (1 + 1e-9) + 1e-12


@pytest.mark.slow
@SLOW
@given(problems())
def test_no_solver_beats_the_exact_optimum(p):
    best = worth(p, Exact().solve(p, np.random.default_rng(0)).best)
    for name in SOLVERS:
        assert worth(p, solve(name, p)) >= best - 1e-7 * max(1.0, abs(best))


@pytest.mark.slow
@SLOW
@given(problems(most_jobs=6, most_nodes=4, running=False))
def test_greedy_postpones_a_job_only_if_nothing_fits(p):
    s = RandomGreedy(iterations=30).solve(p, np.random.default_rng(2)).best
    free = p.node_gpus.copy()
    for j in np.flatnonzero(s.choice != POSTPONED):
        free[s.nodes_of(p, j)] -= p.per_node[s.choice[j]]
    for j in np.flatnonzero(s.choice == POSTPONED):
        for r in range(p.start[j], p.start[j + 1]):
            assert np.sum((p.node_class == p.klass[r]) & (free >= p.per_node[r])) < p.width[r]


def test_stopwatch_ends_the_search_early_with_a_schedule():
    p = crowded_problem(nodes=8, jobs=40, seed=7)
    asked = []

    def keep_going() -> bool:
        asked.append(1)
        return len(asked) < 3

    found = RandomGreedy(iterations=10**6).solve(p, np.random.default_rng(0), keep_going)
    assert found.evaluations < 10**6
    check(p, found.best)


def test_budget_in_placements_limits_candidates():
    p = crowded_problem(nodes=8, jobs=40, seed=7)
    assert RandomGreedy(iterations=1000, placements=10 * len(p)).solve(p, np.random.default_rng(0)).evaluations == 10


@pytest.mark.long
def test_local_search_closes_the_gap_to_the_optimum():
    """With 20 jobs and a known optimum the mean gap of the greedy is large, that of the local search is not."""
    gaps = {"random-greedy": [], "local-search": []}
    for seed in range(4):
        p = crowded_problem(nodes=8, jobs=14, seed=seed)
        best = worth(p, Exact().solve(p, np.random.default_rng(0)).best)
        for name in gaps:
            found = make_solver(name, iterations=1000).solve(p, np.random.default_rng(0)).best
            gaps[name].append(worth(p, found) / best - 1)
    assert np.mean(gaps["local-search"]) < 0.01
    assert np.mean(gaps["local-search"]) < 0.1 * np.mean(gaps["random-greedy"])
