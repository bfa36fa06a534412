"""No job is stopped or moved for nothing."""

import numpy as np
from hypothesis import given, settings

from commonwatt.control.policy import Policy
from commonwatt.model.scenario import PolicySpec
from commonwatt.placement.exact import Exact
from commonwatt.placement.objective import check
from commonwatt.placement.problem import POSTPONED, Problem, Schedule
from commonwatt.placement.random_greedy import RandomGreedy
from commonwatt.placement.settle import filled, without_idle_evictions, without_idle_moves
from tests.placement.brute_force import used_gpus
from tests.strategies import problems

MANY = settings(deadline=None, max_examples=150)


def own_cost(p: Problem, row: int, j: int) -> float:
    late = max(0.0, p.now_s + p.time_s[row] - p.due_s[j])
    return p.run_cost[row] + (p.weight[j] * late if p.weight[j] else 0.0)


@MANY
@given(problems(most_jobs=6, most_nodes=4))
def test_no_eviction_unless_its_gpus_are_needed(p):
    for solver in (RandomGreedy(iterations=30), Exact()):
        s = without_idle_evictions(p, solver.solve(p, np.random.default_rng(1)).schedule)
        check(p, s)
        free = p.node_gpus - used_gpus(p, s)
        for j in np.flatnonzero((p.stay >= 0) & (s.choice == POSTPONED)):
            assert np.any(free[p.nodes_held(j)] < p.per_node[p.stay[j]])


@MANY
@given(problems(most_jobs=6, most_nodes=4))
def test_moves_pay_for_themselves_or_make_room(p):
    before = RandomGreedy(iterations=30).solve(p, np.random.default_rng(1)).schedule
    after = without_idle_moves(p, before)
    check(p, after)
    assert np.array_equal(after.choice == POSTPONED, before.choice == POSTPONED)
    free = p.node_gpus - used_gpus(p, after)
    for j in np.flatnonzero((p.stay >= 0) & (after.choice != POSTPONED) & (after.choice != p.stay)):
        if own_cost(p, p.stay[j], j) <= own_cost(p, after.choice[j], j):
            others = [
                i for i in range(len(p)) if i != j and after.choice[i] != POSTPONED and after.choice[i] != p.stay[i]
            ]
            needed = np.any(free[p.nodes_held(j)] < p.per_node[p.stay[j]])
            assert needed or others  # kept only when somebody else had no other place


@MANY
@given(problems(most_jobs=6, most_nodes=4))
def test_filled_leaves_nothing_that_fits(p):
    s = filled(p, Exact().solve(p, np.random.default_rng(0)).schedule)
    check(p, s)
    free = p.node_gpus - used_gpus(p, s)
    for j in np.flatnonzero((s.choice == POSTPONED) & (p.stay < 0)):
        for r in range(p.start[j], p.start[j + 1]):
            assert np.sum((p.node_class == p.klass[r]) & (free >= p.per_node[r])) < p.width[r]


@MANY
@given(problems(most_jobs=5))
def test_every_policy_keeps_running_jobs_whose_gpus_nobody_takes(p):
    for solver in ("lookahead", "random-greedy", "local-search", "srtf"):
        s, _ = Policy.of(PolicySpec(solver=solver, iterations=20)).decide(p, np.random.default_rng(0))
        check(p, s)
        free = p.node_gpus - used_gpus(p, s)
        for j in np.flatnonzero((p.stay >= 0) & (s.choice == POSTPONED)):
            assert np.any(free[p.nodes_held(j)] < p.per_node[p.stay[j]])


def test_unchanged_is_a_fixed_point():
    from tests.placement.made import crowded_problem

    p = crowded_problem(nodes=4, jobs=6, seed=1)
    s = Schedule.unchanged(p)
    assert without_idle_moves(p, s) is s
    assert without_idle_evictions(p, s) is s
