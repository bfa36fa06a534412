"""What ``commonwatt forecast plan`` computes, and the document it answers with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commonwatt import __version__
from commonwatt.cli.forecast._series import series_digest
from commonwatt.forecasting.calibration import Calibrator, quantile_at
from commonwatt.forecasting.forecast import LEVELS
from commonwatt.forecasting.knob import History, KnobPoint, chosen_gpus, learn_knob
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_plan_results import (
    ForecastKnobPoint,
    ForecastPlanResult,
    ForecastPlanStep,
    ForecastReplay,
)
from commonwatt.model.units import DAY_S

if TYPE_CHECKING:
    from commonwatt.data.series_files import SeriesFile
    from commonwatt.forecasting.forecast import Predictor
    from commonwatt.model.arrays import Floats, Ints

__all__ = ["Planned", "plan"]

_HISTORY_DAYS = 7.0  # the knob and the calibration are learned from, before what is replayed


@dataclass(frozen=True)
class Planned:
    """The answer, and what is drawn of it.

    Parameters
    ----------
    begin
        Index of the first value replayed.
    actual
        Demand replayed, GPUs. Shape [T].
    quantiles
        Forecasts of it made m steps before, GPUs. Shape [T, Q].
    on
        GPUs kept on, calibrated. Shape [T].
    ahead
        Forecast of the steps to come, GPUs. Shape [m, Q].
    """

    result: ForecastPlanResult
    begin: int
    actual: Floats
    quantiles: Floats
    on: Ints
    ahead: Floats


def plan(
    file: SeriesFile, predictor: Predictor, begin: int, target: float, total_gpus: int | None,
    node_gpus: int | None, seed: int, *, fitted: bool,
) -> Planned:  # fmt: skip
    """Replay *file* from index *begin* on, plan the steps after its end; *fitted* predictors check what they have seen.

    Raises
    ------
    InputError
        For a series that leaves too little to learn from before *begin*, or a model fitted on what comes after it.
    """
    series, m = file.series, predictor.horizon
    least = predictor.look_back + m
    first = max(begin - round(_HISTORY_DAYS * DAY_S / series.step_s), least if fitted else (least + begin) // 2)
    if not least <= first < begin:
        raise InputError(f"more than {2 * least} values before it", field="--test-from", value=begin)
    predictor.fit(series.between(0, begin if fitted else first), np.random.default_rng(seed))
    whole = _whole(series.gpus[:begin]) if total_gpus is None else total_gpus
    origins = np.arange(first - m, len(series), dtype=np.int64)
    quantiles = predictor.predict_many(series, origins)
    calibrator = Calibrator(target, whole_gpus=whole, steps=m)
    kept, fallback = _followed(calibrator, series.gpus, origins, quantiles, begin - m)
    last = quantiles[:-m, -1]  # of the values from index first on
    past = History(LEVELS, last[: begin - first], series.gpus[first:begin], whole)
    knob = learn_knob(past)
    chosen = knob.choose(target)
    actual, now, on = series.gpus[begin:], last[begin - first :], kept[begin - first : -m, -1]
    ways = {
        "calibrated": on.astype(float),
        "knob": chosen_gpus(chosen, LEVELS, now, whole),
        "last-value": np.minimum(np.ceil(series.filled()[begin - m : -m]), whole),
        "perfect-foresight": np.minimum(np.ceil(actual), whole),
    }
    state = calibrator.state
    result = ForecastPlanResult(
        version=__version__,
        seed=seed,
        input_digest=series_digest(file),
        model=predictor.name,
        n=predictor.look_back,
        m=m,
        step_s=series.step_s,
        target=target,
        total_gpus=whole,
        total_gpus_given=total_gpus is not None,
        fitted_before=None if fitted else file.moment(first),
        calibrated_from=file.moment(first),
        replayed_from=file.moment(begin),
        replayed=int((~np.isnan(actual)).sum()),
        fallback=fallback,
        knob=tuple(_point(point) for point in knob.points),
        chosen=_point(chosen),
        replay=tuple(_replay(name, gpus, actual, whole) for name, gpus in ways.items()),
        promise_kept=state.kept,
        promise=state.sentence,
        plan=_steps(file, quantiles[-1], kept[-1], target, node_gpus),
    )
    return Planned(result, begin, actual, now, on, quantiles[-1])


def _whole(before: Floats) -> int:
    return max(1, math.ceil(float(np.nanmax(before)))) if not np.isnan(before).all() else 1


def _followed(calibrator: Calibrator, gpus: Floats, origins: Ints, quantiles: Floats, begin: int) -> tuple[Ints, int]:
    """GPUs kept on after each origin, [N, m], and how often that was everything from origin *begin* on."""
    split = int(begin - origins[0])
    before = calibrator.follow(gpus, origins[:split], LEVELS, quantiles[:split])
    rows, fallback = [], 0
    for origin, row in zip(origins[split:], quantiles[split:], strict=True):
        calibrator.observe(float(gpus[origin]))
        rows.append(calibrator.keep_on_rows(LEVELS, row))
        fallback += not calibrator.state.kept
    return np.concatenate([before, np.array(rows)]), fallback


def _point(point: KnobPoint) -> ForecastKnobPoint:
    return ForecastKnobPoint(
        q=point.level,
        extra_gpus=point.extra_gpus,
        mean_gpus_on=point.mean_gpus,
        performance=point.slots_served,
        gpus_served=point.gpus_served,
        energy_saving_pct=100 * point.saving,
    )


def _replay(name: str, on: Floats, actual: Floats, whole: int) -> ForecastReplay:
    known = ~np.isnan(actual)
    if not known.any():
        raise InputError("a known value to replay", field="--test-from", value="none")
    on, actual = on[known], actual[known]
    wanted = float(actual.sum())
    return ForecastReplay(
        name=name,
        performance=float((on >= actual).mean()),
        gpus_served=1.0 if wanted == 0 else float(np.minimum(on, actual).sum()) / wanted,
        mean_gpus_on=float(on.mean()),
        energy_saving_pct=100 * (1.0 - float(on.mean()) / whole),
    )


def _steps(
    file: SeriesFile, quantiles: Floats, on: Ints, target: float, node_gpus: int | None
) -> tuple[ForecastPlanStep, ...]:
    median, own = (quantile_at(LEVELS, quantiles, level) for level in (0.5, target))
    return tuple(
        ForecastPlanStep(
            at=file.moment(len(file.series) + h),
            median_gpus=float(median[h]),
            quantile_gpus=float(own[h]),
            gpus_on=int(on[h]),
            nodes_on=None if node_gpus is None else -(-int(on[h]) // node_gpus),
        )
        for h in range(len(on))
    )
