"""How good a predictor is on a series, and whether its promise was kept on values it has never seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter

import numpy as np

from commonwatt import __version__
from commonwatt.capacity import Calibrator
from commonwatt.capacity.scores import energy_saving, gpus_served, jobs_served, shift_for, slots_served
from commonwatt.forecasting import Rolled, Threshold, make_predictor, roll
from commonwatt.forecasting.scores import mean_known, whole_gpus
from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.demand import LEVELS, Predictor
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_results import (
    ForecastEvaluateResult,
    ForecastGpuHours,
    ForecastPromise,
    ForecastQuantileScores,
)
from commonwatt.model.units import DAY_S, HOUR_S
from commonwatt.planning.predictors import SavedPredictor, TimedPredictor, median_ms
from commonwatt.planning.series import LoadedSeries

__all__ = ["evaluate_series"]

_WARM_UP_DAYS = 7.0  # of the part before the test, on which the calibration runs first
_PLAIN = "last-value"


def evaluate_series(
    loaded: LoadedSeries, predictor: Predictor, test_from: int, *, target: float = 0.98,
    total_gpus: int | None = None, gpu_w: float | None = None, margin: float | None = None,
    refit_every: int | None = None, seed: int = 0, progress: Callable[[float], None] = lambda _: None,
    clock: Callable[[], float] = perf_counter,
) -> ForecastEvaluateResult:  # fmt: skip
    """Fit *predictor* before index *test_from* of a series, forecast every later value, and score that.

    Parameters
    ----------
    predictor
        As ``load_predictor`` returns it; one from a model file is not fitted.
    target
        Share of instants with enough GPUs on that is promised, above 0, at most 1.
    total_gpus
        All GPUs; ``None`` for no limit.
    gpu_w
        Power of a GPU that is on, W, for energies.
    margin
        The threshold method: this part of the median is added to it, at every level.
    refit_every
        Steps after which the predictor is refitted; never if ``None``.
    progress
        Called with the part of the first fit that is done, within 0 and 1.
    clock
        Returns seconds from any origin; one that stands still while Numba compiles leaves that out of ``fit_s``.

    Raises
    ------
    InputError
        For a test part that leaves too little to fit on, a model file trained on the test part, and one to be refitted.
    """
    fitted = isinstance(predictor, SavedPredictor)
    if fitted and refit_every is not None:
        expected = "no refits of a model file; give a predictor by its name"
        raise InputError(expected, field="refit_every", value=refit_every)
    if margin is not None:
        predictor = Threshold(predictor, margin)
    series, actual = loaded.file.series, loaded.file.series.gpus[test_from:]
    calibrator = Calibrator(target, whole_gpus=total_gpus, steps=predictor.horizon)
    room = test_from - predictor.look_back - predictor.horizon
    warm_up = max(0, min(round(_WARM_UP_DAYS * DAY_S / series.step_s), room))
    timed = TimedPredictor(predictor, progress, clock)
    rolled = roll(timed, series, test_from - warm_up, np.random.default_rng(seed), refit_every, test_from)
    kept = calibrator.follow(series.gpus, rolled.origins, rolled.levels, rolled.gpus)
    on, promised = kept.gpus[-len(actual) :, -1].astype(float), kept.promised[-len(actual) :]
    tested = rolled.last(len(actual))
    rows, crps = tested.scores(LEVELS)
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
        quantiles=tuple(
            ForecastQuantileScores(
                q=row.level, mae=_or_none(row.mae), under_prediction_pct=_or_none(row.under_prediction_pct),
                pinball=_or_none(row.pinball), coverage_error_pp=_or_none(row.coverage_error_pp),
            )
            for row in rows
        ),
        crps=_or_none(crps),
        promise=_promise(loaded, tested, on, promised, target, total_gpus),
        equal_performance=_equal(loaded, tested, predictor, test_from, target, gpu_w),
        energy_saving_pct=None if total_gpus is None else _or_none(100 * energy_saving(on, total_gpus)),
        fit_s=0.0 if fitted else timed.fits_s[0],
        predict_ms=predict_ms,
        update_ms=update_ms,
    )  # fmt: skip


def _promise(
    loaded: LoadedSeries, tested: Rolled, on: Floats, promised: Bools, target: float, total_gpus: int | None
) -> ForecastPromise:
    actual, served = tested.actual[:, -1], None
    if loaded.starts is not None and loaded.sizes is not None:
        test_from = len(loaded.file.series) - len(actual)
        served = _or_none(jobs_served(on, actual, loaded.starts - test_from, loaded.sizes))
    return ForecastPromise(
        target=target,
        achieved=_or_none(slots_served(on, actual)),
        achieved_raw=_or_none(slots_served(whole_gpus(tested.at(target)), actual)),
        gpus_served=_or_none(gpus_served(on, actual)),
        jobs_served=served,
        mean_gpus_on=_or_none(mean_known(on)),
        fallback=int((~promised & ~np.isnan(actual)).sum()),
        beyond_total=None if total_gpus is None else int((actual > total_gpus).sum()),
        calibrated=True,
    )


def _equal(
    loaded: LoadedSeries, tested: Rolled, predictor: Predictor, test_from: int, target: float, gpu_w: float | None
) -> tuple[ForecastGpuHours, ...]:
    series, actual = loaded.file.series, tested.actual[:, -1]
    known, hours = ~np.isnan(actual), series.step_s / HOUR_S

    def way(name: str, on: Floats, shift: float) -> ForecastGpuHours:
        shifted = np.maximum(on + shift, 0.0)[known]
        total = float(shifted.sum()) * hours if len(shifted) else None
        return ForecastGpuHours(
            name=name,
            performance=_or_none(slots_served(shifted, actual[known])),
            shift_gpus=_or_none(shift),
            gpu_hours=total,
            energy_kwh=None if gpu_w is None or total is None else total * gpu_w / 1000,
        )

    compared = {predictor.name: tested}
    if predictor.name != _PLAIN:
        plain = make_predictor(_PLAIN, 1, predictor.horizon)
        compared[_PLAIN] = roll(plain, series, test_from, np.random.default_rng(0))
    ways = []
    for name, rolled in compared.items():
        on = whole_gpus(rolled.at(target))
        ways.append(way(name, on, shift_for(target, on, actual)))
    return (*ways, way("perfect-foresight", whole_gpus(actual), 0.0))


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
