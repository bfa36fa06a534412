"""Static figure of one forecast: the values seen last, quantiles as a fan, and what came true where it is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from commonwatt.forecasting.series import DemandSeries
    from commonwatt.model.forecast_network_results import ForecastPredictResult

__all__ = ["save_fan"]

_SEEN = 60  # values shown before the forecast
_BANDS = ((0.1, 0.9), (0.1, 0.95), (0.1, 0.99))


def save_fan(result: ForecastPredictResult, series: DemandSeries, origin: int, path: Path) -> None:
    """Draw the forecast made after value *origin* of *series* to *path*. Raises ``InputError`` as ``saved``."""
    first = max(0, origin + 1 - _SEEN)
    minutes = series.step_s / 60
    ahead = np.arange(len(result.steps) + 1) * minutes
    levels, gpus = np.array(result.levels), np.array([step.gpus for step in result.steps])
    last = series.filled()[origin]
    with saved(path, (7.5, 3.6)) as figure:
        axes = figure.subplots()
        axes.set_title(f"{result.model}: demand after {result.seen_until}")
        seen = series.gpus[first : origin + 1]
        axes.plot((np.arange(first, origin + 1) - origin) * minutes, seen, color="#1F2933", linewidth=1.2, label="seen")
        for low, high in _BANDS:
            edges = [np.concatenate(([last], gpus[:, np.argmin(np.abs(levels - q))])) for q in (low, high)]
            axes.fill_between(ahead, *edges, color="#0072B2", alpha=0.22, linewidth=0, label=f"{low:g} to {high:g}")
        middle = gpus[:, np.argmin(np.abs(levels - 0.5))]
        axes.plot(ahead, np.concatenate(([last], middle)), color="#0072B2", linewidth=1.2, label="median")
        came = series.gpus[origin : origin + 1 + len(result.steps)]
        if len(came) > 1:
            axes.plot(ahead[: len(came)], came, "o--", color="#D55E00", markersize=3, linewidth=0.8, label="came true")
        axes.set_xlabel("minutes from the last value seen")
        axes.set_ylabel("GPUs")
        axes.legend(loc="upper left", ncols=2)
