"""The market of measured tables, the Universal Scalability Law, and Amdahl's law below one PE."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.model.errors import InputError, SolverError
from commonwatt.model.partition_file import LawSpec
from commonwatt.partitioning import _comparison as m
from commonwatt.partitioning._comparison import envy, explain, pareto_violation, sharing_incentive_violation
from commonwatt.partitioning._curves import Pieces
from commonwatt.partitioning._market import Market, make_law, shape_of
from commonwatt.partitioning._paths import softened_path
from commonwatt.partitioning._scaling_laws import Amdahl, TabulatedLaw, UniversalScalability
from commonwatt.partitioning._schedule import loss_bound, run, schedule
from commonwatt.partitioning._solve import residual, solve
from tests.partitioning.made import best_by_program, eisenberg_gale, fractions, random_laws, random_market

KINDS = ["l", "u", "t", "lt", "alut"]


def table(*points):
    return TabulatedLaw.fit(np.array([n for n, _ in points], float), np.array([s for _, s in points], float))


def market_of(laws, pes=(8,), weights=None, rate=None, **more):
    shape = len(laws), len(pes)
    given = Market.make(pes, weights or [1] * shape[0], rate or np.ones(shape), np.ones(shape))
    return given.under(laws, **more)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.booleans(), st.booleans())
@settings(max_examples=50, deadline=None)
def test_every_market_has_its_equilibrium_and_nobody_loses_by_it(seed, kinds, wide, honest):
    rng = np.random.default_rng(seed)
    n, c = int(rng.integers(1, 7)), int(rng.integers(1, 6))
    market, _ = random_laws(rng, n, c, kinds, wide=wide, useless=0.3, honest=honest)
    found = solve(market)
    assert found.residual <= 1e-9
    assert sharing_incentive_violation(market, found.shares) < 1e-6
    assert envy(market, found.shares) < 2e-6
    assert found.prices @ market.pe_count < 1 + 1e-6
    assert (found.shares >= 0).all()
    assert not found.shares[market.rate == 0].any()


@pytest.mark.slow
@pytest.mark.parametrize("kinds", KINDS)
def test_a_linear_program_over_the_laws_finds_nothing_better_at_the_prices(kinds):
    rng = np.random.default_rng(7)
    for _ in range(6):
        market, laws = random_laws(rng, 5, 4, kinds, useless=0.3, honest=True)
        found = solve(market)
        assert (found.shares @ found.prices <= market.budgets * (1 + 1e-7)).all()
        assert (found.shares.sum(axis=0) <= market.pe_count * (1 + 1e-7)).all()
        unsold = 1 - found.shares.sum(axis=0) / market.pe_count
        assert found.prices[unsold > 1e-6].sum() < 1e-6
        for i in range(5):
            best = best_by_program(market, laws, found.prices, i)
            assert best <= found.utilities[i] * (1 + 1e-6)
            assert best == pytest.approx(found.utilities[i], rel=2e-4)  # the program's grid is that coarse


def test_linear_markets_are_eisenberg_and_gales():
    for seed in range(3):
        market = random_market(np.random.default_rng(seed), 6, 4, "l")
        same = market.under([[Amdahl(1.0)] * 4] * 6)
        assert solve(same).prices == pytest.approx(eisenberg_gale(market), rel=1e-6)


@pytest.mark.parametrize("kind", ["", "w", "z"])
def test_amdahls_law_by_curves_is_an_equilibrium_by_its_own_judge(kind):
    market = random_market(np.random.default_rng(3), 6, 4, kind)
    found = solve(market.under([[Amdahl(float(f)) for f in row] for row in fractions(market)]))
    assert residual(market, found.prices, found.shares)[0] < 1e-7
    assert found.utilities == pytest.approx(solve(market).utilities, rel=1e-5)


@pytest.mark.slow
def test_the_path_goes_where_newton_loses_its_way():
    """This market's path turns back on the way: tau has to rise."""
    rng, lost = np.random.default_rng(0), 0
    for _ in range(5):
        market, _ = random_laws(rng, 5, 4, "t", wide=True, useless=0.3)
        on = market.usable
        part = market.columns(on)
        pieces = Pieces.of(part.curves, part.pe_count, part.budgets)
        done = softened_path(pieces, tau=10.0, limit=400)
        lost += done is None
        if done is not None:
            assert residual(part, done[0].prices, pieces.shares(done[0].x))[0] < 1e-3
    assert lost <= 1


def test_who_has_all_it_can_use_keeps_its_money_and_the_rest_is_free():
    market = market_of([[table((2, 1.5), (4, 2.0), (8, 1.0))], [table((2, 1.2))]], pes=[12])
    found = solve(market)
    assert found.shares[:, 0] == pytest.approx([4, 2])
    assert found.prices[0] == pytest.approx(0, abs=1e-9)
    told = explain(market, found, ["c"])
    assert [one.reason for one in told] == ["sated", "sated"]
    assert "would pay nothing for more" in told[0].sentence
    assert pareto_violation(market, found.shares) < 1e-6


def test_a_dent_is_bridged_by_turns_and_a_peak_is_not_passed():
    """1, 1.1, 3.4 at 1, 2, 4 PEs: the envelope runs from 1 to 4; 8 PEs are slower than 4."""
    shape = shape_of(table((2, 1.1), (4, 3.4), (8, 3.0)), 2.0, linear_below_one=False)
    assert [(p.slope, p.width) for p in shape.pieces] == [(2.0, 1.0), (pytest.approx(1.6), 3.0)]
    assert shape.lifted
    market = market_of([[table((2, 1.1), (4, 3.4))]] * 2, pes=[5])
    found = solve(market)
    assert found.shares.sum() == pytest.approx(5)
    low, high = market.curves.chords(found.shares)
    assert (low.ravel().tolist(), high.ravel().tolist()) == ([1, 1], [4, 4])
    plan = schedule(market, found.shares, 100)
    kept = run(market, plan)
    assert kept.sum() == pytest.approx(found.utilities.sum(), rel=0.02)  # half the time each: their turns fit together


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(5, 60))
@settings(max_examples=40, deadline=None)
def test_a_run_of_the_schedule_keeps_the_speedups_within_the_bound(seed, units):
    rng = np.random.default_rng(seed)
    market, _ = random_laws(rng, int(rng.integers(1, 5)), int(rng.integers(1, 4)), "aut", honest=True)
    shares = solve(market).shares
    plan = schedule(market, shares, units)
    used = plan.whole[:, :, None] + plan.more[:, :, None] * plan.when
    assert (used.sum(axis=0) <= market.pe_count[:, None] + 1e-9).all()
    lost = market.speedups(shares) - run(market, plan)
    assert (lost <= loss_bound(market, shares, units) + 1e-5 * market.speedups(shares) + 1e-9).all()


@pytest.mark.slow
@given(st.floats(0, 1.5), st.floats(0, 0.5), st.floats(0.1, 10))
def test_the_universal_law_and_its_curve_agree_up_to_the_peak(contention, coherence, rate):
    law = UniversalScalability(contention, coherence)
    curves = market_of([[law]], rate=[[rate]]).curves
    peak = min(float(curves.most()[0, 0]), 50.0)
    for x in np.linspace(1.0, max(1.0, peak), 7):
        assert curves.speedups(np.array([[x]]))[0, 0] == pytest.approx(rate * law.speedup(float(x)), rel=1e-9)
    whole = [law.speedup(float(n)) for n in range(1, 200)]
    assert curves.speedups(np.array([[200.0]]))[0, 0] >= rate * max(whole) * (1 - 1e-9)
    grid = curves.speedups(np.linspace(0, 30, 200)[:, None, None].reshape(200, 1)[:1] * 0 + 3.0)
    assert np.isfinite(grid).all()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_curves_are_concave_and_their_slopes_and_inverses_fit(seed):
    rng = np.random.default_rng(seed)
    market, _ = random_laws(rng, 2, 3, "aut", honest=True)
    curves = market.curves
    x = rng.uniform(0, 20, (2, 3))
    step = 1e-6
    assert (curves.speedups(x + step) - curves.speedups(x)) / step == pytest.approx(
        curves.marginal(x), rel=1e-3, abs=1e-5
    )
    assert (curves.marginal(x + 0.1) <= curves.marginal(x) * (1 + 1e-9)).all()
    level = curves.speedups(x)
    assert curves.speedups(curves.at_level(level)) == pytest.approx(level, rel=1e-9)
    assert (curves.at_level(level) <= x * (1 + 1e-6)).all()
    slope = curves.marginal(x)
    held = curves.demand(np.maximum(slope, 1e-9) * (1 - 1e-9))
    assert (held >= np.where(slope > 0, x, 0) * (1 - 1e-4)).all()


def test_less_than_one_pe_can_be_worth_its_turns_only():
    printed, honest = (market_of([[Amdahl(0.5)]] * 4, pes=[2], linear_below_one=linear) for linear in (False, True))
    half = np.full((4, 1), 0.5)
    assert honest.speedups(half)[0, 0] == pytest.approx(0.5)
    assert printed.speedups(half)[0, 0] == pytest.approx(0.5 / 0.75)
    assert honest.speedups(4 * half)[0, 0] == pytest.approx(printed.speedups(4 * half)[0, 0])
    assert solve(honest).shares == pytest.approx(half)
    assert run(honest, schedule(honest, half, 10)) == pytest.approx(honest.speedups(half))
    serial = market_of([[Amdahl(0.0)], [Amdahl(0.9)]], pes=[8], linear_below_one=True)
    assert solve(serial).shares[:, 0] == pytest.approx([1, 7])  # what is serial can use one PE, and keeps its money


def test_other_mechanisms_know_other_laws():
    market = market_of(
        [[table((2, 1.8), (4, 3.0)), Amdahl(0.9)], [UniversalScalability(0.05, 0.01), table((4, 2.0))]], pes=[4, 6]
    )
    equal = m.weighted_equal_speedup(market)
    reached = market.speedups(equal)
    assert reached[0] == pytest.approx(reached[1], rel=1e-6)
    assert (equal.sum(axis=0) <= market.pe_count * (1 + 1e-9)).all()
    assert equal.sum(axis=0) == pytest.approx(market.pe_count, rel=1e-6)
    assert 0 < m.utilization(market, solve(market).shares) <= 1
    turns = market.turns()
    whole = np.broadcast_to(market.pe_count, (2, 2))
    assert turns.total(whole) == pytest.approx(market.total(whole))
    assert solve(turns).residual <= 1e-9


def test_a_limit_is_an_error_with_the_residual():
    market = market_of([[Amdahl(0.9), table((4, 2.0))]] * 2, pes=[4, 4])
    with pytest.raises(SolverError, match=r"not converged after \d+ iterations: residual"):
        solve(market, tolerance=1e-300)
    with pytest.raises(InputError, match="auto"):
        solve(market, method="proportional-response")
    with pytest.raises(SolverError, match="after 1 iterations"):
        solve(market, limit=1)


def test_laws_from_a_file_s_words():
    assert make_law(LawSpec(law="linear")) == Amdahl(1.0)
    assert make_law(LawSpec(law="usl", contention=0.1, coherence=0.0)) == UniversalScalability(0.1, 0.0)
    assert make_law(LawSpec(law="table", pes=(4, 1), speedups=(3, 1))).threads == (1.0, 4.0)
    speedups = [Amdahl(0.9).speedup(n) for n in (2, 4, 8)]
    assert make_law(LawSpec(law="fit", pes=(2, 4, 8), speedups=speedups)).parameters[
        "parallel_fraction"
    ] == pytest.approx(0.9)
    for wrong in (LawSpec(law="table", pes=(1,), speedups=(1,)), LawSpec(law="characterized", file="x.json")):
        with pytest.raises(InputError):
            make_law(wrong)
    with pytest.raises(InputError, match="a law for each tenant"):
        market_of([[Amdahl(0.9)]] * 2).under([[Amdahl(0.9)]])
