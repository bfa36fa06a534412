"""Pictures in the shape of the figures of chapter 5, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.report.palette import TENANTS, policy_colour
from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commonwatt.reproduce.papers._market_claims import Study

__all__ = ["draw"]

_NAMES = ("CFG1", "CFG2", "CFG3")


def draw(history: Floats, of: Study, path: Path) -> None:
    """Draw prices, and by user set speedups, shares and utilization; raises ``InputError`` as ``saved``."""
    with saved(path, (12.5, 11.0)) as figure:
        grid = figure.subplots(4, 3)
        _prices(grid[0, 0], history)
        _changes(grid[0, 1], history)
        _ratios(grid[0, 2], of)
        for number in (1, 2, 3):
            column = grid[1:, number - 1]
            _speedups(column[0], of, number)
            _shares(column[1], of, number)
            _used(column[2], of, number)


def _prices(axes: Axes, history: Floats) -> None:
    for c in range(history.shape[1]):
        axes.plot(history[:, c], "--" if c == 1 else "-", color=policy_colour(c), label=f"core cluster {c + 1}")
    axes.set_title("Fig. 5.3: prices by round")
    axes.legend(fontsize=7)


def _changes(axes: Axes, history: Floats) -> None:
    axes.semilogy(np.arange(1, len(history)), np.abs(np.diff(history, axis=0)).max(axis=1), color=policy_colour(0))
    for level in (1e-4, 1e-5):
        axes.axhline(level, color="#8a94a0", linestyle=":")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title("Fig. 5.3: largest change of a price")


def _ratios(axes: Axes, of: Study) -> None:
    at = np.arange(len(of))
    for user in range(3):
        axes.bar(at + 0.27 * (user - 1), [case.ratios()[user] for case in of.values()], 0.25, color=TENANTS[user])
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(at, [f"{number}/{name[-1]}" for number, name in of])
    axes.set_title("Fig. 5.8: over entitlement, set/CFG")


def _speedups(axes: Axes, of: Study, number: int) -> None:
    for user in range(3):
        values = [of[number, name].found.utilities[user] for name in _NAMES]
        axes.bar(np.arange(3) + 0.27 * (user - 1), values, 0.25, color=TENANTS[user], label=f"user {user + 1}")
    axes.set_xticks(np.arange(3), _NAMES)
    axes.set_title(f"Fig. {5.3 + number / 10:.1f}: speedup, user set {number}")
    if number == 1:
        axes.legend(fontsize=7)


def _shares(axes: Axes, of: Study, number: int) -> None:
    parts = np.hstack([100 * of[number, name].parts() for name in _NAMES])
    at, base = np.arange(12) + np.repeat(np.arange(3), 4), np.zeros(12)
    for user in range(3):
        axes.bar(at, parts[user], 0.8, bottom=base, color=TENANTS[user])
        base += parts[user]
    axes.set_xticks(at, [f"{c + 1}" for _ in _NAMES for c in range(4)])
    axes.set_xlabel("core clusters of CFG1, CFG2, CFG3")
    axes.set_title(f"shares, %, user set {number}")


def _used(axes: Axes, of: Study, number: int) -> None:
    for place, what in enumerate(("market", "entitlement", "equal speedup")):
        values = [100 * of[number, name].used()[what] for name in _NAMES]
        axes.bar(np.arange(3) + 0.27 * (place - 1), values, 0.25, color=policy_colour(place), label=what)
    axes.set_xticks(np.arange(3), _NAMES)
    axes.set_title(f"Fig. 5.10: utilization, %, user set {number}")
    if number == 1:
        axes.legend(fontsize=7)
        axes.set_ylim(0, 100)
