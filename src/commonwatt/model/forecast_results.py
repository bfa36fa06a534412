"""Results of ``commonwatt forecast``. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = [
    "ForecastBudget",
    "ForecastCompareResult",
    "ForecastComparison",
    "ForecastDemandResult",
    "ForecastEvaluateResult",
    "ForecastFitResult",
    "ForecastGpuHours",
    "ForecastKnobPoint",
    "ForecastPlanPromise",
    "ForecastPlanResult",
    "ForecastPlanStep",
    "ForecastPool",
    "ForecastPoolsResult",
    "ForecastPoolsWay",
    "ForecastPredictResult",
    "ForecastPricedTarget",
    "ForecastPromise",
    "ForecastQuantileScores",
    "ForecastReplay",
    "ForecastStep",
    "ForecastStepScores",
    "ForecastWaiting",
    "ForecastWorth",
]


class ForecastFitResult(AnswerModel):
    """Answer of ``commonwatt forecast fit``."""

    model: str = quantity("name of the predictor")
    out: str = quantity("file it was written to")
    file_bytes: int = quantity("size of that", "bytes")
    n: int = quantity("values used for a forecast")
    m: int = quantity("steps forecast")
    step_s: float = quantity("time between two values", "s")
    first: str = quantity("instant of the first training value; seconds where there are no dates")
    last: str = quantity("instant of the last one")
    values: int = quantity("training values")
    members: int = quantity("networks trained and averaged; of lightgbm alone, its models, one a step and level")
    interrupted: bool = quantity("whether training was interrupted; the file has the weights of that moment")
    fit_s: float = quantity("time to fit", "s")


class ForecastStep(ResultModel):
    """Forecast for one instant."""

    at: str = quantity("the instant; seconds where there are no dates")
    gpus: tuple[float, ...] = quantity("demand at each level, not falling", "GPUs")


class ForecastPredictResult(AnswerModel):
    """Answer of ``commonwatt forecast predict``."""

    model: str = quantity("name of the predictor")
    n: int = quantity("values used for a forecast")
    m: int = quantity("steps forecast")
    step_s: float = quantity("time between two values", "s")
    seen_until: str = quantity("instant of the last value used")
    last_gpus: float | None = quantity("demand then; null if unknown", "GPUs")
    levels: tuple[float, ...] = quantity("quantile levels, the lowest first")
    steps: tuple[ForecastStep, ...] = quantity("forecasts, the next instant first")
    predict_ms: float = quantity("time to forecast", "ms")


class ForecastWaiting(ResultModel):
    """How long jobs waited for their GPUs to be on: until the plan had enough on, at most as long as a node wakes."""

    jobs: int = quantity("jobs that came")
    jobs_served: float = quantity("share of jobs whose GPUs were on when they came")
    delayed_jobs: int = quantity("jobs that waited")
    mean_delay_s: float = quantity("mean delay of all jobs", "s")
    mean_delay_of_delayed_s: float | None = quantity("mean delay of the jobs that waited; null: none", "s")
    p95_delay_s: float = quantity("delay that 95% of jobs did not exceed", "s")
    p99_delay_s: float = quantity("delay that 99% of jobs did not exceed", "s")
    delayed_gpu_h_per_day: float = quantity("GPUs of jobs times their delay, a day", "GPU h")


class ForecastWorth(ResultModel):
    """Cost of one way of keeping GPUs on, and whom it lets wait."""

    name: str = quantity("always-on, ours (the plan), perfect-foresight, or another rule, as it says")
    performance: float | None = quantity("share of instants with enough GPUs on")
    gpu_hours: float = quantity("GPU time kept on", "GPU h")
    energy_kwh: float | None = quantity("energy of that; null if the power of a GPU was not given", "kWh")
    cost: float | None = quantity("its cost; null if power or price was not given", "currency of the price")
    carbon_kg: float | None = quantity("its emissions; null if power or carbon intensity was not given", "kg")
    waiting: ForecastWaiting | None = quantity("delays of jobs; null: no job log")


class ForecastBudget(ResultModel):
    """When a limit of power bound over the replay, and who waited because of it."""

    least_kw: float = quantity("least limit from the replay on", "kW")
    binding: int = quantity("instants at which it allowed fewer GPUs than the promise needed")
    beyond: int = quantity("of them, those at which it allowed fewer GPUs than were wanted")
    jobs_delayed: int | None = quantity("jobs that waited, or waited longer, because of it; null: no job log")
    mean_delay_s: float | None = quantity("how much longer these waited; null: none", "s")
    sentence: str = quantity("that in one sentence")


class ForecastPricedTarget(ResultModel):
    """What a promise would have cost over the history, energy and delay together."""

    label: str = quantity("the target as it is typed")
    energy_cost: float = quantity("cost of the GPUs kept on", "currency of the price")
    delay_cost: float = quantity("cost of the GPU hours that jobs waited", "currency of the price")
    delayed_gpu_h: float = quantity("GPU hours that jobs waited", "GPU h")


class ForecastKnobPoint(ResultModel):
    """A setting of the knob, and its scores over the history it was learned from."""

    q: float = quantity("level of the quantile kept on; 1: everything")
    extra_gpus: int = quantity("GPUs kept on beyond it", "GPUs")
    mean_gpus_on: float = quantity("mean GPUs on", "GPUs")
    performance: float = quantity("share of instants with enough GPUs on")
    gpus_served: float = quantity("share of the GPUs wanted that were on")
    energy_saving_pct: float = quantity("GPU time not kept on, of all GPUs", "%")


class ForecastReplay(ResultModel):
    """Scores of one way of keeping GPUs on, over the replay."""

    name: str = quantity("calibrated, knob (the setting chosen), last-value or perfect-foresight")
    performance: float = quantity("share of instants with enough GPUs on")
    gpus_served: float = quantity("share of the GPUs wanted that were on")
    mean_gpus_on: float = quantity("mean GPUs on", "GPUs")
    energy_saving_pct: float = quantity("GPU time not kept on, of all GPUs", "%")
    waiting: ForecastWaiting | None = quantity("delays of jobs; null: no job log")


class ForecastPlanPromise(ResultModel):
    """The promise of a plan."""

    of: str = quantity("instants, jobs, delay_s or delayed_gpu_h")
    target: float = quantity("share promised; of delayed_gpu_h, GPU hours of waiting a day")
    label: str = quantity("the target as it is typed")
    achieved: float | None = quantity("the same measure over the replay")
    kept: bool = quantity("whether the promise can be kept now")
    sentence: str = quantity("the reason, in one sentence")


class ForecastPlanStep(ResultModel):
    """One step ahead of the last value."""

    at: str = quantity("instant")
    median_gpus: float = quantity("median demand forecast", "GPUs")
    quantile_gpus: float = quantity("the forecast's own quantile at the target", "GPUs")
    gpus_on: int = quantity("GPUs to keep on, calibrated", "GPUs")
    nodes_on: int | None = quantity("whole nodes needed for them; null if the size of a node is not given")


class ForecastPlanResult(AnswerModel):
    """Answer of ``commonwatt forecast plan``."""

    currency: str = quantity("currency of costs")
    model: str = quantity("name of the predictor")
    n: int = quantity("values used for a forecast")
    m: int = quantity("steps forecast")
    step_s: float = quantity("time between two values", "s")
    target: float = quantity("what is promised, as in promise.target")
    total_gpus: int = quantity("all GPUs; if not given, the largest demand observed or forecast", "GPUs")
    total_gpus_given: bool = quantity(
        "whether that was given; else nothing is capped, and savings of the replay are relative to the largest demand "
        "observed or forecast by then"
    )
    fitted_before: str | None = quantity("end of the training part; null for a model file")
    calibrated_from: str = quantity("start of the history the knob and the calibration were learned from")
    replayed_from: str = quantity("first instant replayed; nothing was learned from it before its time")
    replayed: int = quantity("known values replayed")
    fallback: int = quantity("of them at which everything stayed on because no promise could be made")
    beyond_total: int | None = quantity(
        "of them with more demand than all GPUs, which no plan serves; null if the total was not given"
    )
    knob: tuple[ForecastKnobPoint, ...] = quantity("settings by rising number of GPUs")
    chosen: ForecastKnobPoint = quantity("setting with the fewest GPUs that met the target over the history")
    replay: tuple[ForecastReplay, ...] = quantity("scores of each way over the replay")
    promise_kept: bool = quantity(
        "whether the promise can be kept now: not while everything stays on, and not if demand exceeded all GPUs at "
        "more instants than the target allows, in the replay or in its last 120 instants"
    )
    promise: ForecastPlanPromise = quantity("what is promised, and whether it is kept")
    worth: tuple[ForecastWorth, ...] = quantity(
        "cost of the replay: always on, last value and threshold at equal waiting (their margins know the outcome), "
        "the plan, perfect foresight"
    )
    budget: ForecastBudget | None = quantity("effect of a limit of power; null: there is none")
    priced: tuple[ForecastPricedTarget, ...] = quantity(
        "promises among which a price of delay chose the cheapest, over the history; empty without one"
    )
    plan: tuple[ForecastPlanStep, ...] = quantity("the next steps")


class ForecastPool(ResultModel):
    """The plan of one pool: nodes that only its jobs may use."""

    name: str = quantity("name of the pool; pools that share nodes are joined by +")
    total_gpus: int | None = quantity("GPUs of the pool; null: not given", "GPUs")
    mean_wanted_gpus: float = quantity("mean demand over the replay", "GPUs")
    mean_gpus_on: float = quantity("mean GPUs on over the replay", "GPUs")
    mean_nodes_on: float | None = quantity("mean whole nodes on for them; null: the size of a node is not given")
    achieved: float | None = quantity("what was promised, achieved over the replay")
    fallback: int = quantity("instants at which no promise could be made")
    kept: bool = quantity("whether the promise can be kept now")
    sentence: str = quantity("the reason, in one sentence")
    waiting: ForecastWaiting | None = quantity("delays of jobs; null: no job log")
    plan: tuple[ForecastPlanStep, ...] = quantity("the next steps")


class ForecastPoolsWay(ResultModel):
    """All pools together, in one way of keeping GPUs on."""

    name: str = quantity(
        "apart (each pool by itself), shared (one pool of all), or perfect-foresight-apart and -shared"
    )
    mean_gpus_on: float = quantity("mean GPUs on", "GPUs")
    mean_nodes_on: float | None = quantity("mean whole nodes on; null: the size of a node is not given")
    gpu_hours: float = quantity("GPU time kept on, in whole nodes if their size is given", "GPU h")
    energy_kwh: float | None = quantity("energy of that; null if the power of a GPU was not given", "kWh")
    cost: float | None = quantity("its cost; null if power or price was not given", "currency of the price")
    achieved: float | None = quantity("what was promised: its mean over pools of instants, or of all jobs")
    all_served: float | None = quantity("share of instants at which every pool had enough GPUs on")


class ForecastPoolsResult(AnswerModel):
    """Answer of ``commonwatt forecast plan --pools``."""

    currency: str = quantity("currency of costs")
    model: str = quantity("name of the predictor")
    m: int = quantity("steps forecast")
    step_s: float = quantity("time between two values", "s")
    of: str = quantity("instants, jobs, delay_s or delayed_gpu_h")
    label: str = quantity("the target as it is typed; each pool keeps it")
    by: str = quantity("column that names the pool of a row or job, or shape")
    joint: bool = quantity("whether one model was fitted to all pools")
    replayed_from: str = quantity("first instant replayed")
    replayed: int = quantity("values replayed that are known in every pool")
    pools: tuple[ForecastPool, ...] = quantity("the pools, by name")
    ways: tuple[ForecastPoolsWay, ...] = quantity("pools kept apart against one pool of all")
    apart_pct: float | None = quantity("GPU time that keeping pools apart adds to one pool of all", "%")


class ForecastComparison(ForecastWorth):
    """One way of keeping GPUs on, at one setting."""

    setting: str = quantity("GPUs or a part added, values of a maximum, or what is promised")


class ForecastCompareResult(AnswerModel):
    """Answer of ``commonwatt forecast compare``."""

    currency: str = quantity("currency of costs")
    model: str = quantity("name of the predictor")
    m: int = quantity("steps forecast; what is kept on at an instant was decided so many steps before")
    step_s: float = quantity("time between two values", "s")
    total_gpus: int = quantity("all GPUs; if not given, the most ever wanted", "GPUs")
    total_gpus_given: bool = quantity("whether that was given")
    replayed_from: str = quantity("first instant replayed")
    replayed: int = quantity("known values replayed")
    ways: tuple[ForecastComparison, ...] = quantity(
        "always-on, last-value, max-k, threshold, cuff (promises of instants), ours (promises of jobs) and "
        "perfect-foresight, each by rising setting"
    )


class ForecastDemandResult(AnswerModel):
    """Answer of ``commonwatt forecast demand``."""

    source: str = quantity("where the demand comes from")
    out: str | None = quantity("file it was written to; null if it was not")
    step_s: float = quantity("time between two values", "s")
    first: str = quantity("instant of the first value; seconds where there are no dates")
    last: str = quantity("instant of the last value")
    values: int = quantity("values")
    unknown: int = quantity("unknown values")
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


class ForecastStepScores(ResultModel):
    """Scores of the forecasts of one step ahead, and of what the calibration keeps on for it."""

    step: int = quantity("steps ahead")
    ahead_s: float = quantity("time ahead", "s")
    crps: float | None = quantity("mean continuous ranked probability score", "GPUs")
    pinball: float | None = quantity("mean pinball loss over all levels", "GPUs")
    pinball_of_last_value: float | None = quantity("the same of last-value", "GPUs")
    achieved: float | None = quantity("what was promised, achieved by what was kept on this many steps ahead")
    mean_gpus_on: float | None = quantity("mean GPUs that were kept on", "GPUs")


class ForecastPromise(ResultModel):
    """Whether a promised performance was kept over the test part, on which nothing was fitted."""

    of: str = quantity("instants, jobs, delay_s or delayed_gpu_h")
    target: float = quantity("share promised; of delayed_gpu_h, GPU hours of waiting a day")
    label: str = quantity("the target as it is typed")
    achieved: float | None = quantity("the same measure achieved, calibrated")
    achieved_raw: float | None = quantity("the same achieved by the forecast's own quantile")
    instants_served: float | None = quantity("share of instants with enough GPUs on, calibrated")
    hindsight_ratio: float | None = quantity(
        "GPU time kept on, relative to the least fixed shift of the same forecast that keeps the target, known only "
        "afterwards"
    )
    waiting: ForecastWaiting | None = quantity("delays of jobs; null: no job log")
    gpus_served: float | None = quantity("share of the GPUs wanted that were on, calibrated")
    jobs_served: float | None = quantity("share of jobs whose GPUs were on when they began; null: no job log")
    mean_gpus_on: float | None = quantity("mean GPUs on", "GPUs")
    fallback: int = quantity("scored instants at which everything stayed on because no promise could be made")
    beyond_total: int | None = quantity(
        "scored instants with more demand than all GPUs, which no plan serves; null without --total-gpus"
    )
    calibrated: bool = quantity("whether a calibration decided; else the forecast's own quantile at the target did")


class ForecastGpuHours(ResultModel):
    """Cost of one way at the promised performance, over the whole test part."""

    name: str = quantity("the model, last-value, or perfect-foresight")
    performance: float | None = quantity("what was promised, achieved: a share of instants or of jobs, or GPU hours")
    shift_gpus: float | None = quantity("GPUs added to its quantile to reach exactly that performance", "GPUs")
    gpu_hours: float | None = quantity("GPU time kept on", "GPU h")
    energy_kwh: float | None = quantity("energy of that; null if the power of a GPU was not given", "kWh")


class ForecastEvaluateResult(AnswerModel):
    """Answer of ``commonwatt forecast evaluate``."""

    model: str = quantity("name of the predictor")
    n: int = quantity("values used for a forecast")
    m: int = quantity("steps forecast; scores are of the last one")
    step_s: float = quantity("time between two values", "s")
    test_from: str = quantity("first instant that is scored")
    test_values: int = quantity("instants that are scored")
    unknown: int = quantity("of them with unknown demand, which are not scored")
    fits: int = quantity("how often the predictor was fitted; 0 for a model file")
    quantiles: tuple[ForecastQuantileScores, ...] = quantity("scores by level, the lowest first")
    crps: float | None = quantity("mean continuous ranked probability score", "GPUs")
    steps: tuple[ForecastStepScores, ...] = quantity("scores by step ahead: those asked for, and the last")
    promise: ForecastPromise = quantity("whether the target was met")
    equal_performance: tuple[ForecastGpuHours, ...] = quantity(
        "GPU time at equal performance: each way's quantile shifted, with knowledge of the outcome, to meet the target"
    )
    energy_saving_pct: float | None = quantity("energy saved against all GPUs on; null without --total-gpus", "%")
    fit_s: float = quantity("time of the first fit; 0 for a model file", "s")
    predict_ms: float = quantity("time of one forecast, all levels and steps: median", "ms")
    update_ms: float = quantity("time to observe one more value: median", "ms")
