"""The document ``commonwatt forecast evaluate`` answers with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from commonwatt import __version__
from commonwatt.cli.forecast._series import Loaded, series_digest
from commonwatt.cli.forecast._timed import Timed, median_ms
from commonwatt.cli.output import progress_bar
from commonwatt.forecasting.baselines import LastValue
from commonwatt.forecasting.calibration import Calibrator
from commonwatt.forecasting.evaluate import Evaluation, at_level, roll
from commonwatt.forecasting.evaluate import evaluate as run
from commonwatt.forecasting.forecast import LEVELS
from commonwatt.forecasting.scores import (
    energy_saving,
    gpus_served,
    jobs_served,
    mean_known,
    shift_for,
    slots_served,
    whole_gpus,
)
from commonwatt.model.forecast_results import (
    ForecastEvaluateResult,
    ForecastGpuHours,
    ForecastPromise,
    ForecastQuantileScores,
)
from commonwatt.model.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    from commonwatt.forecasting.forecast import Predictor
    from commonwatt.model.arrays import Floats

__all__ = ["answer"]

_WARM_UP_DAYS = 7.0  # of the part before the test over which the calibration is first run


def answer(
    loaded: Loaded, predictor: Predictor, begin: int, target: float, total_gpus: int | None, gpu_w: float | None,
    refit_every: int | None, seed: int, *, fitted: bool,
) -> ForecastEvaluateResult:  # fmt: skip
    """Evaluate *predictor*, *fitted* before or not, from index *begin* on; raises ``InputError`` as ``evaluate``."""
    series = loaded.file.series
    rng = np.random.default_rng(seed)
    calibrator = Calibrator(target, whole_gpus=total_gpus, steps=predictor.horizon)
    warm_up = _warm_up(begin, predictor, series.step_s)
    with progress_bar(f"fitting {predictor.name}", 1, 1.0) as bar:
        timed = Timed(predictor, lambda part: bar.at(predictor.name, part))
        found = run(timed, series, begin, LEVELS, rng, refit_every, calibrator, warm_up)
        bar.done()
    actual = series.gpus[begin:]
    on = np.asarray(found.on, dtype=float)
    predict_ms, update_ms = median_ms(timed, actual)
    return ForecastEvaluateResult(
        version=__version__,
        seed=seed,
        input_digest=series_digest(loaded.file),
        model=timed.name,
        n=timed.look_back,
        m=timed.horizon,
        step_s=series.step_s,
        test_from=loaded.file.moment(begin),
        test_values=len(actual),
        unknown=int(np.isnan(actual).sum()),
        fits=0 if fitted else found.rolled.fits,
        quantiles=tuple(
            ForecastQuantileScores(
                q=row.level, mae=_or_none(row.mae), under_prediction_pct=_or_none(row.under_prediction_pct),
                pinball=_or_none(row.pinball), coverage_error_pp=_or_none(row.coverage_error_pp),
            )
            for row in found.levels
        ),
        crps=_or_none(found.crps),
        promise=_promise(loaded, found, begin, target, on, total_gpus),
        equal_performance=_equal(loaded, found, predictor, begin, target, gpu_w),
        energy_saving_pct=None if total_gpus is None else _or_none(100 * energy_saving(on, total_gpus)),
        fit_s=0.0 if fitted else timed.fits_s[0],
        predict_ms=predict_ms,
        update_ms=update_ms,
    )  # fmt: skip


def _warm_up(begin: int, predictor: Predictor, step_s: float) -> int:
    room = begin - predictor.look_back - predictor.horizon
    return max(0, min(round(_WARM_UP_DAYS * DAY_S / step_s), room))


def _promise(
    loaded: Loaded, found: Evaluation, begin: int, target: float, on: Floats, total_gpus: int | None
) -> ForecastPromise:
    actual = loaded.file.series.gpus[begin:]
    served = None
    if loaded.starts is not None and loaded.sizes is not None:
        served = _or_none(jobs_served(on, actual, loaded.starts - begin, loaded.sizes))
    raw = whole_gpus(at_level(found.rolled, target))
    return ForecastPromise(
        target=target,
        achieved=_or_none(slots_served(on, actual)),
        achieved_raw=_or_none(slots_served(raw, actual)),
        gpus_served=_or_none(gpus_served(on, actual)),
        jobs_served=served,
        mean_gpus_on=_or_none(mean_known(on)),
        fallback=0 if found.promised is None else int((~found.promised & ~np.isnan(actual)).sum()),
        beyond_total=None if total_gpus is None else int((actual > total_gpus).sum()),
        calibrated=True,
    )


def _equal(
    loaded: Loaded, found: Evaluation, predictor: Predictor, begin: int, target: float, gpu_w: float | None
) -> tuple[ForecastGpuHours, ...]:
    series = loaded.file.series
    actual = series.gpus[begin:]
    hours = series.step_s / HOUR_S

    def way(name: str, on: Floats, shift: float) -> ForecastGpuHours:
        held = np.maximum(on + shift, 0.0)[~np.isnan(actual)]
        total = float(held.sum()) * hours if len(held) else None
        return ForecastGpuHours(
            name=name,
            performance=_or_none(slots_served(held, actual[~np.isnan(actual)])),
            shift_gpus=_or_none(shift),
            gpu_hours=total,
            energy_kwh=None if gpu_w is None or total is None else total * gpu_w / 1000,
        )

    plain = LastValue(1, predictor.horizon)
    before = roll(plain, series, begin, np.random.default_rng(0))
    ways = []
    for name, rolled in ((predictor.name, found.rolled), (plain.name, before)):
        on = whole_gpus(at_level(rolled, target))
        ways.append(way(name, on, shift_for(target, on, actual)))
    if predictor.name == plain.name:
        ways.pop()
    return (*ways, way("perfect-foresight", whole_gpus(actual), 0.0))


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
