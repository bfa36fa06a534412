"""How the report of ``reproduce all`` draws a paper's figure from what it prints, with our values in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from commonwatt.model.suite_results import ReproduceClaim, ReproduceTopicResult
from commonwatt.report.pictures import policy_colour, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Redrawing", "RedrawnPanel", "claim_value", "claims_of", "draw_printed", "strength_of"]


def claim_value(value: bool | float | str | None, digits: int = 3) -> str:
    """Return a value as it is shown: yes, no, a number to the unit from 1,000 on, else to so many *digits*."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


@dataclass(frozen=True)
class RedrawnPanel:
    """One pair of axes of a redrawing, as the paper's figure has them; values are named by their claims.

    Attributes
    ----------
    kind
        ``bars``: a group of bars for each of ``groups``, a pair (the paper's, ours) for each of its series. ``points``:
        a point for each of ``points``. ``lines``: our curves called ``curves``, with the values that the paper prints
        of them: ``across`` along the horizontal axis, ``level`` along the vertical one.
    groups
        Series by name in each group, with the claim of each.
    points
        Name, horizontal and vertical place of each point: a claim, or a number that the paper prints.
    """

    kind: Literal["bars", "points", "lines"]
    title: str
    x: str = ""
    y: str = ""
    logarithmic: bool = False
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    points: Sequence[tuple[str, str | float, str | float]] = ()
    curves: str = ""
    only: Sequence[str] = ()
    across: Mapping[str, str] = field(default_factory=dict)
    level: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Redrawing:
    """How the paper draws a topic. ``unprinted``: what it draws without printing its values; empty: nothing."""

    panels: tuple[RedrawnPanel, ...] = ()
    unprinted: str = ""


_PAPER, _OURS = "#1d2733", "#0b7285"


def draw_printed(topic: ReproduceTopicResult, redrawing: Redrawing, path: Path) -> None:
    """Draw *topic* as the paper does, from what it prints, with ours in the same axes; raises as ``saved``."""
    with saved(path, (6.4, 3.1 * len(redrawing.panels))) as figure:
        grid = figure.subplots(len(redrawing.panels), 1, squeeze=False)[:, 0]
        for axes, panel in zip(grid, redrawing.panels, strict=True):
            _DRAW[panel.kind](axes, panel, topic)
            axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)


def _number(value: bool | float | str | None) -> float | None:
    return None if isinstance(value, bool | str | None) else float(value)


def claims_of(topic: ReproduceTopicResult) -> dict[str, ReproduceClaim]:
    """Return the values of a topic by what they are of, those that the paper does not print among them."""
    return {claim.quantity: claim for claim in (*topic.claims, *topic.others)}


def strength_of(claim: ReproduceClaim | None) -> float:
    """Return how strongly the values of a claim are drawn: pale, where the paper's and ours cannot be compared."""
    return 0.35 if claim is not None and claim.paper is not None and claim.verdict == "not comparable" else 1.0


def _draw_bars(axes: Axes, panel: RedrawnPanel, topic: ReproduceTopicResult) -> None:
    claims, series = claims_of(topic), list(dict.fromkeys(name for group in panel.groups.values() for name in group))
    width, crowded = 0.8 / (2 * len(series)), len(series) * len(panel.groups) > 5
    for g, group in enumerate(panel.groups.values()):
        for k, name in enumerate(series):
            claim = claims.get(group.get(name, ""))
            if claim is None:
                continue
            at, colour = g - 0.4 + width * (2 * k + 0.5), policy_colour(k) if len(series) > 1 else _OURS
            if (paper := _number(claim.paper)) is not None:
                axes.bar(
                    at, paper, 0.92 * width, color="white", edgecolor=colour, hatch="////", alpha=strength_of(claim)
                )
                _label(axes, at, paper, crowded)
            if (ours := _number(claim.ours)) is not None:
                axes.bar(at + width, ours, 0.92 * width, color=colour, edgecolor=colour, alpha=strength_of(claim))
                if claim.least is not None and claim.most is not None:
                    ends = [[max(ours - claim.least, 0.0)], [max(claim.most - ours, 0.0)]]
                    axes.errorbar(at + width, ours, ends, color="#1d2733", capsize=2, linewidth=1)
                _label(axes, at + width, ours, crowded)
    if panel.logarithmic:
        _logarithmic(axes)
    else:
        axes.axhline(0, color="#8a94a0", linewidth=0.8)
    axes.margins(y=0.3 if crowded else 0.15)
    beside = max(0.0, 1.5 - len(panel.groups) / 2)  # else a bar alone is as wide as the page
    axes.set_xlim(-0.5 - beside, len(panel.groups) - 0.5 + beside)
    axes.set_xticks(range(len(panel.groups)), list(panel.groups), fontsize=8)
    axes.grid(visible=False, axis="x")
    names = [(name, policy_colour(k)) for k, name in enumerate(series)] if len(series) > 1 else [("", _OURS)]
    for name, colour in names:
        for whose, look in (("paper", {"color": "white", "hatch": "////"}), ("ours", {"color": colour})):
            axes.bar(0, 0, edgecolor=colour, label=f"{name}, {whose}" if name else whose, **look)  # type: ignore[arg-type]
    _legend(axes)


def _label(axes: Axes, at: float, value: float, crowded: bool) -> None:
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}" if abs(value) < 1e4 else f"{value:.2g}"
    axes.annotate(
        text, (at, value), (0, 4 if value >= 0 else -10), textcoords="offset points", ha="center", fontsize=7,
        rotation=90 if crowded else 0,
    )  # fmt: skip


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if 1e-3 <= value < 1e5 else f"{value:.0e}")
    axes.yaxis.set_minor_formatter(lambda *_: "")


def _legend(axes: Axes) -> None:
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_points(axes: Axes, panel: RedrawnPanel, topic: ReproduceTopicResult) -> None:
    claims = claims_of(topic)
    for k, (name, *places) in enumerate(panel.points):
        for whose, marker in (("paper", "D"), ("ours", "o")):
            values, strength = [], 1.0
            for place in places:
                claim = claims.get(place) if isinstance(place, str) else None
                strength = min(strength, strength_of(claim))
                value = place if isinstance(place, float | int) else None
                values.append(value if claim is None else _number(claim.paper if whose == "paper" else claim.ours))
            x, y = values
            filled = policy_colour(k) if whose == "ours" else "white"
            if x is not None and y is not None:
                axes.plot(x, y, marker, color=policy_colour(k), markerfacecolor=filled, label=f"{name}, {whose}",
                          linestyle="none", alpha=strength)  # fmt: skip
            elif y is not None:
                axes.axhline(y, color=policy_colour(k), linestyle=":", label=f"{name}, {whose}: no value along x")
    if panel.logarithmic:
        _logarithmic(axes)
    axes.margins(0.15)
    _legend(axes)


def _draw_lines(axes: Axes, panel: RedrawnPanel, topic: ReproduceTopicResult) -> None:
    points = [point for point in topic.points if point.quantity == panel.curves and point.mean is not None]
    names = list(dict.fromkeys(point.series for point in points if not panel.only or point.series in panel.only))
    for k, name in enumerate(names):
        own = [point for point in points if point.series == name]
        x, mean, sd = ([getattr(point, what) or 0.0 for point in own] for what in ("x", "mean", "sd"))
        axes.errorbar(
            x, mean, sd, fmt="o-", markersize=3, linewidth=max(1.2, 3.2 - k), color=policy_colour(k), capsize=2,
            label=f"{name}, ours",
        )  # fmt: skip
    claims = claims_of(topic)
    for marks, line in ((panel.across, axes.axvline), (panel.level, axes.axhline)):
        for name, quantity in marks.items():
            claim = claims.get(quantity)
            if claim is not None and (paper := _number(claim.paper)) is not None:
                line(paper, color=_PAPER, linewidth=1.6, label=f"{name}: paper, {paper:g}")
                if marks is panel.across and (ours := _number(claim.ours)) is not None:
                    line(ours, color=_OURS, linestyle="--", label=f"{name}: ours, {ours:.3g}")
    if panel.logarithmic:
        _logarithmic(axes)
    else:
        axes.set_ylim(bottom=0)
    _legend(axes)


_DRAW: dict[str, Callable[[Axes, RedrawnPanel, ReproduceTopicResult], None]] = {
    "bars": _draw_bars, "points": _draw_points, "lines": _draw_lines,
}  # fmt: skip
