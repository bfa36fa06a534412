import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.report.reduction import distribution


def test_few_values_are_exact():
    found = distribution(np.array([3.0, 1, 3, 2]))
    assert found.value.tolist() == [1, 2, 3]
    assert found.share.tolist() == [0.25, 0.5, 1]


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=3000), st.integers(2, 50))
def test_every_point_is_on_the_curve(values, most):
    found = distribution(np.array(values), most)
    assert len(found.value) <= most
    assert found.value[0] == min(values)
    assert found.value[-1] == max(values)
    assert found.share[-1] == 1
    for value, share in zip(found.value, found.share, strict=True):
        assert share == np.mean(np.array(values) <= value)


def test_unknown_is_left_out_and_counted():
    found = distribution(np.array([1.0, np.nan, np.inf, 2]))
    assert found.unknown == 2
    assert found.share.tolist() == [0.5, 1]
    assert len(distribution(np.array([np.nan])).value) == 0


def test_small_values_are_drawn_at_the_least():
    found = distribution(np.array([0.0, 0, 0.5, 10]), least=1.0)
    assert found.value.tolist() == [1, 10]
    assert found.share.tolist() == [0.75, 1]
