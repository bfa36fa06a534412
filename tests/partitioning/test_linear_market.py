"""Linear markets: equilibria by their definition, and against a convex program solved by somebody else."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from commonwatt.model.errors import InputError
from commonwatt.partitioning.linear_market import residual, solve


@st.composite
def markets(draw):
    n, k = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rate = st.one_of(st.just(0.0), st.floats(0.01, 10))
    rates = np.array([[draw(rate) for _ in range(k)] for _ in range(n)])
    rates[(rates == 0).all(axis=1), 0] = 1.0
    weights = np.array([10 ** draw(st.floats(-6, 0)) for _ in range(n)])
    return weights, rates, np.array([float(draw(st.integers(1, 7))) for _ in range(k)])


@given(markets())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_every_bundle_is_the_best_at_the_prices_and_markets_clear(market):
    weights, rates, supplies = market
    found = solve(*market)
    assert found.residual < 1e-9
    budgets = weights / weights.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(rates > 0, rates / found.prices, 0.0)
    assert found.utilities == pytest.approx(budgets * worth.max(axis=1), rel=1e-8)
    assert found.shares @ found.prices == pytest.approx(budgets, rel=1e-8)
    sold = found.shares.sum(axis=0)[(rates > 0).any(axis=0)]
    assert sold == pytest.approx(supplies[(rates > 0).any(axis=0)], rel=1e-9)
    assert (found.shares[rates == 0] == 0).all()
    assert found.bound == pytest.approx(found.log_welfare, abs=1e-8)


@given(markets(), st.randoms(use_true_random=False), st.floats(0.001, 1000))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_order_and_units_do_not_matter(market, random, factor):
    weights, rates, supplies = market
    order = list(range(len(weights)))
    random.shuffle(order)
    one = solve(weights, rates, supplies)
    two = solve(weights[order] * factor, rates[order] * factor, supplies)
    assert two.prices == pytest.approx(one.prices, rel=1e-7, abs=1e-12)
    assert two.utilities == pytest.approx(one.utilities[order] * factor, rel=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_against_a_convex_solver(seed):
    rng = np.random.default_rng(seed)
    n, k = 4, 3
    weights, rates, supplies = rng.uniform(0.5, 2, n), rng.uniform(0.1, 3, (n, k)), rng.integers(1, 5, k).astype(float)
    w = weights / weights.sum()
    theirs = minimize(
        lambda x: -w @ np.log((rates * x.reshape(n, k)).sum(axis=1)),
        np.tile(supplies / n, n),
        jac=lambda x: -(w[:, None] * rates / (rates * x.reshape(n, k)).sum(axis=1)[:, None]).ravel(),
        bounds=[(0, None)] * (n * k),
        constraints={"type": "eq", "fun": lambda x: x.reshape(n, k).sum(axis=0) - supplies},
        method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    found = solve(weights, rates, supplies)
    assert found.log_welfare >= -theirs.fun - 1e-9
    assert found.log_welfare == pytest.approx(-theirs.fun, abs=1e-6)
    assert found.utilities == pytest.approx((rates * theirs.x.reshape(n, k)).sum(axis=1), rel=1e-3)


@pytest.mark.parametrize("seed", range(30))
def test_limits_are_kept_and_each_bundle_is_best_for_the_money_spent(seed):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    rates, supplies = rng.uniform(0.1, 3, (n, k)), rng.integers(1, 6, k).astype(float)
    limits = np.where(rng.random(n) < 0.6, rng.integers(1, 4, n), np.inf).astype(float)
    found = solve(rng.uniform(0.5, 3, n), rates, supplies, limits)
    assert (found.shares.sum(axis=1) <= limits * (1 + 1e-5)).all()
    assert (found.shares.sum(axis=0) <= supplies * (1 + 1e-9) + 1e-9).all()
    assert found.log_welfare <= found.bound + 1e-9
    assert found.log_welfare == pytest.approx(found.bound, abs=1e-5)
    for i in range(n):
        rows, most = [found.prices], [found.prices @ found.shares[i]]
        if np.isfinite(limits[i]):
            rows, most = [*rows, np.ones(k)], [*most, limits[i]]
        best = linprog(-rates[i], A_ub=rows, b_ub=most, bounds=[(0, 100)] * k)
        assert -best.fun <= found.utilities[i] * (1 + 1e-4)


def test_equal_tenants_get_the_same():
    found = solve(np.ones(3), np.tile([1.0, 2.0], (3, 1)), np.array([3.0, 1.0]))
    assert np.ptp(found.utilities) < 1e-12
    assert found.shares == pytest.approx(np.tile([1.0, 1 / 3], (3, 1)))
    assert found.prices == pytest.approx([0.2, 0.4])


def test_a_worse_division_has_a_residual():
    rates, budgets, supplies = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.5, 0.5]), np.ones(2)
    assert residual(budgets, rates, supplies, np.eye(2), np.array([0.5, 0.5])) == 0
    assert residual(budgets, rates, supplies, np.full((2, 2), 0.5), np.array([0.5, 0.5])) == pytest.approx(1.0)
    assert residual(budgets, rates, supplies, np.eye(2), np.array([0.4, 0.6])) > 0.1


@pytest.mark.parametrize(
    ("weights", "rates", "supplies"),
    [
        ([0.0], [[1.0]], [1.0]), ([1.0], [[0.0]], [1.0]), ([1.0], [[-1.0, 2.0]], [1.0, 1.0]), ([1.0], [[1.0]], [0.0]),
        ([], np.zeros((0, 1)), [1.0]), ([1.0], [[np.nan]], [1.0]), ([1.0, 1.0], [[1.0]], [1.0]),
    ],
)  # fmt: skip
def test_what_is_no_market_is_refused(weights, rates, supplies):
    with pytest.raises(InputError):
        solve(np.array(weights), np.array(rates), np.array(supplies))
