"""The Fisher market: whatever finds it, it is an equilibrium."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.third_party import market_folder
from commonwatt.model.errors import InputError, SolverError
from commonwatt.partitioning import _paths as proportional
from commonwatt.partitioning._comparison import envy, pareto_violation, sharing_incentive_violation
from commonwatt.partitioning._demand import demand
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._solve import residual, solve
from tests.partitioning.made import amdahl, best_by_scipy, eisenberg_gale, fractions, markets, random_market

KINDS = ["", "w", "z", "l", "lw", "lz", "m", "mw", "mz", "mwz", "e", "le", "me", "lwz"]


@pytest.mark.slow
@given(markets())
@settings(max_examples=200)
def test_every_market_has_its_equilibrium_and_nobody_loses_by_it(market):
    found = solve(market)
    assert found.residual <= 1e-9
    assert found.prices @ market.pe_count == pytest.approx(1)
    assert sharing_incentive_violation(market, found.shares) < 1e-6
    assert envy(market, found.shares) < 1e-6
    assert (found.shares >= 0).all()
    assert not found.shares[market.rate == 0].any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_equilibria_of_markets_of_all_kinds(kind):
    rng = np.random.default_rng(11)
    for _ in range(25):
        market = random_market(rng, int(rng.integers(1, 12)), int(rng.integers(1, 9)), kind)
        found = solve(market)
        assert found.residual <= 1e-9
        assert pareto_violation(market, found.shares, rounds=1) < 1e-5


@pytest.mark.parametrize("kind", ["", "w", "z", "l", "lz"])
def test_a_general_solver_finds_nothing_better_at_the_prices(kind):
    rng = np.random.default_rng(3)
    for _ in range(6):
        market = random_market(rng, 5, 4, kind)
        found = solve(market)
        assert found.shares.sum(axis=0)[market.usable] == pytest.approx(market.pe_count[market.usable])
        assert found.shares @ found.prices == pytest.approx(market.budgets)
        for i in range(5):
            best = best_by_scipy(market, found.prices, i, found.shares[i] * found.prices + 1e-9)
            assert best <= found.utilities[i] * (1 + 1e-7)
            assert best == pytest.approx(found.utilities[i], rel=1e-5)  # the oracle does find something


@pytest.mark.slow
@given(markets(4), st.integers(0, 2**32 - 1))
@settings(max_examples=100)
def test_the_best_response_is_no_worse_than_any_other_bundle(market, seed):
    rng = np.random.default_rng(seed)
    prices = np.exp(rng.normal(0, 2, len(market.pe_count)))
    shares, money = demand(market, prices)
    assert shares @ prices == pytest.approx(market.budgets)
    rate, f = market.rate, fractions(market)
    own = amdahl(rate, f, shares).sum(axis=1)
    for _ in range(20):
        other = rng.dirichlet(np.full(len(prices), 0.3), len(own)) * market.budgets[:, None] / prices
        assert (amdahl(rate, f, other).sum(axis=1) <= own * (1 + 1e-9)).all()
    more, _ = demand(replace(market, budgets=market.budgets * (1 + 1e-6)), prices)
    gained = amdahl(rate, f, more).sum(axis=1) - own
    assert gained == pytest.approx(money * market.budgets * 1e-6, rel=1e-2, abs=1e-9 * own.max())


@pytest.mark.parametrize("seed", range(3))
def test_linear_markets_are_eisenberg_and_gales(seed):
    market = random_market(np.random.default_rng(seed), 6, 4, "l")
    assert solve(market).prices == pytest.approx(eisenberg_gale(market), rel=1e-6)


@pytest.mark.data
def test_solved_instances():
    folder = market_folder()
    if folder is None:
        pytest.skip("no third-party market data beside this checkout (COMMONWATT_DATA)")
    for case in json.loads((folder / "instances.json").read_text())["instances"]:
        market = Market.make(case["pe_count"], case["budget"], case["rate"], case["parallel_fraction"])
        found, known = solve(market), case["equilibrium"]
        assert found.prices == pytest.approx(np.array(known["price"]) / sum(case["budget"]), rel=1e-9)
        assert found.shares == pytest.approx(np.array(known["share"]), abs=1e-8)
        assert found.utilities == pytest.approx(np.array(known["utility"]), rel=1e-9)
        (rounds,) = [value for name, value in case["check"].items() if name.startswith("iterations_from_equal_bids")]
        assert [proportional.run_bidding(market, 10_000, change).iterations for change in (1e-4, 1e-5)] == rounds


@pytest.mark.parametrize("kind", ["", "w", "l"])
def test_bidding_alone_comes_to_the_same_prices(kind):
    market = random_market(np.random.default_rng(5), 4, 3, kind)
    bid = solve(market, method="proportional-response", tolerance=1e-8)
    assert (bid.steps, bid.rounds > 0) == (0, True)
    assert bid.prices == pytest.approx(solve(market).prices, rel=1e-3)


def test_the_printed_bid_factor_settles_where_there_is_no_equilibrium():
    """Definition 3.4.1 puts s under the root and divides by f: prices come to rest, tenants would rather trade."""
    market = random_market(np.random.default_rng(2), 3, 3)
    k, f, bids = market.rate, fractions(market), proportional.equal_bids(market)
    for _ in range(2000):
        prices = bids.sum(axis=0) / market.pe_count
        shares = bids / prices
        factor = np.sqrt(f / k * prices * k * shares / (shares * (1 - f) + f))
        bids, last = market.budgets[:, None] * factor / factor.sum(axis=1, keepdims=True), bids
    assert np.abs(bids - last).max() < 1e-12
    assert residual(market, prices, shares)[0] > 0.01


def test_bidding_crawls_where_newton_does_not():
    market = Market.make([8, 8], [1, 1], [[1.0, 1.0], [1.0, 1.0001]], [[1, 1], [1, 1]])
    assert solve(market).iterations < 100
    with pytest.raises(SolverError, match=r"not converged after 500 iterations: residual .*, expected at most 1e-09"):
        solve(market, method="proportional-response", limit=500)


@pytest.mark.long
def test_no_convergence_is_an_error():
    market = random_market(np.random.default_rng(0), 4, 4)
    with pytest.raises(SolverError, match="residual"):
        solve(market, tolerance=1e-300)


@pytest.mark.long
@given(markets(4), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_names_order_and_units_do_not_matter(market, random):
    n, c = market.rate.shape
    rows, columns = random.sample(range(n), n), random.sample(range(c), c)
    scale = 10 ** random.uniform(-3, 3)
    other = Market.make(
        market.pe_count[columns], (market.budgets * 7)[rows], (scale * market.rate)[rows][:, columns],
        fractions(market)[rows][:, columns],
    )  # fmt: skip
    one, two = solve(market), solve(other)
    assert two.residual <= 1e-9
    curved = fractions(market)[market.rate > 0]
    if ((curved > 0.1) & (curved < 0.999)).all():
        assert two.utilities == pytest.approx(scale * one.utilities[rows], rel=1e-4)


def test_one_tenant_has_all_and_equal_tenants_have_equally_much():
    alone = solve(Market.make([4, 8], [3], [[1, 2]], [[0.9, 0.0]]))
    assert alone.shares == pytest.approx(np.array([[4, 8]]))
    alike = Market.make([4, 8], [1, 4, 1], [[1, 2]] * 3, [[1, 1]] * 3)
    assert solve(alike).utilities == pytest.approx([20 / 6, 80 / 6, 20 / 6])


def test_one_core_cluster_goes_by_budget():
    market = Market.make([12], [1e-3, 1, 1e3], [[1], [2], [3]], [[0.5], [0], [1]])
    assert solve(market).shares[:, 0] == pytest.approx(12 * market.budgets, rel=1e-6)


def test_what_nobody_can_use_costs_nothing_and_lies_idle():
    found = solve(Market.make([4, 8], [1, 1], [[1, 0], [2, 0]], [[0.9, 0.9]] * 2))
    assert (found.prices[1], found.shares[:, 1].sum()) == (0, 0)
    assert found.prices[0] == pytest.approx(1 / 4)
    assert found.history[0].shape == (2,)


def test_time_shares_are_a_linear_market():
    market = random_market(np.random.default_rng(4), 3, 3)
    turns = market.turns()
    assert turns.total(np.broadcast_to(market.pe_count, (3, 3))) == pytest.approx(
        market.total(np.broadcast_to(market.pe_count, (3, 3)))
    )
    assert solve(turns).prices == pytest.approx(eisenberg_gale(turns), rel=1e-6)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (([], [1], [[]], [[]]), "pe_count"),
        (([4], [0], [[1]], [[1]]), "weights"),
        (([4], [1], [[1, 2]], [[1]]), "rate"),
        (([4], [1], [[-1]], [[1]]), "rate.0.0"),
        (([4], [1], [[0]], [[1]]), "rate.0"),
        (([4], [1], [[1]], [[1.1]]), "parallel_fraction.0.0"),
        (([4], [1], [[1]], [[float("nan")]]), "parallel_fraction.0.0"),
    ],
)
def test_wrong_markets_are_refused(wrong, field):
    with pytest.raises(InputError) as caught:
        Market.make(*wrong)
    assert caught.value.field == field


def test_a_tolerance_of_nothing_is_refused():
    with pytest.raises(InputError):
        solve(random_market(np.random.default_rng(0), 2, 2), tolerance=0)
