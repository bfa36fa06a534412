"""Plots in the form of ETF's figures, on the caller's axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.report.decision_plots import shares_over_time
from commonwatt.report.pictures import TENANTS, policy_colour, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commonwatt.model.timeslice_results import TimesliceRunResult

__all__ = ["Panel", "bars", "draw", "example", "incentive", "lines", "stacked"]

Panel = Callable[["Axes"], None]


def draw(panels: Sequence[tuple[str, Panel]], path: Path) -> None:
    """Draw all *panels*, each with its title, on one page; raises ``InputError`` as ``saved``."""
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    with saved(path, (4.2 * across, 2.7 * down)) as figure:
        grid = figure.subplots(down, across, squeeze=False)
        for axes, (title, panel) in zip(grid.flat, panels, strict=False):
            panel(axes)
            said = axes.get_title(loc="left")
            axes.set_title(f"{title}: {said}" if said else title)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()


def bars(axes: Axes, title: str, results: dict[str, TimesliceRunResult]) -> None:
    """Draw shares of time and energy of both tenants under each policy (Fig. 2 and 5)."""
    names = [f"{what}\n{policy}" for policy in results for what in ("time", "energy")]
    at = np.arange(len(names))
    for number, tenant in enumerate(next(iter(results.values())).tenants):
        values = [
            value
            for result in results.values()
            for value in (result.tenants[number].time_share, result.tenants[number].energy_share)
        ]
        axes.bar(at + 0.4 * number - 0.2, [100 * (v or 0.0) for v in values], 0.36, label=tenant.name,
                 color=TENANTS[number])  # fmt: skip
    axes.set_xticks(at, names)
    axes.set_ylabel("share, %")
    axes.set_title(title)
    axes.legend()
    axes.grid(visible=False, axis="x")


def example(axes: Axes, names: list[str], sure: list[int], slices: list[int], powers_w: list[float]) -> None:
    """Draw time and energy of the example of section 4.3; guaranteed parts are hatched (Fig. 3)."""
    at = np.arange(len(names))
    for number, (unit, factor) in enumerate((("time, units", np.ones(len(names))), ("energy, J", np.array(powers_w)))):
        base, whole = np.array(sure) * factor, np.array(slices) * factor
        place, colour = at + 0.4 * number - 0.2, TENANTS[number]
        axes.bar(place, base, 0.36, color="white", edgecolor=colour, hatch="////")
        axes.bar(place, whole - base, 0.36, bottom=base, color=colour, edgecolor=colour, label=unit)
        for x, top in zip(place, whole, strict=True):
            axes.text(x, top, f"{top:g}", ha="center", va="bottom")
    axes.set_xticks(at, names)
    axes.margins(y=0.12)
    axes.legend(loc="upper left")
    axes.grid(visible=False, axis="x")


def lines(
    axes: Axes, x: str, y: str, at: Sequence[float], named: dict[str, list[float]], top: float | None = 1.03
) -> None:
    """Draw *named* lines over *at* (Fig. 1, 6, 7, 8 and 11)."""
    for number, (name, values) in enumerate(named.items()):
        style = "--" if " under " in name else ":" if name == "EF" else "-"
        axes.plot(at, values, style, marker=None if style == "--" else "o", markersize=3, label=name,
                  color=policy_colour(number))  # fmt: skip
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0, top)
    axes.legend()


def stacked(axes: Axes, result: TimesliceRunResult, what: str) -> None:
    """Draw shares of time or energy over time (Fig. 9)."""
    shares_over_time(axes, result, what, legend=False)
    axes.set_xlabel("time, s")
    axes.legend(loc="lower left", frameon=True)


def incentive(axes: Axes, alike: TimesliceRunResult, lower: TimesliceRunResult) -> None:
    """Draw throughput and latency of both tenants before and after A2 lowers its clock (Fig. 10)."""
    names = ["both 1300 MHz", "A2 1032 MHz"]
    latency = axes.twinx()
    for number in (0, 1):
        tenants = [alike.tenants[number], lower.tenants[number]]
        at = np.arange(2) + 0.25 * number - 0.35
        axes.bar(at, [t.throughput_per_s for t in tenants], 0.22, color=TENANTS[number],
                 label=f"{tenants[0].name}, throughput")  # fmt: skip
        latency.plot(at + 0.05, [t.latency_mean_s or 0.0 for t in tenants], "o", color=TENANTS[number],
                     markeredgecolor="black", label=f"{tenants[0].name}, latency")  # fmt: skip
    axes.set_xticks(np.arange(2) - 0.2, names)
    axes.set_ylabel("requests/s")
    latency.set_ylabel("mean latency, s")
    latency.set_ylim(0, 1.15 * latency.get_ylim()[1])
    latency.grid(visible=False)
    axes.legend(loc="lower left", frameon=True)
    latency.legend(loc="lower right", frameon=True)
