"""A capacity plan for the end of a series, and its replay over the recent past."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from commonwatt import __version__
from commonwatt.capacity import KnobHistory, KnobPoint, fit_knob, make_calibrator, unkeepable_reason
from commonwatt.capacity.scores import gpus_served, slots_served
from commonwatt.data.series_files import SeriesFile
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.capacity import Target, share_at, target_label, target_number, target_of
from commonwatt.model.demand import LEVELS, DemandSeries, Predictor, quantile_at, with_due
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_results import (
    ForecastKnobPoint,
    ForecastPlanPromise,
    ForecastPlanResult,
    ForecastPlanStep,
    ForecastPricedTarget,
    ForecastReplay,
    ForecastWorth,
)
from commonwatt.model.names import check_count
from commonwatt.model.units import plural
from commonwatt.planning.budget import PowerBudget, cheapest_target, within_budget
from commonwatt.planning.predictors import SavedPredictor, calibrated_from
from commonwatt.planning.series import LoadedSeries
from commonwatt.planning.waiting import Hindsight, Price, check_target

__all__ = ["ReplayedPlan", "fit_before", "plan_series"]


@dataclass(frozen=True)
class ReplayedPlan:
    """A plan, and the arrays of its replay.

    Parameters
    ----------
    result
        The document.
    begin
        Index of the first value replayed.
    actual
        Demand replayed, GPUs. Shape [T].
    quantiles
        Its forecasts, made m steps before, GPUs. Shape [T, Q].
    on
        GPUs kept on, calibrated. Shape [T].
    ahead
        Forecast of the steps after the end, GPUs. Shape [m, Q].
    """

    result: ForecastPlanResult
    begin: int
    actual: Floats
    quantiles: Floats
    on: Ints
    ahead: Floats


def plan_series(
    loaded: LoadedSeries, predictor: Predictor, test_from: int | None = None, *, target: Target = 0.98,
    total_gpus: int | None = None, node_gpus: int | None = None, price: Price | None = None, seed: int = 0,
) -> ReplayedPlan:  # fmt: skip
    """Plan how many GPUs stay on after the end of a series, and replay the plan from index *test_from* on.

    The predictor learns from the values more than a week before *test_from*, the knob and the calibration from that
    week. The replay forecasts each instant a horizon ahead.

    Parameters
    ----------
    predictor
        As ``load_predictor`` returns it; one from a model file is not fitted.
    test_from
        Index of the first value replayed; the last seventh if ``None``.
    target
        What is promised: a share of instants with enough GPUs on, above 0, at most 1, or a promise about waiting. A
        price of delay chooses another.
    total_gpus
        All GPUs; ``None`` for no limit.
    node_gpus
        GPUs of a node, to plan whole nodes.
    price
        What a GPU that is on costs, a limit of power, and a price of delay; unknown if ``None``.

    Raises
    ------
    InputError
        As ``PowerBudget.of`` and ``cheapest_target``; for a promise about jobs of a series without jobs, a series that
        leaves too little to learn from before *test_from*, and a model file trained on later values.
    """
    check_count("total_gpus", total_gpus)
    check_count("node_gpus", node_gpus)
    check_count("seed", seed, 0)
    file, fitted, m = loaded.file, isinstance(predictor, SavedPredictor), predictor.horizon
    series = file.series
    check_target(target, loaded.arrivals)
    begin = len(series) * 6 // 7 if test_from is None else test_from
    first = fit_before(series, predictor, begin, seed, fitted=fitted)
    origins = np.arange(first - m, len(series), dtype=np.int64)
    quantiles = predictor.predict_many(series, origins)
    if loaded.arrivals is not None:
        quantiles = with_due(quantiles, loaded.arrivals.due(origins, m))
    priced: tuple[ForecastPricedTarget, ...] = ()
    price = price or Price()
    if price.delay_per_gpu_h is not None:
        target, priced = cheapest_target(loaded, origins, quantiles, price, total_gpus=total_gpus, begin=begin)
    budget = PowerBudget.of(loaded, m, price)
    calibrator = make_calibrator(target, step_s=series.step_s, whole_gpus=total_gpus, steps=m)
    kept = calibrator.follow(series.gpus, origins, LEVELS, quantiles, loaded.arrivals)
    last = quantiles[:-m, -1]  # of the values from index first on
    whole = _most(series.gpus[:begin]) if total_gpus is None else total_gpus
    knob = fit_knob(KnobHistory(LEVELS, last[: begin - first], series.gpus[first:begin], whole))
    chosen = knob.choose(share_at(target))
    replayed = slice(begin - first, -m)
    actual, now, unbound = series.gpus[begin:], last[begin - first :], kept.gpus[replayed, -1]
    allowed = np.full(len(series) + m, math.inf) if budget is None else budget.gpus
    most: Floats = np.minimum(allowed[begin:-m], math.inf if total_gpus is None else total_gpus)
    on = np.minimum(unbound, most).astype(np.int64)
    everything = np.maximum(kept.everything[replayed], 1).astype(float)
    last_value, median = np.ceil(series.filled()[begin - m : -m]), np.ceil(quantile_at(LEVELS, now, 0.5))
    ways = {"calibrated": on.astype(float), **_other_ways(chosen, now, last_value, actual, everything, most)}
    finite = ~np.isnan(actual)
    outcome = Hindsight.of(series.gpus, begin, loaded.arrivals, series.step_s, m, price, series.time_s(begin))
    ahead = np.minimum(kept.gpus[-1], allowed[-m:]).astype(np.int64)
    state = calibrator.state.kept, calibrator.state.sentence
    promise = _promise(target, outcome, ways["calibrated"], total_gpus, state, kept.gpus[-1] - ahead)
    result = ForecastPlanResult(
        version=__version__,
        currency=price.currency,
        seed=seed,
        input_digest=file.digest,
        model=predictor.name,
        n=predictor.look_back,
        m=m,
        step_s=series.step_s,
        target=target_number(target),
        total_gpus=max(1, calibrator.everything_gpus),
        total_gpus_given=total_gpus is not None,
        fitted_before=None if fitted else file.moment(first),
        calibrated_from=file.moment(first),
        replayed_from=file.moment(begin),
        replayed=int(finite.sum()),
        fallback=int((finite & ~kept.promised[replayed]).sum()),
        beyond_total=None if total_gpus is None else int((actual[finite] > total_gpus).sum()),
        knob=tuple(_point(point) for point in knob.points),
        chosen=_point(chosen),
        replay=tuple(_replay(name, gpus, outcome, everything) for name, gpus in ways.items()),
        promise_kept=promise.kept,
        promise=promise,
        worth=_worth(outcome, ways, everything, most, last_value, median),
        budget=None if budget is None else within_budget(budget, outcome, begin, unbound.astype(float)),
        priced=priced,
        plan=_steps(file, quantiles[-1], ahead, share_at(target), node_gpus),
    )
    return ReplayedPlan(result, begin, actual, now, on, quantiles[-1])


def fit_before(series: DemandSeries, predictor: Predictor, begin: int, seed: int, *, fitted: bool) -> int:
    """Fit *predictor* on the values before the first one forecast, whose index is returned.

    Seasonal naive knows its look-back only after a fit: then there are two attempts.
    """
    if begin <= series.first_index + predictor.horizon:
        expected = f"a known value more than {plural(predictor.horizon, 'step')} before it"
        raise InputError(expected, field="test_from", value=begin)
    rng, tried = np.random.default_rng(seed), False
    while True:
        least = predictor.look_back + predictor.horizon
        first = calibrated_from(series, predictor, begin, fitted=fitted)
        try:
            predictor.fit(series.between(0, begin if fitted else first), rng)
        except InputError:
            if tried or predictor.look_back + predictor.horizon == least:
                raise
            tried = True
        else:
            return first


def _other_ways(
    chosen: KnobPoint, quantiles: Floats, last_value: Floats, actual: Floats, everything: Floats, most: Floats
) -> dict[str, Floats]:
    """Return what is on under the knob's setting, last value and foresight, at most *most* GPUs. Shapes [T]."""
    return {
        "knob": chosen.keep_on(LEVELS, quantiles, np.minimum(everything, most) if chosen.level >= 1 else most),
        "last-value": np.minimum(last_value, most),
        "perfect-foresight": np.minimum(np.ceil(actual), most),
    }


def _most(before: Floats) -> int:
    return max(1, math.ceil(float(np.nanmax(before)))) if not np.isnan(before).all() else 1


def _promise(
    target: Target,
    outcome: Hindsight,
    on: Floats,
    total_gpus: int | None,
    state: tuple[bool, str],
    short: Ints,
) -> ForecastPlanPromise:
    """Describe the promise; *state* is what the calibration says of it, *short* what power lacks, GPUs [m]."""
    actual = outcome.actual[~np.isnan(outcome.actual)]
    beyond = None if total_gpus is None else unkeepable_reason(actual, share_at(target), total_gpus)
    if beyond is None and short.any():
        beyond = f"the power budget allows {plural(int(short.max()), 'GPU')} fewer than it needs"
    return ForecastPlanPromise(
        of=target_of(target),
        target=target_number(target),
        label=target_label(target),
        achieved=outcome.achieved(target, on),
        kept=state[0] and beyond is None,
        sentence=beyond or state[1],
    )


def _point(point: KnobPoint) -> ForecastKnobPoint:
    return ForecastKnobPoint(
        q=point.level,
        extra_gpus=point.extra_gpus,
        mean_gpus_on=point.mean_gpus,
        performance=point.slots_served,
        gpus_served=point.gpus_served,
        energy_saving_pct=100 * point.saving,
    )


def _worth(
    outcome: Hindsight,
    ways: Mapping[str, Floats],
    everything: Floats,
    most: Floats,
    last_value: Floats,
    median: Floats,
) -> tuple[ForecastWorth, ...]:
    """Score always on, the simple rules at equal waiting, the plan and foresight."""
    ours = ways["calibrated"]
    equal = outcome.like(ours)
    compared = {"always-on": np.minimum(everything, most)}
    for name, on in (("last-value", last_value), ("threshold", median)):
        margin = outcome.shift(equal, on) if name == "last-value" else outcome.factor(equal, on)
        raised = on + margin if name == "last-value" else np.ceil(on * (1.0 + margin) - 1e-9)
        compared[f"{name}, equal waiting"] = np.clip(raised, 0.0, compared["always-on"])
    compared |= {"ours": ours, "perfect-foresight": ways["perfect-foresight"]}
    return tuple(outcome.worth(name, on) for name, on in compared.items())


def _replay(name: str, on: Floats, outcome: Hindsight, everything: Floats) -> ForecastReplay:
    waiting, actual = outcome.waiting(on), outcome.actual
    finite = ~np.isnan(actual)
    if not finite.any():
        raise InputError("a known value to replay", field="test_from", value="none")
    on, actual = on[finite], actual[finite]
    served = gpus_served(on, actual)
    return ForecastReplay(
        name=name,
        performance=slots_served(on, actual),
        gpus_served=1.0 if math.isnan(served) else served,
        mean_gpus_on=float(on.mean()),
        energy_saving_pct=100 * (1.0 - float(on.mean()) / float(everything[finite].mean())),
        waiting=waiting,
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
