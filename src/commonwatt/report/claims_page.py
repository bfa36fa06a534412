"""The HTML report of ``reproduce all``, one self-contained file without scripts; the leaderboard of ``bench``."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from pathlib import Path

from commonwatt.model.suite_results import (
    BenchResult,
    BenchSuite,
    ReproduceAllResult,
    ReproduceClaim,
    ReproduceTopicResult,
    Verdict,
)
from commonwatt.report.saving import saved

__all__ = ["claim_value", "draw_printed", "has_printed", "leaderboard", "render_claims", "spread_of"]

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
    return "the same" if claim.least == claim.most else f"{claim.least:.4g} to {claim.most:.4g}"


def has_printed(topic: ReproduceTopicResult) -> bool:
    """Whether the paper prints numbers about *topic* that can be drawn."""
    return bool(_numbers(topic))


def _numbers(topic: ReproduceTopicResult) -> list[tuple[ReproduceClaim, float, float]]:
    """Return the claims with numbers above 0 on both sides, and these."""
    found = []
    for claim in topic.claims:
        if isinstance(claim.paper, bool | str | None) or isinstance(claim.ours, bool | str | None):
            continue
        if claim.paper > 0 and claim.ours > 0:
            found.append((claim, float(claim.paper), float(claim.ours)))
    return found


def draw_printed(topic: ReproduceTopicResult, path: Path) -> None:
    """Draw the numbers that the paper prints about *topic*, and ours with their spread over the seeds.

    Each unit has axes of its own, logarithmic where values differ by more than thirty times. Raises as ``saved``.
    """
    by_unit: dict[str, list[tuple[ReproduceClaim, float, float]]] = {}
    for entry in _numbers(topic):
        by_unit.setdefault(entry[0].unit, []).append(entry)
    rows = [len(entries) for entries in by_unit.values()]
    with saved(path, (7.5, 1.0 + 0.34 * sum(rows) + 0.7 * len(rows))) as figure:
        grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=[n + 1.5 for n in rows])[:, 0]
        for axes, (unit, entries) in zip(grid, by_unit.items(), strict=True):
            at = range(len(entries))
            axes.plot([paper for _, paper, _ in entries], at, "D", color="#1d2733", markersize=5, label="paper")
            for y, (claim, _, ours) in zip(at, entries, strict=True):
                least, most = claim.least or ours, claim.most or ours
                axes.plot([least, most], [y, y], color="#0b7285", linewidth=2)
                axes.plot([ours], [y], "o", color="#0b7285", markersize=5, label="ours" if y == 0 else None)
            values = [value for _, paper, ours in entries for value in (paper, ours)]
            if max(values) > 30 * min(values):
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter("{x:g}")
            else:
                axes.set_xlim(left=0)
            axes.set_yticks(at, [_short(claim.quantity) for claim, _, _ in entries], fontsize=7)
            axes.set_ylim(len(entries) - 0.5, -0.5)
            axes.set_title("no unit" if unit == "-" else unit)
        grid[0].legend(fontsize=7)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def render_claims(result: ReproduceAllResult, figures: Mapping[str, tuple[bytes | None, bytes | None]]) -> str:
    """Return the page.

    Parameters
    ----------
    result
        All topics.
    figures
        SVG by topic: our figure, and the drawing of the paper's numbers; ``None``: there is none.
    """
    counts = "".join(
        f'<tr><td class="v" style="color:{_COLOURS[verdict]}">{verdict}</td><td class="n">{number}</td></tr>'
        for verdict, number in ((v, result.verdicts.get(v, 0)) for v in _COLOURS)
    )
    papers: dict[str, list[ReproduceTopicResult]] = {}
    for topic in result.topics:
        papers.setdefault(topic.paper.partition(",")[0].partition(" (")[0], []).append(topic)
    body = "".join(
        f"<h2>{escape(name)}</h2>" + "".join(_topic(topic, *figures.get(topic.name, (None, None))) for topic in topics)
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
        f"<table style='width:auto'><tr><th>verdict</th><th>claims</th></tr>{counts}</table>\n"
        '<p class="note">A verdict is computed by the rule beside it, from the mean over the seeds or the part of '
        "seeds and draws. Values that the paper does not print have none.</p>\n"
        f"{body}\n</body></html>\n"
    )


def _topic(topic: ReproduceTopicResult, ours: bytes | None, printed: bytes | None) -> str:
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
    pictures = "".join(
        f'<figure><img alt="{escape(said)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'
        f"<figcaption>{escape(said)}</figcaption></figure>"
        for svg, said in (
            (ours, f"Ours, seed {topic.seeds[0]}"),
            (printed, "The paper's numbers, and ours over the seeds"),
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


# -- the leaderboard


def leaderboard(result: BenchResult) -> str:
    """Return the scores of all suites in Markdown: a heading, what the numbers are, and a table for each."""
    return "\n\n".join(part for suite in result.suites for part in _scores(suite))


def _scores(suite: BenchSuite) -> list[str]:
    rows = ["| solver | | score | worst | evaluations | time |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    missing = []
    for solver in suite.solvers:
        if solver.score is None or solver.worst is None:
            missing.append(f"- `{solver.name}` ({solver.kind}): {solver.state}: {solver.reason}.")
            continue
        kind = solver.kind if solver.origin is None else f"{solver.kind}, {solver.origin}"
        evaluations = "" if solver.evaluations is None else f"{solver.evaluations:,}"
        ratio = solver.time_ratio
        time = "unknown" if ratio is None else f"{ratio:.3g}" if ratio < 1000 else f"{ratio:,.0f}"
        rows.append(f"| `{solver.name}` | {kind} | {solver.score:.4f} | {solver.worst:.4f} | {evaluations} | {time} |")
    about = (
        f"{suite.title}; {len(suite.problems)} problems, version {suite.version}. Metric: {suite.metric}. A score of "
        f"1: {suite.against}. Time: over that of `{suite.reference_solver}`."
    )
    return [f"## {suite.name}", about, "\n".join(rows), *(["\n".join(missing)] if missing else [])]
