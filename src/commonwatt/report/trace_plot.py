"""The picture of one short run: who held which GPUs when, with submissions and due dates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commonwatt.report import drawing
from commonwatt.report.figures import short
from commonwatt.report.lanes import node_rows
from commonwatt.report.saving import saved
from commonwatt.report.timeline import end_s
from commonwatt.simulation.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_trace"]


def save_trace(record: Record, path: Path, title: str) -> None:
    """Draw a run of a few jobs on a few nodes: a row of unit boxes a node, marks for submissions below.

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
        span_s = _span_s(record, zero)
        _lives(below, record, zero, span_s)
        drawing.time_axis(below, span_s, "since the first submission")


def _span_s(record: Record, zero: float) -> float:
    """Return where the axis ends: room for the run and for due dates not far beyond it."""
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
