"""Plot of a job log: submissions per hour and GPUs in use."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.data.demand import GpuUse, usage
from commonwatt.data.log import JobLog
from commonwatt.model.arrays import Floats
from commonwatt.model.units import DAY_S, HOUR_S
from commonwatt.report import format as fmt
from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_log"]

_BLUE, _ORANGE = "#0072B2", "#D55E00"
_COLUMNS = 1500  # steps drawn: as many as can be distinguished


def save_log(log: JobLog, path: Path) -> None:
    """Draw *log*, from where it is complete, and save it to *path* (.png, .svg or .pdf).

    Raises ``InputError`` if the suffix is none of these or the file cannot be written.
    """
    first, last = log.whole_from_s, log.span_s[1]
    end = max(last, first + HOUR_S)
    with saved(path, (11.0, 6.0)) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        _submissions(above, log, first, end)
        _in_use(below, usage(log), first, end)
        _time_axis(below, log, first, end)
        for axes in (above, below):
            axes.yaxis.get_major_locator().set_params(integer=True)
        title = f"{log.source}: {fmt.plural(len(log), 'job')}, {fmt.plural(len(set(log.tenant)), 'tenant')}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")


def _submissions(axes: Axes, log: JobLog, first: float, end: float) -> None:
    width = max(HOUR_S, HOUR_S * np.ceil((end - first) / HOUR_S / _COLUMNS))
    edges = np.arange(first, end + width, width)
    counts, _ = np.histogram(log.submit_s, edges)
    axes.stairs(counts / (width / HOUR_S), edges - first, color=_BLUE, fill=True, linewidth=0, alpha=0.75)
    days = (end - first) / DAY_S
    if days > 3:
        daily = np.arange(first, end, DAY_S)
        per_day = np.histogram(log.submit_s, np.append(daily, end))[0] / np.diff(np.append(daily, end)) * HOUR_S
        axes.stairs(
            per_day, np.append(daily, end) - first, color="#10344f", linewidth=1.4, baseline=None, label="daily mean"
        )
        axes.legend(loc="upper right")
    axes.set_title("Submissions per hour")
    axes.set_ylim(bottom=0)


def _in_use(axes: Axes, use: GpuUse, first: float, end: float) -> None:
    edges = np.linspace(first, end, _COLUMNS + 1)
    mean, most = _binned(use, edges)
    axes.stairs(most, edges - first, color=_ORANGE, fill=True, linewidth=0, alpha=0.35, label="most in the interval")
    axes.stairs(mean, edges - first, color=_ORANGE, linewidth=1.0, baseline=None, label="mean")
    peak = int(use.gpus.max())
    axes.axhline(peak, color="#5a6675", linestyle="--", linewidth=1, label=f"peak {peak:,}")
    basis = "as logged" if use.from_starts else "if every job started at its submission"
    axes.set_title(f"GPUs in use, {basis}")
    axes.set_ylim(0, 1.22 * peak)
    axes.legend(loc="upper right", ncols=3)


def _binned(use: GpuUse, edges: Floats) -> tuple[Floats, Floats]:
    """Return the mean and the largest number of GPUs in use between neighbouring *edges*."""
    time = np.concatenate(([min(edges[0], use.time_s[0]) - 1.0], use.time_s))
    gpus = np.concatenate(([0], use.gpus)).astype(float)
    area = np.concatenate(([0.0], np.cumsum(gpus[:-1] * np.diff(time))))
    at = np.searchsorted(time, edges, side="right") - 1
    passed = area[at] + gpus[at] * (edges - time[at])
    most = np.array([gpus[a : b + 1].max() for a, b in itertools.pairwise(at)])
    return np.diff(passed) / np.diff(edges), most


def _time_axis(axes: Axes, log: JobLog, first: float, end: float) -> None:
    from matplotlib.ticker import MaxNLocator

    size, unit, form = (DAY_S, "days", "%d %b %Y") if end - first > 2 * DAY_S else (HOUR_S, "hours", "%d %b %H:%M")
    since = 0.0 if log.origin is None else (log.origin.timestamp() + first) % size  # ticks at midnights or whole hours
    ticks = np.asarray(MaxNLocator(nbins=9, integer=True).tick_values(0, (end - first + since) / size)) * size - since
    ticks = ticks[(ticks >= 0) & (ticks <= end - first)]
    axes.set_xlim(0, end - first)
    if log.origin is None:
        axes.set_xticks(ticks, [f"{tick / size:g}" for tick in ticks])
        axes.set_xlabel(f"{unit} since {log.moment(first)}")
        return
    begin = log.origin + timedelta(seconds=first)
    axes.set_xticks(ticks, [(begin + timedelta(seconds=round(t))).strftime(form) for t in ticks.tolist()])
    axes.set_xlabel("UTC")
