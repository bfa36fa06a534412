"""What ``commonwatt forecast plan`` answers with. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = ["ForecastKnobPoint", "ForecastPlanResult", "ForecastPlanStep", "ForecastReplay"]


class ForecastKnobPoint(ResultModel):
    """A setting of the knob, and what it would have done over the history it was learned from."""

    q: float = quantity("level of the quantile kept on; 1: everything")
    extra_gpus: int = quantity("GPUs kept on beyond it", "GPUs")
    mean_gpus_on: float = quantity("mean GPUs on", "GPUs")
    performance: float = quantity("share of instants with enough GPUs on")
    gpus_served: float = quantity("share of the GPUs wanted that were on")
    energy_saving_pct: float = quantity("GPU time not kept on, of all GPUs", "%")


class ForecastReplay(ResultModel):
    """What one way of keeping GPUs on did over the part replayed."""

    name: str = quantity("calibrated, knob (the setting chosen), last-value or perfect-foresight")
    performance: float = quantity("share of instants with enough GPUs on")
    gpus_served: float = quantity("share of the GPUs wanted that were on")
    mean_gpus_on: float = quantity("mean GPUs on", "GPUs")
    energy_saving_pct: float = quantity("GPU time not kept on, of all GPUs", "%")


class ForecastPlanStep(ResultModel):
    """One step ahead of the last value."""

    at: str = quantity("instant")
    median_gpus: float = quantity("median demand forecast", "GPUs")
    quantile_gpus: float = quantity("the forecast's own quantile at the target", "GPUs")
    gpus_on: int = quantity("GPUs to keep on, calibrated", "GPUs")
    nodes_on: int | None = quantity("whole nodes that takes; null if the size of a node is not given")


class ForecastPlanResult(AnswerModel):
    """Answer of ``commonwatt forecast plan``."""

    model: str = quantity("name of the predictor")
    n: int = quantity("values it sees")
    m: int = quantity("steps it forecasts")
    step_s: float = quantity("time between two values", "s")
    target: float = quantity("share of instants with enough GPUs on that is promised")
    total_gpus: int = quantity("all GPUs; if not given, the most ever wanted or forecast", "GPUs")
    total_gpus_given: bool = quantity(
        "whether that was given; else nothing is capped, and savings of the replay are counted against the most that "
        "was wanted or forecast by then"
    )
    fitted_before: str | None = quantity("end of what the predictor learned from; null for a model file")
    calibrated_from: str = quantity("begin of the history the knob and the calibration were learned from")
    replayed_from: str = quantity("first instant replayed, which nothing was learned from before its time")
    replayed: int = quantity("known values replayed")
    fallback: int = quantity("of them at which everything stayed on because no promise could be made")
    beyond_total: int | None = quantity(
        "of them with more demand than all GPUs, which no plan serves; null if the total was not given"
    )
    knob: tuple[ForecastKnobPoint, ...] = quantity("settings by rising number of GPUs")
    chosen: ForecastKnobPoint = quantity("setting with the fewest GPUs that kept the target over the history")
    replay: tuple[ForecastReplay, ...] = quantity("what each way did since")
    promise_kept: bool = quantity(
        "whether the promise can be kept now: not while everything stays on, nor where more was wanted than all GPUs "
        "at more instants than the target leaves, of those replayed or of the last 120 of them"
    )
    promise: str = quantity("why, in one sentence")
    plan: tuple[ForecastPlanStep, ...] = quantity("the steps to come")
