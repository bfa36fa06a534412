"""A promise about waiting: kept on the jobs that come, said when it is not, and worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.capacity import make_calibrator
from commonwatt.capacity._promise import WINDOW
from commonwatt.capacity._waiting import RAISED, WaitingCalibrator, _least_margins
from commonwatt.capacity.scores import job_delays_s, percentile
from commonwatt.model.capacity import CapacitySpec, WaitingTarget, parse_target, target_label
from commonwatt.model.demand import LEVELS, Arrivals, DemandSeries
from commonwatt.model.errors import InputError

STEPS, DAY = 5, 1_440


def world(seed: int, days: int = 4) -> tuple[DemandSeries, Arrivals]:
    """Jobs that come alone and in bursts, run for half an hour on average, on 1 to 4 GPUs; demand counts them."""
    rng = np.random.default_rng(seed)
    per_step = rng.poisson(0.3, days * DAY) + np.where(
        rng.random(days * DAY) < 0.002, rng.integers(5, 15, days * DAY), 0
    )
    index = np.repeat(np.arange(days * DAY), per_step)
    gpus, runs = rng.integers(1, 5, len(index)), 1 + rng.geometric(1 / 30, len(index))
    change = np.zeros(days * DAY + 1)
    np.add.at(change, index, gpus)
    np.add.at(change, np.minimum(index + runs, days * DAY), -gpus)
    series = DemandSeries(0.0, 60.0, np.cumsum(change)[:-1])
    return series, Arrivals.of(series, index.astype(np.int64), gpus)


def last_value(series: DemandSeries) -> np.ndarray:
    """Quantiles that say demand stays as it is, give or take 4 GPUs. Shape [T, m, Q]."""
    rows = series.gpus[:, None, None] + 4.0 * (LEVELS - 0.5)[None, None, :]
    return np.repeat(np.maximum(rows, 0.0), STEPS, axis=1)


def kept_on(series: DemandSeries, jobs: Arrivals, target: WaitingTarget) -> np.ndarray:
    """GPUs that were on at each value, by what was kept on for it a horizon earlier. Shape [T]."""
    calibrator = make_calibrator(target, step_s=60.0, whole_gpus=None, steps=STEPS)
    kept = calibrator.follow(series.gpus, np.arange(len(series)), LEVELS, last_value(series), jobs)
    return np.concatenate((np.full(STEPS, series.gpus.max()), kept.gpus[:-STEPS, -1].astype(float)))


def delays(series: DemandSeries, jobs: Arrivals, on: np.ndarray) -> np.ndarray:
    return job_delays_s(on, jobs.index, jobs.met_gpus, 60.0, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_promised_share_of_jobs_finds_its_gpus_on(seed: int) -> None:
    series, jobs = world(seed)
    on = kept_on(series, jobs, WaitingTarget(jobs=0.95))
    late = jobs.index >= 2 * DAY
    assert -0.01 <= (delays(series, jobs, on)[late] == 0).mean() - 0.95 <= 0.015
    assert on[2 * DAY :].mean() < series.gpus.max()


@pytest.mark.slow
def test_a_percentile_of_delays_is_kept_with_fewer_gpus_than_no_delay() -> None:
    series, jobs = world(3)
    on, strict = (
        kept_on(series, jobs, target) for target in (WaitingTarget(delay_s={"p95": 120}), WaitingTarget(jobs=0.95))
    )
    late = jobs.index >= 2 * DAY
    share = (delays(series, jobs, on)[late] <= 120).mean()
    assert -0.01 <= share - 0.95 <= 0.02
    assert on[2 * DAY :].mean() < strict[2 * DAY :].mean()


@pytest.mark.slow
def test_a_budget_of_waiting_is_spent_and_not_overspent() -> None:
    series, jobs = world(4)
    on = kept_on(series, jobs, WaitingTarget(delayed_gpu_h=2.0))
    late = jobs.index >= 2 * DAY
    spent = float(jobs.gpus[late] @ delays(series, jobs, on)[late]) / 3_600 / 2
    assert 1.4 <= spent <= 2.4


@pytest.mark.slow
def test_nothing_later_than_an_outcome_is_used() -> None:
    series, jobs = world(5, 2)
    changed = series.gpus.copy()
    changed[2_000:] += 50.0
    other = DemandSeries(0.0, 60.0, changed)
    keep = jobs.index < 2_000
    same = Arrivals(jobs.index[keep], jobs.gpus[keep], jobs.met_gpus[keep])
    both = [kept_on(own, jobs_of, WaitingTarget(jobs=0.9)) for own, jobs_of in ((series, jobs), (other, same))]
    told = slice(STEPS, 2_000 + STEPS - 1)  # forecast from values before the change
    np.testing.assert_array_equal(both[0][told], both[1][told])


def test_everything_is_on_until_enough_jobs_have_come() -> None:
    calibrator = make_calibrator(WaitingTarget(jobs=0.98), step_s=60.0, whole_gpus=64, steps=STEPS)
    rows = np.full((STEPS, len(LEVELS)), 10.0)
    for _ in range(2 * WINDOW):
        calibrator.observe(10.0)
        assert (calibrator.keep_on_rows(LEVELS, rows) == 64).all()
    assert "only 0 of the 50 jobs" in calibrator.state.sentence
    one = Arrivals(np.zeros(1, dtype=np.int64), np.ones(1), np.full(1, 10.0))
    for _ in range(60):
        calibrator.observe(10.0, one)
        kept = calibrator.keep_on_rows(LEVELS, rows)
    assert calibrator.state.kept
    assert (kept < 64).all()
    for _ in range(WINDOW):
        calibrator.observe(math.nan)
        calibrator.keep_on_rows(LEVELS, rows)
    assert "unknown" in calibrator.state.sentence


def test_a_promise_that_is_broken_says_so() -> None:
    calibrator = make_calibrator(WaitingTarget(jobs=0.9), step_s=60.0, whole_gpus=None, steps=STEPS)
    for t in range(600):  # each burst is larger than all before
        came = t >= 300 and t % 10 == 0
        level = 10.0 + (float(t) if came else 0.0)
        jobs = Arrivals(np.zeros(8, dtype=np.int64), np.ones(8), np.full(8, level)) if came else None
        calm = Arrivals(np.zeros(1, dtype=np.int64), np.ones(1), np.full(1, 10.0))
        calibrator.observe(level, jobs or calm)
        calibrator.keep_on_rows(LEVELS, np.full((STEPS, len(LEVELS)), 10.0))
    assert not calibrator.state.kept
    assert "jobs waited more than promised" in calibrator.state.sentence


@pytest.mark.slow
@given(
    scores=st.lists(st.integers(-5, 5), min_size=1, max_size=12), allowed=st.floats(-1, 8),
    weights=st.lists(st.integers(1, 3), min_size=12, max_size=12),
)  # fmt: skip
def test_the_least_margin_is_that_of_trying_all(scores: list[int], allowed: float, weights: list[int]) -> None:
    x, w = np.array(scores, dtype=float), np.array(weights[: len(scores)], dtype=float)
    found = _least_margins(x, w, np.array([allowed, 0.0]))
    for limit, least in zip((max(0.0, allowed), 0.0), found, strict=True):
        assert least == min(score for score in x if w[x > score].sum() <= limit + 1e-9)


def test_margins_of_a_short_and_a_long_memory_are_averaged_and_a_debt_raises_each_by_a_part() -> None:
    def margin(balance: float, largest: float) -> float:
        calibrator = WaitingCalibrator(WaitingTarget(jobs=0.9), step_s=60.0, steps=1)
        calibrator._now, calibrator._began = 5 * DAY, 0
        calibrator._account[:] = balance
        for ago, shortfalls in ((DAY, np.full(100, 200.0)), (60, np.append(np.arange(1.0, 100.0), largest))):
            calibrator._scores.push(5 * DAY - ago, np.ones(100), shortfalls[:, None])
        calibrator._set_margins()
        return float(calibrator._margin[0])

    # ten of a hundred jobs may wait, twenty of two hundred, exactly as promised: those with the largest shortfalls
    assert margin(0.0, 100.0) == (90.0 + 200.0) / 2
    assert margin(-1_000.0, 100.0) == (100.0 + 200.0) / 2  # none may wait
    assert margin(-1_000.0, 900.0) == (1 + RAISED) * (90.0 + 200.0) / 2
    assert margin(1_000.0, 100.0) < margin(0.0, 100.0)


def test_a_job_waits_until_as_much_is_on_as_it_met() -> None:
    on = np.array([3.0, 4.0, 6.0, 2.0, 2.0])
    found = job_delays_s(on, np.array([0, 0, 1, 3, 4]), np.array([3.0, 5.0, 9.0, 3.0, math.nan]), 60.0, 3)
    np.testing.assert_array_equal(found, [0.0, 120.0, 180.0, 180.0, math.nan])
    assert percentile(np.array([4.0, 1.0, 3.0, 2.0]), 0.5) == 2.0
    assert math.isnan(percentile(np.empty(0), 0.5))


@pytest.mark.parametrize("text", ["0.98", "jobs:0.98", "delay_s:p99:60", "delayed_gpu_h:2"])
def test_a_target_is_read_as_it_is_typed(text: str) -> None:
    assert target_label(parse_target(text)) == text
    assert parse_target("instants:0.9") == 0.9


@pytest.mark.parametrize(
    "text", ["", "nan", "0", "1.2", "jobs:0", "jobs:", "jobs:2", "delay_s:60", "delay_s:p100:60", "delay_s:p99:-1",
             "gpus:0.9", "delayed_gpu_h:inf", "delayed_gpu_h:0"],
)  # fmt: skip
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="target"):
        parse_target(text)


@pytest.mark.parametrize(
    "target", [{}, {"jobs": 0.9, "delayed_gpu_h": 1}, {"delay_s": {}}, {"delay_s": {"99": 60}}, {"jobs": 0}]
)
def test_a_file_gives_one_target(target: dict) -> None:
    with pytest.raises(ValueError, match="target"):
        CapacitySpec.model_validate({"target": target})


def test_a_delay_in_which_any_node_wakes_needs_no_plan() -> None:
    with pytest.raises(InputError, match="a delay below 300 s"):
        make_calibrator(WaitingTarget(delay_s={"p99": 300}), step_s=60.0, whole_gpus=None, steps=STEPS)
