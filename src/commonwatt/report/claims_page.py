"""The HTML report of ``reproduce all``, one self-contained file without scripts."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from commonwatt.model.suite_results import (
    ReproduceAllResult,
    ReproduceClaim,
    ReproduceTopicResult,
    Verdict,
)
from commonwatt.report.palette import policy_colour
from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Redrawing",
    "RedrawnPanel",
    "claim_value",
    "draw_printed",
    "render_claims",
    "spread_of",
]

_COLOURS: dict[Verdict, str] = {
    "holds": "#1a7f4b", "holds with changes": "#8a6d00", "does not hold": "#b3261e", "not comparable": "#5b6770",
}  # fmt: skip
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1d2733;background:#fff;max-width:1180px;margin:0 auto;padding:24px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:20px;margin:40px 0 8px;border-bottom:1px solid #dde3e8}
h3{font-size:16px;margin:28px 0 2px}p{margin:4px 0}.small,.note{color:#5b6770;font-size:13px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;margin:8px 0 12px}
th,td{text-align:left;vertical-align:top;padding:4px 10px 4px 0;border-bottom:1px solid #eaeef1}
th{font-weight:600;font-size:13px;color:#5b6770}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.v{font-weight:600;white-space:nowrap}.figures{display:flex;flex-wrap:wrap;gap:16px}
figure{margin:0;flex:1 1 420px;min-width:0}figure img{max-width:100%}figcaption{font-size:13px;color:#5b6770}
@media(prefers-color-scheme:dark){body{background:#12181e;color:#e4e9ee}th,td{border-color:#2a343d}h2{border-color:#2a343d}
.small,.note,th,figcaption{color:#a3b0bb}figure img{background:#fff}}
"""


def claim_value(value: bool | float | str | None, missing: str = "unknown") -> str:
    """Return a value as it is shown: yes, no, or four significant digits."""
    if value is None:
        return missing
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.4g}"


def spread_of(claim: ReproduceClaim) -> str:
    """Return the spread of a claim over seeds or draws, in a few words; empty if there is none."""
    if claim.held_pct is not None:
        return f"yes for {claim.held_pct:.0f}%"
    if claim.least is None or claim.most is None or claim.sd is None:
        return ""
    return "the same" if (low := f"{claim.least:.4g}") == (high := f"{claim.most:.4g}") else f"{low} to {high}"


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


def _claims(topic: ReproduceTopicResult) -> dict[str, ReproduceClaim]:
    return {claim.quantity: claim for claim in (*topic.claims, *topic.others)}


def _draw_bars(axes: Axes, panel: RedrawnPanel, topic: ReproduceTopicResult) -> None:
    claims, series = _claims(topic), list(dict.fromkeys(name for group in panel.groups.values() for name in group))
    width, crowded = 0.8 / (2 * len(series)), len(series) * len(panel.groups) > 5
    for g, group in enumerate(panel.groups.values()):
        for k, name in enumerate(series):
            claim = claims.get(group.get(name, ""))
            if claim is None:
                continue
            at, colour = g - 0.4 + width * (2 * k + 0.5), policy_colour(k) if len(series) > 1 else _OURS
            if (paper := _number(claim.paper)) is not None:
                axes.bar(at, paper, 0.92 * width, color="white", edgecolor=colour, hatch="////")
                _label(axes, at, paper, crowded)
            if (ours := _number(claim.ours)) is not None:
                axes.bar(at + width, ours, 0.92 * width, color=colour, edgecolor=colour)
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
    claims = _claims(topic)
    for k, (name, *places) in enumerate(panel.points):
        for whose, marker in (("paper", "D"), ("ours", "o")):
            values = []
            for place in places:
                claim = claims.get(place) if isinstance(place, str) else None
                value = place if isinstance(place, float | int) else None
                values.append(value if claim is None else _number(claim.paper if whose == "paper" else claim.ours))
            x, y = values
            filled = policy_colour(k) if whose == "ours" else "white"
            if x is not None and y is not None:
                axes.plot(x, y, marker, color=policy_colour(k), markerfacecolor=filled, label=f"{name}, {whose}",
                          linestyle="none")  # fmt: skip
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
    claims = _claims(topic)
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


def render_claims(
    result: ReproduceAllResult,
    figures: Mapping[str, tuple[bytes | None, bytes | None]],
    redrawings: Mapping[str, Redrawing],
    legend: Sequence[str] = (),
    left_out: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the page.

    Parameters
    ----------
    result
        All topics.
    figures
        SVG by topic: our figure, and the redrawing of the paper's; ``None``: there is none.
    redrawings
        What the redrawings show, by topic.
    legend
        What the rules of verdicts are, and why.
    left_out
        Figures and tables without claims, by paper, with reasons.
    """
    counts = "".join(
        f'<tr><td class="v" style="color:{_COLOURS[verdict]}">{verdict}</td><td class="n">{number}</td></tr>'
        for verdict, number in ((v, result.verdicts.get(v, 0)) for v in _COLOURS)
    )
    papers: dict[str, list[ReproduceTopicResult]] = {}
    for topic in result.topics:
        papers.setdefault(topic.paper.partition(",")[0].partition(" (")[0], []).append(topic)
    body = "".join(
        f"<h2>{escape(name)}</h2>"
        + "".join(
            _topic(topic, *figures.get(topic.name, (None, None)), redrawings.get(topic.name, Redrawing()))
            for topic in topics
        )
        + "".join(f'<p class="note">Without claims: {escape(each)}.</p>' for each in (left_out or {}).get(name, ()))
        for name, topics in papers.items()
    )
    seeds = ", ".join(map(str, result.seeds))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Every claim, reproduced</title><style>{_STYLE}</style></head><body>\n"
        "<h1>Every claim, reproduced</h1>\n"
        f'<p class="small">commonwatt {escape(result.version)}, {result.extent} extent, seeds {seeds}: '
        f"<code>{escape(result.command)}</code></p>\n"
        f"{'' if any(own for own, _ in figures.values()) else _NO_FIGURES}"
        f"<table style='width:auto'><tr><th>verdict</th><th>claims</th></tr>{counts}</table>\n"
        '<p class="note">A verdict is computed by the rule beside it, from the mean over the seeds or the part of '
        "seeds and draws. Values that the paper does not print have none.</p>\n"
        + "".join(f'<p class="note">{escape(sentence)}</p>\n' for sentence in legend)
        + f"<p class='small'>All runs, as if one after another: {result.wall_s:,.0f} s.</p>\n"
        f"{body}\n</body></html>\n"
    )


_NO_FIGURES = '<p class="note">Made from a record of values alone: figures and curves of ours are not in it.</p>\n'
_MARKS = {"bars": "hatched bars", "points": "open points", "lines": "black lines"}


def _caption(topic: ReproduceTopicResult, redrawing: Redrawing) -> str:
    """Say what the redrawing of *topic* shows."""
    kinds = dict.fromkeys(panel.kind for panel in redrawing.panels)
    what = "What the paper prints of it" if redrawing.unprinted else "As the paper draws it, from the values it prints"
    said = f"{what} ({', '.join(_MARKS[kind] for kind in kinds)}), and ours in the same axes"
    if len(topic.seeds) == 1:
        return f"{said}, one seed."
    spread = {"bars": "the least and the greatest", "lines": "the standard deviation, of curves"}
    whiskers = " or ".join(spread[kind] for kind in kinds if kind in spread)
    return f"{said}: means over {len(topic.seeds)} seeds{f'; whiskers: {whiskers}' if whiskers else ''}."


def _topic(topic: ReproduceTopicResult, ours: bytes | None, printed: bytes | None, redrawing: Redrawing) -> str:
    head = (
        f'<h3 id="{escape(topic.name)}">{escape(topic.title)}</h3>'
        f'<p class="small">{escape(topic.paper)} · <code>commonwatt reproduce {escape(topic.name)}</code></p>'
    )
    if topic.state != "done":
        return f"{head}<p><b>{topic.state}</b>: {escape(topic.reason or '')}</p>"
    warned = "" if topic.stand_in is None else f"<p><b>Missing:</b> {escape(topic.stand_in)}; replaced.</p>"
    rows = "".join(_row(claim) for claim in topic.claims)
    table = (
        '<div class="wide"><table><tr><th>claim</th><th>paper</th><th>ours</th><th>unit</th><th>seeds, draws</th>'
        f"<th>verdict</th><th>rule</th></tr>{rows}</table></div>"
        if rows
        else "<p>The paper prints no value.</p>"
    )
    own = f"Ours, seed {topic.seeds[0]}.{f' {redrawing.unprinted}' * bool(redrawing.unprinted)}"
    pictures = "".join(
        f'<figure><img alt="{escape(said)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'
        f"<figcaption>{escape(said)}</figcaption></figure>"
        for svg, said in (
            (ours, own),
            (printed, f"{_caption(topic, redrawing)} {redrawing.unprinted if ours is None else ''}".rstrip()),
        )
        if svg is not None
    )
    others = "".join(
        f"<tr><td>{escape(c.quantity)}</td><td class='n'>{escape(claim_value(c.ours))}</td><td>{escape(c.unit)}</td>"
        f"<td>{escape(spread_of(c))}</td></tr>"
        for c in topic.others
    )
    more = (
        f"<details><summary>{len(topic.others)} values that the paper does not print</summary><div class='wide'><table>"
        f"<tr><th>quantity</th><th>ours</th><th>unit</th><th>seeds</th></tr>{others}</table></div></details>"
        if others
        else ""
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in topic.notes)
    return f'{head}{warned}{table}<div class="figures">{pictures}</div>{more}{notes}'


def _row(claim: ReproduceClaim) -> str:
    why = claim.why if claim.verdict == "not comparable" else f"{claim.rule}: {claim.why}"
    note = f'<div class="note">{escape(claim.note)}</div>' if claim.note and claim.note != claim.why else ""
    return (
        f"<tr><td>{escape(claim.quantity)}{note}</td><td class='n'>{escape(claim_value(claim.paper))}</td>"
        f"<td class='n'>{escape(claim_value(claim.ours))}</td><td>{escape(claim.unit)}</td>"
        f"<td>{escape(spread_of(claim))}</td>"
        f'<td class="v" style="color:{_COLOURS[claim.verdict]}">{claim.verdict}</td>'
        f'<td class="note">{escape(why)}</td></tr>'
    )
