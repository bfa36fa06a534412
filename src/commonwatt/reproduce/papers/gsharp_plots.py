"""Pictures in the shape of G#'s figures, each on axes given by the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.report.pictures import TENANTS, policy_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commonwatt.mapping import MappingTimeline
    from commonwatt.model.arrays import Floats
    from commonwatt.model.results import ReproducePoint

__all__ = ["bandwidth", "bars", "curves", "jobs", "lines"]


def bars(axes: Axes, values: dict[str, list[float]], groups: Sequence[str], *, logarithmic: bool = False) -> None:
    """Draw a bar of each series for each group."""
    width = 0.8 / len(values)
    at = np.arange(len(groups))
    for i, (name, heights) in enumerate(values.items()):
        axes.bar(at + (i - (len(values) - 1) / 2) * width, heights, 0.9 * width, color=policy_colour(i), label=name)
    axes.set_xticks(at, ["recom." if name == "recommendation" else name for name in groups], fontsize=7)
    if logarithmic:
        _logarithmic(axes)
    axes.legend(fontsize=6)


def lines(axes: Axes, points: Sequence[ReproducePoint], x_name: str, *, logarithmic: bool = False) -> None:
    """Draw the points of one quantity, a line for each series."""
    for i, series in enumerate(dict.fromkeys(point.series for point in points)):
        line = [(point.x, point.mean) for point in points if point.series == series and point.mean is not None]
        axes.plot(*zip(*line, strict=True), "o-", color=policy_colour(i), markersize=3, label=series)
    at = sorted({point.x for point in points})
    axes.set_xscale("log")
    axes.set_xticks(at, [f"{x:g}" for x in at])
    axes.set_xticks([], minor=True)
    means = [point.mean for point in points if point.mean is not None]
    if logarithmic and max(means) > 10 * min(means):
        _logarithmic(axes)
    axes.set_xlabel(x_name)
    axes.legend(fontsize=6)


def curves(axes: Axes, at: Floats, lines: dict[str, Floats]) -> None:
    """Draw the best so far against evaluations."""
    for i, (name, best) in enumerate(lines.items()):
        axes.plot(at, best, color=policy_colour(i), label=name)
    axes.set_xlabel("evaluations")
    axes.legend(fontsize=6)


def jobs(axes: Axes, played: MappingTimeline, accelerator: Sequence[int]) -> None:
    """Draw each job as a bar on the row of its sub-accelerator."""
    colours = [TENANTS[j % len(TENANTS)] for j in range(len(played.start))]
    axes.barh(accelerator, played.end - played.start, left=played.start, height=0.8, color=colours)
    axes.invert_yaxis()
    axes.set_ylabel("sub-accelerator")


def bandwidth(axes: Axes, played: MappingTimeline, limit: float) -> None:
    """Draw the bandwidth in use and the total."""
    axes.stairs(played.used, played.edges, fill=True, color="#56B4E9")
    axes.axhline(limit, color="#D55E00", linewidth=1.0)
    axes.set_xlabel("cycles")
    axes.set_ylabel("GB/s in use")


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda *_: "")
