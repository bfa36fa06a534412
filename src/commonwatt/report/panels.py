"""The part of the page on one policy, chosen by its tab."""

from __future__ import annotations

from html import escape
from typing import Any

from commonwatt.model.results import PolicyResult
from commonwatt.report import format as fmt
from commonwatt.report import sections
from commonwatt.report.palette import policy_colour
from commonwatt.report.timeline import Timeline
from commonwatt.simulation.record import Record

__all__ = ["panel", "tab", "tail_note"]


def tab(policy: PolicyResult, index: int) -> str:
    """Return the button that shows the panel of the policy at *index*."""
    chosen = "true" if index == 0 else "false"
    return (
        f'<button type="button" role="tab" id="tab-{index}" aria-controls="panel-{index}" aria-selected="{chosen}" '
        f'tabindex="{0 if index == 0 else -1}"><i class="chip" style="background:{policy_colour(index)}"></i>'
        f"{escape(policy.policy)}</button>"
    )


def panel(
    policy: PolicyResult, index: int, currency: str, record: Record | None, chart: dict[str, Any] | None, axis: Timeline
) -> str:
    """Return Gantt chart, tenants, late jobs and ledger of a policy; less what only a record could tell."""
    name = escape(policy.policy)
    parts = [f'<h3 class="panel-title">{name}</h3>', "<h4>Nodes and GPUs over time</h4>"]
    if record is None or chart is None:
        parts.append('<p class="none">The run of this policy was not recorded.</p>')
    else:
        parts += [
            f'<p class="note">{escape(_chart_note(record, chart))}</p>',
            tail_note(axis),
            _place_of_chart(index, name),
        ]
    parts += ["<h4>Tenants</h4>", sections.tenant_table(policy, currency)]
    if record is not None:
        parts += ["<h4>Late jobs, and why</h4>", sections.late_table(record, currency)]
    parts += ["<h4>Where the energy went</h4>", sections.ledger_table(policy, currency)]
    body = "\n".join(parts)
    return f'<div class="panel" role="tabpanel" id="panel-{index}" aria-labelledby="tab-{index}">\n{body}\n</div>'


def tail_note(axis: Timeline) -> str:
    """Return the line and the button for a run that ends in a long tail; nothing for any other."""
    if not axis.focused:
        return ""
    shown, whole = (fmt.duration(end - axis.origin_s) for end in (axis.focus_s, axis.end_s))
    note = f"Shown at first: {shown} of {whole}. By then all but 1% of the jobs have ended under every policy."
    return (
        f'<p class="note focus">{escape(note)} '
        '<button type="button" class="toggle whole" aria-pressed="false">Whole run</button></p>'
    )


def _place_of_chart(index: int, name: str) -> str:
    label = f"Gantt chart of the nodes under {name}"
    return f'<figure><div class="figure" id="gantt-{index}" role="img" aria-label="{label}"></div></figure>'


def _chart_note(record: Record, chart: dict[str, Any]) -> str:
    stays = f"{fmt.plural(len(record.segments.job), 'stay')} of jobs on {fmt.plural(len(record.cluster), 'node')}"
    if chart["kind"] == "heat":
        rows = chart["shape"][0]
        per_row = "" if rows == len(record.cluster) else f" Each of the {rows} rows stands for neighbouring nodes."
        return f"{stays}, too many to draw each: the colour is the share of GPUs that jobs held.{per_row}"
    colours = "Colours are tenants" if chart["named"] else "Colours only tell jobs apart"
    return f"{stays}. A bar is as high as the job has GPUs there. {colours}; point at a bar for more."
