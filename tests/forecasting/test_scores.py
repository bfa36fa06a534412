"""Scores by hand, by plain loops and by numerical integration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.forecasting import scores

UNKNOWN = float("nan")
GPUS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=30)


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
    assert np.isnan(scores.gpus_served(np.array([1.0]), none))
    assert np.isnan(scores.gpus_served(np.array([1.0]), np.array([0.0])))
    assert np.isnan(scores.shift_for(0.9, np.array([1.0]), none))


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


@given(GPUS)
def test_what_is_served(pairs):
    on, actual = np.array(pairs, dtype=float).T
    assert scores.slots_served(on, actual) == np.mean([a <= o for o, a in pairs])
    total = sum(a for _, a in pairs)
    if total:
        assert scores.gpus_served(on, actual) == pytest.approx(sum(min(o, a) for o, a in pairs) / total)


@given(GPUS, st.lists(st.tuples(st.integers(-2, 32), st.integers(1, 8)), max_size=20))
def test_jobs_served_one_by_one(pairs, jobs):
    """Where jobs begin, those that begin together are added to the rest in their order while GPUs are on."""
    on, actual = np.array(pairs, dtype=float).T
    jobs = sorted(jobs, key=lambda job: job[0])
    outcomes = []
    for slot in range(len(on)):
        beginning = [size for at, size in jobs if at == slot]
        held = actual[slot] - sum(beginning)
        for size in beginning:
            held += size
            outcomes.append(held <= on[slot])
    starts, sizes = (np.array([job[i] for job in jobs], dtype=np.int64) for i in (0, 1))
    found = scores.jobs_served(on, actual, starts, sizes)
    assert np.isnan(found) if not outcomes else found == pytest.approx(np.mean(outcomes))


def test_energy_saved_is_the_part_that_is_off():
    assert scores.energy_saving(np.array([75.0, 75.0]), 100) == pytest.approx(0.25)  # CUFF, section 3.3
    assert scores.energy_saving(np.array([150.0]), 100) == 0.0


@given(GPUS, st.floats(0.05, 1.0))
def test_the_shift_is_the_smallest_that_is_enough(pairs, share):
    on, actual = np.array(pairs, dtype=float).T
    shift = scores.shift_for(share, on, actual)
    assert scores.slots_served(on + shift, actual) >= share - 1e-9
    assert scores.slots_served(on + shift - 1, actual) < share
