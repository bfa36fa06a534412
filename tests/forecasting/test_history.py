"""Windows kept sorted, against NumPy's quantiles of the same numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.forecasting._history import History, SortedWindow, sliding_quantiles
from commonwatt.model.demand import DemandSeries
from commonwatt.model.errors import InputError

LEVELS = np.array([0.1, 0.5, 0.9, 0.99])
NUMBERS = st.lists(st.integers(-20, 20).map(float) | st.floats(-5, 5), min_size=1, max_size=60)


@given(NUMBERS, st.integers(1, 20))
def test_a_sliding_window_has_the_quantiles_of_its_numbers(numbers, length):
    held = SortedWindow(np.array(numbers[:3]), length)
    for value in numbers[3:]:
        held.push(value)
    expected = np.quantile(np.array(numbers)[-length:], LEVELS)
    assert held.quantiles(LEVELS) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
@given(NUMBERS, st.integers(1, 20), st.integers(0, 3), st.data())
def test_quantiles_at_many_places(numbers, length, unknown, data):
    values = np.concatenate((np.full(unknown, np.nan), numbers))
    at = np.array(sorted(data.draw(st.lists(st.integers(unknown, len(values) - 1), min_size=1, max_size=8))))
    found = sliding_quantiles(values, length, at, LEVELS)
    for place, row in zip(at, found, strict=True):
        window = values[max(unknown, place - length + 1) : place + 1]
        assert row == pytest.approx(np.quantile(window, LEVELS), abs=1e-9)


def test_a_window_without_numbers_has_no_change():
    assert not SortedWindow(np.empty(0), 3).quantiles(LEVELS).any()
    assert not sliding_quantiles(np.array([np.nan, np.nan, 1.0]), 5, np.array([1]), LEVELS).any()


@given(st.lists(st.floats(0, 100) | st.just(float("nan")), max_size=40), st.integers(1, 7))
def test_history_keeps_the_last_values_and_fills_unknown_ones(values, length):
    history = History(length)
    history.see(3.0)
    for value in values:
        history.see(value)
    filled = DemandSeries(0, 60, np.array([3.0, *values])).filled()
    assert history.values.tolist() == filled[-length:].tolist()


@pytest.mark.parametrize("wrong", [-1.0, 1e19, float("inf"), float("nan")])
def test_history_refuses(wrong):
    with pytest.raises(InputError):
        History(3).see(wrong)
