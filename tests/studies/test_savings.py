"""Savings and their intervals, against other programs and simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.studies.savings import interval, saved_pct, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 30, 100])
@pytest.mark.parametrize("p", [0.75, 0.95, 0.975, 0.995])
def test_quantiles_of_t_are_those_of_scipy(p, degrees):
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(p, degrees) == pytest.approx(stats.t.ppf(p, degrees), rel=1e-9)


def test_one_period_and_one_seed_have_no_interval():
    assert interval(np.array([[9.0]]), np.array([[10.0]])) is None


def test_an_unknown_value_has_no_interval():
    assert interval(np.array([[9.0, np.nan]]), np.array([[10.0, 10.0]])) is None


def test_a_saving_that_never_differs_is_certain():
    found = interval(np.array([[9.0], [18.0], [27.0]]), np.array([[10.0], [20.0], [30.0]]))
    assert (found.low, found.high) == pytest.approx((10.0, 10.0))
    assert (found.over, found.units) == ("weeks", 3)


def test_seeds_count_only_where_there_is_one_period():
    ours, theirs = np.array([[9.0, 8.0]]), np.array([[10.0, 10.0]])
    assert (interval(ours, theirs).over, interval(ours, theirs).units) == ("seeds", 2)
    several = interval(np.repeat(ours, 3, axis=0), np.repeat(theirs, 3, axis=0))
    assert (several.over, several.units) == ("weeks", 3)
    assert several.low == pytest.approx(several.high)  # the weeks agree, whatever the seeds do


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=2, max_size=8), st.floats(0.01, 100))
def test_the_saving_lies_in_its_interval_whatever_the_unit(rows, scale):
    ours, theirs = np.array(rows).T[:, :, None]
    found = interval(ours, theirs)
    saved = saved_pct(ours[:, 0].tolist(), theirs[:, 0].tolist())
    assert found.low - 1e-9 <= saved <= found.high + 1e-9
    scaled = interval(ours * scale, theirs * scale)
    assert (scaled.low, scaled.high) == pytest.approx((found.low, found.high), abs=1e-6)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(1000):
        theirs = rng.uniform(80, 120, (6, 1))
        found = interval(theirs * (0.9 + rng.normal(0, 0.02, (6, 1))), theirs)
        covered += found.low <= 10.0 <= found.high
    assert 0.925 <= covered / 1000 <= 0.975
