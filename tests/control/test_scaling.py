"""Amdahl's law fitted: exact cases, and an oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from commonwatt.control.scaling import KindScaling, curves_of, fit_line, stretch
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import Measurement


def line(gpus, epoch_s):
    return fit_line(np.array(gpus, dtype=float), np.array(epoch_s, dtype=float))


def test_two_points_are_met():
    found = line([1, 2], [10, 6])
    assert (found.serial_s, found.parallel_s) == (pytest.approx(2), pytest.approx(8))
    assert found.fraction == pytest.approx(0.8)
    assert found.at(4) == pytest.approx(4)


def test_faster_than_ideal_is_taken_as_ideal():
    found = line([1, 2], [10, 4])  # relative errors: p = (1/10 + 1/8) / (1/100 + 1/64)
    assert found.serial_s == 0
    assert found.parallel_s == pytest.approx((1 / 10 + 1 / 8) / (1 / 100 + 1 / 64))


def test_slower_with_more_is_taken_as_no_gain():
    found = line([1, 2], [10, 15])
    assert found.parallel_s == 0
    assert found.serial_s == pytest.approx((1 / 10 + 1 / 15) / (1 / 100 + 1 / 225))
    assert found.fraction == 0


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(1, 64), st.floats(0.01, 1e5), min_size=2, max_size=6),
)
def test_the_fit_is_that_of_scipy(row):
    gpus, epoch_s = np.array(list(row), dtype=float), np.array(list(row.values()))
    found = fit_line(gpus, epoch_s)
    columns = np.stack([1 / epoch_s, 1 / (gpus * epoch_s)], axis=1)
    _, least = nnls(columns, np.ones(len(row)))
    off = float(np.linalg.norm(columns @ [found.serial_s, found.parallel_s] - 1))
    assert found.serial_s >= 0
    assert found.parallel_s >= 0
    assert off == pytest.approx(least, abs=1e-6)


@pytest.mark.slow
@given(st.floats(0.1, 1e4), st.floats(0, 1), st.sets(st.integers(1, 128), min_size=2, max_size=8))
def test_what_follows_the_law_is_found(alone_s, fraction, counts):
    gpus = np.array(sorted(counts), dtype=float)
    found = fit_line(gpus, alone_s * (1 - fraction + fraction / gpus))
    assert found.at(1) == pytest.approx(alone_s, rel=1e-5)
    assert found.fraction == pytest.approx(fraction, abs=1e-4)


@pytest.mark.parametrize(
    ("fraction", "known", "gpus", "times"), [(0.8, 1, 2, 0.6), (0.8, 2, 1, 1 / 0.6), (1, 1, 4, 0.25), (0, 1, 4, 1)]
)
def test_stretch(fraction, known, gpus, times):
    assert stretch(fraction, known, gpus) == pytest.approx(times)


@given(st.integers(1, 64), st.integers(1, 64), st.floats(0, 1))
def test_without_knowing_how_it_scales_the_most_is_taken(known, gpus, fraction):
    assert stretch(None, known, gpus) >= stretch(fraction, known, gpus) * (1 - 1e-12)


def of(job, gpu_type, row, **more):
    return [Measurement("k", job, gpu_type, gpus, epoch_s, **more) for gpus, epoch_s in row.items()]


def test_a_kind_scales_by_the_median_of_its_jobs():
    kind = KindScaling(of(1, "V", {1: 10, 2: 6}) + of(2, "V", {1: 100, 2: 55}) + of(3, "V", {1: 1, 2: 1}))
    assert kind.fractions == {"V": pytest.approx(0.8)}  # of 0.8, 0.9 and 0
    assert kind.any_fraction == pytest.approx(0.8)


def test_types_compare_by_jobs_measured_on_both():
    kind = KindScaling(
        of(1, "V", {1: 10, 2: 6})
        + of(1, "T", {1: 30})
        + of(2, "V", {1: 100})
        + of(2, "T", {1: 200})
        + of(3, "T", {1: 7})
    )
    assert kind.ratio("T", "V") == pytest.approx(2.5)
    assert kind.ratio("V", "T") == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert kind.ratio("T", "A") is None


def test_types_measured_at_different_counts_compare_once_it_is_known_how_they_scale():
    apart = of(1, "V", {1: 10}) + of(1, "T", {2: 12})
    assert KindScaling(apart).ratio("T", "V") is None
    kind = KindScaling(apart + of(2, "V", {1: 10, 2: 6}))
    assert kind.ratio("T", "V") == pytest.approx(12 / 0.6 / 10)


def test_without_scaling_types_compare_at_counts_they_share():
    kind = KindScaling(of(1, "V", {2: 10}) + of(1, "T", {2: 30}))
    assert (kind.fractions, kind.any_fraction, kind.ratio("T", "V")) == ({}, None, 3)


def test_typical_times_of_a_kind():
    kind = KindScaling(of(1, "V", {1: 10, 2: 6}) + of(2, "V", {1: 20}))
    assert kind.epoch_s("V", 1) == 15
    assert kind.epoch_s("V", 2) == pytest.approx((6 + 12) / 2)
    assert kind.epoch_s("V", 4) == pytest.approx((4 + 8) / 2)
    assert kind.epoch_s("T", 1) is None
    assert KindScaling(of(1, "V", {1: 10})).epoch_s("V", 2) is None


def test_power_of_a_kind():
    kind = KindScaling(of(1, "V", {1: 10}, gpu_w=100) + of(2, "V", {1: 9}, gpu_w=120) + of(3, "V", {2: 9}, gpu_w=90))
    assert (kind.gpu_w("V", 1), kind.gpu_w("V", 2), kind.gpu_w("V", 4), kind.gpu_w("T", 1)) == (110, 90, 100, None)


def test_of_two_measurements_the_later_counts():
    rows = [Measurement("k", 1, "V", 1, 10, measured_s=5), Measurement("k", 1, "V", 1, 20, measured_s=3)]
    assert curves_of(rows) == curves_of(rows[::-1]) == {"V": {1: 10}}


@pytest.mark.parametrize(
    "wrong", [{"epoch_s": 0}, {"epoch_s": float("nan")}, {"epoch_s": float("inf")}, {"gpus": 0}, {"gpu_w": -1}]
)
def test_measurements_that_cannot_be(wrong):
    with pytest.raises(InputError):
        Measurement(**{"kind": "k", "job": 1, "gpu_type": "V", "gpus": 1, "epoch_s": 1.0, **wrong})
