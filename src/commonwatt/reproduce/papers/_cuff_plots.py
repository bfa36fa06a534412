"""CUFF's Fig. 3, 4 and 5 on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.forecasting.forecast import LEVELS
from commonwatt.forecasting.scores import energy_saving, slots_served
from commonwatt.report.palette import policy_colour
from commonwatt.report.saving import saved
from commonwatt.reproduce.papers._cuff_rows import Study, average_day

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

__all__ = ["draw"]


def draw(studies: Sequence[Study], path: Path) -> None:
    """Draw a row for each trace; raises ``InputError`` as ``saved``."""
    with saved(path, (12.0, 3.3 * len(studies))) as figure:
        grid = figure.subplots(len(studies), 3, squeeze=False)
        for row, study in zip(grid, studies, strict=True):
            _day(row[0], study)
            _by_level(row[1], study)
            _knob(row[2], study)


def _day(axes: Axes, study: Study) -> None:
    means = [np.nan if mean is None else mean for mean in average_day(study.trace)]
    axes.plot(range(24), means, color=policy_colour(0))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hour of day")
    axes.set_title(f"Fig. 3: mean demand, GPUs: {study.trace.name}")


def _by_level(axes: Axes, study: Study) -> None:
    levels, actual = LEVELS.tolist(), study.actual
    forecasts = [study.scored(study.quantile["gru"], level) for level in levels]
    point = study.scored(study.point["gru"])
    mae = [float(np.nanmean(np.abs(on - actual))) for on in forecasts]
    axes.plot(levels, mae, "o-", markersize=3, color=policy_colour(3), label="MAE, GPUs")
    axes.axhline(float(np.nanmean(np.abs(point - actual))), color=policy_colour(3), linestyle=":")
    other = axes.twinx()
    under = [100 * (1 - slots_served(on, actual)) for on in forecasts]
    other.plot(levels, under, "s-", markersize=3, color=policy_colour(0), label="under-predicted, %")
    other.axhline(100 * (1 - slots_served(point, actual)), color=policy_colour(0), linestyle=":")
    other.grid(visible=False)
    lines = [*axes.get_lines()[:1], *other.get_lines()[:1]]
    axes.legend(lines, [str(line.get_label()) for line in lines], fontsize=7, loc="upper center")
    axes.set_xlabel("level; dotted: point forecast")
    axes.set_title("Fig. 4: GRU by level")


def _knob(axes: Axes, study: Study) -> None:
    total, actual = study.trace.total_gpus, study.actual
    axes.set_title("Fig. 5: performance against saving, %")
    if total is None:
        axes.text(0.5, 0.5, "size of the cluster says nothing", ha="center", transform=axes.transAxes)
        return
    on = [study.scored(study.quantile["gru"], level) for level in LEVELS.tolist()]
    saving = [100 * energy_saving(each, total) for each in on]
    axes.plot(saving, [100 * slots_served(each, actual) for each in on], "o-", markersize=3, color=policy_colour(0))
    point = study.scored(study.point["gru"])
    axes.plot(100 * energy_saving(point, total), 100 * slots_served(point, actual), "D", color=policy_colour(1))
    target = study.calibrated(study.quantile["gru"], 0.98)
    axes.plot(100 * energy_saving(target, total), 100 * slots_served(target, actual), "*", color=policy_colour(2))
    axes.legend(["quantiles, GRU", "point forecast", "calibrated, target 98%"], fontsize=7)
    axes.set_xlabel("energy saving, %")
