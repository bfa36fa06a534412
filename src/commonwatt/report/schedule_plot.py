"""Plots of one placement decision, and of one short run with its submissions and due dates."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commonwatt.model.arrays import Ints
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule
from commonwatt.report import drawing
from commonwatt.report import format as fmt
from commonwatt.report.figures import short
from commonwatt.report.pictures import saved
from commonwatt.report.timeline import end_s, node_rows, to_bars
from commonwatt.simulation.record import Record, Segments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "save_trace", "size"]

_LATE = "#B3261E"
_DUE = "#1F2933"
_LETTER = 0.0068  # width of a letter, as part of the axis
_PAPER = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.72}
_LISTED = 40  # waiting jobs named


def size(problem: PlacementProblem, schedule: Schedule) -> tuple[float, float]:
    """Return width and height of the figure, inches."""
    lines = len(_waiting(problem, schedule))
    return 11.0, drawing.gantt_height(_gpus(problem)) + 0.35 + 0.18 * lines


def draw(figure: Figure, problem: PlacementProblem, schedule: Schedule) -> None:
    """Draw the nodes as rows and each job as a bar as high as it has GPUs, from now to its expected end."""
    segments, gpus = _segments(problem, schedule), _gpus(problem)
    tenants = tuple(problem.tenant_names[t] for t in problem.tenant.tolist())
    axes = figure.subplots()
    span_s = _span_s(problem, segments)
    names = tuple(problem.job_names)
    drawing.gantt(axes, tuple(problem.node_names), gpus, segments, names, tenants, 0.0, named=False)
    tops, bottoms = node_rows(gpus)
    for top, count in zip(tops.tolist(), gpus.tolist(), strict=True):  # borders between the GPUs of a node
        axes.hlines(np.arange(1, count) + top, 0, span_s, color="white", linewidth=1.0, zorder=0.5)
    drawing.time_axis(axes, span_s, "from now")
    axes.set_ylim(bottoms[-1] + 0.25, -0.25)
    _marks(axes, problem, segments, gpus, span_s)
    placed = len(set(segments.job.tolist()))
    title = f"{placed} of {fmt.plural(len(problem), 'job')} placed, {len(problem) - placed} waiting"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    waiting = _waiting(problem, schedule)
    caption = ["Lines with a triangle are due dates; red: the job ends late.", *waiting]
    axes.annotate(
        "\n".join(caption), (0, 0), xycoords="axes fraction", xytext=(0, -34), textcoords="offset points", va="top",
        fontsize=8, color="#39424e",
    )  # fmt: skip


def _gpus(problem: PlacementProblem) -> Ints:
    return np.asarray(problem.class_gpus, dtype=np.int64)[problem.node_class]


def _segments(problem: PlacementProblem, schedule: Schedule) -> Segments:
    rows = [
        (j, int(node), int(problem.per_node[schedule.choice[j]]), float(problem.time_s[schedule.choice[j]]))
        for j in np.flatnonzero(schedule.choice >= 0).tolist()
        for node in schedule.nodes_of(problem, j)
    ]
    columns = np.array(rows, dtype=float).reshape(-1, 4)
    job, node, each = columns[:, :3].astype(np.int64).T
    return Segments(job, node, each, np.zeros(len(rows)), columns[:, 3])


def _span_s(problem: PlacementProblem, segments: Segments) -> float:
    """Return the end of the time axis: after every run, and due dates shortly after."""
    if not len(segments.job):
        return 1.0
    longest = float(segments.to_s.max())
    due_s = problem.due_s[segments.job] - problem.now_s
    near = due_s[(due_s > 0) & (due_s <= 1.5 * longest)]
    return 1.03 * max(longest, float(near.max()) if len(near) else 0.0)


def _marks(axes: Axes, problem: PlacementProblem, segments: Segments, gpus: Ints, span_s: float) -> None:
    """Label each bar, and mark its due date."""
    bars, (tops, _) = to_bars(gpus, segments), node_rows(gpus)
    if len(bars.segment) > drawing.MOST_NAMED:
        return
    for segment, lane, lanes in zip(bars.segment.tolist(), bars.lane.tolist(), bars.lanes.tolist(), strict=True):
        job, ends = int(segments.job[segment]), float(segments.to_s[segment])
        top = float(tops[segments.node[segment]]) + lane
        due_s = float(problem.due_s[job] - problem.now_s)
        late = ends > due_s
        text = f"{short(problem.job_names[job], 20)}: {fmt.duration(ends)}{_due_text(due_s, ends)}"
        wide = len(text) * _LETTER * span_s
        left = 0.0 if wide < ends else due_s if ends <= due_s < ends + wide else ends
        axes.text(
            left + 0.008 * span_s, top + lanes / 2, text, va="center", fontsize=7.5, zorder=4, clip_on=True, bbox=_PAPER
        )
        if 0 < due_s <= span_s:
            colour = _LATE if late else _DUE
            axes.vlines(due_s, top + 0.04, top + lanes - 0.04, color=colour, linewidth=1.6, zorder=3)
            axes.plot([due_s], [top + 0.1], marker="v", color=colour, markersize=5, zorder=3, clip_on=False)


def _due_text(due_s: float, ends_s: float) -> str:
    if not np.isfinite(due_s):
        return ""
    if ends_s > due_s:
        return f", {fmt.duration(ends_s - due_s)} late"
    return f", due in {fmt.duration(due_s)}"


def _waiting(problem: PlacementProblem, schedule: Schedule) -> list[str]:
    """Return the lines that name the postponed jobs."""
    jobs = np.flatnonzero(schedule.choice == POSTPONED).tolist()
    if not jobs:
        return []
    parts = []
    for job in jobs[:_LISTED]:
        due_s = float(problem.due_s[job] - problem.now_s)
        due = "" if not np.isfinite(due_s) else " (overdue)" if due_s <= 0 else f" (due in {fmt.duration(due_s)})"
        parts.append(f"{short(problem.job_names[job], 20)}{due}")
    more = f" and {len(jobs) - _LISTED} more" if len(jobs) > _LISTED else ""
    return textwrap.wrap(f"Waiting: {', '.join(parts)}{more}", 165, break_on_hyphens=False)


def save_trace(record: Record, path: Path, title: str) -> None:
    """Draw a run of a few jobs on a few nodes, with the submissions, ends and due dates below.

    Raises ``InputError`` if the suffix of *path* is none of .png, .svg and .pdf or the file cannot be written.
    """
    cluster, jobs = record.cluster, record.jobs
    zero = float(jobs.submit_s.min())
    labels = [
        f"{name}\n{cluster.classes[k].gpus} {cluster.classes[k].gpu_type}"
        for name, k in zip(cluster.names, cluster.klass.tolist(), strict=True)
    ]
    height = 0.42 * float(node_rows(cluster.gpus)[1][-1]) + 0.2 * len(jobs.name) + 1.7
    with saved(path, (11.0, height)) as figure:
        sizes = [0.42 * float(node_rows(cluster.gpus)[1][-1]), 0.2 * len(jobs.name)]
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=sizes)
        drawing.gantt(above, cluster.names, cluster.gpus, record.segments, jobs.name, jobs.tenant, zero)
        tops, bottoms = node_rows(cluster.gpus)
        above.set_yticks((tops + bottoms) / 2, labels)
        above.set_title(title)
        span_s = _trace_span_s(record, zero)
        _lives(below, record, zero, span_s)
        drawing.time_axis(below, span_s, "since the first submission")


def _trace_span_s(record: Record, zero: float) -> float:
    """Return the end of the axis: after the run, and due dates shortly after."""
    run_s = max(end_s(record) - zero, 1.0)
    due = record.jobs.due_s - zero
    near = due[due <= 1.6 * run_s]
    return 1.03 * max(run_s, float(near.max()) if len(near) else 0.0)


def _lives(axes: Axes, record: Record, zero: float, span_s: float) -> None:
    """Draw a line for each job from submission to end, and its due date."""
    jobs = record.jobs
    rows = np.arange(len(jobs.name))
    axes.hlines(rows, jobs.submit_s - zero, jobs.ended_s - zero, color="#7b8794", linewidth=2.5)
    ink: dict[str, Any] = {"color": "#1F2933", "linestyle": "", "clip_on": False}
    axes.plot(jobs.submit_s - zero, rows, ">", markersize=5, label="submitted", **ink)
    axes.plot(jobs.ended_s - zero, rows, "s", markersize=4, label="ended", **ink)
    due = np.where(np.isfinite(jobs.due_s), jobs.due_s - zero, np.nan)
    seen = due <= span_s
    axes.plot(due[seen], rows[seen], "|", color="#B3261E", markersize=11, markeredgewidth=2, label="due")
    for row in np.flatnonzero(due > span_s).tolist():
        axes.annotate("due later", (1, row), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=7)
    axes.set_yticks(rows, [short(name, 16) for name in jobs.name])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower left", ncols=3, fontsize=8)
