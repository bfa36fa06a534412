"""The HTML report of ``reproduce all``, one self-contained file without scripts."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template

from commonwatt.model.suite_results import (
    ReproduceAllResult,
    ReproduceClaim,
    ReproduceTopicResult,
    Verdict,
)
from commonwatt.model.units import plural
from commonwatt.report.redrawing import Redrawing, RedrawnPanel, claim_value, claims_of, strength_of

__all__ = ["render_claims", "spread_of", "with_unit"]

_CLASSES: dict[Verdict, str] = {
    "holds": "holds", "holds with changes": "changes", "does not hold": "fails", "not comparable": "none",
}  # fmt: skip
_NOT_COMPARED = "not compared"
"""The rule of a claim for which only the run says why it has no verdict."""


def with_unit(value: bool | float | str | None, unit: str, digits: int = 3) -> str:
    """Return a value with its unit; without one where it has none, or none is known."""
    text = claim_value(value, digits)
    if not unit or unit == "-" or value is None or isinstance(value, bool):
        return text
    return f"{text}{ {'%': '%', 'x': '×'}.get(unit, f' {unit}') }"


def spread_of(claim: ReproduceClaim, seeds: int) -> str:
    """Return the spread of a claim over *seeds* or draws, in a few words; empty if there is none."""
    if claim.held_pct is not None:
        return "" if seeds == 1 and claim.held_pct in (0.0, 100.0) else f"yes for {claim.held_pct:.0f}%"
    if claim.least is None or claim.most is None or seeds == 1:
        return ""
    low, high = claim_value(claim.least), claim_value(claim.most)
    return "the same" if low == high else f"{low} to {high}"


def render_claims(
    result: ReproduceAllResult,
    figures: Mapping[str, tuple[bytes | None, bytes | None]],
    redrawings: Mapping[str, Redrawing],
    legend: Sequence[str] = (),
    left_out: Mapping[str, Sequence[str]] | None = None,
    little: Mapping[str, Mapping[str, int]] | None = None,
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
    little
        Claims by verdict that say little, by why they do.
    """
    papers: dict[str, list[ReproduceTopicResult]] = {}
    for topic in result.topics:
        papers.setdefault(topic.paper.partition(",")[0].partition(" (")[0], []).append(topic)
    every = [claim for topic in result.topics for claim in topic.claims]
    uses = Counter(claim.rule for claim in every if claim.rule != _NOT_COMPARED)
    numbers = {rule: number for number, rule in enumerate(uses, 1)}
    pictures = {
        topic.name: _pictures(topic, *figures.get(topic.name, (None, None)), redrawings.get(topic.name, Redrawing()))
        for topic in result.topics
    }
    results = "\n".join(
        f'<section aria-labelledby="paper-{k}">{_paper(k, name, topics, pictures, numbers)}'
        f"{_folded('Figures and tables without claims', (left_out or {}).get(name, ()))}</section>"
        for k, (name, topics) in enumerate(papers.items(), 1)
    )
    undone = [topic for topic in result.topics if topic.state != "done"]
    return Template(_asset("claims.html")).substitute(
        style=_asset("claims.css"),
        about=f"commonwatt {escape(result.version)}, {escape(result.extent)} extent, "
        f"{escape(plural(len(result.seeds), 'seed'))} at most, all runs together {result.wall_s:,.0f} s: "
        f"<code>{escape(result.command)}</code>",
        missing="" if any(own for own, _ in figures.values()) else _NO_FIGURES,
        counts=_counts(papers, little or {}),
        undone="".join(f"<p><b>{topic.state}</b>: {_link(topic.name, topic.title)}</p>" for topic in undone),
        failed=sum(claim.verdict == "does not hold" for claim in every),
        failing=_by_paper("failing", papers, _failing) or "<p>None.</p>",
        contents=_by_paper("contents", papers, _entries),
        results=results,
        legend="".join(f"<p>{escape(sentence)}</p>" for sentence in legend),
        rules="".join(
            f'<p id="rule-{number}"><b>Rule {number}</b>: {_here(rule)}. '
            f'<span class="note">({plural(uses[rule], "claim")})</span></p>'
            for rule, number in numbers.items()
        )
        or "<p>None.</p>",
    )


_NO_FIGURES = "Made from a record of values alone: figures and curves of ours are not in it."
_MARKS = {"bars": "hatched bars", "points": "open points", "lines": "black lines"}


def _asset(name: str) -> str:
    return resources.files("commonwatt.report").joinpath("assets", name).read_text(encoding="utf-8")


def _link(place: str, text: str) -> str:
    return f'<a href="#{escape(place)}">{escape(text)}</a>'


def _here(rule: str) -> str:
    """Return a rule; what it finds at the top of the page of claims is in the section with the rules here."""
    return escape(rule).replace("as said at the top", "as said above")


def _cited(topic: ReproduceTopicResult) -> tuple[str, str]:
    """Return the paper of a topic, with its authors, and the place there."""
    head, mark, place = topic.paper.partition("), ")
    if mark:
        return f"{head})", place
    head, _, place = topic.paper.partition(", ")
    return head, place


def _counts(papers: Mapping[str, Sequence[ReproduceTopicResult]], little: Mapping[str, Mapping[str, int]]) -> str:
    """Return the table of verdicts by paper, of all, and of those that say little."""
    heads = "".join(f'<th class="n {name}" scope="col">{verdict}</th>' for verdict, name in _CLASSES.items())
    every: Counter[str] = Counter()
    rows = []
    for k, (paper, topics) in enumerate(papers.items(), 1):
        own = Counter[str](claim.verdict for topic in topics for claim in topic.claims)
        every += own
        rows.append(_count_row(_link(f"paper-{k}", paper), own))
    rows.append(_count_row("all", every, "all"))
    rows += [_count_row(f"of these, {escape(why)}", own, "note") for why, own in little.items()]
    return (
        f'<table class="counts"><thead><tr><th scope="col">claims of</th>{heads}<th class="n" scope="col">claims</th>'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _count_row(head: str, counts: Mapping[str, int], name: str = "") -> str:
    cells = "".join(
        f'<td class="n {_CLASSES[verdict] if counts.get(verdict) else "zero"}">{counts.get(verdict, 0)}</td>'
        for verdict in _CLASSES
    )
    return f'<tr class="{name}"><th scope="row">{head}</th>{cells}<td class="n">{sum(counts.values())}</td></tr>'


def _by_paper(
    name: str,
    papers: Mapping[str, Sequence[ReproduceTopicResult]],
    items: Callable[[Sequence[ReproduceTopicResult]], Iterable[str]],
) -> str:
    """Return a list under the name of each paper that has *items*; empty if none has."""
    groups = (
        f'<div class="group"><p>{_link(f"paper-{k}", paper) if name == "contents" else escape(paper)}</p>'
        f"<ul>{''.join(f'<li>{item}</li>' for item in entries)}</ul></div>"
        for k, (paper, topics) in enumerate(papers.items(), 1)
        if (entries := list(items(topics)))
    )
    text = "".join(groups)
    return text and f'<div class="{name}">{text}</div>'


def _failing(topics: Sequence[ReproduceTopicResult]) -> Iterable[str]:
    for topic in topics:
        for k, claim in enumerate(topic.claims, 1):
            if claim.verdict == "does not hold":
                said = f"ours {with_unit(claim.ours, claim.unit)}, paper {_printed(claim)}"
                said = said if claim.held_pct is None else claim.why
                yield f'{_link(f"{topic.name}-{k}", claim.quantity)}: <span class="note">{escape(said)}</span>'


def _entries(topics: Sequence[ReproduceTopicResult]) -> Iterable[str]:
    for topic in topics:
        failed = sum(claim.verdict == "does not hold" for claim in topic.claims)
        said = plural(len(topic.claims), "claim") if topic.claims else "no claim"
        said += f", {failed} {'does' if failed == 1 else 'do'} not hold" if failed else ""
        place = _cited(topic)[1]
        yield (
            f'{_link(topic.name, topic.title)} <span class="note">{escape(place)}: '
            f"{said if topic.state == 'done' else topic.state}</span>"
        )


def _folded(title: str, sentences: Iterable[str]) -> str:
    """Return sentences under a line that opens them; empty if there are none."""
    items = [f"<li>{escape(sentence)}{'' if sentence.endswith('.') else '.'}</li>" for sentence in sentences]
    if not items:
        return ""
    return f'<details><summary>{title} ({len(items)})</summary><ul class="note">{"".join(items)}</ul></details>'


def _paper(
    k: int,
    name: str,
    topics: Sequence[ReproduceTopicResult],
    pictures: Mapping[str, str],
    numbers: Mapping[str, int],
) -> str:
    notes = dict.fromkeys(note for topic in topics for note in topic.notes)
    return (
        f'<h2 id="paper-{k}">{escape(name)}</h2><p class="note">{escape(_cited(topics[0])[0])}. '
        f'<a class="up" href="#contents">Contents</a></p>{_folded("What went in, and what was replaced", notes)}'
        f"{''.join(_topic(topic, pictures[topic.name], numbers) for topic in topics)}"
    )


def _topic(topic: ReproduceTopicResult, pictures: str, numbers: Mapping[str, int]) -> str:
    head = (
        f'<h3 id="{escape(topic.name)}">{escape(topic.title)}</h3><p class="note">{escape(_cited(topic)[1])} · '
        f"<code>commonwatt reproduce {escape(topic.name)}</code>"
    )
    if topic.state != "done":
        return f"{head}</p><p><b>{topic.state}</b>: {escape(topic.reason or '')}</p>"
    head += f" · {plural(len(topic.seeds), 'seed')}, {topic.wall_s:,.0f} s</p>"
    warned = "" if topic.stand_in is None else f"<p><b>Missing:</b> {escape(topic.stand_in)}; replaced.</p>"
    rows = "".join(_row(topic, k, claim, numbers) for k, claim in enumerate(topic.claims, 1))
    table = (
        '<table class="claims"><thead><tr><th scope="col">claim</th><th class="n" scope="col">paper</th>'
        '<th class="n" scope="col">ours, and over seeds or draws</th><th class="v" scope="col">verdict</th>'
        '<th class="why" scope="col">why</th>'
        f"</tr></thead><tbody>{rows}</tbody></table>"
        if rows
        else "<p>The paper prints no value.</p>"
    )
    others = "".join(
        f'<tr><th scope="row">{escape(claim.quantity)}</th><td class="n">{_ours(claim, len(topic.seeds))}</td></tr>'
        for claim in topic.others
    )
    more = (
        f"<details><summary>{plural(len(topic.others), 'value')} that the paper does not print</summary>"
        '<table class="others"><thead><tr><th scope="col">quantity</th><th class="n" scope="col">ours</th></tr></thead>'
        f"<tbody>{others}</tbody></table></details>"
        if others
        else ""
    )
    return f"{head}{warned}{table}{pictures}{more}"


def _printed(claim: ReproduceClaim) -> str:
    """Return the paper's value: with the digits that papers print."""
    return with_unit(claim.paper, claim.unit, 4)


def _ours(claim: ReproduceClaim, seeds: int) -> str:
    spread = spread_of(claim, seeds)
    return escape(with_unit(claim.ours, claim.unit)) + (
        f'<div class="note">{spread}</div>' if spread and spread not in claim.why else ""
    )


def _row(topic: ReproduceTopicResult, k: int, claim: ReproduceClaim, numbers: Mapping[str, int]) -> str:
    note = f'<div class="note">{escape(claim.note)}</div>' if claim.note and claim.note != claim.why else ""
    rule = _link(f"rule-{numbers[claim.rule]}", f"rule {numbers[claim.rule]}") if claim.rule in numbers else ""
    return (
        f'<tr id="{escape(topic.name)}-{k}"><th scope="row">{escape(claim.quantity)}{note}</th>'
        f'<td class="n" data-of="paper">{escape(_printed(claim))}</td>'
        f'<td class="n" data-of="ours">{_ours(claim, len(topic.seeds))}</td>'
        f'<td class="v {_CLASSES[claim.verdict]}">{claim.verdict}</td>'
        f'<td class="why note">{": ".join(part for part in (rule, escape(claim.why)) if part)}</td></tr>'
    )


def _pictures(topic: ReproduceTopicResult, ours: bytes | None, printed: bytes | None, redrawing: Redrawing) -> str:
    """Return our figure and the redrawing of the paper's, with what they show."""
    if topic.state != "done":
        return ""
    unprinted = f" {redrawing.unprinted}" * bool(redrawing.unprinted)
    pictures = (
        (ours, f"Ours, seed {topic.seeds[0]}.{unprinted}", _shown_in_ours(topic)),
        (printed, _caption(topic, redrawing) + unprinted * (ours is None), _shown_in(redrawing)),
    )
    images = "".join(
        f'<figure><img alt="{escape(alt)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'
        f"<figcaption>{escape(said)}</figcaption></figure>"
        for svg, said, alt in pictures
        if svg is not None
    )
    return images and f'<div class="figures">{images}</div>'


def _caption(topic: ReproduceTopicResult, redrawing: Redrawing) -> str:
    """Say what the redrawing of *topic* shows."""
    kinds = dict.fromkeys(panel.kind for panel in redrawing.panels)
    what = "What the paper prints of it" if redrawing.unprinted else "As the paper draws it, from the values it prints"
    said = f"{what} ({', '.join(_MARKS[kind] for kind in kinds)}), and ours in the same axes"
    claims = claims_of(topic)
    drawn = {name for panel in redrawing.panels for group in panel.groups.values() for name in group.values()}
    drawn |= {place for panel in redrawing.panels for _, *at in panel.points for place in at if isinstance(place, str)}
    pale = " Pale: not comparable." if any(strength_of(claims.get(name)) < 1 for name in drawn) else ""
    if len(topic.seeds) == 1:
        return f"{said}, one seed.{pale}"
    spread = {"bars": "the least and the greatest", "lines": "the standard deviation, of curves"}
    whiskers = " or ".join(spread[kind] for kind in kinds if kind in spread)
    return f"{said}: means over {len(topic.seeds)} seeds{f'; whiskers: {whiskers}' if whiskers else ''}.{pale}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(name for name in names if name))


def _shown_in_ours(topic: ReproduceTopicResult) -> str:
    """Say, for who cannot see it, what our figure has."""
    if not topic.points:
        return f"{topic.title}: our values."
    quantities, series = (_listed(getattr(point, what) for point in topic.points) for what in ("quantity", "series"))
    return f"{topic.title}: {quantities}{f' against {topic.x_name}' * bool(topic.x_name)}, for {series}."


def _shown_in(redrawing: Redrawing) -> str:
    """Say, for who cannot see it, what each pair of axes of a redrawing has."""
    return " ".join(f"{_panel(panel)}." for panel in redrawing.panels)


def _panel(panel: RedrawnPanel) -> str:
    across = f" against {panel.x}" * bool(panel.x)
    along = f" ({panel.y}{', logarithmic' * panel.logarithmic})" * bool(panel.y)
    if panel.kind == "bars":
        series = _listed(name for group in panel.groups.values() for name in group)
        return f"{panel.title}{along}: bars of the paper and of ours for {_listed(panel.groups)}; each has {series}"
    if panel.kind == "points":
        return (
            f"{panel.title}: points of the paper and of ours for {_listed(p[0] for p in panel.points)}{along}{across}"
        )
    marks = _listed((*panel.across, *panel.level))
    curves = f" of {_listed(panel.only)}" * bool(panel.only)
    lines = f"; lines where the paper prints a value: {marks}" * bool(marks)
    return f"{panel.title}{along}: our curves{curves}{across}{lines}"
