"""The promise: right as often as was asked for, whatever the predictor and however demand drifts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.forecasting.calibration import WINDOW, Calibrator, quantile_at
from commonwatt.forecasting.forecast import LEVELS, QuantileForecast
from commonwatt.model.errors import InputError


def drifting(seed: int, length: int) -> np.ndarray:
    """Demand with jumps whose size changes over time."""
    rng = np.random.default_rng(seed)
    size = np.linspace(1.0, 6.0, length)
    steps = rng.standard_t(3, length) * size * (rng.random(length) < 0.3)
    level, out = 500.0, np.empty(length)
    for i, step in enumerate(steps):
        level += step + 0.01 * (500.0 - level)
        out[i] = max(0.0, round(level))
    return out


def flat_forecasts(gpus: np.ndarray, spread: float, steps: int = 5) -> np.ndarray:
    """Quantiles around the last value by a normal distribution of one width for all, wrong on purpose."""
    z = np.array([math.sqrt(2) * _erfinv(2 * q - 1) for q in LEVELS])
    rows = np.maximum(gpus[:, None, None] + spread * z[None, None, :], 0.0)
    return np.repeat(rows, steps, axis=1)


def _erfinv(x: float) -> float:
    from scipy.special import erfinv

    return float(erfinv(x))


@pytest.mark.parametrize("spread", [0.1, 5.0, 60.0], ids=["overconfident", "about right", "too wide"])
@pytest.mark.parametrize("target", [0.9, 0.95, 0.98])
def test_the_promise_is_kept_by_a_predictor_that_is_wrong(spread: float, target: float) -> None:
    gpus = drifting(1, 12_000)
    origins = np.arange(0, len(gpus) - 5)
    kept = Calibrator(target).follow(gpus, origins, LEVELS, flat_forecasts(gpus[origins], spread))
    after = slice(4_000, None)
    for step in range(5):
        achieved = float(np.mean(kept[after, step] >= gpus[origins[after] + 1 + step]))
        assert -0.005 <= achieved - target <= 0.015


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1_000), target=st.sampled_from([0.8, 0.9, 0.95, 0.98]))
def test_misses_are_bounded_whatever_comes(seed: int, target: float) -> None:
    """By the shift itself: it cannot have gone further than demand ever was from the forecast, and a step."""
    rng = np.random.default_rng(seed)
    gpus = np.where(rng.random(2_000) < 0.2, rng.integers(0, 800, 2_000), 300).astype(float)
    calibrator = Calibrator(target, whole_gpus=800)
    origins = np.arange(0, len(gpus) - 5)
    calibrator.follow(gpus, origins, LEVELS, flat_forecasts(gpus[origins], 5.0))
    assert (calibrator.shift_gpus <= 900).all()
    assert (calibrator.shift_gpus >= -900).all()


def test_nothing_is_promised_before_enough_has_been_seen() -> None:
    calibrator = Calibrator(0.9, whole_gpus=640)
    rows = flat_forecasts(np.array([100.0]), 5.0)[0]
    for seen in range(WINDOW + 4):
        assert (calibrator.keep_on_rows(LEVELS, rows) == 640).all(), seen
        calibrator.observe(100.0)
    assert "calibrated" not in Calibrator(0.9).state.sentence
    calibrator.observe(100.0)
    assert calibrator.state.kept
    assert (calibrator.keep_on_rows(LEVELS, rows) < 640).all()


def settled(target: float = 0.95) -> tuple[Calibrator, np.ndarray]:
    gpus = drifting(2, 2_000)
    calibrator = Calibrator(target, whole_gpus=2_000)
    origins = np.arange(0, len(gpus))
    calibrator.follow(gpus, origins, LEVELS, flat_forecasts(gpus, 8.0))
    assert calibrator.state.kept
    return calibrator, gpus


def test_a_regime_never_seen_keeps_everything_on_and_says_so() -> None:
    calibrator, gpus = settled()
    level, fell_back = gpus[-1], False
    for _ in range(60):  # a climb far faster than any before, which the forecast does not see
        level += 25.0
        calibrator.observe(level)
        kept = calibrator.keep_on_rows(LEVELS, flat_forecasts(np.array([level]), 8.0)[0])
        if not calibrator.state.kept:
            fell_back = True
            assert (kept == 2_000).all()
            assert "more than ever before" in calibrator.state.sentence
    assert fell_back
    for _ in range(2 * WINDOW):
        calibrator.observe(level)
        calibrator.keep_on_rows(LEVELS, flat_forecasts(np.array([level]), 8.0)[0])
    assert calibrator.state.kept  # and comes back


def test_unknown_values_move_nothing_and_end_the_promise_after_a_while() -> None:
    calibrator, gpus = settled()
    shift = calibrator.shift_gpus
    for _ in range(WINDOW):
        calibrator.observe(math.nan)
        calibrator.keep_on_rows(LEVELS, flat_forecasts(gpus[-1:], 8.0)[0])
    np.testing.assert_array_equal(calibrator.shift_gpus, shift)
    assert not calibrator.state.kept
    assert "unknown" in calibrator.state.sentence


def test_a_target_of_all_keeps_everything_on() -> None:
    rows = flat_forecasts(np.array([100.0]), 5.0)[0]
    assert (Calibrator(1.0, whole_gpus=640).keep_on_rows(LEVELS, rows) == 640).all()
    unknown_size = Calibrator(1.0)
    unknown_size.observe(700.0)
    assert (unknown_size.keep_on_rows(LEVELS, rows) == 700).all()
    assert "100%" in unknown_size.state.sentence


@pytest.mark.parametrize("target", [0.0, -0.1, 1.1, math.nan])
def test_other_targets_are_refused(target: float) -> None:
    with pytest.raises(InputError, match="target"):
        Calibrator(target)


def test_origins_must_follow_one_another() -> None:
    with pytest.raises(InputError, match="origins"):
        Calibrator(0.9).follow(np.ones(10), np.array([1, 3]), LEVELS, flat_forecasts(np.ones(2), 1.0))


def test_never_more_than_there_is_and_whole() -> None:
    calibrator, _ = settled()
    forecast = QuantileForecast(LEVELS, np.full((5, len(LEVELS)), 5_000.0))
    assert (calibrator.keep_on(forecast) == 2_000).all()


def test_a_quantile_between_levels_is_interpolated() -> None:
    rows = np.array([[0.0, 10.0, 30.0]])
    levels = np.array([0.5, 0.9, 0.99])
    assert quantile_at(levels, rows, 0.7) == pytest.approx([5.0])
    assert quantile_at(levels, rows, 0.1) == pytest.approx([0.0])
    assert quantile_at(levels, rows, 0.999) == pytest.approx([30.0])
    forecast = QuantileForecast(levels, rows)
    for level in (0.1, 0.5, 0.7, 0.93, 0.99, 0.999):
        assert quantile_at(levels, rows, level) == pytest.approx(forecast.at(level))
