"""Price and carbon over time integrate exactly."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from commonwatt.model.electricity import Electricity, ElectricityPoint, StepIntegral
from commonwatt.model.errors import InputError

steps = st.lists(st.tuples(st.floats(1, 1000), st.floats(0, 5)), min_size=1, max_size=6)
moments = st.floats(0, 20_000)


def value_at(starts, values, period, t):
    if period is not None:
        t = t % period
    return values[max(0, np.searchsorted(starts, t, side="right") - 1)]


def made(rows, period):
    starts = np.concatenate(([0.0], np.cumsum([length for length, _ in rows])[:-1]))
    length = float(sum(length for length, _ in rows))
    return starts, [v for _, v in rows], (length if period else None)


@pytest.mark.slow
@given(steps, moments, moments, st.booleans())
def test_integral_equals_a_sum_of_small_pieces(rows, a, b, period):
    starts, values, length = made(rows, period)
    f = StepIntegral.of(starts, values, length)
    lo, hi = min(a, b), max(a, b)
    cuts = {lo, hi}
    for k in range(int(hi // length) + 2 if length else 1):
        cuts |= {s + k * (length or 0) for s in starts if lo < s + k * (length or 0) < hi}
    points = sorted(cuts)
    expected = sum(
        (later - earlier) * value_at(starts, values, length, (earlier + later) / 2)
        for earlier, later in itertools.pairwise(points)
    )
    assert float(f.integral(lo, hi)) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@pytest.mark.slow
@given(steps, moments, moments, moments)
def test_integral_is_additive(rows, a, b, c):
    f = StepIntegral.of(*made(rows, period=True))
    assert float(f.integral(a, b) + f.integral(b, c)) == pytest.approx(float(f.integral(a, c)), abs=1e-6)


def test_constant_price_by_hand():
    tariff = Electricity(price_per_kwh=0.172, pue=1.33).tariff()
    assert float(tariff.cost(1000, 0, 3600)) == pytest.approx(0.172 * 1.33)
    assert tariff.carbon_g(1000, 0, 3600) is None


def test_daily_series_repeats():
    day = (ElectricityPoint(from_s=0, price_per_kwh=0.1), ElectricityPoint(from_s=43200, price_per_kwh=0.3))
    tariff = Electricity(series=day, pue=1.0, repeat_s=86400).tariff()
    assert float(tariff.cost(1000, 86400 * 5, 86400 * 6)) == pytest.approx(12 * 0.1 + 12 * 0.3)
    assert float(tariff.least_cost_per_j(np.array(50_000.0))) == pytest.approx(0.1 / 3.6e6)


@pytest.mark.slow
@given(st.lists(st.integers(1, 90), min_size=0, max_size=4, unique=True), st.integers(0, 500), moments, st.booleans())
def test_another_clock_changes_no_price(later, moment_s, at_s, repeats):
    points = [ElectricityPoint(from_s=t, price_per_kwh=k) for k, t in enumerate([0, *sorted(later)])]
    own = Electricity(series=tuple(points), repeat_s=100 if repeats else None)
    shifted = own.seen_from(moment_s).tariff().cost(1000.0, at_s, at_s + 77.0)
    assert shifted == pytest.approx(own.tariff().cost(1000.0, at_s + moment_s, at_s + moment_s + 77.0), abs=1e-9)
    assert Electricity().seen_from(moment_s) == Electricity()


def test_least_price_to_come_without_repetition():
    tariff = Electricity(
        series=(ElectricityPoint(from_s=0, price_per_kwh=0.1), ElectricityPoint(from_s=100, price_per_kwh=0.3)), pue=1.0
    ).tariff()
    assert tariff.least_cost_per_j(np.array([0.0, 99.0, 100.0, 500.0])) == pytest.approx(
        np.array([0.1, 0.1, 0.3, 0.3]) / 3.6e6
    )


def test_carbon_is_known_only_if_every_point_has_it():
    points = (
        ElectricityPoint(from_s=0, price_per_kwh=0.1, carbon_g_per_kwh=100),
        ElectricityPoint(from_s=9, price_per_kwh=1),
    )
    assert Electricity(series=points).tariff().carbon is None
    assert float(Electricity(carbon_g_per_kwh=400, pue=1.5).tariff().carbon_g(1000, 0, 3600)) == pytest.approx(600)


@pytest.mark.parametrize(
    "wrong",
    [
        {"series": [{"from_s": 5, "price_per_kwh": 1}, {"from_s": 5, "price_per_kwh": 2}]},
        {"series": [{"from_s": 5, "price_per_kwh": 1}], "repeat_s": 100},
        {"series": [{"from_s": 0, "price_per_kwh": 1}, {"from_s": 200, "price_per_kwh": 1}], "repeat_s": 100},
        {"repeat_s": 100},
        {"pue": 0.9},
        {"price_per_kwh": float("nan")},
        {"price_per_kwh": -1},
        {"prize": 1},
    ],
)
def test_refuses(wrong):
    with pytest.raises(ValidationError):
        Electricity.model_validate(wrong)


def test_a_series_file_must_have_been_read():
    with pytest.raises(InputError, match="series_file"):
        Electricity(series_file="prices.csv").tariff()


def test_a_flat_tariff_costs_the_same_over_the_whole_time():
    points = [ElectricityPoint(from_s=0, price_per_kwh=0.1), ElectricityPoint(from_s=3600, price_per_kwh=0.4)]
    tariff = Electricity(series=points, repeat_s=7200, pue=1.5).tariff()
    flat = tariff.flat(0, 14_400)
    assert flat.price.is_constant
    assert float(flat.cost(1000, 0, 14_400)) == pytest.approx(float(tariff.cost(1000, 0, 14_400)))
    assert float(flat.cost(1000, 0, 3600)) == pytest.approx(1.5 * 0.25)


def test_prices_by_time_of_day_repeat_every_day():
    """As YAML reads 22:00 without quotes, too: as a number of minutes."""
    for at in ("22:00", 22 * 60):
        site = Electricity.model_validate({"daily": {"07:30": 0.5, at: 0.05}, "pue": 1, "carbon_g_per_kwh": 300})
        assert [(p.from_s, p.price_per_kwh) for p in site.series] == [(0, 0.05), (27_000, 0.5), (79_200, 0.05)]
        assert site.repeat_s == 86_400
        price = site.tariff().price
        assert price.at([0, 26_999, 27_000, 79_200, 86_400 + 27_000]).tolist() == [0.05, 0.05, 0.5, 0.05, 0.5]
        assert float(site.tariff().carbon_g(1000, 0, 3600)) == pytest.approx(300)


@given(steps, moments, moments, st.booleans())
def test_pieces_have_the_value_and_the_integral_of_the_function(rows, a, b, period):
    f, (lo, hi) = StepIntegral.of(*made(rows, period)), sorted((a, b))
    edges, values = f.pieces(lo, hi)
    assert (np.diff(edges) >= 0).all()
    assert float(np.diff(edges) @ values) == pytest.approx(float(f.integral(lo, hi)), rel=1e-9, abs=1e-6)


def test_carbon_counts_beside_the_price_or_instead_of_it():
    points = [ElectricityPoint(from_s=0, price_per_kwh=0.1, carbon_g_per_kwh=500),
              ElectricityPoint(from_s=100, price_per_kwh=0.3, carbon_g_per_kwh=100)]  # fmt: skip
    tariff = Electricity(series=points, pue=2.0).tariff()
    for minimise, per_kg, worth in (("cost", 0.0, (0.1, 0.3)), ("cost", 1.0, (0.6, 0.4)), ("carbon", 9.0, (0.5, 0.1))):
        planned = tariff.planned_by(minimise, per_kg)
        assert planned.at([0, 100]) * 3.6e6 / 2 == pytest.approx(worth)
        assert float(planned.integral(0, 200)) * 3.6e6 / 2 == pytest.approx(100 * sum(worth))


def test_a_cap_holds_at_all_times_or_by_step():
    points = [ElectricityPoint(from_s=0, price_per_kwh=1, power_cap_w=500), ElectricityPoint(from_s=9, price_per_kwh=1)]
    assert Electricity().tariff().cap_w is None
    assert Electricity(power_cap_w=700).tariff().cap_w.at([0, 9]).tolist() == [700, 700]
    assert Electricity(power_cap_w=700, series=points).tariff().cap_w.at([0, 9]).tolist() == [500, 700]
    assert Electricity(series=points).tariff().cap_w.at([9]) > 1e12


def test_a_price_below_zero_counts_as_none_for_solvers():
    points = [ElectricityPoint(from_s=0, price_per_kwh=-0.2), ElectricityPoint(from_s=3600, price_per_kwh=0.1)]
    tariff = Electricity(series=points, pue=1.0).tariff()
    assert float(tariff.cost(1000, 0, 7200)) == pytest.approx(-0.2 + 0.1)
    assert float(tariff.never_negative().cost(1000, 0, 7200)) == pytest.approx(0.1)
