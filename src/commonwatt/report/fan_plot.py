"""Static figure of one forecast: the values seen last, quantiles as a fan, and what came true where it is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from commonwatt.model.arrays import Floats
    from commonwatt.model.forecast_network_results import ForecastPredictResult

__all__ = ["save_fan"]

_BANDS = ((0.1, 0.9), (0.1, 0.95), (0.1, 0.99))


def save_fan(result: ForecastPredictResult, seen: Floats, came: Floats, path: Path) -> None:
    """Draw a forecast to *path*.

    Parameters
    ----------
    seen
        Demand up to and including the last value seen, NaN where unknown, GPUs. Shape [any, 1 or more].
    came
        Demand after that, as far as it is known. Shape [up to m].

    Raises ``InputError`` as ``saved``.
    """
    minutes = result.step_s / 60
    ahead = np.arange(len(result.steps) + 1) * minutes
    levels, gpus = np.array(result.levels), np.array([step.gpus for step in result.steps])
    known = seen[~np.isnan(seen)]
    last = known[-1] if len(known) else gpus[0, np.argmin(np.abs(levels - 0.5))]
    with saved(path, (7.5, 3.6)) as figure:
        axes = figure.subplots()
        axes.set_title(f"{result.model}: demand after {result.seen_until}")
        axes.plot(np.arange(1 - len(seen), 1) * minutes, seen, color="#1F2933", linewidth=1.2, label="seen")
        for low, high in _BANDS:
            below, above = (np.concatenate(([last], gpus[:, np.argmin(np.abs(levels - q))])) for q in (low, high))
            axes.fill_between(
                ahead, below, above, color="#0072B2", alpha=0.22, linewidth=0, label=f"{low:g} to {high:g}"
            )
        middle = gpus[:, np.argmin(np.abs(levels - 0.5))]
        axes.plot(ahead, np.concatenate(([last], middle)), color="#0072B2", linewidth=1.2, label="median")
        if len(came):
            axes.plot(
                ahead[1 : 1 + len(came)], came, "o--", color="#D55E00", markersize=3, linewidth=0.8, label="came true"
            )
        axes.set_xlabel("minutes from the last value seen")
        axes.set_ylabel("GPUs")
        axes.legend(loc="upper left", ncols=2)
