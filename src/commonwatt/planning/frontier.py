"""Energy against waiting: what each way of keeping GPUs on costs, and whom it lets wait, over a range of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from commonwatt import __version__
from commonwatt.capacity import make_calibrator
from commonwatt.model.arrays import Floats
from commonwatt.model.capacity import Target, WaitingTarget, target_label
from commonwatt.model.demand import LEVELS, Predictor, quantile_at, with_due
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_results import ForecastCompareResult, ForecastComparison
from commonwatt.planning.predictors import SavedPredictor
from commonwatt.planning.replay import fit_before
from commonwatt.planning.series import LoadedSeries
from commonwatt.planning.waiting import Hindsight, Price

__all__ = ["SHARES", "compare_ways"]

SHARES = (0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Shares of instants, and of jobs, that are promised."""

EXTRA_GPUS = (0, 8, 16, 32, 64, 128)
"""GPUs kept on beyond the demand of now."""

WINDOWS = (5, 30, 120, 480, 1440)
"""Values of which the maximum is kept on (max-k)."""

MARGINS = (0.0, 0.05, 0.1, 0.2, 0.5)
"""Parts of the median kept on beyond it: the threshold method."""


def compare_ways(
    loaded: LoadedSeries, predictor: Predictor, test_from: int | None = None, *, total_gpus: int | None = None,
    price: Price | None = None, seed: int = 0, progress: Callable[[float], None] = lambda _: None,
) -> ForecastCompareResult:  # fmt: skip
    """Replay a job log from index *test_from* on under each way and setting, one horizon ahead.

    The predictor learns from the values more than a week before *test_from*, promises are calibrated from that week.
    Nothing uses later values but perfect foresight.

    Parameters
    ----------
    test_from
        Index of the first value replayed; the last seventh if ``None``.
    total_gpus
        All GPUs; ``None``: the most ever wanted.

    Raises
    ------
    InputError
        For a series without jobs, and as ``plan_series``.
    """
    series, m = loaded.file.series, predictor.horizon
    if loaded.arrivals is None or not len(loaded.arrivals):
        raise InputError("a job log with jobs; a series has no waiting times", field="series")
    begin = len(series) * 6 // 7 if test_from is None else test_from
    first = fit_before(series, predictor, begin, seed, fitted=isinstance(predictor, SavedPredictor))
    origins = np.arange(first - m, len(series) - m, dtype=np.int64)
    quantiles = with_due(predictor.predict_many(series, origins), loaded.arrivals.due(origins, m))
    whole = int(np.nanmax(np.ceil(series.gpus))) if total_gpus is None else total_gpus
    price = price or Price()
    outcome = Hindsight.of(series.gpus, begin, loaded.arrivals, series.step_s, m, price)
    rows: list[ForecastComparison] = []

    def add(name: str, setting: str, on: Floats) -> None:
        rows.append(ForecastComparison(setting=setting, **vars(outcome.worth(name, np.clip(on, 0.0, whole)))))

    now = series.filled()[begin - m : -m]
    add("always-on", f"{whole} GPUs", np.full(len(outcome.actual), float(whole)))
    for extra in EXTRA_GPUS:
        add("last-value", f"+{extra} GPUs", np.ceil(now) + extra)
    for length, on in _largest(series.filled(), begin - m, len(now)):
        add("max-k", f"{length} values", on)
    median = np.ceil(quantile_at(LEVELS, quantiles[begin - first :, -1], 0.5) - 1e-9)
    for margin in MARGINS:
        add("threshold", f"+{100 * margin:g}%", np.ceil(median * (1.0 + margin) - 1e-9))
    promises: list[tuple[str, Target]] = [("cuff", share) for share in SHARES]
    promises += [("ours", WaitingTarget(jobs=share)) for share in SHARES]
    for k, (name, target) in enumerate(promises):
        calibrator = make_calibrator(target, step_s=series.step_s, whole_gpus=total_gpus, steps=m)
        kept = calibrator.follow(series.gpus, origins, LEVELS, quantiles, loaded.arrivals)
        add(name, target_label(target), kept.gpus[begin - first :, -1].astype(float))
        progress((k + 1) / len(promises))
    add("perfect-foresight", "", np.where(np.isnan(outcome.actual), 0.0, np.ceil(outcome.actual)))
    return ForecastCompareResult(
        version=__version__,
        currency=price.currency,
        seed=seed,
        input_digest=loaded.file.digest,
        model=predictor.name,
        m=m,
        step_s=series.step_s,
        total_gpus=whole,
        total_gpus_given=total_gpus is not None,
        replayed_from=loaded.file.moment(begin),
        replayed=int((~np.isnan(outcome.actual)).sum()),
        ways=tuple(rows),
    )


def _largest(values: Floats, first: int, count: int) -> Iterator[tuple[int, Floats]]:
    """Yield each window that fits, and the maximum of that many values up to each of *count* from index *first* on."""
    for length in WINDOWS:
        if length <= first + 1:
            windows = np.lib.stride_tricks.sliding_window_view(values, length)
            yield length, np.ceil(windows[first - length + 1 :][:count].max(axis=1))
