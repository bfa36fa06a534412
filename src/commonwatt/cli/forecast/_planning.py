"""What ``commonwatt forecast plan`` computes, and the document it answers with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commonwatt import __version__
from commonwatt.cli.forecast._series import series_digest
from commonwatt.forecasting.calibration import WINDOW, Calibrator, quantile_at
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
    from commonwatt.forecasting.series import DemandSeries
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
    first = _fit(series, predictor, begin, seed, fitted=fitted)
    origins = np.arange(first - m, len(series), dtype=np.int64)
    quantiles = predictor.predict_many(series, origins)
    calibrator = Calibrator(target, whole_gpus=total_gpus, steps=m)
    kept = calibrator.followed(series.gpus, origins, LEVELS, quantiles)
    last = quantiles[:-m, -1]  # of the values from index first on
    whole = _whole(series.gpus[:begin]) if total_gpus is None else total_gpus
    past = History(LEVELS, last[: begin - first], series.gpus[first:begin], whole)
    knob = learn_knob(past)
    chosen = knob.choose(target)
    replayed = slice(begin - first, -m)
    actual, now, on = series.gpus[begin:], last[begin - first :], kept.gpus[replayed, -1]
    most = math.inf if total_gpus is None else total_gpus
    everything = np.maximum(kept.everything[replayed], 1).astype(float)
    ways = {
        "calibrated": on.astype(float),
        "knob": chosen_gpus(chosen, LEVELS, now, everything if chosen.level >= 1 else most),
        "last-value": np.minimum(np.ceil(series.filled()[begin - m : -m]), most),
        "perfect-foresight": np.minimum(np.ceil(actual), most),
    }
    known = ~np.isnan(actual)
    state = calibrator.state
    beyond = None if total_gpus is None else _beyond(actual[known], target, total_gpus)
    result = ForecastPlanResult(
        version=__version__,
        seed=seed,
        input_digest=series_digest(file),
        model=predictor.name,
        n=predictor.look_back,
        m=m,
        step_s=series.step_s,
        target=target,
        total_gpus=max(1, calibrator.everything_gpus),
        total_gpus_given=total_gpus is not None,
        fitted_before=None if fitted else file.moment(first),
        calibrated_from=file.moment(first),
        replayed_from=file.moment(begin),
        replayed=int(known.sum()),
        fallback=int((known & ~kept.promised[replayed]).sum()),
        beyond_total=None if total_gpus is None else int((actual[known] > total_gpus).sum()),
        knob=tuple(_point(point) for point in knob.points),
        chosen=_point(chosen),
        replay=tuple(_replay(name, gpus, actual, everything) for name, gpus in ways.items()),
        promise_kept=state.kept and beyond is None,
        promise=beyond or state.sentence,
        plan=_steps(file, quantiles[-1], kept.gpus[-1], target, node_gpus),
    )
    return Planned(result, begin, actual, now, on, quantiles[-1])


def _fit(series: DemandSeries, predictor: Predictor, begin: int, seed: int, *, fitted: bool) -> int:
    """Fit *predictor*, and return the index of the first value forecast; before it a predictor by its name is fitted.

    Seasonal naive tells how far it looks back only once it was asked to be fitted: then there are two tries.
    """
    if begin <= series.first_known + predictor.horizon:
        expected = f"a known value more than {predictor.horizon} steps before it"
        raise InputError(expected, field="--test-from", value=begin)
    rng, tried = np.random.default_rng(seed), 0
    while True:
        least = predictor.look_back + predictor.horizon
        first = max(
            begin - round(_HISTORY_DAYS * DAY_S / series.step_s), least if fitted else (least + begin) // 2,
            series.first_known + predictor.horizon,
        )  # fmt: skip
        if not least <= first < begin:
            raise InputError(f"more than {least} values before it", field="--test-from", value=begin)
        try:
            predictor.fit(series.between(0, begin if fitted else first), rng)
        except InputError:
            if tried or predictor.look_back + predictor.horizon == least:
                raise
            tried += 1
        else:
            return first


def _beyond(actual: Floats, target: float, total_gpus: int) -> str | None:
    """Return why no plan keeps the promise: more is wanted than there is, over the replay or lately, too often."""
    for wanted, part in ((actual, "instants replayed"), (actual[-WINDOW:], "last instants")):
        count = int((wanted > total_gpus).sum())
        if count > (1.0 - target) * len(wanted) + 1e-9:
            return f"more was wanted than all {total_gpus:,} GPUs at {count:,} of the {len(wanted):,} {part}"
    return None


def _whole(before: Floats) -> int:
    return max(1, math.ceil(float(np.nanmax(before)))) if not np.isnan(before).all() else 1


def _point(point: KnobPoint) -> ForecastKnobPoint:
    return ForecastKnobPoint(
        q=point.level,
        extra_gpus=point.extra_gpus,
        mean_gpus_on=point.mean_gpus,
        performance=point.slots_served,
        gpus_served=point.gpus_served,
        energy_saving_pct=100 * point.saving,
    )


def _replay(name: str, on: Floats, actual: Floats, everything: Floats) -> ForecastReplay:
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
        energy_saving_pct=100 * (1.0 - float(on.mean()) / float(everything[known].mean())),
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
