import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.report.reduction import Steps, shrink
from tests.report.make_records import MEDIUM, make_record


def exact_integral(time_s, value, end_s):
    return math.fsum(
        v * (b - a) for a, b, v in zip(time_s, [*time_s[1:], end_s], value, strict=True) if not math.isnan(v)
    )


def curve_of(seed, count, unknown=0.0):
    rng = np.random.default_rng(seed)
    time_s = np.cumsum(rng.exponential(1, count) * rng.choice([1e-3, 1, 50], count))
    value = rng.integers(0, 100, count).astype(float)
    value[rng.random(count) < unknown] = np.nan
    return Steps.of(time_s, value, float(time_s[-1]) + 3)


def test_small_curves_stay_as_they_are():
    curve = curve_of(1, 50)
    assert shrink(curve, 50) is curve


@pytest.mark.long
@pytest.mark.parametrize("until", [math.inf, 300.0])
@pytest.mark.parametrize("unknown", [0.0, 0.3, 1.0])
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(41, 3000))
def test_integral_extremes_and_unknown_time_are_kept(seed, count, unknown, until):
    curve = curve_of(seed, count, unknown)
    small = shrink(curve, 40, until)
    assert len(small.time_s) <= 44
    exact = exact_integral(curve.time_s.tolist(), curve.value.tolist(), curve.end_s)
    assert small.integral() == pytest.approx(exact, rel=1e-9, abs=1e-9)
    assert curve.integral() == pytest.approx(exact, rel=1e-9, abs=1e-9)
    if not np.isnan(curve.value).all():
        assert np.nanmin(small.value) == np.nanmin(curve.value)
        assert np.nanmax(small.value) == np.nanmax(curve.value)
    missing = curve.widths()[np.isnan(curve.value)].sum()
    assert small.widths()[np.isnan(small.value)].sum() == pytest.approx(missing, rel=1e-9, abs=1e-6)
    assert (np.diff(small.time_s) > 0).all()


def test_most_points_go_where_one_looks_first():
    time_s = np.arange(100_000.0)
    small = shrink(Steps.of(time_s, np.sin(time_s), 100_000.0), 2000, until_s=10_000)
    assert len(small.time_s) <= 2000
    assert (small.time_s < 10_000).sum() > 0.7 * len(small.time_s)


def test_energy_of_a_run_is_kept():
    record = make_record(MEDIUM, "easy")
    curve = Steps.of(record.samples.time_s, record.samples.power_w, float(record.samples.time_s[-1]))
    small = shrink(curve, 300)
    assert len(small.time_s) <= 300
    assert small.integral() / 3.6e6 == pytest.approx(record.result.energy_kwh, rel=1e-9)


def test_of_several_values_at_one_moment_the_last_counts():
    curve = Steps.of(np.array([0.0, 5, 5, 9, 12]), np.array([1.0, 2, 3, 4, 5]), 10.0)
    assert curve.time_s.tolist() == [0, 5, 9]
    assert curve.value.tolist() == [1, 3, 4]
    assert curve.integral() == 1 * 5 + 3 * 4 + 4 * 1


def test_nothing():
    curve = Steps.of(np.zeros(0), np.zeros(0), 10.0)
    assert curve.integral() == 0
    assert shrink(curve) is curve
