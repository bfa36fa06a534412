"""Which configuration is measured next, and what comes of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.control.engine import Outcome
from commonwatt.control.profiling import EpochTimer, Probed, judge, next_probe, power_per_gpu_w
from commonwatt.model.job_file import Configuration, Unprofilable


def configurations(**counts):
    return [Configuration(gpu_type, gpus) for gpu_type, row in counts.items() for gpus in row]


def order(allowed, capacity, known=()):
    measured = []
    while isinstance(there := next_probe(allowed, measured, {}, capacity, known), Configuration):
        measured.append(there)
    assert there is None
    return [f"{there.gpu_type}{there.gpus}" for there in measured]


def test_small_ones_first_then_those_that_tell_most():
    allowed = configurations(V=(1, 2, 3, 4, 8), T=(1, 2))
    assert order(allowed, {"V": 8, "T": 2}) == ["V1", "T1", "V8", "T2", "V3", "V2", "V4"]


def test_the_smallest_of_all_comes_first_whatever_its_type():
    assert order(configurations(V=(2, 4), T=(1,)), {"V": 4, "T": 4}) == ["T1", "V2", "V4"]


def test_types_whose_scaling_is_known_come_later():
    allowed = configurations(V=(1, 4), T=(1, 4))
    assert order(allowed, {"V": 4, "T": 4}) == ["V1", "T1", "V4", "T4"]
    assert order(allowed, {"V": 4, "T": 4}, known=("V",)) == ["V1", "T1", "T4", "V4"]


def test_only_what_profiling_nodes_offer():
    assert order(configurations(V=(1, 2, 4), T=(1, 2)), {"V": 2}) == ["V1", "V2"]


def test_a_job_that_may_run_on_none_of_them():
    assert next_probe(configurations(T=(1,)), [], {}, {"V": 2}) is Unprofilable.NO_NODE
    assert next_probe(configurations(V=(4,)), [], {}, {"V": 2}) is Unprofilable.NO_NODE


V1, V2, V4 = configurations(V=(1, 2, 4))


def test_a_job_that_tells_nothing_is_not_tried_again():
    failed = {V1: Unprofilable.NO_PROGRESS}
    assert next_probe([V1, V2, V4], [], failed, {"V": 4}) is Unprofilable.NO_PROGRESS


def test_a_job_that_does_not_fit_on_one_gpu_may_fit_on_more():
    failed = {V1: Unprofilable.CRASHED}
    assert next_probe([V1, V2, V4], [], failed, {"V": 4}) == V4
    assert next_probe([V1, V2, V4], [V4], failed, {"V": 4}) == V2
    assert next_probe([V1, V2, V4], [V2, V4], failed, {"V": 4}) is None


def test_a_job_that_always_crashes():
    assert next_probe([V1], [], {V1: Unprofilable.CRASHED}, {"V": 4}) is Unprofilable.CRASHED
    failed = {V1: Unprofilable.CRASHED, V4: Unprofilable.CRASHED}
    assert next_probe([V1, V2, V4], [], failed, {"V": 4}) is Unprofilable.CRASHED


@pytest.mark.slow
@given(
    allowed=st.lists(
        st.builds(Configuration, st.sampled_from("ABC"), st.integers(1, 16)), unique=True, min_size=1, max_size=12
    ),
    capacity=st.dictionaries(st.sampled_from("ABC"), st.integers(1, 16)),
    data=st.data(),
)
def test_it_ends_and_measures_everything_once(allowed, capacity, data):
    measured, failed = [], {}
    for _ in range(len(allowed) + 1):
        there = next_probe(allowed, measured, failed, capacity)
        if not isinstance(there, Configuration):
            break
        assert there.gpus <= capacity[there.gpu_type]
        assert there not in measured
        assert there not in failed
        if data.draw(st.booleans()):
            measured.append(there)
        else:
            failed[there] = data.draw(st.sampled_from([Unprofilable.NO_PROGRESS, Unprofilable.CRASHED]))
    offered = {there for there in allowed if there.gpus <= capacity.get(there.gpu_type, 0)}
    if there is None:
        assert offered == {*measured, *failed}
        assert measured
    else:
        assert not measured
        assert (there is Unprofilable.NO_NODE) == (not offered)


def clock(*reports):
    made = EpochTimer(0.0, 0.0)
    for report in reports:
        made.observe(*report)
    return made


@pytest.mark.parametrize(
    ("reports", "elapsed_s", "epochs", "ended", "found"),
    [
        ([(70, 1)], 75, 2, None, None),
        ([(70, 1), (80, 2)], 80, 2, None, Probed(10, 1)),  # the first has loading in it
        ([(70, 1), (80, 2), (95, 3)], 95, 3, None, Probed(12.5, 2)),
        ([(70, 1)], 70, 1, None, Probed(70, 1)),
        ([(60, 0.1), (62, 0.3)], 100, 2, None, Probed(10, 0.3)),  # the limit has passed
        ([(60, 0.1), (62, 0.3)], 99, 2, None, None),
        ([], 99, 2, None, None),
        ([], 100, 2, None, Unprofilable.NO_PROGRESS),
        ([], 5, 2, Outcome.COMPLETED, Unprofilable.NO_PROGRESS),
        ([(7, 1)], 8, 2, Outcome.COMPLETED, Probed(7, 1)),
        ([(70, 1), (80, 2)], 80, 2, Outcome.FAILED, Unprofilable.CRASHED),
        ([], 1, 2, Outcome.FAILED, Unprofilable.CRASHED),
    ],
)
def test_what_a_measurement_was_worth(reports, elapsed_s, epochs, ended, found):
    got = judge(clock(*reports), elapsed_s, epochs=epochs, limit_s=100, ended=ended)
    if isinstance(found, Probed):
        assert isinstance(got, Probed)
        assert (got.epoch_s, got.epochs) == (pytest.approx(found.epoch_s), pytest.approx(found.epochs))
    else:
        assert got is found


def test_power_is_what_the_gpus_add():
    assert power_per_gpu_w(60_000, 100, 200, 2) == 200
    assert power_per_gpu_w(10_000, 100, 200, 2) == 0
    assert power_per_gpu_w(None, 100, 200, 2) is None
    assert power_per_gpu_w(5, 0, 200, 2) is None


@pytest.mark.slow
@given(
    reports=st.lists(st.tuples(st.floats(), st.floats()), max_size=10), elapsed_s=st.floats(0),
    epochs=st.integers(1, 1_000_000_000), ended=st.sampled_from([None, *Outcome]),
)  # fmt: skip
def test_whatever_a_job_tells_what_is_found_is_a_finite_time(reports, elapsed_s, epochs, ended):
    got = judge(clock(*reports), elapsed_s, epochs=epochs, limit_s=100, ended=ended)
    if isinstance(got, Probed):
        assert 0 < got.epoch_s < math.inf
        assert 0 < got.epochs < math.inf


@pytest.mark.slow
@given(st.floats(0), st.floats(allow_nan=False), st.floats(0, 1e9), st.integers(1, 1024))
def test_power_is_finite(energy_j, seconds, idle_w, gpus):
    gpu_w = power_per_gpu_w(energy_j, seconds, idle_w, gpus)
    assert gpu_w is None or 0 <= gpu_w < math.inf
