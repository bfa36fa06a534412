"""Goals other than the makespan, and jobs that come after others: against an event loop, brute force and by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.mapping._auto import Auto, warmed
from commonwatt.mapping._baselines import List
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._goal import OBJECTIVES, Goal, Precedence
from commonwatt.mapping._gsharp import GSharp
from commonwatt.mapping._lower_bound import lower_bound
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import enough, makespan, population_costs, timeline
from commonwatt.model.errors import InputError
from tests.mapping import literal


def rng(seed=0):
    return np.random.default_rng(seed)


@st.composite
def graphs(draw, jobs):
    """Dependencies without a cycle, in an order that is not that of the indices."""
    rank = draw(st.permutations(range(jobs)))
    pairs = [(j, k) for j, k in itertools.permutations(range(jobs), 2) if rank[k] < rank[j]]
    drawn = draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    return [[k for at, k in drawn if at == j] for j in range(jobs)]


@st.composite
def with_goals(draw, jobs=5, **more):
    problem, mapping = draw(literal.mapped(jobs=jobs, **more))
    count = len(problem)
    after = draw(graphs(count))
    tenants = draw(st.integers(1, 2))
    goal = Goal(
        objective=draw(st.sampled_from(OBJECTIVES)),
        precedence=Precedence.of(count, after),
        tenant=np.array([j % tenants for j in range(count)]),
        weights=np.array([1.0, 3.0])[: min(tenants, count)],
        tail=draw(st.sampled_from([0.3, 0.5, 0.95, 1.0])),
        place=np.array(draw(st.permutations(range(count)))),
        target_cycles=draw(st.sampled_from([50.0, 300.0, math.inf])),
    )
    energy = np.where(problem.possible, rng(draw(st.integers(0, 9))).random(problem.latency.shape), 0.0)
    return MappingProblem(problem.latency, problem.bandwidth, problem.system_bandwidth, energy, goal), mapping, after


def queues_that_work(problem, mapping, after):
    """Queues by priority, no job before one that it comes after."""
    value = list(mapping.priority)
    for _ in after:
        for j, earlier in enumerate(after):
            value[j] = max([value[j], *(value[k] for k in earlier)])
    sequence = sorted(problem.goal.precedence.order.tolist() or range(len(after)), key=lambda j: value[j])
    return [[j for j in sequence if mapping.accelerator[j] == a] for a in range(problem.accelerators)]


def event_loop(problem, mapping, after):
    """When each job ends: remaining volumes counted down, queues that wait for jobs elsewhere."""
    waiting = queues_that_work(problem, mapping, after)
    left, end, now = {}, {}, 0.0
    while any(waiting) or left:
        for a, queue in enumerate(waiting):
            if a not in left and queue and all(k in end for k in after[queue[0]]):
                j = queue.pop(0)
                left[a] = (j, problem.latency[j, a] * problem.bandwidth[j, a], problem.bandwidth[j, a])
        asked = sum(request for _, _, request in left.values())
        part = min(1.0, problem.system_bandwidth / asked)
        runtime, ends = min((volume / (request * part), a) for a, (_, volume, request) in left.items())
        now += max(runtime, 0.0)
        end[left[ends][0]] = now
        left = {a: (j, v - runtime * r * part, r) for a, (j, v, r) in left.items() if a != ends}
    return np.array([end[j] for j in range(len(after))])


def cost_by_hand(problem, mapping, end):
    goal = problem.goal
    jobs, longest = len(end), end.max()
    energy = sum(problem.energy[j, a] for j, a in enumerate(mapping.accelerator))
    excess = 10 * max(0.0, longest / goal.target_cycles - 1)
    weight = [goal.weights[t] for t in goal.tenant]
    if goal.objective == "latency":
        return longest
    if goal.objective == "satisfaction":
        ranked = sorted(range(jobs), key=lambda j: (end[j], j))
        near = [abs(ranked.index(j) - goal.place[j]) < problem.accelerators for j in range(jobs)]
        return 1 - sum(near) / jobs + excess
    if goal.objective == "tail":
        total = 0.0
        for t, heavy in enumerate(goal.weights):
            ends = sorted(e for e, whose in zip(end, goal.tenant, strict=True) if whose == t)
            total += heavy * next(e for n, e in enumerate(ends, 1) if n >= goal.tail * len(ends) - 1e-9)
        found = total / sum(goal.weights)
    elif goal.objective == "completion":
        found = sum(w * e for w, e in zip(weight, end, strict=True)) / sum(weight)
    else:
        found = energy * (longest if goal.objective == "edp" else 1)
    return found * (1 + excess)


@pytest.mark.slow
@settings(max_examples=120)
@given(with_goals())
def test_times_are_those_of_an_event_loop(case):
    problem, mapping, after = case
    end, played = event_loop(problem, mapping, after), timeline(problem, mapping)
    assert played.end == pytest.approx(end, rel=1e-9)
    assert makespan(problem, mapping) == pytest.approx(end.max(), rel=1e-9) == played.makespan
    for j, earlier in enumerate(after):
        assert all(played.start[j] >= played.end[k] for k in earlier)
    assert (played.granted.sum(axis=1) <= played.used * (1 + 1e-9) + 1e-12).all()
    assert lower_bound(problem) <= played.makespan
    bare = MappingProblem(problem.latency, problem.bandwidth, problem.system_bandwidth)
    if not any(after):
        assert makespan(bare, mapping) == played.makespan


@pytest.mark.slow
@settings(max_examples=120)
@given(with_goals())
def test_every_objective_is_what_it_says(case):
    problem, mapping, _ = case
    end = timeline(problem, mapping).end  # not the event loop's: ranks depend on the last digit
    found = float(population_costs(problem, Mapping(mapping.accelerator[None], mapping.priority[None]))[0])
    assert found == pytest.approx(cost_by_hand(problem, mapping, end), rel=1e-9, abs=1e-12)


@pytest.mark.slow
@settings(max_examples=15)
@given(with_goals(jobs=4))
def test_auto_finds_what_brute_force_finds(case):
    problem, _, _ = case
    every = list(literal.all_mappings(problem))
    spread = [
        Mapping(m.accelerator, np.array(p, float)) for m in every for p in itertools.permutations(range(len(problem)))
    ]
    stacked = Mapping(np.stack([m.accelerator for m in spread]), np.stack([m.priority for m in spread]))
    best = population_costs(problem, stacked).min()
    found = Auto(4000).solve(problem, rng())
    stops_at = max(0.0, enough(problem)) if problem.goal.objective == "latency" else 0.0
    assert best <= found.cost <= max(best * (1 + 1e-9), stops_at)


def chained(**more):
    """Four jobs in two chains, 0 before 2 and 1 before 3, and two equal places."""
    precedence = Precedence.of(4, [[], [], [0], [1]])
    return MappingProblem(np.full((4, 2), 10.0), np.ones((4, 2)), 100.0, goal=Goal(precedence=precedence, **more))


@pytest.mark.slow
def test_a_queue_waits_for_a_job_elsewhere():
    problem = chained()
    played = timeline(problem, Mapping(np.array([0, 1, 1, 0]), np.array([0.0, 0.9, 0.5, 1.0])))
    assert played.end.tolist() == [10, 30, 20, 40]  # job 2 is first in its queue and waits for job 0
    assert played.running.tolist() == [[0, -1], [-1, 2], [-1, 1], [3, -1]]
    assert timeline(problem, Mapping(np.zeros(4, dtype=np.int64), np.arange(4.0)[::-1])).makespan == 40
    assert lower_bound(problem) == pytest.approx(20)


def test_queues_that_wait_for_each_other_are_put_in_order():
    """By priority alone 3 stands before 0 and 2 before 1, where 3 needs 1 and 2 needs 0."""
    problem = chained()
    played = timeline(problem, Mapping(np.array([0, 1, 1, 0]), np.array([0.9, 0.9, 0.1, 0.1])))
    assert np.isfinite(played.makespan)
    assert played.makespan == 20


def test_heft_knows_what_comes_after():
    precedence = Precedence.of(3, [[], [], [1]])
    latency = np.array([[30.0, 30], [10, 10], [40, 40]])
    problem = MappingProblem(latency, np.ones((3, 2)), 100.0, goal=Goal(precedence=precedence))
    assert List("longest", "eft").solve(problem, rng()).cost == 50  # job 1 first: a chain of 50


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ([[1], [2], [0]], "2 after 0 after 1"), ([[0], [], []], "0 after 0"), ([[3], [], []], "a job from 0 to 2"),
        ([[], [2], [1]], "1 after 2 after 1"),
    ],
)  # fmt: skip
def test_what_is_no_order_is_refused(after, said):
    with pytest.raises(InputError) as told:
        Precedence.of(3, after)
    assert said in str(told.value) or set(said) == set(str(told.value).split("'")[3])


def test_a_target_stops_the_search():
    problem = literal_sample()
    best = GSharp(5000).solve(problem, rng())
    target = best.history[len(best.history) // 2][1]
    aimed = problem.with_goal(Goal(target_cycles=target))
    for algorithm in (GSharp(5000), Auto(5000)):
        found = algorithm.solve(aimed, rng())
        assert found.cost <= target
        assert found.evaluations < 5000


def test_the_least_energy_ends_the_search():
    base = literal_sample()
    energy = rng(3).random(base.latency.shape)
    problem = MappingProblem(base.latency, base.bandwidth, base.system_bandwidth, energy, Goal(objective="energy"))
    found = Auto(100_000).solve(problem, rng())
    assert found.cost == pytest.approx(energy.min(axis=1).sum())
    assert found.evaluations < 100_000


def literal_sample(jobs=20, places=3):
    return MappingProblem(rng().integers(1, 100, (jobs, places)).astype(float), 9 * rng(1).random((jobs, places)), 10.0)


def test_what_is_fixed_stays():
    problem = literal_sample()
    fixed, priority = np.full(20, -1), np.full(20, np.nan)
    fixed[[3, 7]], priority[[7, 9]] = (2, 1), (0.0, 5.0)
    bound = problem.with_goal(Goal(), fixed, priority)
    for algorithm in (GSharp(1500), Auto(6000), List("longest", "eft")):
        found = algorithm.solve(bound, rng())
        assert found.best.accelerator[[3, 7]].tolist() == [2, 1]
        assert found.best.priority[[7, 9]].tolist() == [0.0, 5.0]
        assert makespan(problem, found.best) == found.cost >= lower_bound(bound)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [GSharp(300), Auto(300)])
def test_a_warm_start_is_where_the_search_begins(algorithm):
    problem = literal_sample()
    good = Auto(20_000).solve(problem, rng(1))
    assert warmed(algorithm, good.best).solve(problem, rng()).cost <= good.cost
    with pytest.raises(InputError):
        warmed(List("sjf", "olb"), good.best)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [GSharp(700), Auto(30_000)])
def test_the_history_falls_to_what_was_found(algorithm):
    found = algorithm.solve(literal_sample(60, 5), rng())
    spent, best = zip(*found.history, strict=True)
    assert best[-1] == found.cost
    assert all(one > two for one, two in itertools.pairwise(best))
    assert all(1 <= one < two <= found.evaluations for one, two in itertools.pairwise(spent))


def test_auto_starts_from_the_target_order():
    problem = literal_sample(60, 4)
    aimed = problem.with_goal(Goal(objective="satisfaction", place=rng(5).permutation(60)))
    assert 1 - List("target", "eft").solve(aimed, rng()).cost > 0.5
    assert Auto(1).solve(aimed, rng()).cost == List("target", "eft").solve(aimed, rng()).cost
    assert 1 - Auto(3000).solve(aimed, rng()).cost > 0.8
