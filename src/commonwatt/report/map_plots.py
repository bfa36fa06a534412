"""Static figure of a mapping, as G#'s Fig. 13: sub-accelerators with their jobs, the bandwidth in use, the search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.model.map_results import MapEvaluateResult, MapResult
from commonwatt.report.palette import TENANTS
from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


__all__ = ["draw_bandwidth", "draw_jobs", "draw_search", "save_map"]

_NAMED = 0.02  # part of the makespan from which on a job has room for its number


def save_map(result: MapEvaluateResult, path: Path) -> None:
    """Draw the mapping to *path*. Raises ``InputError`` as ``saved``."""
    rows = len(result.accelerator_end_cycles)
    searched = isinstance(result, MapResult) and len(result.history) > 1
    heights = (0.28 * rows + 0.4, 1.8, *([1.6] if searched else []))
    with saved(path, (9.0, 1.2 + sum(heights) + (0.5 if searched else 0.0))) as figure:
        worth = "the best possible" if result.gap < 1e-9 else f"at most {100 * result.gap:.3g}% above the best possible"
        figure.suptitle(f"makespan {result.makespan_cycles:.5g} cycles, {worth}")
        above, below, *last = figure.subplots(len(heights), 1, height_ratios=heights)
        above.sharex(below)
        above.tick_params(labelbottom=False)
        draw_jobs(above, result)
        draw_bandwidth(below, result)
        if isinstance(result, MapResult) and last:
            draw_search(last[0], result)
        _settle(figure)


def _settle(figure: Figure) -> None:
    """Lay out now, to nine digits: the last ones depend on addresses in memory, and names in an SVG on them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(float(part), 9) for part in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def draw_jobs(axes: Axes, result: MapEvaluateResult) -> None:
    """Draw each job as a bar on the row of its sub-accelerator; a line where the lower bound is."""
    start = np.array([job.start_cycles for job in result.jobs])
    length = np.array([job.end_cycles for job in result.jobs]) - start
    colours = [TENANTS[job.job % len(TENANTS)] for job in result.jobs]
    axes.barh(result.accelerator, length, left=start, height=0.8, color=colours, edgecolor="white", linewidth=0.4)
    for job, left, width in zip(result.jobs, start.tolist(), length.tolist(), strict=True):
        if width > _NAMED * result.makespan_cycles:
            axes.text(left + width / 2, job.accelerator, str(job.job), ha="center", va="center", fontsize=7)
    axes.axvline(result.lower_bound_cycles, color="#1F2933", linestyle="--", linewidth=1.0, label="lower bound")
    axes.set_yticks(range(len(result.accelerator_end_cycles)))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_ylabel("sub-accelerator")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1))


def draw_bandwidth(axes: Axes, result: MapEvaluateResult) -> None:
    """Draw the bandwidth requested and used over time, against the system bandwidth."""
    edges = np.array([0.0, *(interval.to_cycles for interval in result.timeline)])
    used = [interval.used_gbs for interval in result.timeline]
    asked = [interval.requested_gbs for interval in result.timeline]
    limit = result.system_bandwidth_gbs
    axes.stairs(used, edges, fill=True, color="#56B4E9", label="used")
    axes.stairs(asked, edges, color="#8a94a0", linewidth=0.8, label="requested")
    axes.axhline(limit, color="#D55E00", linewidth=1.0, label=f"there is ({limit:g})")
    axes.set_ylim(0, 2.0 * limit if max(asked) > limit else 1.2 * limit)
    axes.set_xlim(0, result.makespan_cycles)
    axes.set_xlabel("cycles")
    axes.set_ylabel("bandwidth, GB/s")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)


def draw_search(axes: Axes, result: MapResult) -> None:
    """Draw the best so far against the mappings evaluated: of a makespan, by how much it is above the lower bound."""
    spent = np.array([step.evaluations for step in result.history], dtype=np.float64)
    best = np.array([step.best for step in result.history])
    label = f"{result.objective}, best so far"
    if result.objective == "latency":
        best, label = 100.0 * np.maximum(0.0, best / result.lower_bound_cycles - 1.0), "above the bound, %"
        axes.axhline(0.0, color="#1F2933", linestyle="--", linewidth=1.0)
    axes.step(
        np.append(spent, result.evaluations), np.append(best, best[-1]), where="post", color="#0072B2", linewidth=1.2
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    if best[-1] > 0 and best[0] > 20 * best[-1]:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlim(1, max(2, result.evaluations))
    axes.set_xlabel("mappings evaluated")
    axes.set_ylabel(label)
