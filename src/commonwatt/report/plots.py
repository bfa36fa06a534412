"""Static figures for ``--plot``: PNG, SVG, PDF. The same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.model.results import SimulationResult
from commonwatt.model.units import plural
from commonwatt.report import drawing, schedule_plot
from commonwatt.report.gantt import MOST_NODES, MOST_SEGMENTS
from commonwatt.report.reduction import heat_map
from commonwatt.report.saving import SUFFIXES, saved
from commonwatt.report.timeline import end_s, timeline
from commonwatt.simulation.record import Record

if TYPE_CHECKING:
    from commonwatt.placement import PlacementProblem, Schedule

__all__ = ["SUFFIXES", "save_gantt", "save_overview", "save_schedule"]


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
