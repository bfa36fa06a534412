"""How good a predictor is on unseen values of a series, and what each way of keeping GPUs on costs and lets wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from commonwatt import __version__
from commonwatt.capacity import make_calibrator
from commonwatt.capacity.scores import energy_saving, gpus_served, slots_served
from commonwatt.forecasting import RollingForecasts, Threshold, forecast_rolling, make_predictor
from commonwatt.forecasting.scores import finite_mean, whole_gpus
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.capacity import Target, WaitingTarget, share_at, target_label, target_number, target_of
from commonwatt.model.demand import LEVELS, Predictor, quantile_at, with_due
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_results import (
    ForecastCompareResult,
    ForecastComparison,
    ForecastEvaluateResult,
    ForecastGpuHours,
    ForecastPromise,
    ForecastQuantileScores,
    ForecastStepScores,
)
from commonwatt.model.units import plural
from commonwatt.planning.predictors import SavedPredictor, TimedPredictor, calibrated_from, median_ms
from commonwatt.planning.replay import fit_before
from commonwatt.planning.series import LoadedSeries
from commonwatt.planning.waiting import Hindsight, Price, check_target

__all__ = ["SHARES", "compare_ways", "evaluate_series"]

_PLAIN = "last-value"

SHARES = (0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Shares of instants, and of jobs, that are promised."""

EXTRA_GPUS = (0, 8, 16, 32, 64, 128)
"""GPUs kept on beyond the demand of now."""

WINDOWS = (5, 30, 120, 480, 1440)
"""Values of which the maximum is kept on (max-k)."""

MARGINS = (0.0, 0.05, 0.1, 0.2, 0.5)
"""Parts of the median kept on beyond it: the threshold method."""


def evaluate_series(
    loaded: LoadedSeries, predictor: Predictor, test_from: int, *, target: Target = 0.98,
    total_gpus: int | None = None, price: Price | None = None, margin: float | None = None,
    refit_every: int | None = None, steps: Sequence[int] = (), seed: int = 0,
    progress: Callable[[float], None] = lambda _: None, clock: Callable[[], float] = perf_counter,
) -> ForecastEvaluateResult:  # fmt: skip
    """Fit *predictor* on a series, forecast every value from index *test_from* on, and score that.

    As for a plan, the predictor learns from the values more than a week before *test_from*, the calibration from that
    week.

    Parameters
    ----------
    predictor
        As ``load_predictor`` returns it; one from a model file is not fitted.
    target
        What is promised: a share of instants with enough GPUs on, above 0, at most 1, or a promise about waiting.
    total_gpus
        All GPUs; ``None`` for no limit.
    price
        What a GPU that is on costs; unknown if ``None``.
    margin
        The threshold method: this part of the median is added to it, at every level.
    refit_every
        Steps after which the predictor is refitted; never if ``None``.
    steps
        Steps ahead that are scored too, at most the horizon.
    progress
        Called with the part of the first fit that is done, within 0 and 1.
    clock
        Returns seconds from any origin; one that stands still while Numba compiles leaves that out of ``fit_s``.

    Raises
    ------
    InputError
        For a promise about jobs of a series without jobs, a test part that leaves too little to fit on, a model file
        trained on the test part, and one to be refitted.
    """
    fitted = isinstance(predictor, SavedPredictor)
    _check(loaded, predictor, target, refit_every, steps)
    if margin is not None:
        predictor = Threshold(predictor, margin)
    series, actual = loaded.file.series, loaded.file.series.gpus[test_from:]
    calibrator = make_calibrator(target, step_s=series.step_s, whole_gpus=total_gpus, steps=predictor.horizon)
    first = calibrated_from(series, predictor, test_from, fitted=fitted)
    timed = TimedPredictor(predictor, progress, clock)
    rolled = forecast_rolling(
        timed, series, first, np.random.default_rng(seed), refit_every, test_from if fitted else first
    )
    if loaded.arrivals is not None:
        rolled = replace(rolled, gpus=with_due(rolled.gpus, loaded.arrivals.due(rolled.origins, predictor.horizon)))
    kept = calibrator.follow(series.gpus, rolled.origins, rolled.levels, rolled.gpus, loaded.arrivals)
    on, promised = kept.gpus[-len(actual) :, -1].astype(float), kept.promised[-len(actual) :]
    tested, m = rolled.last(len(actual)), predictor.horizon
    outcome = Hindsight.of(series.gpus, test_from, loaded.arrivals, series.step_s, m, price or Price())
    quantiles, crps = _quantiles(tested)
    predict_ms, update_ms = median_ms(timed, actual)
    return ForecastEvaluateResult(
        version=__version__,
        seed=seed,
        input_digest=loaded.file.digest,
        model=timed.name,
        n=timed.look_back,
        m=timed.horizon,
        step_s=series.step_s,
        test_from=loaded.file.moment(test_from),
        test_values=len(actual),
        unknown=int(np.isnan(actual).sum()),
        fits=0 if fitted else rolled.fits,
        quantiles=quantiles,
        crps=crps,
        steps=_steps(loaded, tested, kept.gpus[-len(actual) :], steps, target, test_from, predictor),
        promise=_promise(outcome, tested, on, promised, target, total_gpus),
        equal_performance=_equal(loaded, tested, predictor, test_from, target, outcome),
        energy_saving_pct=None if total_gpus is None else _or_none(100 * energy_saving(on, total_gpus)),
        fit_s=0.0 if fitted else timed.fits_s[0],
        predict_ms=predict_ms,
        update_ms=update_ms,
    )


def _check(
    loaded: LoadedSeries, predictor: Predictor, target: Target, refit_every: int | None, steps: Sequence[int]
) -> None:
    if isinstance(predictor, SavedPredictor) and refit_every is not None:
        expected = "no refits of a model file; give a predictor by its name"
        raise InputError(expected, field="refit_every", value=refit_every)
    check_target(target, loaded.arrivals)
    if wrong := [step for step in steps if not 1 <= step <= predictor.horizon]:
        raise InputError(f"steps from 1 to the horizon, {predictor.horizon}", field="score_steps", value=wrong[0])


def _quantiles(tested: RollingForecasts) -> tuple[tuple[ForecastQuantileScores, ...], float | None]:
    """Return the scores of each level at the last step, and the CRPS."""
    rows, crps = tested.scores(LEVELS)
    scores = tuple(
        ForecastQuantileScores(
            q=row.level, mae=_or_none(row.mae), under_prediction_pct=_or_none(row.under_prediction_pct),
            pinball=_or_none(row.pinball), coverage_error_pp=_or_none(row.coverage_error_pp),
        )
        for row in rows
    )  # fmt: skip
    return scores, _or_none(crps)


def _steps(
    loaded: LoadedSeries, tested: RollingForecasts, kept: Ints, steps: Sequence[int], target: Target, test_from: int,
    predictor: Predictor,
) -> tuple[ForecastStepScores, ...]:  # fmt: skip
    """Score each of *steps*: what was kept on h steps ahead, at the instants h steps after each origin."""
    series, m = loaded.file.series, predictor.horizon
    plain = tested
    if predictor.name != _PLAIN:
        plain = forecast_rolling(make_predictor(_PLAIN, 1, m), series, test_from, np.random.default_rng(0)).last(
            len(kept)
        )
    rows = []
    for step in sorted({*steps, m}):
        first = test_from - m + step  # the first value that was forecast so many steps ahead
        past = Hindsight.of(series.gpus[: first + len(kept)], first, loaded.arrivals, series.step_s, step, Price())
        scores, crps = tested.scores(LEVELS, step - 1)
        on = kept[:, step - 1].astype(float)
        rows.append(
            ForecastStepScores(
                step=step,
                ahead_s=step * series.step_s,
                crps=_or_none(crps),
                pinball=_or_none(float(np.mean([row.pinball for row in scores]))),
                pinball_of_last_value=_or_none(
                    float(np.mean([row.pinball for row in plain.scores(LEVELS, step - 1)[0]]))
                ),
                achieved=past.achieved(target, on),
                mean_gpus_on=_or_none(finite_mean(on)),
            )
        )
    return tuple(rows)


def _promise(
    outcome: Hindsight, tested: RollingForecasts, on: Floats, promised: Bools, target: Target, total_gpus: int | None
) -> ForecastPromise:
    actual, raw = tested.actual[:, -1], whole_gpus(tested.at(share_at(target)))
    waiting, kept = outcome.waiting(on), on[~np.isnan(actual)].sum()
    fixed = np.maximum(raw + outcome.shift(target, raw), 0.0)[~np.isnan(actual)].sum()
    return ForecastPromise(
        of=target_of(target),
        target=target_number(target),
        label=target_label(target),
        achieved=outcome.achieved(target, on),
        achieved_raw=outcome.achieved(target, raw),
        instants_served=_or_none(slots_served(on, actual)),
        gpus_served=_or_none(gpus_served(on, actual)),
        jobs_served=None if waiting is None else waiting.jobs_served,
        hindsight_ratio=_or_none(float(kept / fixed)) if fixed > 0 else None,
        waiting=waiting,
        mean_gpus_on=_or_none(finite_mean(on)),
        fallback=int((~promised & ~np.isnan(actual)).sum()),
        beyond_total=None if total_gpus is None else int((actual > total_gpus).sum()),
        calibrated=True,
    )


def _equal(
    loaded: LoadedSeries,
    tested: RollingForecasts,
    predictor: Predictor,
    test_from: int,
    target: Target,
    outcome: Hindsight,
) -> tuple[ForecastGpuHours, ...]:
    series, actual = loaded.file.series, tested.actual[:, -1]

    def way(name: str, on: Floats, shift: float) -> ForecastGpuHours:
        shifted = np.maximum(on + shift, 0.0)
        has_values, worth = bool((~np.isnan(actual)).any()), outcome.worth(name, shifted)
        return ForecastGpuHours(
            name=name,
            performance=outcome.achieved(target, shifted),
            shift_gpus=_or_none(shift),
            gpu_hours=worth.gpu_hours if has_values else None,
            energy_kwh=worth.energy_kwh if has_values else None,
        )

    compared = {predictor.name: tested}
    if predictor.name != _PLAIN:
        plain = make_predictor(_PLAIN, 1, predictor.horizon)
        compared[_PLAIN] = forecast_rolling(plain, series, test_from, np.random.default_rng(0))
    ways = []
    for name, rolled in compared.items():
        on = whole_gpus(rolled.at(share_at(target)))
        ways.append(way(name, on, outcome.shift(target, on)))
    return (*ways, way("perfect-foresight", whole_gpus(actual), 0.0))


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def compare_ways(
    loaded: LoadedSeries, predictor: Predictor, test_from: int | None = None, *, total_gpus: int | None = None,
    price: Price | None = None, seed: int = 0, progress: Callable[[float], None] = lambda _: None,
) -> ForecastCompareResult:  # fmt: skip
    """Replay a job log from index *test_from* on under each way and setting, one horizon ahead.

    The predictor learns from the values more than a week before *test_from*, promises are calibrated from that week.
    Nothing uses later values but perfect foresight.

    Parameters
    ----------
    test_from
        Index of the first value replayed; the last seventh if ``None``.
    total_gpus
        All GPUs; ``None``: the most ever wanted.

    Raises
    ------
    InputError
        For a series without jobs, and as ``plan_series``.
    """
    series, m = loaded.file.series, predictor.horizon
    if loaded.arrivals is None or not len(loaded.arrivals):
        raise InputError("a job log with jobs; a series has no waiting times", field="series")
    begin = len(series) * 6 // 7 if test_from is None else test_from
    first = fit_before(series, predictor, begin, seed, fitted=isinstance(predictor, SavedPredictor))
    origins = np.arange(first - m, len(series) - m, dtype=np.int64)
    quantiles = with_due(predictor.predict_many(series, origins), loaded.arrivals.due(origins, m))
    whole = int(np.nanmax(np.ceil(series.gpus))) if total_gpus is None else total_gpus
    price = price or Price()
    outcome = Hindsight.of(series.gpus, begin, loaded.arrivals, series.step_s, m, price)
    rows: list[ForecastComparison] = []

    def add(name: str, setting: str, on: Floats) -> None:
        rows.append(ForecastComparison(setting=setting, **vars(outcome.worth(name, np.clip(on, 0.0, whole)))))

    now = series.filled()[begin - m : -m]
    add("always-on", plural(whole, "GPU"), np.full(len(outcome.actual), float(whole)))
    for extra in EXTRA_GPUS:
        add("last-value", f"+{plural(extra, 'GPU')}", np.ceil(now) + extra)
    for length, on in _largest(series.filled(), begin - m, len(now)):
        add("max-k", f"{length} values", on)
    median = np.ceil(quantile_at(LEVELS, quantiles[begin - first :, -1], 0.5) - 1e-9)
    for margin in MARGINS:
        add("threshold", f"+{100 * margin:g}%", np.ceil(median * (1.0 + margin) - 1e-9))
    promises: list[tuple[str, Target]] = [("cuff", share) for share in SHARES]
    promises += [("ours", WaitingTarget(jobs=share)) for share in SHARES]
    for k, (name, target) in enumerate(promises):
        calibrator = make_calibrator(target, step_s=series.step_s, whole_gpus=total_gpus, steps=m)
        kept = calibrator.follow(series.gpus, origins, LEVELS, quantiles, loaded.arrivals)
        add(name, target_label(target), kept.gpus[begin - first :, -1].astype(float))
        progress((k + 1) / len(promises))
    add("perfect-foresight", "", np.where(np.isnan(outcome.actual), 0.0, np.ceil(outcome.actual)))
    return ForecastCompareResult(
        version=__version__,
        currency=price.currency,
        seed=seed,
        input_digest=loaded.file.digest,
        model=predictor.name,
        m=m,
        step_s=series.step_s,
        total_gpus=whole,
        total_gpus_given=total_gpus is not None,
        replayed_from=loaded.file.moment(begin),
        replayed=int((~np.isnan(outcome.actual)).sum()),
        ways=tuple(rows),
    )


def _largest(values: Floats, first: int, count: int) -> Iterator[tuple[int, Floats]]:
    """Yield each window that fits, and the maximum of that many values up to each of *count* from index *first* on."""
    for length in WINDOWS:
        if length <= first + 1:
            windows = np.lib.stride_tricks.sliding_window_view(values, length)
            yield length, np.ceil(windows[first - length + 1 :][:count].max(axis=1))
