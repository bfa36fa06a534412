"""What ``commonwatt forecast fit`` and ``forecast predict`` answer with. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = ["ForecastFitResult", "ForecastPredictResult", "ForecastStep"]


class ForecastFitResult(AnswerModel):
    """Answer of ``commonwatt forecast fit``."""

    model: str = quantity("name of the predictor")
    out: str = quantity("file it was written to")
    file_bytes: int = quantity("size of that", "bytes")
    n: int = quantity("values seen before a forecast")
    m: int = quantity("steps forecast")
    step_s: float = quantity("time between two values", "s")
    first: str = quantity("instant of the first value learnt from; seconds where there are no dates")
    last: str = quantity("instant of the last one")
    values: int = quantity("values learnt from")
    members: int = quantity("networks trained and averaged; of lightgbm alone, its models, one a step and level")
    interrupted: bool = quantity("whether training was interrupted; what was learnt by then is in the file")
    fit_s: float = quantity("time to fit", "s")


class ForecastStep(ResultModel):
    """Forecast for one instant."""

    at: str = quantity("the instant; seconds where there are no dates")
    gpus: tuple[float, ...] = quantity("demand at each level, not falling", "GPUs")


class ForecastPredictResult(AnswerModel):
    """Answer of ``commonwatt forecast predict``."""

    model: str = quantity("name of the predictor")
    n: int = quantity("values seen before a forecast")
    m: int = quantity("steps forecast")
    step_s: float = quantity("time between two values", "s")
    seen_until: str = quantity("instant of the last value seen")
    last_gpus: float | None = quantity("demand then; null if it is not known", "GPUs")
    levels: tuple[float, ...] = quantity("quantile levels, the lowest first")
    steps: tuple[ForecastStep, ...] = quantity("forecasts, the next instant first")
    predict_ms: float = quantity("time to forecast", "ms")
