"""How good a predictor is on a series, and whether its promise was kept on values it has never seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from commonwatt import __version__
from commonwatt.capacity import make_calibrator
from commonwatt.capacity.scores import energy_saving, gpus_served, slots_served
from commonwatt.forecasting import Rolled, Threshold, make_predictor, roll
from commonwatt.forecasting.scores import finite_mean, whole_gpus
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.capacity import Target, share_at, target_label, target_number, target_of
from commonwatt.model.demand import LEVELS, Predictor, with_due
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_results import (
    ForecastEvaluateResult,
    ForecastGpuHours,
    ForecastPromise,
    ForecastQuantileScores,
    ForecastStepScores,
)
from commonwatt.planning.predictors import SavedPredictor, TimedPredictor, calibrated_from, median_ms
from commonwatt.planning.series import LoadedSeries
from commonwatt.planning.waiting import Hindsight, Price, check_target

__all__ = ["evaluate_series"]

_PLAIN = "last-value"


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
    rolled = roll(timed, series, first, np.random.default_rng(seed), refit_every, test_from if fitted else first)
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


def _quantiles(tested: Rolled) -> tuple[tuple[ForecastQuantileScores, ...], float | None]:
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
    loaded: LoadedSeries, tested: Rolled, kept: Ints, steps: Sequence[int], target: Target, test_from: int,
    predictor: Predictor,
) -> tuple[ForecastStepScores, ...]:  # fmt: skip
    """Score each of *steps*: what was kept on h steps ahead, at the instants h steps after each origin."""
    series, m = loaded.file.series, predictor.horizon
    plain = tested
    if predictor.name != _PLAIN:
        plain = roll(make_predictor(_PLAIN, 1, m), series, test_from, np.random.default_rng(0)).last(len(kept))
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
    outcome: Hindsight, tested: Rolled, on: Floats, promised: Bools, target: Target, total_gpus: int | None
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
    loaded: LoadedSeries, tested: Rolled, predictor: Predictor, test_from: int, target: Target, outcome: Hindsight
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
        compared[_PLAIN] = roll(plain, series, test_from, np.random.default_rng(0))
    ways = []
    for name, rolled in compared.items():
        on = whole_gpus(rolled.at(share_at(target)))
        ways.append(way(name, on, outcome.shift(target, on)))
    return (*ways, way("perfect-foresight", whole_gpus(actual), 0.0))


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
