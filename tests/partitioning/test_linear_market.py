"""Linear markets: equilibria by their definition, and against a convex program solved by somebody else."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from commonwatt.model.errors import InputError
from commonwatt.partitioning import _solve as core
from commonwatt.partitioning._market import Market
from commonwatt.partitioning.mig._listing import RESIDUAL, constant


class Found:
    """An equilibrium, its log welfare, and what no shares exceed."""

    def __init__(self, weights, rates, supplies, limits):
        market = Market.make(supplies, weights, rates, np.ones_like(rates), limits)
        found = core.solve(market, tolerance=RESIDUAL)
        self.__dict__ |= {name: getattr(found, name) for name in ("prices", "limit_prices", "shares", "utilities")}
        self.residual, w = found.residual, market.budgets
        self.log_welfare = float(w @ np.log(found.utilities))
        bounds = np.full(len(w), np.inf) if market.limits is None else market.limits
        self.bound = constant(w, rates, bounds, found.prices, found.limit_prices) + float(found.prices @ supplies)


def solve(weights, rates, supplies, limits=None):
    return Found(weights, np.asarray(rates, float), supplies, limits)


def residual(budgets, rates, supplies, shares, prices):
    return core.residual(Market.make(supplies, budgets, rates, np.ones_like(rates)), prices, shares)[0]


@st.composite
def markets(draw):
    n, k = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rate = st.one_of(st.just(0.0), st.floats(0.01, 10))
    rates = np.array([[draw(rate) for _ in range(k)] for _ in range(n)])
    rates[(rates == 0).all(axis=1), 0] = 1.0
    weights = np.array([10 ** draw(st.floats(-6, 0)) for _ in range(n)])
    return weights, rates, np.array([float(draw(st.integers(1, 7))) for _ in range(k)])


@pytest.mark.slow
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


@pytest.mark.slow
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


@st.composite
def limited_markets(draw):
    """Markets with limits: rates far apart or often the same, weights over six orders of magnitude, or equal."""
    n, k = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rate = draw(
        st.sampled_from([st.floats(0.1, 3), st.sampled_from([0.0, 1.0, 2.0]), st.floats(-3, 3).map(lambda e: 10**e)])
    )
    rates = np.array([[draw(rate) for _ in range(k)] for _ in range(n)])
    if draw(st.booleans()):
        rates = np.outer(rates[:, 0] + 1, rates[0])
    rates[(rates == 0).all(axis=1), 0] = 1.0
    spread = draw(st.booleans())
    weights = np.array([10 ** draw(st.floats(-6, 0)) if spread else 1.0 for _ in range(n)])
    limit = st.one_of(st.just(np.inf), st.integers(1, 5), st.floats(0.1, 5))
    return (
        weights, rates, np.array([float(draw(st.integers(1, 7))) for _ in range(k)]),
        np.array([float(draw(limit)) for _ in range(n)]),
    )  # fmt: skip


def most_for(money, rates, prices, limit):
    """The largest utility *money* buys at *prices* within a limit on units, by a linear program."""
    scale = rates.max()
    rows, most = [prices / money], [1.0]
    if np.isfinite(limit):
        rows, most = [*rows, np.full(len(rates), 1 / limit)], [*most, 1.0]
    best = linprog(-rates / scale, A_ub=rows, b_ub=most, bounds=[(0, None)] * len(rates))
    return np.inf if best.status == 3 else -best.fun * scale


@pytest.mark.long
@pytest.mark.slow
@given(limited_markets())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_with_limits_each_bundle_is_the_best_and_markets_clear(market):
    weights, rates, supplies, limits = market
    found = solve(*market)
    assert found.residual < 1e-9
    budgets, at_limit = weights / weights.sum(), found.limit_prices > 0
    sold, held = found.shares.sum(axis=0), found.shares.sum(axis=1)
    assert (sold <= supplies * (1 + 1e-9)).all()
    assert sold[found.prices > 0] == pytest.approx(supplies[found.prices > 0], rel=1e-9)
    assert (held <= limits * (1 + 1e-9)).all()
    assert held[at_limit] == pytest.approx(limits[at_limit], rel=1e-9)
    spent = found.shares @ found.prices
    kept = np.where(at_limit, limits, 0.0) * found.limit_prices
    assert spent + kept == pytest.approx(budgets, rel=1e-9)
    assert found.log_welfare == pytest.approx(found.bound, abs=1e-9)
    for i, row in enumerate(rates):
        everything = most_for(budgets[i], row, found.prices + found.limit_prices[i], np.inf)
        assert everything == pytest.approx(found.utilities[i], rel=1e-6)
        if spent[i] > 1e-9 * budgets[i]:
            within = most_for(spent[i], row, found.prices, limits[i])
            assert within == pytest.approx(found.utilities[i], rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_with_limits_against_a_convex_solver(seed):
    rng = np.random.default_rng(seed)
    n, k = 4, 3
    w, rates, supplies = rng.uniform(0.5, 2, n), rng.uniform(0.1, 3, (n, k)), rng.integers(1, 5, k).astype(float)
    limits, w = rng.integers(1, 4, n).astype(float), w / w.sum()
    theirs = minimize(
        lambda x: -w @ np.log((rates * x.reshape(n, k)).sum(axis=1)),
        np.tile(np.minimum(supplies / n, limits.min() / k), n) * 0.9,
        jac=lambda x: -(w[:, None] * rates / (rates * x.reshape(n, k)).sum(axis=1)[:, None]).ravel(),
        bounds=[(0, None)] * (n * k),
        constraints=[
            {"type": "ineq", "fun": lambda x: supplies - x.reshape(n, k).sum(axis=0)},
            {"type": "ineq", "fun": lambda x: limits - x.reshape(n, k).sum(axis=1)},
        ],
        method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    found = solve(w, rates, supplies, limits)
    assert found.log_welfare >= -theirs.fun - 1e-9
    assert found.log_welfare == pytest.approx(-theirs.fun, abs=1e-6)


def test_with_limits_by_hand():
    """Equal tenants share alike, though one is limited; with room for one unit of two, all money is left over."""
    found = solve(np.ones(2), np.array([[2.0, 1.0], [2.0, 1.0]]), np.ones(2), np.array([1.0, np.inf]))
    assert found.utilities == pytest.approx([1.5, 1.5])  # half of each, both ways
    one = solve(np.ones(1), np.array([[2.0, 1.0]]), np.array([2.0, 2.0]), np.array([1.0]))
    assert (one.prices == 0).all()
    assert one.limit_prices == pytest.approx([1.0])
    assert one.shares == pytest.approx(np.array([[1.0, 0.0]]))


@pytest.mark.parametrize("limits", [[2.0, 2.0], [1.0, 3.0]])
def test_where_everybody_is_at_its_limit_and_all_is_sold(limits):
    """A constant can go from the prices of goods to those of limits; any of these is an equilibrium."""
    found = solve(np.array([1.0, 1e-6]), np.array([[2.0, 1.0], [3.0, 1.0]]), np.array([2.0, 2.0]), np.array(limits))
    assert found.residual < 1e-9
    assert found.shares.sum(axis=1) == pytest.approx(limits)


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
