"""Static figures for ``--plot``: PNG, SVG, PDF. The same input gives the same bytes.

Of simulations, of job logs (submissions per hour, GPUs in use), and of studies (the waterfall).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.data.demand import GpuUse, usage
from commonwatt.data.log import JobLog
from commonwatt.model.arrays import Floats
from commonwatt.model.results import SimulationResult
from commonwatt.model.study_results import StudyResult
from commonwatt.model.units import DAY_S, HOUR_S, plural
from commonwatt.report import drawing, schedule_plot
from commonwatt.report import format as fmt
from commonwatt.report.gantt import MOST_NODES, MOST_SEGMENTS
from commonwatt.report.pictures import SUFFIXES, saved
from commonwatt.report.reduction import heat_map
from commonwatt.report.study_text import STEP_NAMES, headline, signed_pct
from commonwatt.report.timeline import end_s, timeline
from commonwatt.simulation.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commonwatt.placement import PlacementProblem, Schedule

__all__ = ["SUFFIXES", "save_gantt", "save_log", "save_overview", "save_schedule", "save_waterfall"]


def save_overview(result: SimulationResult, records: Sequence[Record], path: Path) -> None:
    """Draw cost against the lower bound, GPUs in use, waiting and power of all policies, and save it to *path*.

    Raises ``InputError`` if the suffix is none of ``SUFFIXES``.
    """
    with saved(path, (11.0, 7.0)) as figure:
        axes = figure.subplots(2, 2)
        drawing.cost(axes[0, 0], result)
        axis = timeline(records)
        drawing.gpus_in_use(axes[0, 1], result, records, axis)
        drawing.waiting(axes[1, 0], result, records)
        drawing.power(axes[1, 1], result, records, axis)
        lines, names = axes[1, 0].get_legend_handles_labels()
        if lines:
            figure.legend(lines, names, loc="outside lower center", ncols=min(6, len(lines)))
        figure.suptitle(result.scenario, x=0.01, ha="left", fontsize=13, fontweight="bold")


def save_gantt(record: Record, path: Path) -> None:
    """Draw the GPUs of jobs over time (for large clusters, the busy share of nodes), and save it to *path*.

    Raises ``InputError`` if the suffix is none of ``SUFFIXES``.
    """
    axis, cluster, segments = timeline([record]), record.cluster, record.segments
    if len(cluster) > MOST_NODES or len(segments.job) > MOST_SEGMENTS:
        with saved(path, (11.0, 6.5)) as figure:
            edges = np.linspace(axis.origin_s, max(axis.focus_s, axis.origin_s + 1.0), 401)
            drawing.heat(figure.subplots(), heat_map(cluster, segments, edges), axis)
            figure.suptitle(_gantt_title(record), x=0.01, ha="left", fontweight="bold")
        return
    with saved(path, (11.0, drawing.gantt_height(cluster.gpus))) as figure:
        axes = figure.subplots()
        drawing.gantt(axes, cluster.names, cluster.gpus, segments, record.jobs.name, record.jobs.tenant, axis.origin_s)
        ends = axis.focus_s if axis.focused else end_s(record)
        drawing.time_axis(axes, ends - axis.origin_s, "since the first submission")
        figure.suptitle(_gantt_title(record), x=0.01, ha="left", fontweight="bold")


def save_schedule(problem: PlacementProblem, schedule: Schedule, path: Path) -> None:
    """Draw one placement decision from now to the expected end of each job, and save it to *path*.

    Raises ``InputError`` if the suffix is none of ``SUFFIXES``.
    """
    with saved(path, schedule_plot.size(problem, schedule)) as figure:
        schedule_plot.draw(figure, problem, schedule)


def _gantt_title(record: Record) -> str:
    return f"{record.policy}: {plural(len(record.jobs.name), 'job')} on {plural(len(record.cluster), 'node')}"


# -- job logs


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


# -- studies


_UP, _DOWN = "#009E73", "#D55E00"


def save_waterfall(result: StudyResult, path: Path) -> None:
    """Draw the energy saved step by step, and what each step brings alone, and save it to *path*.

    Raises ``InputError`` if the suffix is none of ``SUFFIXES``.
    """
    steps = [step for step in result.waterfall if step.alone_against is not None and step.saved_pct is not None]
    with saved(path, (9.0, 1.6 + 0.45 * len(steps))) as figure:
        axes = figure.subplots()
        before = 0.0
        for row, step in enumerate(steps):
            now = step.saved_pct or 0.0
            axes.barh(row, now - before, left=before, height=0.62, color=_UP if now >= before else _DOWN)
            axes.annotate(signed_pct(now), (max(now, before), row), (4, 0), textcoords="offset points", va="center")
            if step.alone_pct is not None:
                axes.plot(step.alone_pct, row, "D", color="#17202c", markersize=4, label="alone" if row == 0 else None)
            before = now
        axes.axvline(0.0, color="#5a6675", linewidth=0.8)
        axes.set_yticks(range(len(steps)), [STEP_NAMES.get(step.step, step.step) for step in steps])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("energy saved in the window against what runs today, % (diamonds: the step alone)")
        figure.suptitle(f"{result.study}: {headline(result)}", x=0.01, ha="left", fontweight="bold")
