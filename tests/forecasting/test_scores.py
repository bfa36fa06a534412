"""Scores by hand, by plain loops and by numerical integration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.forecasting import scores

UNKNOWN = float("nan")


def test_by_hand():
    found = scores.level_scores(0.9, np.array([3.2, 5.0, 1.0, 9.0]), np.array([4.0, 6.0, 0.0, UNKNOWN]))
    assert found.mae == pytest.approx((0 + 1 + 1) / 3)
    assert found.under_prediction_pct == pytest.approx(100 / 3)
    assert found.pinball == pytest.approx((0 + 0.9 * 1 + 0.1 * 1) / 3)
    assert found.coverage_error_pp == pytest.approx(100 * (2 / 3 - 0.9))


def test_parts_of_a_gpu_are_rounded_up_and_dust_is_not():
    assert scores.whole_gpus(np.array([2.0, 2.1, 2.0 + 1e-12, 0.0])).tolist() == [2, 3, 2, 0]


def test_nothing_known_is_unknown():
    none = np.array([UNKNOWN])
    found = scores.level_scores(0.9, np.array([3.0]), none)
    assert all(np.isnan(v) for v in (found.mae, found.pinball, found.under_prediction_pct, found.coverage_error_pp))


@pytest.mark.slow
@given(
    st.lists(st.floats(0.02, 0.98), min_size=1, max_size=6, unique=True).map(sorted),
    st.data(),
    st.integers(-3, 25),
)
def test_crps_is_twice_the_pinball_loss_over_all_levels(levels, data, actual):
    steps = data.draw(st.lists(st.integers(0, 9), min_size=len(levels), max_size=len(levels)))
    points = np.cumsum(steps).astype(float)
    fine = (np.arange(20_000) + 0.5) / 20_000
    quantile = np.interp(fine, levels, points)
    expected = 2 * scores.pinball(fine, quantile, np.full(len(fine), float(actual))).mean()
    found = scores.crps(np.array(levels), points[None, :], np.array([float(actual)]))
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_crps_of_one_number_is_its_error():
    assert scores.crps(np.array([0.1, 0.9]), np.array([[4.0, 4.0]]), np.array([7.0])) == pytest.approx(3.0)
