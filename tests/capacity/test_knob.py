"""The knob: the fewest GPUs that kept the target over the history."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.capacity._knob import KnobHistory, fit_knob
from commonwatt.model.errors import InputError

LEVELS = np.array([0.5, 0.9, 0.99])


def history(seed: int, length: int = 300) -> KnobHistory:
    rng = np.random.default_rng(seed)
    base = rng.integers(50, 150, length).astype(float)
    quantiles = base[:, None] + np.array([0.0, 4.5, 11.2])
    return KnobHistory(LEVELS, quantiles, np.maximum(0, base + rng.integers(-10, 25, length)), 200)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), target=st.floats(0.01, 0.999))
def test_fewest_gpus_that_keep_the_target(seed: int, target: float) -> None:
    past = history(seed)
    chosen = fit_knob(past).choose(target)
    assert chosen.slots_served >= target
    kept = chosen.keep_on(past.levels, past.quantiles, past.whole_gpus)
    assert np.mean(kept >= past.actual) == pytest.approx(chosen.slots_served)
    assert kept.mean() == pytest.approx(chosen.mean_gpus)
    for level in past.levels:  # by brute force
        for extra in range(15) if level == 0.99 else (0,):
            other = np.minimum(np.ceil(past.quantiles[:, list(LEVELS).index(level)]) + extra, 200)
            if other.mean() < chosen.mean_gpus - 1e-9:
                assert np.mean(other >= past.actual) < target


def test_by_hand() -> None:
    past = KnobHistory(np.array([0.5, 0.9]), np.array([[4.0, 5.2], [4.0, 8.0]]), np.array([5.0, 9.0]), 10)
    points = fit_knob(past).points
    rows = [(p.level, p.extra_gpus, p.mean_gpus, p.slots_served, p.saving) for p in points]
    assert rows == [
        (0.5, 0, 4.0, 0.0, 0.6), (0.9, 0, 7.0, 0.5, pytest.approx(0.3)), (0.9, 1, 8.0, 1.0, pytest.approx(0.2)),
        (1.0, 0, 10.0, 1.0, 0.0),
    ]  # fmt: skip
    assert points[0].gpus_served == pytest.approx(8 / 14)


def test_all_is_everything_on_and_so_is_what_was_never_kept() -> None:
    past = history(1)
    assert fit_knob(past).choose(1.0).saving == 0
    over = KnobHistory(past.levels, past.quantiles, past.actual + 200, 200)
    assert fit_knob(over).choose(0.5).level == 1.0


def test_unknown_values_are_left_out() -> None:
    past = history(2)
    holes = past.actual.copy()
    holes[::2] = math.nan
    expected = fit_knob(KnobHistory(past.levels, past.quantiles[1::2], past.actual[1::2], 200))
    assert fit_knob(KnobHistory(past.levels, past.quantiles, holes, 200)) == expected


def test_refused() -> None:
    past = history(1)
    with pytest.raises(InputError, match="whole_gpus"):
        KnobHistory(past.levels, past.quantiles, past.actual, 0)
    with pytest.raises(InputError, match="actual"):
        KnobHistory(past.levels, past.quantiles, np.full(300, math.nan), 10)
    for target in (0.0, 1.5, math.nan):
        with pytest.raises(InputError, match="target"):
            fit_knob(past).choose(target)
