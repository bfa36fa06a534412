"""Makespans and timelines: by hand, against the literal algorithm, and what must hold of every one of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.mapping._encoding import Mapping, check, from_orders
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import makespan, makespans, timeline
from commonwatt.model.errors import InputError
from tests.mapping import literal


def table(latency, bandwidth, system=10.0):
    return MappingProblem(np.array(latency, float), np.array(bandwidth, float), system)


def at(accelerator, priority):
    return Mapping(np.array(accelerator), np.array(priority, float))


def test_enough_bandwidth_leaves_the_sums_of_latencies():
    problem = table([[10, 99], [20, 99], [99, 25]], [[5, 1], [5, 1], [1, 5]])
    assert makespan(problem, at([0, 0, 1], [0, 1, 0])) == 30


def test_a_job_alone_that_asks_for_more_than_there_is():
    assert makespan(table([[10]], [[40]]), at([0], [0])) == 40


def test_bandwidth_is_shared_by_request():
    """Two jobs ask for 15 and 5 of 10: both at half speed until the short one ends (20), then 10 more at 10/15."""
    problem = table([[20, 99], [99, 10]], [[15, 1], [1, 5]])
    played = timeline(problem, at([0, 1], [0, 0]))
    assert played.edges.tolist() == [0, 20, 35]
    assert played.granted.tolist() == [[7.5, 2.5], [10, 0]]
    assert played.running.tolist() == [[0, 1], [0, -1]]
    assert (played.start.tolist(), played.end.tolist()) == ([0, 0], [35, 20])


def test_order_decides_which_jobs_meet():
    """Heavy jobs that meet wait for each other; a heavy one beside a light one does not."""
    problem = table([[10, 99], [10, 99], [99, 10], [99, 10]], [[10, 1], [1, 1], [1, 9], [1, 0]])
    assert makespan(problem, at([0, 0, 1, 1], [0, 1, 0, 1])) == pytest.approx(29)
    assert makespan(problem, at([0, 0, 1, 1], [0, 1, 1, 0])) == pytest.approx(20)


def test_lower_priority_first_ties_by_index():
    problem = table([[1], [2], [4]], [[1], [1], [1]])
    assert timeline(problem, at([0, 0, 0], [0.5, 0.5, -3])).start.tolist() == [4, 5, 0]


def test_a_job_may_ask_for_nothing():
    problem = table([[10, 10], [10, 10]], [[0, 0], [20, 20]])
    assert makespan(problem, at([0, 0], [0, 1])) == 30
    assert makespan(problem, at([0, 1], [0, 1])) == 20


def test_where_a_job_cannot_run_is_infinite():
    problem = table([[10, np.inf], [10, 10]], [[1, 0], [1, 1]])
    population = Mapping(np.array([[0, 0], [1, 1], [0, 1]]), np.zeros((3, 2)))
    assert makespans(problem, population).tolist() == [20, np.inf, 10]


@pytest.mark.slow
@given(literal.mapped())
def test_the_literal_algorithm_gives_the_same(case):
    assert makespan(*case) == pytest.approx(literal.makespan(*case), rel=1e-9)


@pytest.mark.slow
@given(literal.problems(least_request=0.0), st.integers(0, 5))
def test_a_population_is_its_members_and_stays_where_jobs_can_run(problem, seed):
    population = Mapping.random(problem, 7, np.random.default_rng(seed))
    for member in range(7):
        check(problem, population[member])
    alone = [makespan(problem, population[member]) for member in range(7)]
    assert makespans(problem, population).tolist() == alone
    assert np.isfinite(alone).all()


@pytest.mark.slow
@given(literal.mapped(least_request=0.0))
def test_a_timeline_keeps_to_the_bandwidth_and_moves_every_volume(case):
    problem, mapping = case
    played = timeline(problem, mapping)
    length = np.diff(played.edges)
    assert (length > 0).all()
    assert played.makespan == makespan(problem, mapping) == played.end.max()
    assert (played.granted.sum(axis=1) <= problem.system_bandwidth * (1 + 1e-12)).all()
    assert played.granted.sum(axis=1) == pytest.approx(played.used, rel=1e-9, abs=1e-12)
    for j, a in enumerate(mapping.accelerator.tolist()):
        mine = played.running[:, a] == j
        assert (played.granted[mine, a] * length[mine]).sum() == pytest.approx(problem.volume[j, a], rel=1e-9)
        assert length[mine].sum() == pytest.approx(played.end[j] - played.start[j], rel=1e-9)
        assert (played.end[j] - played.start[j]) >= problem.alone[j, a] * (1 - 1e-9)


@pytest.mark.slow
@given(literal.mapped())
def test_jobs_follow_each_other_without_gaps(case):
    problem, mapping = case
    played = timeline(problem, mapping)
    for queue in literal.queues(problem, mapping):
        assert played.start[queue].tolist() == [0.0, *played.end[queue].tolist()][: len(queue)]


@pytest.mark.slow
@given(literal.mapped(least_request=0.0), st.floats(1.0, 50.0))
def test_more_bandwidth_never_hurts(case, factor):
    """Provable: max(1, Q/B) does not grow with B, and Q(tau) does not depend on B."""
    problem, mapping = case
    more = MappingProblem(problem.latency, problem.bandwidth, problem.system_bandwidth * factor)
    assert makespan(more, mapping) <= makespan(problem, mapping) * (1 + 1e-12)


@pytest.mark.slow
@given(literal.mapped(least_request=0.0), st.sampled_from([0.25, 3.0, 1e6]), st.sampled_from([0.5, 7.0]))
def test_units_do_not_matter(case, time, bandwidth):
    problem, mapping = case
    other = MappingProblem(problem.latency * time, problem.bandwidth * bandwidth, problem.system_bandwidth * bandwidth)
    assert makespan(other, mapping) == pytest.approx(time * makespan(problem, mapping), rel=1e-12)


@pytest.mark.slow
@given(literal.mapped(least_request=0.0), st.randoms(use_true_random=False))
def test_names_of_jobs_and_sub_accelerators_do_not_matter(case, random):
    problem, mapping = case
    ranked = np.empty(len(problem))
    ranked[np.lexsort((np.arange(len(problem)), mapping.priority))] = np.arange(len(problem))  # no ties
    jobs, places = list(range(len(problem))), list(range(problem.accelerators))
    random.shuffle(jobs)
    random.shuffle(places)
    other = MappingProblem(
        problem.latency[jobs][:, places], problem.bandwidth[jobs][:, places], problem.system_bandwidth
    )
    renamed = Mapping(np.argsort(places)[mapping.accelerator[jobs]], ranked[jobs])
    assert makespan(other, renamed) == pytest.approx(makespan(problem, mapping), rel=1e-12)


def test_orders_become_genes():
    mapping = from_orders(4, [[2, 0], [], [3, 1]])
    assert mapping.accelerator.tolist() == [0, 2, 0, 2]
    assert np.argsort(mapping.priority, kind="stable").tolist() in ([2, 3, 0, 1],)


@pytest.mark.parametrize(
    ("latency", "bandwidth", "system", "said"),
    [
        ([[1, -2]], [[1, 1]], 1, "table.latency_cycles.0.1"),
        ([[1, 0]], [[1, 1]], 1, "table.latency_cycles.0.1"),
        ([[1, np.nan]], [[1, 1]], 1, "table.latency_cycles.0.1"),
        ([[1, 1]], [[1, -1]], 1, "table.bandwidth_gbs.0.1"),
        ([[1, 1]], [[1, np.inf]], 1, "table.bandwidth_gbs.0.1"),
        ([[1], [np.inf]], [[1], [1]], 1, "table.latency_cycles.1"),
        ([[1]], [[1]], 0, "system_bandwidth_gbs"),
        ([[1]], [[1]], np.inf, "system_bandwidth_gbs"),
        ([[1]], [[1, 2]], 1, "same shape"),
        (np.zeros((0, 3)), np.zeros((0, 3)), 1, "same shape"),
    ],
)
def test_a_table_that_makes_no_sense(latency, bandwidth, system, said):
    with pytest.raises(InputError, match=said):
        table(latency, bandwidth, system)
