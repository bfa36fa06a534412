"""The HTML report: one file with everything in it, which asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from commonwatt.model.results import SimulationResult
from commonwatt.report import figures, panels, sections
from commonwatt.report import format as fmt
from commonwatt.report.capacity import capacity_section, plans_capacity
from commonwatt.report.gantt import MOST_SEGMENTS, gantt, tenants_by_use
from commonwatt.report.palette import policy_colour
from commonwatt.report.timeline import Timeline, timeline
from commonwatt.report.words import paragraph
from commonwatt.simulation.record import Record

__all__ = ["render"]


def render(result: SimulationResult, records: Sequence[Record]) -> str:
    """Return ``report.html``.

    Parameters
    ----------
    result
        The numbers of all policies; the first is ours.
    records
        What the policies' runs left behind, matched by name. A policy without one has its numbers and tables, but
        no curves and no Gantt chart.

    Returns
    -------
    str
        The document. The same input gives the same bytes. It grows with the number of policies, hardly with the
        number of jobs: curves, distributions and heat maps have a fixed number of points.
    """
    by_name = {record.policy: record for record in records}
    ordered = [by_name[policy.policy] for policy in result.policies if policy.policy in by_name]
    axis = timeline(ordered)
    charts = _charts(result, ordered, axis)
    script = _asset("report.js")
    plotly = _plotly()
    return Template(_asset("report.html")).substitute(
        title=escape(result.scenario),
        policy_of_scripts=f"'{_digest(plotly)}' '{_digest(script)}'",
        style=_asset("report.css"),
        subtitle=escape(_subtitle(result)),
        summary=" ".join(escape(sentence) for sentence in paragraph(result)),
        tiles=sections.tiles(result),
        legend=_legend(result),
        bound=escape(_bound(result)),
        focus=panels.tail_note(axis),
        capacity=capacity_section(result),
        policies=sections.policy_table(result),
        savings=sections.saving_table(result),
        tabs="\n".join(panels.tab(policy, i) for i, policy in enumerate(result.policies)),
        panels="\n".join(
            panels.panel(policy, i, result.currency, by_name.get(policy.policy), charts.get(f"gantt-{i}"), axis)
            for i, policy in enumerate(result.policies)
        ),
        made=_made(result),
        data=_json({"figures": _shared(result, ordered, axis), "gantt": charts}),
        plotly=plotly,
        script=script,
    )


def _shared(result: SimulationResult, records: Sequence[Record], axis: Timeline) -> dict[str, Any]:
    """Return the figures of all policies together."""
    found = {"cost": figures.cost(result), "energy": figures.energy_cost(result)}
    if records:
        found |= {
            "gpus": figures.gpus_in_use(result, records, axis),
            "power": figures.power(result, records, axis),
            "queue": figures.queue(result, records, axis),
            "wait": figures.spread(result, records, lambda r: r.jobs.began_s - r.jobs.submit_s, "waiting"),
            "jct": figures.spread(result, records, lambda r: r.jobs.ended_s - r.jobs.submit_s, "completion time"),
        }
        if plans_capacity(result):
            found["on"] = figures.gpus_on(result, records, axis)
    return found


def _charts(result: SimulationResult, records: Sequence[Record], axis: Timeline) -> dict[str, Any]:
    """Return the Gantt chart of each policy, by the id of its place in the page."""
    if not records:
        return {}
    tenants = tenants_by_use(records[0])
    # All charts together stay within what a browser draws in a moment and a mail attachment holds.
    most = min(MOST_SEGMENTS, 4 * MOST_SEGMENTS // len(records))
    names = [policy.policy for policy in result.policies]
    return {f"gantt-{names.index(r.policy)}": gantt(r, axis, tenants, most) for r in records}


def _subtitle(result: SimulationResult) -> str:
    size = f"{fmt.plural(result.jobs, 'job')}, {fmt.plural(result.nodes, 'node')}, {fmt.plural(result.gpus, 'GPU')}"
    return f"{size}. {result.workload[:1].upper()}{result.workload[1:]}"


def _legend(result: SimulationResult) -> str:
    return "".join(
        f'<li><i class="chip" style="background:{policy_colour(i)}"></i>{escape(policy.policy)}</li>'
        for i, policy in enumerate(result.policies)
    )


def _bound(result: SimulationResult) -> str:
    bounds = sorted({policy.lower_bound_cost for policy in result.policies})
    texts = list(dict.fromkeys(fmt.money(bound, result.currency) for bound in (bounds[0], bounds[-1])))
    return " to ".join(texts)


def _made(result: SimulationResult) -> str:
    facts = (
        ("commonwatt", result.version),
        ("Seed", str(result.seed)),
        ("Decisions are", result.enforcement),
        ("Input digest (SHA-256)", result.input_digest),
    )
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)


def _json(data: object) -> str:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _plotly() -> str:
    """Return plotly.js; nothing in it can end the script element either."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _digest(script: str) -> str:
    """Return the digest by which the page's security policy lets *script* run, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _asset(name: str) -> str:
    return resources.files("commonwatt.report").joinpath("assets", name).read_text(encoding="utf-8")
