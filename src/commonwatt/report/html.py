"""The HTML report: one self-contained file that loads nothing from the network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import Any

from commonwatt.model.results import CapacityPoolResult, CapacityResult, PolicyResult, SimulationResult
from commonwatt.report import figures, sections
from commonwatt.report import format as fmt
from commonwatt.report.fleet import fleet_section
from commonwatt.report.gantt import MOST_SEGMENTS, gantt, tenants_by_use
from commonwatt.report.pictures import policy_colour
from commonwatt.report.sections import Cell, Column, html_table, in_one_unit
from commonwatt.report.text import paragraph
from commonwatt.report.timeline import TimeAxis, timeline
from commonwatt.simulation.record import Record

__all__ = ["capacity_section", "panel", "plans_capacity", "plotly", "render", "tab", "tail_note"]

_COLUMNS = (
    ("Plan", "of capacity"), ("Mean GPUs on", "including waking nodes"), ("Mean GPUs in use", ""),
    ("Instants served", "plans with enough GPUs on for the demand"), ("Energy", "at the nodes"),
    ("All nodes on", "energy of the same schedule"), ("Saved", ""), ("Jobs delayed", "waited for nodes to wake"),
    ("Mean delay", "of these"), ("Wakes", "of nodes"), ("Fallbacks", "plans with all nodes on, for lack of a promise"),
)  # fmt: skip


def plans_capacity(result: SimulationResult) -> bool:
    """Return whether a policy planned capacity."""
    return any(policy.capacity is not None for policy in result.policies)


def capacity_section(result: SimulationResult) -> str:
    """Return the section: figure and table."""
    if not plans_capacity(result):
        return ""
    columns = [Column("", number=False), *(Column(name, note, number=i > 0) for i, (name, note) in enumerate(_COLUMNS))]
    rows = in_one_unit(
        (
            [Cell(policy.policy, colour=policy_colour(i)), *_cells(policy.capacity, policy.energy_kwh)]
            for i, policy in enumerate(result.policies)
            if policy.capacity is not None
        ),
        {5: fmt.energy, 6: fmt.energy, 9: fmt.duration},
    )
    table = html_table("Capacity plans", columns, rows) + _pools(result) + _budgets(result)
    return f"""<section aria-labelledby="h-capacity">
<h2 id="h-capacity">Nodes on</h2>
<div class="grid">
<figure class="card full"><figcaption><h3>GPUs on against GPUs in use</h3></figcaption>
<div class="figure" id="fig-on" role="img" aria-label="GPUs of nodes that are on, over time, under each policy"></div>
</figure>
</div>
{table}
</section>"""


_POOL_COLUMNS = (
    ("Pool", ""), ("GPUs", "its jobs may use"), ("Promise", ""), ("Mean GPUs wanted", "running and waiting jobs"),
    ("Mean GPUs promised", ""), ("Mean GPUs on", "including waking nodes"),
    ("Instants served", "plans with enough GPUs on for the demand"), ("Jobs", "that started"),
    ("Jobs delayed", "waited for nodes to wake"), ("Mean delay", "of these"),
    ("Fallbacks", "plans with all its nodes on, for lack of a promise"),
)  # fmt: skip


def _pools(result: SimulationResult) -> str:
    """Return the table of pools; nothing where every plan has one."""
    rows = [
        [Cell(policy.policy, colour=policy_colour(i)), *_pool_cells(pool)]
        for i, policy in enumerate(result.policies)
        for pool in (policy.capacity.pools if policy.capacity is not None else ())
    ]
    if not rows:
        return ""
    columns = [Column("", number=False)]
    columns += [Column(name, note, number=i not in (0, 2)) for i, (name, note) in enumerate(_POOL_COLUMNS)]
    return html_table("Pools", columns, in_one_unit(rows, {10: fmt.duration}))


def _pool_cells(pool: CapacityPoolResult) -> list[Cell]:
    return [
        Cell(pool.name),
        Cell(fmt.count(pool.gpus), pool.gpus),
        Cell(pool.promise or ""),
        Cell(f"{pool.mean_wanted_gpus:,.1f}", pool.mean_wanted_gpus),
        Cell(f"{pool.mean_promised_gpus:,.1f}", pool.mean_promised_gpus),
        Cell(f"{pool.mean_gpus_on:,.1f}", pool.mean_gpus_on),
        Cell(fmt.percent(pool.slots_served), pool.slots_served),
        Cell(fmt.count(pool.jobs), pool.jobs),
        Cell(fmt.count(pool.jobs_delayed), pool.jobs_delayed),
        Cell(fmt.UNKNOWN if pool.mean_delay_s is None else fmt.duration(pool.mean_delay_s), pool.mean_delay_s),
        Cell(fmt.count(pool.fallback_plans), pool.fallback_plans),
    ]


def _budgets(result: SimulationResult) -> str:
    """Return a line for each policy with a power budget: when it bound, and who waited."""
    lines = []
    for policy in result.policies:
        if policy.capacity is None or (budget := policy.capacity.budget) is None:
            continue
        mean = "" if budget.mean_delay_s is None else f", {fmt.duration(budget.mean_delay_s)} in the mean"
        lines.append(f'<p class="note">{escape(f"{policy.policy}: {budget.sentence}{mean}.")}</p>')
    return "".join(lines)


def _cells(plan: CapacityResult, energy_kwh: float | None) -> list[Cell]:
    saved = None if plan.saving_pct is None else plan.saving_pct / 100
    return [
        Cell(plan.policy if plan.forecaster is None else f"{plan.policy}, {plan.forecaster}"),
        Cell(f"{plan.mean_gpus_on:,.1f}", plan.mean_gpus_on),
        Cell(f"{plan.mean_gpus_used:,.1f}", plan.mean_gpus_used),
        Cell(fmt.percent(plan.slots_served), plan.slots_served),
        Cell(fmt.energy(energy_kwh), energy_kwh),
        Cell(fmt.energy(plan.energy_all_on_kwh), plan.energy_all_on_kwh),
        Cell(fmt.percent(saved), saved),
        Cell(fmt.count(plan.jobs_delayed), plan.jobs_delayed),
        Cell(fmt.UNKNOWN if plan.mean_delay_s is None else fmt.duration(plan.mean_delay_s), plan.mean_delay_s),
        Cell(fmt.count(plan.wakes), plan.wakes),
        Cell(fmt.count(plan.fallback_plans), plan.fallback_plans),
    ]


def tab(policy: PolicyResult, index: int) -> str:
    """Return the button that shows the panel of the policy at *index*."""
    chosen = "true" if index == 0 else "false"
    return (
        f'<button type="button" role="tab" id="tab-{index}" aria-controls="panel-{index}" aria-selected="{chosen}" '
        f'tabindex="{0 if index == 0 else -1}"><i class="chip" style="background:{policy_colour(index)}"></i>'
        f"{escape(policy.policy)}</button>"
    )


def panel(
    policy: PolicyResult, index: int, currency: str, record: Record | None, chart: dict[str, Any] | None, axis: TimeAxis
) -> str:
    """Return Gantt chart, tenants, late jobs and ledger of a policy; without a record, tenants and ledger only."""
    name = escape(policy.policy)
    parts = [f'<h3 class="panel-title">{name}</h3>', "<h4>Nodes and GPUs over time</h4>"]
    if record is None or chart is None:
        parts.append('<p class="none">There is no record of this run.</p>')
    else:
        parts += [
            f'<p class="note">{escape(_chart_note(record, chart))}</p>',
            tail_note(axis),
            _place_of_chart(index, name),
        ]
    parts += ["<h4>Tenants</h4>", sections.tenant_table(policy, currency)]
    if record is not None:
        parts += ["<h4>Late jobs</h4>", sections.late_table(record, currency)]
    parts += ["<h4>Energy by account</h4>", sections.ledger_table(policy, currency)]
    body = "\n".join(parts)
    return f'<div class="panel" role="tabpanel" id="panel-{index}" aria-labelledby="tab-{index}">\n{body}\n</div>'


def tail_note(axis: TimeAxis) -> str:
    """Return the note and the button for a run that ends in a long tail; empty for any other."""
    if not axis.focused:
        return ""
    shown, whole = (fmt.duration(end - axis.origin_s) for end in (axis.focus_s, axis.end_s))
    note = f"Showing {shown} of {whole}, by when 99% of the jobs have ended under every policy."
    return (
        f'<p class="note focus">{escape(note)} '
        '<button type="button" class="toggle whole" aria-pressed="false">Whole run</button></p>'
    )


def _place_of_chart(index: int, name: str) -> str:
    label = f"Gantt chart of the nodes under {name}"
    return f'<figure><div class="figure" id="gantt-{index}" role="img" aria-label="{label}"></div></figure>'


def _chart_note(record: Record, chart: dict[str, Any]) -> str:
    segments = f"{fmt.plural(len(record.segments.job), 'segment')} of jobs on {fmt.plural(len(record.cluster), 'node')}"
    if chart["kind"] == "heat":
        rows = chart["shape"][0]
        per_row = "" if rows == len(record.cluster) else f" Each of the {rows} rows shows several neighbouring nodes."
        return f"{segments}, too many to draw: the colour is the share of allocated GPUs.{per_row}"
    colours = "Colours are tenants" if chart["named"] else "Colours only distinguish jobs"
    return f"{segments}. The height of a bar is its number of GPUs. {colours}; point at a bar for details."


def render(result: SimulationResult, records: Sequence[Record]) -> str:
    """Return ``report.html``.

    Parameters
    ----------
    result
        The numbers of all policies; the first is the one under study.
    records
        Records of the policies' runs, matched by name. A policy without one has numbers and tables only.

    Returns
    -------
    str
        The document; the same input gives the same bytes. Its size grows with the number of policies, hardly with the
        number of jobs: curves, distributions and heat maps have a fixed number of points.
    """
    by_name = {record.policy: record for record in records}
    ordered = [by_name[policy.policy] for policy in result.policies if policy.policy in by_name]
    axis = timeline(ordered)
    charts = _charts(result, ordered, axis)
    script = _asset("report.js")
    return Template(_asset("report.html")).substitute(
        title=escape(result.scenario),
        policy_of_scripts=f"'{_digest(plotly())}' '{_digest(script)}'",
        style=_asset("report.css"),
        subtitle=escape(_subtitle(result)),
        summary=" ".join(escape(sentence) for sentence in paragraph(result)),
        tiles=sections.tiles(result),
        legend=_legend(result),
        bound=escape(_bound(result)),
        focus=tail_note(axis),
        capacity=capacity_section(result) + fleet_section(result),
        policies=sections.policy_table(result),
        savings=sections.saving_table(result),
        tabs="\n".join(tab(policy, i) for i, policy in enumerate(result.policies)),
        panels="\n".join(
            panel(policy, i, result.currency, by_name.get(policy.policy), charts.get(f"gantt-{i}"), axis)
            for i, policy in enumerate(result.policies)
        ),
        made=_made(result),
        data=_packed(_json({"figures": _shared(result, ordered, axis), "gantt": charts})),
        plotly=_packed_plotly(),
        script=script,
    )


def _shared(result: SimulationResult, records: Sequence[Record], axis: TimeAxis) -> dict[str, Any]:
    """Return the figures of all policies."""
    charts = {"cost": figures.cost(result), "energy": figures.energy_cost(result)}
    if records:
        charts |= {
            "gpus": figures.gpus_in_use(result, records, axis),
            "power": figures.power(result, records, axis),
            "queue": figures.queue(result, records, axis),
            "wait": figures.spread(result, records, lambda r: r.jobs.began_s - r.jobs.submit_s, "waiting"),
            "jct": figures.spread(result, records, lambda r: r.jobs.ended_s - r.jobs.submit_s, "completion time"),
        }
        if plans_capacity(result):
            charts["on"] = figures.gpus_on(result, records, axis)
    return charts


def _charts(result: SimulationResult, records: Sequence[Record], axis: TimeAxis) -> dict[str, Any]:
    """Return the Gantt chart of each policy, by the id of its place in the page."""
    if not records:
        return {}
    tenants = tenants_by_use(records[0])
    # All charts together stay small enough for a browser and for a mail attachment.
    most = min(MOST_SEGMENTS, 4 * MOST_SEGMENTS // len(records))
    names = [policy.policy for policy in result.policies]
    return {f"gantt-{names.index(r.policy)}": gantt(r, axis, tenants, most) for r in records}


def _subtitle(result: SimulationResult) -> str:
    size = f"{fmt.plural(result.jobs, 'job')}, {fmt.plural(result.nodes, 'node')}, {fmt.plural(result.gpus, 'GPU')}"
    treated = "; ".join(f"{fmt.count(number)} {how}" for how, number in result.treatments.items())
    return f"{size}. {result.workload[:1].upper()}{result.workload[1:]}" + (f". {treated}" if treated else "")


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
    return json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


@cache
def plotly() -> str:
    """Return plotly.js as it runs in the page."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text.replace("\r\n", "\n")


@cache
def _packed_plotly() -> str:
    return _packed(plotly())


def _packed(text: str) -> str:
    """Return *text* as the page contains it, which cannot end its script element: plotly.js has 2 MB instead of 5."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def _digest(script: str) -> str:
    """Return the digest by which the page's security policy allows *script*."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _asset(name: str) -> str:
    return resources.files("commonwatt.report").joinpath("assets", name).read_text(encoding="utf-8")
