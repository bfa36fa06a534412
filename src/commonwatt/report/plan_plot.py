"""Drawing of a capacity plan: fan chart, GPUs on against used, the knob, what was saved."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commonwatt.forecasting.forecast import LEVELS
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.forecast_plan_results import ForecastPlanResult
from commonwatt.model.units import DAY_S
from commonwatt.report.palette import policy_colour
from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_plan"]

Instants = NDArray[Any]

_SHOWN = 240  # instants of the fan chart
_BANDS = ((0.1, 0.99, 0.18), (0.2, 0.95, 0.22), (0.3, 0.9, 0.28))
_USED, _ON, _CHOSEN = "#222222", "#c23b22", "#c23b22"


def save_plan(
    result: ForecastPlanResult, actual: Floats, quantiles: Floats, on: Ints, ahead: Floats, begin_s: float, path: Path
) -> None:
    """Draw what was replayed and what is planned.

    Parameters
    ----------
    actual, quantiles, on
        Demand replayed, [T]; forecasts of it, [T, Q]; GPUs kept on, [T].
    ahead
        Forecast of the steps to come. Shape [m, Q].
    begin_s
        When the replay begins, seconds since 1970; NaN where there are no dates.

    Raises
    ------
    InputError
        As ``saved``.
    """
    with saved(path, (11.0, 7.6)) as figure:
        (fan, knob), (use, bars) = figure.subplots(2, 2, width_ratios=(2.2, 1.0))
        figure.suptitle(
            f"{result.model}: {100 * result.target:g}% promised, {result.m} steps of {result.step_s:g} s ahead"
        )
        steps = len(actual) + len(ahead)
        at, label = _times(begin_s, result.step_s, steps)
        _fan(fan, at, actual, quantiles, on, ahead, result)
        fan.set_xlabel(label)
        _use(use, at[: len(actual)], actual, on, result)
        use.set_xlabel(label)
        _knob(knob, result)
        _bars(bars, result)


def _times(begin_s: float, step_s: float, steps: int) -> tuple[Instants, str]:
    if math.isnan(begin_s):
        return np.arange(steps) * step_s / DAY_S, "days since the replay began"
    begin = datetime.fromtimestamp(begin_s, tz=UTC).replace(tzinfo=None)
    return np.array([begin + timedelta(seconds=step_s * i) for i in range(steps)]), "UTC"


def _fan(
    axes: Axes, at: Instants, actual: Floats, quantiles: Floats, on: Ints, ahead: Floats, result: ForecastPlanResult
) -> None:  # fmt: skip
    first = max(0, len(actual) - _SHOWN)
    rows = np.concatenate([quantiles[first:], ahead])
    times = at[first:]
    for low, high, alpha in _BANDS:
        bottom, top = (rows[:, int(np.argmin(np.abs(LEVELS - level)))] for level in (low, high))
        label = f"{low:g} to {high:g}"
        axes.fill_between(times, bottom, top, color="#3b78b8", alpha=alpha, linewidth=0, label=label, step="mid")
    middle = rows[:, int(np.argmin(np.abs(LEVELS - 0.5)))]
    axes.plot(times, middle, color="#1f4e79", linewidth=0.9, label="median")
    axes.plot(at[first : len(actual)], actual[first:], color=_USED, linewidth=1.2, label="came true")
    planned = np.concatenate([on[first:], [step.gpus_on for step in result.plan]])
    axes.plot(times, planned, color=_ON, linewidth=1.1, drawstyle="steps-mid", label="GPUs on")
    if len(actual):
        axes.axvline(at[len(actual) - 1], color="#8a94a0", linestyle=":", linewidth=1)
    axes.set_title(f"Forecast {result.m} steps ahead, what came true, and the plan")
    axes.set_ylabel("GPUs")
    axes.tick_params(axis="x", rotation=20)
    axes.legend(ncols=3, fontsize=7, loc="best")


def _use(axes: Axes, at: Instants, actual: Floats, on: Ints, result: ForecastPlanResult) -> None:
    axes.fill_between(at, 0, on, color=_ON, alpha=0.15, linewidth=0, step="mid")
    axes.plot(at, on, color=_ON, linewidth=0.7, drawstyle="steps-mid", label="on")
    axes.plot(at, actual, color=_USED, linewidth=0.7, label="used")
    axes.axhline(result.total_gpus, color="#5a6675", linestyle="--", linewidth=1, label="all")
    own = result.replay[0]
    axes.set_title(f"GPUs on against used: enough at {100 * own.performance:.2f}% of instants")
    axes.set_ylabel("GPUs")
    axes.set_ylim(0, 1.08 * result.total_gpus)
    axes.tick_params(axis="x", rotation=20)
    axes.legend(ncols=3, fontsize=7, loc="lower left")


def _knob(axes: Axes, result: ForecastPlanResult) -> None:
    points = result.knob
    axes.plot(
        [p.energy_saving_pct for p in points], [100 * p.performance for p in points], "o-", color="#1f4e79",
        markersize=3, linewidth=1, label="history",
    )  # fmt: skip
    chosen, now = result.chosen, result.replay[0]
    axes.plot(chosen.energy_saving_pct, 100 * chosen.performance, "o", color=_CHOSEN, markersize=8, label="chosen")
    axes.plot(now.energy_saving_pct, 100 * now.performance, "D", color="#d9a514", markersize=6, label="since")
    axes.axhline(100 * result.target, color=_CHOSEN, linestyle=":", linewidth=1)
    savings = [p.energy_saving_pct for p in points if p.q < 1] + [now.energy_saving_pct]
    room = 0.1 * max(1.0, max(savings) - min(savings))
    axes.set_xlim(min(savings) - room, max(savings) + room)  # everything on lies far to the left
    axes.set_title("Knob")
    axes.set_xlabel("energy saved, %")
    axes.set_ylabel("instants with enough GPUs on, %")
    axes.legend(fontsize=7, loc="lower left")


def _bars(axes: Axes, result: ForecastPlanResult) -> None:
    rows = np.arange(len(result.replay))
    savings = [row.energy_saving_pct for row in result.replay]
    axes.barh(rows, savings, color=[policy_colour(i) for i in rows.tolist()], height=0.62)
    for i, row in enumerate(result.replay):
        axes.text(
            0.0, i, f" {row.energy_saving_pct:.1f}% ({100 * row.performance:.1f}% served)", va="center", fontsize=8
        )
    axes.set_yticks(rows, [row.name for row in result.replay])
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.0, *(1.15 * saving for saving in savings)))
    axes.grid(visible=False, axis="y")
    axes.set_title("Saved in the replay")
    axes.set_xlabel("energy saved against all on, %")
