"""Other mechanisms, fairness, choice of configuration, and schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from commonwatt.model.errors import InputError
from commonwatt.partitioning import WELFARES
from commonwatt.partitioning import _comparison as m
from commonwatt.partitioning._comparison import choose_configuration, explain, welfare
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._schedule import loss_bound, run, schedule, timeslice_weights
from commonwatt.partitioning._solve import solve
from tests.partitioning.made import amdahl, fractions, markets, random_market


@pytest.mark.slow
@given(markets(5))
@settings(max_examples=80)
def test_weighted_equal_speedup_is_equal_and_uses_everything(market):
    shares = m.weighted_equal_speedup(market)
    reached = amdahl(market.rate, fractions(market), shares) / market.budgets[:, None]
    for c in np.flatnonzero(market.usable):
        of_use = market.rate[:, c] > 0
        assert reached[of_use, c] == pytest.approx(reached[of_use, c].mean(), rel=1e-6)
        assert shares[:, c].sum() <= market.pe_count[c] * (1 + 1e-12)
        if (fractions(market)[of_use, c] > 0.01).all():
            assert shares[:, c].sum() == pytest.approx(market.pe_count[c], rel=1e-6)


def test_weighted_equal_speedup_of_linear_tenants_is_a_linear_program():
    market = random_market(np.random.default_rng(1), 4, 3, "l")
    for c in range(3):
        rows = np.hstack([-np.diag(market.rate[:, c] / market.budgets), np.ones((4, 1))])
        done = linprog([0, 0, 0, 0, -1], A_ub=np.vstack([rows, [1, 1, 1, 1, 0]]), b_ub=[0, 0, 0, 0, market.pe_count[c]])
        assert m.weighted_equal_speedup(market)[:, c] == pytest.approx(done.x[:4], rel=1e-7)


@pytest.mark.slow
def test_no_shares_beat_the_market_but_some_beat_the_entitlement():
    market = Market.make([8, 8], [1, 1], [[1, 0.1], [0.1, 1]], [[0.9, 0.9], [0.9, 0.9]])
    found = solve(market)
    assert m.pareto_violation(market, found.shares) < 1e-9
    assert m.pareto_violation(market, market.entitlement()) > 0.2
    assert m.sharing_incentive_violation(market, market.entitlement()) == 0
    assert m.sharing_incentive_violation(market, found.shares[::-1]) > 0.1
    assert m.envy(market, found.shares) < 1e-9
    assert m.envy(market, found.shares[::-1]) > 0.5
    assert m.pareto_violation(market, np.zeros((2, 2))) == np.inf


def test_utilization_counts_pes_that_do_work():
    market = Market.make([8], [1], [[1]], [[0.5]])
    assert m.utilization(market, np.array([[8.0]])) == pytest.approx(8 / 4.5 / 8)
    assert m.utilization(market, np.array([[0.5]])) == pytest.approx(0.5 / 8)  # not more than is held
    assert m.utilization(market.turns(), np.array([[4.0]]), market) == pytest.approx(4 / 4.5 / 8)
    useless = Market.make([8, 8], [1], [[1, 0]], [[1, 1]])
    assert m.utilization(useless, np.array([[8.0, 8.0]])) == 0.5


def test_welfares_disagree_as_they_should():
    ways, even = [np.array([100.0, 10.0]), np.array([50.0, 50.0]), np.array([65.0, 43.0])], np.array([0.5, 0.5])
    best = {kind: choose_configuration(ways, even, kind).best for kind in WELFARES}
    assert best == {"nash": 2, "utilitarian": 0, "egalitarian": 1}
    assert choose_configuration(ways, np.array([0.9, 0.1]), "nash").best == 0
    assert choose_configuration(ways, even).margin == pytest.approx(np.sqrt(65 * 43 / 2500) - 1)
    assert choose_configuration(ways[:1], even).margin is None
    assert welfare("nash", even, np.array([0.0, 1.0])) == -np.inf
    assert choose_configuration([ways[0], ways[0]], even).best == 0


def test_the_choice_follows_the_weight():
    one = Market.make([16, 2], [1, 1], [[1, 1], [1, 4]], [[0.99, 0.5], [0.6, 0.5]])
    two = Market.make([6, 8], [1, 1], [[1, 1], [1, 4]], [[0.99, 0.5], [0.6, 0.5]])
    chosen = []
    for weight in (1e-3, 1e3):
        budgets = np.array([weight, 1.0]) / (weight + 1.0)
        found = [solve(replace(market, budgets=budgets)).utilities for market in (one, two)]
        chosen.append(choose_configuration(found, budgets).best)
    assert chosen == [1, 0]


@pytest.mark.long
@given(markets(4), st.integers(1, 50))
@settings(max_examples=40)
def test_a_run_of_the_schedule_keeps_the_speedups_within_the_bound(market, units):
    shares = solve(market).shares
    plan = schedule(market, shares, units)
    assert (plan.whole.sum(axis=0) + plan.turns.sum(axis=0) / units <= market.pe_count + 1e-9).all()
    promised = amdahl(market.rate, fractions(market), shares)
    lost = promised - run(market, plan)
    assert (lost <= loss_bound(market, shares, units) + 1e-6 * promised + 1e-9).all()


def test_half_a_pe_is_half_the_time_of_one():
    market = Market.make([3], [1, 1], [[2], [2]], [[0.9], [0.9]])
    plan = schedule(market, np.array([[1.5], [1.5]]), 10)
    assert (plan.whole.ravel().tolist(), plan.turns.ravel().tolist()) == ([1, 1], [5, 5])
    assert run(market, plan)[0, 0] == pytest.approx((2 + 2 * 2 / 1.1) / 2)


def test_turns_on_whole_core_clusters_are_exact():
    market = Market.make([8, 4], [1, 3], [[1, 2], [2, 1]], [[0.9, 0.5], [0.7, 0.8]])
    turns = market.turns()
    shares = turns.entitlement()
    plan = schedule(turns, shares, 100, by_time=True)
    assert run(market, plan) == pytest.approx(amdahl(turns.rate, fractions(turns), shares))
    assert timeslice_weights(turns, shares) == pytest.approx(np.array([[0.25, 0.25], [0.75, 0.75]]))


def test_schedules_that_cannot_be():
    market = Market.make([2.5], [1], [[1]], [[0.5]])
    with pytest.raises(InputError, match="whole numbers of PEs"):
        schedule(market, np.array([[2.5]]))
    with pytest.raises(InputError):
        schedule(market, np.array([[2.5]]), 0)


@pytest.mark.slow
def test_explanations_name_what_is_bought_and_what_is_too_dear():
    market = Market.make([8, 8, 4], [1, 1], [[1, 0.1, 0], [0.1, 1, 1]], [[0.9] * 3, [0.9] * 3])
    found = solve(market)
    one, two = explain(market, found, ["fpu", "plain", "odd"])
    assert (one.reason, two.reason) == ("specialised", "specialised")
    assert "100% of its budget on fpu for 8 of 8 PEs" in one.sentence
    assert "buys no plain (a PE there costs " in one.sentence
    assert "cannot use odd" in one.sentence
    assert "For a PE more of fpu it would pay" in one.sentence
    assert one.spent == pytest.approx([1, 0, 0])
    alone = Market.make([4], [1], [[1]], [[0.5]])
    assert explain(alone, solve(alone), ["c"])[0].reason == "all-of-it"
