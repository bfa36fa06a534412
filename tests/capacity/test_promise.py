"""The promise: right as often as was asked for, whatever the predictor and however demand drifts."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commonwatt.capacity._promise import WINDOW, Calibrator
from commonwatt.model.demand import LEVELS, QuantileForecast, quantile_at
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


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.1, 5.0, 60.0], ids=["overconfident", "about right", "too wide"])
@pytest.mark.parametrize("target", [0.9, 0.95, 0.98])
def test_the_promise_is_kept_by_a_predictor_that_is_wrong(spread: float, target: float) -> None:
    gpus = drifting(1, 12_000)
    origins = np.arange(0, len(gpus) - 5)
    kept = Calibrator(target).follow(gpus, origins, LEVELS, flat_forecasts(gpus[origins], spread)).gpus
    after = slice(4_000, None)
    for step in range(5):
        achieved = float(np.mean(kept[after, step] >= gpus[origins[after] + 1 + step]))
        assert -0.005 <= achieved - target <= 0.015


@pytest.mark.long
@settings(max_examples=8, deadline=None)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def wandering(seed: int, length: int) -> np.ndarray:
    """Demand that jumps by up to 8 GPUs around 60, whole and at most 128."""
    rng = np.random.default_rng(seed)
    moves = np.where(rng.random(length) < 0.3, rng.choice([-8, -4, -2, -1, 1, 2, 4, 8], length), 0)
    level, out = 60.0, np.empty(length)
    for i, move in enumerate(moves):
        level += move + 0.01 * (60.0 - level)
        out[i] = min(max(1.0, round(level)), 128.0)
    return out


def played(gpus: np.ndarray, target: float, spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """GPUs on of 128 five steps after each value, whether that was promised, and shifts; [T], [T], [T, 5]."""
    calibrator = Calibrator(target, whole_gpus=128)
    on, kept, shifts = np.full(len(gpus), 128), np.zeros(len(gpus), dtype=bool), np.zeros((len(gpus), 5))
    for t, rows in enumerate(flat_forecasts(gpus[:-5], spread)):
        calibrator.observe(float(gpus[t]))
        on[t + 5] = calibrator.keep_on_rows(LEVELS, rows)[-1]
        kept[t + 5], shifts[t + 5] = calibrator.state.kept, calibrator.shift_gpus
    return on, kept, shifts


DAY = 1_440  # steps
BEFORE = DAY


@pytest.mark.long
@settings(max_examples=3, deadline=None)
@given(
    seed=st.integers(0, 1_000), rest=st.integers(1, 2 * DAY), target=st.sampled_from([0.8, 0.9, 0.98]),
    spread=st.sampled_from([1.0, 8.0, 60.0]),
)  # fmt: skip
@example(seed=0, rest=2 * DAY, target=0.9, spread=1.0)
@example(seed=0, rest=2 * DAY, target=0.98, spread=60.0)
def test_what_follows_a_rest_is_served_as_promised(seed: int, rest: int, target: float, spread: float) -> None:
    """In the day after it as on any other, and wherever the promise is said to be kept; and a rest saves."""
    gpus = wandering(seed, BEFORE + rest + DAY)
    gpus[BEFORE : BEFORE + rest] = 0.0
    on, kept, _ = played(gpus, target, spread)
    after = slice(BEFORE + rest, None)
    enough = on[after] >= gpus[after]
    assert enough.mean() >= target - 0.015
    assert enough[kept[after]].mean() >= target - 0.015
    if rest == 2 * DAY:
        assert on[BEFORE + DAY : BEFORE + rest].mean() <= 64


@pytest.mark.long
@settings(max_examples=3, deadline=None)
@given(
    seed=st.integers(0, 1_000), length=st.integers(1, DAY), wanted=st.integers(129, 2_000),
    target=st.sampled_from([0.8, 0.9, 0.98]), spread=st.sampled_from([1.0, 8.0]),
)  # fmt: skip
@example(seed=0, length=360, wanted=400, target=0.98, spread=8.0)
def test_saving_comes_back_after_more_was_wanted_than_there_is(
    seed: int, length: int, wanted: int, target: float, spread: float
) -> None:
    gpus = wandering(seed, BEFORE + length + DAY)
    plain, _, _ = played(gpus, target, spread)
    gpus[BEFORE : BEFORE + length] = wanted
    on, kept, _ = played(gpus, target, spread)
    after = slice(BEFORE + length + 10, None)
    assert on[after].mean() <= plain[after].mean() + 10  # of the 60 not wanted
    assert (on[after] >= gpus[after])[kept[after]].mean() >= target - 0.015
    backlog = slice(BEFORE + 5, BEFORE + length)
    assert (on[backlog] == 128).all()


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    stretches=st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 60.0, 128.0, 1_000.0, math.nan]), st.integers(1, 600)),
        min_size=1,
        max_size=6,
    ),
    target=st.sampled_from([0.5, 0.9, 0.99]),
    spread=st.sampled_from([0.0, 8.0, 60.0]),
)
def test_the_shift_stays_within_what_there_is(stretches: list[tuple[float, int]], target: float, spread: float) -> None:
    gpus = np.concatenate([np.full(length, level) for level, length in stretches])
    known = np.where(np.isnan(gpus), 60.0, gpus)
    calibrator = Calibrator(target, whole_gpus=128)
    largest = 0.0
    for value, rows in zip(gpus, flat_forecasts(known, spread), strict=True):
        calibrator.observe(float(value))
        on = calibrator.keep_on_rows(LEVELS, rows)
        assert (on >= 0).all()
        assert (on <= 128).all()
        largest = max(largest, float(rows.max()))
        step = 0.01 / math.sqrt(1 - target) * max(1.0, 3 * spread, 3 * 1_000)
        assert (calibrator.shift_gpus <= 128 + step).all()
        assert (calibrator.shift_gpus >= -largest - step).all()
        assert calibrator.shift_gpus.min() >= -largest


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.0, 128.0, 500.0])
def test_what_could_not_have_come_out_otherwise_moves_no_shift(level: float) -> None:
    gpus = np.concatenate([wandering(3, DAY), np.full(3 * DAY, level)])
    _, _, shifts = played(gpus, 0.9, 8.0)
    base = float(quantile_at(LEVELS, flat_forecasts(np.array([level]), 8.0)[0], 0.9)[0])
    if level == 0:
        assert shifts[-1] == pytest.approx(np.full(5, -base))
    else:
        np.testing.assert_array_equal(shifts[-1], shifts[DAY + 20])


@pytest.mark.slow
def test_the_fallback_lasts_until_as_much_is_served_as_promised_and_is_no_measure_of_later() -> None:
    calibrator, gpus = settled(0.9)
    level, starts, ends = gpus[-1], [], []
    for t in range(1_500):
        level = level + 25.0 if t % 750 < 60 else gpus[-1] if t % 750 > 400 else level
        before = calibrator.state
        calibrator.observe(level)
        calibrator.keep_on_rows(LEVELS, flat_forecasts(np.array([level]), 8.0)[0])
        if before.kept and not calibrator.state.kept:
            starts.append(t)
        if not before.kept and calibrator.state.kept:
            ends.append(t)
            often = int(before.sentence.split()[5])
            assert often <= 0.1 * WINDOW + 1
            assert "lately more than ever before" in before.sentence
    assert len(starts) == len(ends) == 2  # the first one is not taken for how bad it may become


def steps_up(length: int, jumps: dict[int, float]) -> np.ndarray:
    """Demand of 60 GPUs with steps up at *jumps*, each back at once after a quarter of an hour."""
    gpus = np.full(length, 60.0)
    for at, size in jumps.items():
        gpus[at : at + 15] += size
    return gpus


def test_one_jump_that_five_forecasts_miss_is_no_regime() -> None:
    """At .999 a jump missed by the forecasts of five steps is five misses, but one event."""
    gpus = steps_up(700, {500: 40.0, 560: 40.0})
    on, kept, _ = played(gpus, 0.999, 1.0)
    assert (on[500:505] < gpus[500:505]).all()
    assert kept[200:].all()


def climbs(calibrator: Calibrator, minutes: int, slope: float) -> int:
    """Let demand climb from 60 GPUs and come back; return the instants without a promise."""
    fell_back, levels = 0, [60.0 + slope * minute for minute in range(minutes)] + [60.0] * 40
    for level in levels:
        calibrator.observe(level)
        calibrator.keep_on_rows(LEVELS, flat_forecasts(np.array([level]), 1.0)[0])
        fell_back += not calibrator.state.kept
    return fell_back


@pytest.mark.slow
def test_the_worst_window_is_forgotten_after_84_windows() -> None:
    """A bad day must not deafen the alarm for ever."""
    calibrator = Calibrator(0.98, whole_gpus=900, window=20)
    for _ in range(2):
        climbs(calibrator, 0, 0.0)
    assert climbs(calibrator, 11, 6.0) == 0  # as many misses as the alarm allows, and the worst so far
    climbs(calibrator, 0, 0.0)
    assert climbs(calibrator, 13, 6.0) == 0  # not half again as many
    for _ in range(84 * 20 // 40 + 4):
        climbs(calibrator, 0, 0.0)
    assert climbs(calibrator, 13, 6.0) > 0


@pytest.mark.slow
def test_an_outage_keeps_nothing_on_and_a_return_is_learned_anew() -> None:
    gpus = np.concatenate([wandering(5, 3 * DAY), np.zeros(2 * DAY), wandering(6, 2 * DAY)])
    on, kept, _ = played(gpus, 0.98, 8.0)
    outage, back = slice(3 * DAY + WINDOW + 6, 5 * DAY + 5), slice(5 * DAY, None)
    assert (on[outage] == 0).all()
    assert not kept[outage].any()
    assert (on[5 * DAY + 6 : 5 * DAY + WINDOW] == 128).all()
    assert (on[back] >= gpus[back])[:DAY].mean() >= 0.975
    assert (on[back] >= gpus[back])[DAY:].mean() >= 0.975
    assert kept[-DAY:].mean() > 0.9


@pytest.mark.slow
def test_a_night_as_long_as_the_nights_before_is_no_outage() -> None:
    days = wandering(7, 6 * DAY)
    days[np.arange(len(days)) % DAY < 400] = 0.0
    _, kept, _ = played(days, 0.9, 8.0)
    night = (np.arange(len(days)) % DAY < 395) & (np.arange(len(days)) >= 3 * DAY)
    assert kept[night].mean() > 0.95


@pytest.mark.parametrize(("steps", "part"), [(1, 1.0), (5, 1.0), (20, 0.5), (80, 0.25)])
def test_a_shift_further_ahead_takes_smaller_steps(steps, part):
    """Five forecasts that a jump has made wrong raise the shift by the square root of five over the steps ahead."""

    def raised(ahead: int) -> float:
        calibrator = Calibrator(0.9, steps=ahead)
        rows = np.full((ahead, len(LEVELS)), 10.0)
        for _ in range(ahead + 5):
            calibrator.observe(100.0)
            calibrator.keep_on_rows(LEVELS, rows)
        return float(calibrator.shift_gpus[-1])

    assert raised(steps) == pytest.approx(part * raised(5))
