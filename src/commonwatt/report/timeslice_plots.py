"""Static figures of a shared device: a quantum divided (ETF Fig. 3), and shares over time (Fig. 9)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.report.palette import tenant_colours
from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commonwatt.model.timeslice_results import TimeslicePlanResult, TimesliceRunResult

__all__ = ["piecewise_shares", "save_plan", "save_run", "shares_over_time"]


def save_plan(result: TimeslicePlanResult, path: Path) -> None:
    """Draw time and energy of each tenant; the guaranteed part is hatched. Raises ``InputError`` as ``saved``."""
    names = [tenant.name for tenant in result.tenants]
    colours = list(tenant_colours(names).values())
    sure = np.array([tenant.guaranteed for tenant in result.tenants], dtype=float)
    whole = np.array([tenant.time for tenant in result.tenants], dtype=float)
    powers = np.array([tenant.power_w for tenant in result.tenants])
    with saved(path, (8.0, 1.4 + 0.35 * len(names))) as figure:
        figure.suptitle(f"{result.policy}, phi {result.phi:g}: a quantum of {result.quantum} units")
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, factor, title in (
            (left, np.ones(len(names)), "time, units"),
            (right, powers * result.unit_s, "energy, J"),
        ):
            rows = np.arange(len(names))
            axes.barh(rows, sure * factor, color="white", edgecolor=colours, hatch="////", height=0.62)
            axes.barh(rows, (whole - sure) * factor, left=sure * factor, color=colours, edgecolor=colours, height=0.62)
            axes.set_yticks(rows, names)
            axes.grid(visible=False, axis="y")
            axes.set_xlabel(f"{title} (guaranteed: hatched)")
        left.invert_yaxis()


def save_run(result: TimesliceRunResult, path: Path) -> None:
    """Draw each tenant's share of time and energy over the run. Raises ``InputError`` as ``saved``."""
    with saved(path, (8.0, 5.0)) as figure:
        figure.suptitle(f"{result.policy}, phi {result.phi:g}, on {result.device}")
        above, below = figure.subplots(2, 1, sharex=True)
        shares_over_time(above, result, "time")
        shares_over_time(below, result, "energy")
        below.set_xlabel("time, s")


def shares_over_time(axes: Axes, result: TimesliceRunResult, what: str, *, legend: bool = True) -> None:
    """Draw the tenants' shares of *what* (time or energy), stacked, over intervals of the run."""
    names = [tenant.name for tenant in result.tenants]
    at = np.array([sample.at_s for sample in result.timeline])
    used = np.array([sample.time_s if what == "time" else sample.energy_j for sample in result.timeline])
    at, shares = piecewise_shares(at, used)
    colours = list(tenant_colours(names).values())
    axes.stackplot(at, 100 * shares.T, labels=names, colors=colours, step="post")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, result.duration_s)
    axes.set_ylabel(f"share of {what}, %")
    if legend and what == "time":
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(8, len(names)))


def piecewise_shares(at_s: Floats, used: Floats, pieces: int = 40) -> tuple[Floats, Floats]:
    """Turn cumulative use ([M, N] at *at_s*, [M]) into shares in each of about *pieces* intervals ([K + 1, N])."""
    step = max(1, (len(at_s) - 1) // pieces)
    picked = np.unique(np.append(np.arange(0, len(at_s), step), len(at_s) - 1))
    grown = np.diff(used[picked], axis=0)
    whole = grown.sum(axis=1, keepdims=True)
    shares = np.divide(grown, whole, out=np.zeros_like(grown), where=whole > 0)
    return at_s[picked], np.vstack([shares, shares[-1:]]) if len(shares) else np.zeros((len(picked), used.shape[1]))
