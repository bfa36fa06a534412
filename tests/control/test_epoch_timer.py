"""The clock of epochs: exact cases, and that neither start-up nor a pause moves it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.control.profiling import EpochTimer


def told(*reports, started_s=0.0, done=0.0, last=5):
    clock = EpochTimer(started_s, done, last)
    for at_s, epochs in reports:
        clock.observe(at_s, epochs)
    return clock


def test_the_first_epoch_has_loading_in_it():
    clock = told((70, 1), (80, 2), (90, 3))
    assert (clock.epoch_s, clock.epochs) == (10, 2)


def test_nothing_is_known_before_anything_was_told():
    clock = told((5, 0), (60, 0))
    assert (clock.epoch_s, clock.rough_s, clock.epochs, clock.done_epochs) == (None, None, 0, 0)


def test_one_epoch_tells_roughly():
    clock = told((70, 1))
    assert (clock.epoch_s, clock.rough_s, clock.epochs, clock.done_epochs) == (None, 70, 0, 1)


def test_parts_of_an_epoch_tell_roughly_without_what_was_before_the_first():
    clock = told((60, 0.1), (61, 0.2), (63, 0.4))
    assert clock.epoch_s is None
    assert clock.rough_s == pytest.approx(10)


def test_pauses_at_the_end_of_an_epoch_count():
    """Steps for 6 s, then 4 s of validation."""
    reports = [(10 * e + 6 * part / 3, e + part / 3) for e in range(4) for part in (1, 2, 3)]
    clock = told(*reports)
    assert clock.epoch_s == pytest.approx(10)


def test_epochs_passed_between_two_looks():
    clock = told((10, 1), (40, 4), (50, 6.5))
    assert clock.epochs == 5
    assert list(clock._last) == [10, 10, 10, 4, 4]


def test_looks_at_which_nothing_had_changed_do_not_count():
    reports = [(10, 1), (12, 1), (19, 1), (20, 2), (25, 2), (30, 3)]
    assert told(*reports).epoch_s == told((10, 1), (20, 2), (30, 3)).epoch_s == 10


def test_a_pause_or_a_jump_of_the_clock_does_not_move_it():
    assert told((10, 1), (20, 2), (30, 3), (5000, 4), (5010, 5), (5020, 6)).epoch_s == 10
    assert told((10, 1), (20, 2), (30, 3), (-500, 4), (-490, 5), (-480, 6)).epoch_s == 10


def test_it_follows_a_lasting_change():
    reports = [(10.0 * n, n) for n in range(1, 10)] + [(90 + 20.0 * n, 9 + n) for n in range(1, 4)]
    assert told(*reports).epoch_s == 20


def test_a_job_that_falls_back_begins_anew():
    clock = told((10, 1), (20, 2), (22, 1.0), (40, 2), (50, 3))
    assert (clock.epoch_s, clock.done_epochs) == (10, 2)


def test_where_an_epoch_ended_before_the_first_report_nobody_knows():
    assert told((101.5, 1.5), (102.5, 2.5)).epoch_s is None
    assert told((101.5, 1.5), (102.5, 2.5), (104, 4)).epoch_s == 1


def test_a_restart_in_the_middle_of_an_epoch():
    clock = told((107, 2.7), (110, 3), (120, 4), started_s=100, done=2.5)
    assert (clock.epoch_s, clock.epochs, clock.done_epochs) == (10, 1, 1.5)


def test_a_number_of_epochs_without_measure():
    clock = told((1, 1), (2, 10**12))
    assert clock.epochs == 10**12 - 1
    assert clock.epoch_s == pytest.approx(1 / 10**12, rel=1e-3)


@given(
    epoch_s=st.floats(0.01, 1e5), startup_s=st.floats(0, 1e4), kept=st.integers(0, 50),
    parts=st.lists(st.floats(0.001, 3), min_size=1, max_size=40),
)  # fmt: skip
def test_at_an_even_pace_it_is_exact_whatever_is_told_when(epoch_s, startup_s, kept, parts):
    clock, done, at_s = EpochTimer(0.0, kept), float(kept), startup_s
    clock.observe(at_s, done)
    for part in parts:
        done, at_s = done + part, at_s + part * epoch_s
        clock.observe(at_s, done)
    if clock.epoch_s is not None:
        assert clock.epoch_s == pytest.approx(epoch_s, rel=1e-6, abs=1e-6)
    assert clock.rough_s is None or clock.rough_s > 0


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e6)), max_size=60))
def test_whatever_is_told_the_answer_is_a_time_or_nothing(reports):
    clock = told(*reports)
    assert clock.epoch_s is None or clock.epoch_s > 0
    assert clock.rough_s is None or clock.rough_s > 0


@pytest.mark.parametrize("told_last", [1e-320, 5e-324, math.inf, math.nan])
def test_what_no_epoch_can_be_is_as_good_as_not_told(told_last):
    assert told((10, told_last), started_s=5).rough_s is None


any_float = st.floats()


@pytest.mark.slow
@given(
    started=st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 1e300)),
    reports=st.lists(st.tuples(any_float, any_float), max_size=30),
)
def test_whatever_a_job_tells_an_epoch_takes_a_finite_time_or_nothing_is_known(started, reports):
    clock = EpochTimer(*started)
    for report in reports:
        clock.observe(*report)
        for known_s in (clock.epoch_s, clock.rough_s):
            assert known_s is None or 0 < known_s < math.inf
        assert clock.epochs >= 0
