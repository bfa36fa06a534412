"""What ``commonwatt forecast demand`` and ``forecast evaluate`` answer with. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = [
    "ForecastDemandResult",
    "ForecastEvaluateResult",
    "ForecastGpuHours",
    "ForecastPromise",
    "ForecastQuantileScores",
]


class ForecastDemandResult(AnswerModel):
    """Answer of ``commonwatt forecast demand``."""

    source: str = quantity("where the demand comes from")
    out: str | None = quantity("file it was written to; null if it was not")
    step_s: float = quantity("time between two values", "s")
    first: str = quantity("instant of the first value; seconds where there are no dates")
    last: str = quantity("instant of the last value")
    values: int = quantity("values")
    unknown: int = quantity("values that are not known")
    counted_from: str | None = quantity(
        "starts: jobs count from their logged start; submissions: the log has no starts; null: no job log"
    )
    mean_gpus: float | None = quantity("mean demand of running jobs", "GPUs")
    most_gpus: float | None = quantity("largest demand of running jobs", "GPUs")
    mean_wanted_gpus: float | None = quantity("mean demand of jobs running or waiting; null: no job log", "GPUs")
    most_wanted_gpus: float | None = quantity("largest demand of jobs running or waiting; null: no job log", "GPUs")


class ForecastQuantileScores(ResultModel):
    """Scores of the forecasts of one quantile, the whole horizon ahead, rounded up to whole GPUs."""

    q: float = quantity("level of the quantile")
    mae: float | None = quantity("mean absolute error", "GPUs")
    under_prediction_pct: float | None = quantity("instants with more demand than forecast", "%")
    pinball: float | None = quantity("mean pinball loss at this level", "GPUs")
    coverage_error_pp: float | None = quantity("instants with at most the demand forecast, less q", "percentage points")


class ForecastPromise(ResultModel):
    """Whether a promised performance was kept over the test part, which nothing was fitted on."""

    target: float = quantity("share of instants with enough GPUs on that was promised")
    achieved: float | None = quantity("share that had enough, calibrated")
    achieved_raw: float | None = quantity("share that the forecast's own quantile would have had")
    gpus_served: float | None = quantity("share of the GPUs wanted that were on, calibrated")
    jobs_served: float | None = quantity("share of jobs that found their GPUs on when they began; null: no job log")
    mean_gpus_on: float | None = quantity("mean GPUs on", "GPUs")
    fallback: int = quantity("instants scored at which everything stayed on because no promise could be made")
    beyond_total: int | None = quantity(
        "instants scored with more demand than all GPUs, which no plan serves; null without --total-gpus"
    )
    calibrated: bool = quantity("whether a calibration decided; else the forecast's own quantile at the target did")


class ForecastGpuHours(ResultModel):
    """What one way costs at the performance promised, the whole test part long."""

    name: str = quantity("the model, last-value, or perfect-foresight")
    performance: float | None = quantity("share of instants with enough GPUs on")
    shift_gpus: float | None = quantity("GPUs added to its quantile so that it just has the performance", "GPUs")
    gpu_hours: float | None = quantity("GPU time that is on", "GPU h")
    energy_kwh: float | None = quantity("energy of that; null where the power of a GPU was not given", "kWh")


class ForecastEvaluateResult(AnswerModel):
    """Answer of ``commonwatt forecast evaluate``."""

    model: str = quantity("name of the predictor")
    n: int = quantity("values seen before a forecast")
    m: int = quantity("steps forecast; scores are of the last one")
    step_s: float = quantity("time between two values", "s")
    test_from: str = quantity("first instant that is scored")
    test_values: int = quantity("instants that are scored")
    unknown: int = quantity("of them with unknown demand, which count nowhere")
    fits: int = quantity("how often the predictor was fitted; 0 for a model file")
    quantiles: tuple[ForecastQuantileScores, ...] = quantity("scores by level, the lowest first")
    crps: float | None = quantity("mean continuous ranked probability score", "GPUs")
    promise: ForecastPromise = quantity("whether the target was kept")
    equal_performance: tuple[ForecastGpuHours, ...] = quantity(
        "GPU time at equal performance: each way's quantile shifted, knowing the outcome, until it has the target"
    )
    energy_saving_pct: float | None = quantity("energy saved against all GPUs on; null without --total-gpus", "%")
    fit_s: float = quantity("time of the first fit; 0 for a model file", "s")
    predict_ms: float = quantity("time of one forecast, all levels and steps: median", "ms")
    update_ms: float = quantity("time to see one more value: median", "ms")
