"""What is learnt from one batch holds for others: by hand, by what must not matter, and on the published batches."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from commonwatt.mapping._encoding import Mapping, check
from commonwatt.mapping._gsharp import GSharp
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import makespan
from commonwatt.mapping._transfer import Transfer, Transferred, _cheapest_pairs, ranks
from commonwatt.model.errors import InputError
from tests.mapping.test_reference import home, problem  # noqa: F401
from tests.mapping.test_search import rng, sample


def table(*latency):
    return MappingProblem(np.array(latency), np.ones((len(latency), 2)), 100.0)


def test_ranks_are_by_mean_latency_where_a_job_can_run():
    assert ranks(table([1000.0, 2000], [6000, 7000], [9000, np.inf], [1000, 2000])).tolist() == [2, 1, 0, 3]


def test_the_job_of_a_rank_takes_over_its_genes():
    learnt = Transfer.learn(
        table([10.0, 20], [60, 70], [30, 30]), Mapping(np.array([1, 0, 1]), np.array([0.3, 0.1, 0.2]))
    )
    assert learnt.mapping.accelerator.tolist() == [0, 1, 1]
    other = table([11.0, 21], [31, 31], [61, 71])
    for match in ("rank", "nearest"):
        found = learnt.apply(other, match)
        assert found.accelerator.tolist() == [1, 1, 0]
        assert found.priority.tolist() == [0.3, 0.2, 0.1]


def test_a_job_that_would_outlast_the_batch_goes_where_it_is_fastest():
    learnt = Transfer.learn(table([10.0, 20], [60, 70]), Mapping(np.array([1, 0]), np.array([0.0, 0.5])))
    other = table([10.0, 9000], [60, 70])
    assert learnt.apply(other, "rank", guard=False).accelerator.tolist() == [0, 1]
    assert (
        learnt.apply(other, "rank").accelerator.tolist() == [0, 0]
        or makespan(other, learnt.apply(other, "rank")) < 9000
    )
    nowhere = table([10.0, np.inf], [np.inf, 70])
    for match in ("rank", "nearest"):
        check(nowhere, learnt.apply(nowhere, match, guard=False))


@pytest.mark.parametrize("match", ["rank", "nearest"])
@pytest.mark.parametrize("jobs", [1, 7, 30, 45, 100])
def test_batches_of_any_size(match, jobs):
    batch = sample(30, 4)
    learnt = Transfer.learn(batch, GSharp(300).solve(batch, rng()).best)
    other = sample(jobs, 4, seed=5)
    check(other, learnt.apply(other, match))
    assert Transferred(learnt, 0, match).solve(other, rng()).evaluations == 1
    tuned = Transferred(learnt, 2, match).solve(other, rng())
    assert tuned.evaluations == 200
    assert tuned.cost <= makespan(other, learnt.apply(other, match))


def test_the_same_batch_is_mapped_as_it_was():
    batch = sample(30, 4)
    found = GSharp(500).solve(batch, rng())
    learnt = Transfer.learn(batch, found.best)
    for match in ("rank", "nearest"):
        assert makespan(batch, learnt.apply(batch, match)) == pytest.approx(found.cost)


def test_the_order_of_jobs_does_not_matter():
    batch, other = sample(30, 4), sample(30, 4, seed=9)
    learnt = Transfer.learn(batch, GSharp(300).solve(batch, rng()).best)
    order = rng(1).permutation(30)
    shuffled = MappingProblem(other.latency[order], other.bandwidth[order], other.system_bandwidth)
    for match in ("rank", "nearest"):
        one, two = makespan(other, learnt.apply(other, match)), makespan(shuffled, learnt.apply(shuffled, match))
        assert one == pytest.approx(two)


def test_pairs_are_those_of_scipy():
    """Which solves the same assignment problem; costs with ties only have to come to the same total."""
    for seed in range(200):
        made = rng(seed)
        rows = int(made.integers(1, 20))
        shape = (rows, rows + int(made.integers(0, 8)))
        for cost in (made.normal(size=shape), made.integers(0, 4, size=shape).astype(float)):
            mine, (all_rows, best) = _cheapest_pairs(cost), linear_sum_assignment(cost)
            assert len(set(mine.tolist())) == rows
            assert cost[all_rows, mine].sum() == pytest.approx(cost[all_rows, best].sum())
            if not np.array_equal(cost, np.round(cost)):
                assert mine.tolist() == best.tolist()


def test_another_number_of_sub_accelerators_is_refused():
    batch = sample(10, 4)
    learnt = Transfer.learn(batch, GSharp(100).solve(batch, rng()).best)
    with pytest.raises(InputError, match="got '4', expected 3 sub-accelerators"):
        learnt.apply(sample(10, 3))


@pytest.mark.slow
@pytest.mark.data
def test_table_6a(problem):  # noqa: F811
    """Mix, S4, 1 GB/s: within twice a full search without any, within 1.3 times after one epoch."""
    batch = problem("mix", 0, "S4", 1)
    learnt = Transfer.learn(batch, GSharp(10_000).solve(batch, rng()).best)
    zero, one = [], []
    for instance in range(1, 5):
        other = problem("mix", instance, "S4", 1)
        full = GSharp(10_000).solve(other, rng()).cost
        zero.append(Transferred(learnt).solve(other, rng()).cost / full)
        one.append(np.mean([Transferred(learnt, 1).solve(other, rng(s)).cost for s in range(3)]) / full)
    assert np.mean(zero) < 2.0
    assert np.mean(one) < 1.3
