"""How many rows run in one batch: plans keep every step within its limit, and know which models can be divided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.devices.base import StepWork, TensorSpec
from commonwatt.devices.rows import (
    BATCH_OVERHEAD_S,
    LITTLE_MORE,
    RowPlan,
    RowPoint,
    RowProfile,
    measure_rows,
    rows_of,
    size_of,
)
from commonwatt.model.errors import InputError

TIMES = st.floats(1e-6, 1.0)


@st.composite
def profiles(draw):
    """Times of 1, 2, 4, ... rows, as a busy machine measures them: in no order."""
    points = []
    for power in range(draw(st.integers(1, 8))):
        longest_s = draw(TIMES)
        points.append(RowPoint(rows=2**power, longest_step_s=longest_s, time_s=longest_s * draw(st.floats(1, 9))))
    return RowProfile(divisible=True, points=tuple(points))


def plan(*longest_s, limit_s=None, most=None, **profile):
    points = tuple(
        RowPoint(rows=2**power, time_s=2 * time_s, longest_step_s=time_s) for power, time_s in enumerate(longest_s)
    )
    return RowPlan(RowProfile(**{"divisible": True, "points": points} | profile), limit_s, most)


@pytest.mark.slow
@given(profiles(), TIMES, st.none() | st.integers(1, 300), st.floats(1, 8))
def test_no_step_is_longer_than_allowed_or_than_a_single_row_by_little(profile, limit_s, most, slowdown):
    made = RowPlan(profile, limit_s, most)
    made._slowdown[0] = slowdown
    rows = made.most_rows()
    assert 1 <= made.worthwhile_rows() <= rows <= (most or 256)
    assert rows <= profile.points[-1].rows
    allowed_s = max(limit_s, LITTLE_MORE * made.longest_step_s(1) * slowdown)
    if rows > 1:
        assert made.longest_step_s(rows) * slowdown <= allowed_s * (1 + 1e-9)
    if rows < min(profile.points[-1].rows, most or 256):
        assert made.longest_step_s(rows + 1) * slowdown > allowed_s * (1 - 1e-9)


@pytest.mark.slow
@given(profiles(), TIMES, TIMES)
def test_a_longer_limit_never_allows_fewer_rows(profile, one_s, other_s):
    shorter, longer = sorted((one_s, other_s))
    assert RowPlan(profile, shorter).most_rows() <= RowPlan(profile, longer).most_rows()
    assert RowPlan(profile, None).most_rows() is None


def test_between_measurements_time_grows_in_proportion():
    made = plan(0.010, 0.014, 0.030)
    assert [made.longest_step_s(rows) for rows in (1, 2, 3, 4)] == pytest.approx([0.010, 0.014, 0.022, 0.030])
    assert made.longest_step_s(40) == pytest.approx(0.300)
    assert [made.most_within(s) for s in (0.009, 0.010, 0.0139, 0.023, 0.3001)] == [0, 1, 1, 3, 40]


def test_requests_are_put_together_where_that_saves_time():
    weight_bound = plan(0.010, 0.0101, 0.0102, 0.0104, limit_s=1)
    compute_bound = plan(0.010, 0.020, 0.040, 0.080, limit_s=1)
    tiny = plan(*(1e-6 * 2**power for power in range(5)), limit_s=1)
    assert (weight_bound.worthwhile_rows(), compute_bound.worthwhile_rows()) == (8, 1)
    assert tiny.worthwhile_rows() == 16  # beside BATCH_OVERHEAD_S its rows cost nothing
    assert BATCH_OVERHEAD_S > 16e-6
    compute_bound.max_batch_size = 4
    assert (compute_bound.worthwhile_rows(), compute_bound.most_rows()) == (4, 4)


def test_plans_learn_that_steps_are_slower_than_measured():
    made = plan(0.001, 0.002, 0.004, 0.008, limit_s=0.008)
    assert made.most_rows() == 8
    made.learn(8, 0.080)
    assert made.most_rows() == 7
    for _ in range(100):
        made.learn(made.most_rows(), 2 * made.longest_step_s(made.most_rows()))
    assert made.most_rows() == 4
    for _ in range(100):
        made.learn(4, 0.001)
    assert (made.slowdown(), made.most_rows()) == (1.0, 8)


def test_a_batch_that_takes_little_longer_than_a_row_is_not_divided_further():
    weight_bound = plan(0.050, 0.052, 0.060, 0.080, limit_s=0.025)
    assert weight_bound.most_rows() == 4
    assert weight_bound.most_rows(2) == 1  # of longer rows that is not known


def test_longer_rows_count_as_so_many_until_they_have_run():
    made = plan(0.001, 0.002, 0.004, 0.008, limit_s=0.008)
    assert [made.most_rows(size) for size in (1, 2, 4, 100)] == [8, 4, 2, 1]
    for _ in range(200):
        made.learn(1, 0.0005, 100)
    assert [made.most_rows(size) for size in (1, 2, 100)] == [8, 4, 8]
    for _ in range(200):
        made.learn(1, 0.050, 100)
    assert [made.most_rows(size) for size in (1, 2, 100)] == [8, 4, 1]


def test_size_of_rows():
    specs = (TensorSpec("tokens", "INT64", (-1, -1)), TensorSpec("x", "FP32", (-1, 3, -1, -1)))
    inputs = {"tokens": np.zeros((5, 7)), "x": np.zeros((5, 3, 4, 2))}
    assert size_of(inputs, specs) == 8
    assert size_of(inputs, specs[:1]) == 7
    assert size_of({"x": np.zeros((9, 3))}, (TensorSpec("x", "FP32", (-1, 3)),)) == 1


@pytest.mark.parametrize(
    ("specs", "shapes", "rows"),
    [
        ([(-1, 2)], [(3, 2)], 3), ([(-1, 2), (-1,)], [(3, 2), (3,)], 3), ([(-1, 2), (-1, 2)], [(3, 2), (2, 2)], None),
        ([(-1, 2), (5,), ()], [(3, 2), (5,), ()], 3), ([(3, 2)], [(3, 2)], None), ([()], [()], None),
        ([(-1, 2)], [(0, 2)], None), ([], [], None),
    ],
)  # fmt: skip
def test_rows_of_inputs(specs, shapes, rows):
    named = [TensorSpec(str(place), "FP32", spec) for place, spec in enumerate(specs)]
    assert rows_of({str(place): np.zeros(shape) for place, shape in enumerate(shapes)}, named) == rows


class NumpyModel:
    """One step that applies a function to the inputs."""

    name, digest, step_names, step_times_s, work = "m", "d", ("all",), (1e-6,), (StepWork(1.0, 1.0),)
    outputs = (TensorSpec("y", "FP32", (-1, 2)),)

    def __init__(self, function, shape=(-1, 2)):
        self.function, self.inputs, self.rows = function, (TensorSpec("x", "FP32", shape),), []

    def begin(self, inputs):
        self.given = inputs["x"]
        self.rows.append(len(self.given))
        return self

    def step(self):
        self.result = self.function(self.given)

    def outputs_now(self):
        return {"y": self.result}

    def close(self):
        pass


NumpyModel.outputs = property(lambda self: self.outputs_now)


def refuses_many(x):
    if len(x) > 8:
        raise InputError("at most 8 rows")
    return x


CHANCE = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: 2 * x, ""),
        (lambda x: x * np.nan, ""),
        (lambda x: (x > 0).astype(np.int64), ""),
        (lambda x: x - x.mean(axis=0), "depends on the other rows"),
        (lambda x: x + CHANCE.standard_normal(x.shape), "or on chance"),
        (lambda x: x.sum(), "does not count the rows"),
        (lambda x: x.reshape(-1, 1), "does not count the rows"),
        (lambda x: x.T, "does not count the rows"),
    ],
)
def test_what_can_be_divided(function, reason):
    found = measure_rows(NumpyModel(function), 1e-9)
    assert found.divisible == (not reason)
    assert reason in found.reason


def test_a_fixed_first_axis_is_not_divided():
    found = measure_rows(NumpyModel(lambda x: x, (8, 2)), 1.0)
    assert (found.divisible, found.points[0].rows, len(found.points)) == (False, 8, 1)
    assert "no input has a first axis of any length" in found.reason


def test_it_is_measured_until_a_step_is_long_and_no_further_than_it_can_compute():
    assert measure_rows(NumpyModel(lambda x: x), 1e-12).points[-1].rows == 1
    assert measure_rows(NumpyModel(refuses_many), 10.0).points[-1].rows == 8


def test_a_known_profile_is_continued():
    model = NumpyModel(lambda x: x)
    known = RowProfile(
        divisible=False, reason="as found", points=(RowPoint(rows=64, time_s=1e-5, longest_step_s=1e-5),)
    )
    assert measure_rows(model, 1e-6, known) is known
    assert model.rows == []
    found = measure_rows(model, 10.0, known)
    assert found.points[0] == known.points[0]
    assert [point.rows for point in found.points] == [64, 128, 256]
    assert (found.reason, min(model.rows)) == ("as found", 128)
