"""Figures of one forecast (last values, quantiles as a fan, actual demand) and of a capacity plan and its replay."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import LEVELS
from commonwatt.model.forecast_results import ForecastPlanResult
from commonwatt.model.units import DAY_S, plural
from commonwatt.report.pictures import policy_colour, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commonwatt.data.series_files import SeriesFile
    from commonwatt.model.demand import DemandSeries
    from commonwatt.model.forecast_results import ForecastCompareResult, ForecastPredictResult
    from commonwatt.planning.replay import ReplayedPlan

__all__ = ["save_comparison", "save_fan", "save_plan"]

_BANDS = ((0.1, 0.99), (0.1, 0.95), (0.1, 0.9))  # the widest lies under the others
_SHADES = ("#CFE2F1", "#9FC6E3", "#6BA7D3")
_BEFORE = 60  # values shown before a forecast


def save_fan(result: ForecastPredictResult, series: DemandSeries, origin: int, path: Path) -> None:
    """Draw a forecast to *path*, the hour of values before it, and the actual demand after it.

    Parameters
    ----------
    origin
        Index of the last value used. The forecast is of the values of *series* after it.

    Raises
    ------
    InputError
        As ``saved``.
    """
    seen = series.gpus[max(0, origin + 1 - _BEFORE) : origin + 1]
    came = series.gpus[origin + 1 : origin + 1 + len(result.steps)]
    minutes = result.step_s / 60
    ahead = np.arange(len(result.steps) + 1) * minutes
    levels, gpus = np.array(result.levels), np.array([step.gpus for step in result.steps])
    values = seen[~np.isnan(seen)]
    last = values[-1] if len(values) else gpus[0, np.argmin(np.abs(levels - 0.5))]
    with saved(path, (7.5, 3.6)) as figure:
        axes = figure.subplots()
        axes.set_title(f"{result.model}: demand after {result.seen_until}")
        axes.plot(np.arange(1 - len(seen), 1) * minutes, seen, color="#1F2933", linewidth=1.2, label="observed")
        for (low, high), colour in zip(_BANDS, _SHADES, strict=True):
            below, above = (np.concatenate(([last], gpus[:, np.argmin(np.abs(levels - q))])) for q in (low, high))
            axes.fill_between(ahead, below, above, color=colour, linewidth=0, label=f"{low:g} to {high:g}")
        middle = gpus[:, np.argmin(np.abs(levels - 0.5))]
        axes.plot(ahead, np.concatenate(([last], middle)), color="#0072B2", linewidth=1.2, label="median")
        if len(came):
            axes.plot(
                ahead[1 : 1 + len(came)], came, "o--", color="#D55E00", markersize=3, linewidth=0.8, label="actual"
            )
        axes.set_xlabel("minutes from the last value observed")
        axes.set_ylabel("GPUs")
        figure.legend(loc="outside lower center", ncols=6)


Instants = NDArray[Any]

_SHOWN = 240  # instants of the fan chart
_PLAN_BANDS = ((0.1, 0.99), (0.2, 0.95), (0.3, 0.9))
_USED, _ON, _CHOSEN = "#222222", "#c23b22", "#c23b22"


def save_plan(replayed: ReplayedPlan, file: SeriesFile, path: Path) -> None:
    """Draw the replay of a plan for *file*, and the plan.

    Raises
    ------
    InputError
        As ``saved``.
    """
    result, actual, quantiles = replayed.result, replayed.actual, replayed.quantiles
    on, ahead = replayed.on, replayed.ahead
    begin_s = file.series.time_s(replayed.begin) if file.dated else math.nan
    with saved(path, (11.0, 7.6)) as figure:
        (fan, knob), (use, bars) = figure.subplots(2, 2, width_ratios=(2.2, 1.0))
        steps_ahead = f"{plural(result.m, 'step')} of {result.step_s:g} s ahead"
        promised = f"{100 * result.target:g}%" if result.promise.of == "instants" else result.promise.label
        figure.suptitle(f"{result.model}: {promised} promised, {steps_ahead}")
        steps = len(actual) + len(ahead)
        at, label = _times(begin_s, result.step_s, steps)
        _fan(fan, at, actual, quantiles, on, ahead, result)
        fan.set_xlabel(label)
        _use(use, at[: len(actual)], actual, on, result)
        use.set_xlabel(label)
        _knob(knob, result)
        _bars(bars, result)


def save_comparison(result: ForecastCompareResult, path: Path) -> None:
    """Draw what each way of keeping GPUs on costs against how long jobs wait.

    Raises
    ------
    InputError
        As ``saved``.
    """
    foresight = result.ways[-1].gpu_hours or 1.0
    names = list(dict.fromkeys(row.name for row in result.ways))
    shown = [row for row in result.ways if row.waiting is not None and row.name != "always-on"]
    with saved(path, (10.0, 4.4)) as figure:
        for axes, field, label in zip(
            figure.subplots(1, 2), ("p99_delay_s", "mean_delay_s"), ("99th percentile", "mean"), strict=True
        ):
            for k, name in enumerate(names):
                own = [row for row in shown if row.name == name]
                if not own:
                    continue
                waits = [getattr(row.waiting, field) for row in own]
                hours = [100 * row.gpu_hours / foresight for row in own]
                style = {"marker": "o", "markersize": 4, "linewidth": 1.0 if len(own) > 1 else 0.0}
                axes.plot(waits, hours, color=policy_colour(k), label=name, **style)
            axes.set_xlabel(f"{label} of waiting, s")
            axes.set_ylabel("GPU hours, % of perfect foresight")
        always = 100 * result.ways[0].gpu_hours / foresight
        figure.suptitle(f"{result.model}, from {result.replayed_from}; always on: nobody waits, {always:,.0f}%")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=7)


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
    for (low, high), colour in zip(_PLAN_BANDS, _SHADES, strict=True):
        bottom, top = (rows[:, int(np.argmin(np.abs(LEVELS - level)))] for level in (low, high))
        label = f"{low:g} to {high:g}"
        axes.fill_between(times, bottom, top, color=colour, linewidth=0, label=label, step="mid")
    middle = rows[:, int(np.argmin(np.abs(LEVELS - 0.5)))]
    axes.plot(times, middle, color="#1f4e79", linewidth=0.9, label="median")
    axes.plot(at[first : len(actual)], actual[first:], color=_USED, linewidth=1.2, label="actual")
    planned = np.concatenate([on[first:], [step.gpus_on for step in result.plan]])
    axes.plot(times, planned, color=_ON, linewidth=1.1, drawstyle="steps-mid", label="GPUs on")
    if len(actual):
        axes.axvline(at[len(actual) - 1], color="#8a94a0", linestyle=":", linewidth=1)
    axes.set_title(f"Forecast {plural(result.m, 'step')} ahead, actual demand, and the plan")
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
    axes.set_ylim(0, 1.25 * result.total_gpus)  # the legend is above all
    axes.tick_params(axis="x", rotation=20)
    axes.legend(ncols=3, fontsize=7, loc="upper left")


def _knob(axes: Axes, result: ForecastPlanResult) -> None:
    points = result.knob
    axes.plot(
        [p.energy_saving_pct for p in points], [100 * p.performance for p in points], "o-", color="#1f4e79",
        markersize=3, linewidth=1, label="history",
    )  # fmt: skip
    chosen, now = result.chosen, result.replay[0]
    axes.plot(chosen.energy_saving_pct, 100 * chosen.performance, "o", color=_CHOSEN, markersize=8, label="chosen")
    axes.plot(now.energy_saving_pct, 100 * now.performance, "D", color="#d9a514", markersize=6, label="since")
    if result.promise.of == "instants":
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
            0.0, i, f" {row.energy_saving_pct:.1f}% ({100 * row.performance:.1f}% served)", va="center", fontsize=8,
            bbox={"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 1.0},
        )  # fmt: skip
    axes.set_yticks(rows, [row.name for row in result.replay])
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.0, *(1.15 * saving for saving in savings)))
    axes.grid(visible=False, axis="y")
    axes.set_title("Saved in the replay")
    axes.set_xlabel("energy saved against all on, %")
