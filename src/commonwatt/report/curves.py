"""Panels of lines with a spread, as papers draw their comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.report.palette import policy_colour
from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Line", "Panel", "save_panels"]

_MARKERS = "osD^vP*X"


@dataclass(frozen=True)
class Line:
    """A method: its mean and spread at every x; NaN: unknown."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    sd: Sequence[float]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One quantity; every panel has the same lines in the same order."""

    title: str
    lines: Sequence[Line]
    logarithmic: bool = False


def save_panels(panels: Sequence[Panel], x_name: str, title: str, path: Path, note: str = "") -> None:
    """Draw *panels* two abreast under one legend, and save them to *path* (.png, .svg or .pdf).

    Raises ``InputError`` if the suffix is none of these or the file cannot be written.
    """
    rows = -(-len(panels) // 2)
    with saved(path, (11.0, 3.4 * rows + 0.8)) as figure:
        grid = figure.subplots(rows, 2, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _draw(axes, panel, x_name)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        lines, names = grid[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=min(6, len(lines)))
        figure.suptitle(f"{title}\n{note}" if note else title, x=0.01, ha="left", fontsize=11, fontweight="bold")


def _draw(axes: Axes, panel: Panel, x_name: str) -> None:
    for index, line in enumerate(panel.lines):
        colour = policy_colour(index)
        x, mean, sd = (np.asarray(values, dtype=float) for values in (line.x, line.mean, line.sd))
        axes.plot(
            x, mean, color=colour, marker=_MARKERS[index % len(_MARKERS)], markersize=4.5, linewidth=1.4,
            linestyle="--" if line.dashed else "-", label=line.label,
        )  # fmt: skip
        least = mean * 0.02 if panel.logarithmic else mean - sd
        axes.fill_between(x, np.maximum(mean - sd, least), mean + sd, color=colour, alpha=0.14, linewidth=0)
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        low, high = axes.get_ylim()
        axes.yaxis.set_minor_formatter(partial(_minor, narrow=high < 30 * low))
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(panel.title)
    axes.set_xlabel(x_name)


def _minor(value: float, _: int | None, *, narrow: bool) -> str:
    """Return the label between powers of ten: 2 and 5, where there are few powers."""
    return f"{value:g}" if narrow and f"{value:e}"[0] in "25" else ""
