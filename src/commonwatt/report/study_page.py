"""The HTML report of a study: one self-contained file without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from string import Template

from commonwatt.model.study_results import StudyPolicy, StudyResult, StudyTenant, WaterfallStep
from commonwatt.report import format as fmt
from commonwatt.report.pictures import policy_colour
from commonwatt.report.sections import MOST_TENANTS, Cell, Column, html_table, in_one_unit
from commonwatt.report.study_text import (
    STEP_NAMES,
    about,
    headline,
    interval_text,
    left_out,
    longer_waits,
    policy_of,
    shown_steps,
    signed_pct,
    treated,
    unpriced,
    waiting,
)

__all__ = ["render_study"]

MOST_WAITING = 8
"""Tenants on the first screen."""

_LONGER_S = 60.0  # a tenant waits longer from this difference on
_WAITS = (("p50_wait_s", "p50"), ("p95_wait_s", "p95"), ("p99_wait_s", "p99"), ("longest_wait_s", "Longest"))


def render_study(result: StudyResult) -> str:
    """Return the page; the same result gives the same bytes."""
    return Template(_asset("study.html")).substitute(
        title=escape(result.study),
        style=_asset("report.css"),
        own_style=_asset("study.css"),
        source=escape(result.about.source),
        about=escape(about(result)),
        headline=escape(headline(result)),
        saving=escape(signed_pct(result.conservative_saving_pct)),
        interval=escape(interval_text(result)),
        cost=escape(_cost_sentence(result)),
        waiting=escape(waiting(result)),
        loud=_loud(result),
        waits_note=escape(_waits_note(result)),
        waits=_waits_table(result),
        assumptions="\n".join(_assumptions(result)),
        waterfall=_bars(shown_steps(result)),
        steps=_steps_table(result),
        policies_note=escape(_policies_note(result)),
        policies=_policies_table(result),
        tenants=_tenants(result),
        treatments="".join(_treatments(result)),
        notes="".join(f"<p>{escape(note)}</p>" for note in filter(None, (unpriced(result), *result.notes))),
        made=_made(result),
    )


def _asset(name: str) -> str:
    return resources.files("commonwatt.report").joinpath("assets", name).read_text(encoding="utf-8")


def _cost_sentence(result: StudyResult) -> str:
    saved = result.conservative_cost_saving_pct
    return "" if saved is None else f"Of the cost of energy: {signed_pct(saved)}."


def _loud(result: StudyResult) -> str:
    parts = []
    if result.knowledge == "oracle":
        parts.append("Every scheduler here knows every run time exactly. No real one does: these are upper limits.")
    if not result.about.names_gpu_types and len(result.about.gpu_types) > 1:
        thrifty = "this is against today's scheduler choosing it by energy."
        plain = "compare this with thrifty EASY, not with 0."
        of = plain if result.conservative_against == "baseline" else thrifty
        parts.append(f"The log names no GPU type, so schedulers choose it: {of}")
    parts += left_out(result)
    if not result.finished:
        parts.append("Not all runs are done: run the same command again to continue.")
    return "".join(f'<p class="loud">{escape(part)}</p>' for part in parts)


def _waits_note(result: StudyResult) -> str:
    pairs = longer_waits(result)
    if not pairs:
        return "Not known yet."
    longer = [pair for pair in pairs if pair[1].p95_wait_s - pair[0].p95_wait_s > _LONGER_S]
    longest = [pair for pair in pairs if pair[1].longest_wait_s - pair[0].longest_wait_s > _LONGER_S]
    return (
        f"{len(longer)} of {fmt.plural(len(pairs), 'tenant')} wait longer at the 95th percentile, {len(longest)} in "
        f"the longest case, by more than a minute. From what runs today to {_ours(result)}:"
    )


def _ours(result: StudyResult) -> str:
    ours = policy_of(result, "ours")
    return "ours" if ours is None else ours.policy


def _waits_table(result: StudyResult) -> str:
    pairs = longer_waits(result)
    columns = [Column("Tenant", number=False), Column("Jobs"), *(Column(title) for _, title in _WAITS)]
    rows = []
    for today, ours in pairs[:MOST_WAITING]:
        cells = [Cell(today.tenant), Cell(f"{today.jobs:,.0f}")]
        cells += [_change(getattr(today, name), getattr(ours, name)) for name, _ in _WAITS]
        rows.append(cells)
    text = html_table("Waiting: today, then ours", columns, rows, empty="There are no tenants.", sortable=False)
    if len(pairs) > MOST_WAITING:
        left = fmt.plural(len(pairs) - MOST_WAITING, "tenant")
        text += f'<p class="note">Not shown: {left} whose p95 grew less, or fell; all are below.</p>'
    return text


def _change(today_s: float, ours_s: float) -> Cell:
    arrow = "\N{NO-BREAK SPACE}\N{RIGHTWARDS ARROW} "
    mark = " \N{UPWARDS ARROW}" if ours_s - today_s > _LONGER_S else ""
    return Cell(f"{fmt.duration(today_s)}{arrow}{fmt.duration(ours_s)}{mark}", ours_s - today_s)


def _assumptions(result: StudyResult) -> Iterator[str]:
    for one in result.assumptions:
        drawn = '<span class="drawn">drawn</span>' if one.drawn else ""
        yield (
            f"<div><dt>{escape(one.what)}{drawn}</dt><dd>{escape(one.value)}. "
            f"<code>{escape(one.switch)}</code></dd></div>"
        )


def _bars(steps: Sequence[WaterfallStep]) -> str:
    """Return a row for each step: its name, a bar from the saving before it to the saving with it, the numbers."""
    savings = [step.saved_pct for step in steps if step.saved_pct is not None]
    low, high = min([0.0, *savings]), max([0.0, *savings])
    span = max(high - low, 1e-9)
    rows = []
    before = 0.0
    for step in steps:
        name = STEP_NAMES.get(step.step, step.step)
        if step.alone_against is None:
            energy = fmt.energy(step.energy_kwh)
            rows.append(_bar_row(name, "", f"{energy}<small>what is compared with</small>"))
            continue
        if step.saved_pct is None:
            rows.append(_bar_row(name, "", f"{fmt.UNKNOWN}<small>&nbsp;</small>"))
            continue
        at = sorted((100 * (before - low) / span, 100 * (step.saved_pct - low) / span))
        kind = "wf-up" if step.saved_pct >= before else "wf-down"
        zero = 100 * (0.0 - low) / span
        svg = (
            '<svg viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="wf-rest" x="0" y="11" width="100" height="2"></rect>'
            f'<rect class="{kind}" x="{at[0]:.3f}" y="3" width="{max(at[1] - at[0], 0.25):.3f}" height="18"></rect>'
            f'<line class="wf-zero" x1="{zero:.3f}" x2="{zero:.3f}" y1="0" y2="24"></line></svg>'
        )
        gain = step.saved_pct - before
        alone = "" if step.alone_pct is None else f"<small>alone {escape(signed_pct(step.alone_pct))}</small>"
        rows.append(_bar_row(name, svg, f"{escape(signed_pct(step.saved_pct))} ({escape(_points(gain))}){alone}"))
        before = step.saved_pct
    return "\n".join(rows)


def _points(gain: float) -> str:
    rounded = round(gain, 1) + 0.0
    return f"{'+' if rounded > 0 else ''}{signed_pct(gain)}".replace("%", "")


def _bar_row(name: str, svg: str, value: str) -> str:
    named = f'<span class="name">{escape(name)}</span>'
    return f'<div class="wf-row">{named}{svg or "<span></span>"}<span class="value">{value}</span></div>'


def _steps_table(result: StudyResult) -> str:
    columns = [
        Column("Step", number=False), Column("Energy"), Column("Cost"), Column("Saved so far"),
        Column("Alone", "against what runs today, or against planning"), Column("p95 wait"), Column("Longest wait"),
        Column("It assumes", number=False, wide=True),
    ]  # fmt: skip
    rows = [
        [
            Cell(STEP_NAMES.get(step.step, step.step)),
            Cell("", step.energy_kwh),
            Cell(fmt.money(step.cost, result.currency)),
            Cell("" if step.alone_against is None else signed_pct(step.saved_pct)),
            Cell(_alone(step)),
            Cell("", step.p95_wait_s),
            Cell("", step.longest_wait_s),
            Cell(step.assumes, note=f"Switch: {step.switch}"),
        ]
        for step in shown_steps(result)
    ]
    shown = in_one_unit(rows, {1: fmt.energy, 5: fmt.duration, 6: fmt.duration})
    return html_table("Steps: what each brings and assumes", columns, shown, sortable=False)


def _alone(step: WaterfallStep) -> str:
    if step.alone_against is None:
        return ""
    if step.alone_pct is None:
        return fmt.UNKNOWN
    return f"{signed_pct(step.alone_pct)} of {'today' if step.alone_against == 'baseline' else 'planning'}"


def _policies_note(result: StudyResult) -> str:
    logged, today = policy_of(result, "as-logged"), policy_of(result, "baseline")
    if logged is None or today is None:
        return "How far the model is off the log is not known: the log does not tell when jobs started."
    return (
        f"How far is the model off? In the log, jobs waited {fmt.duration(logged.mean_wait_s)} on average (p95 "
        f"{fmt.duration(logged.p95_wait_s)}); simulated as today they wait {fmt.duration(today.mean_wait_s)} (p95 "
        f"{fmt.duration(today.p95_wait_s)})."
    )


def _policies_table(result: StudyResult) -> str:
    columns = [
        Column("Policy", number=False), Column("Energy", "in the window"), Column("Cost"),
        Column("Saved", "of energy, against today"), Column("Unfinished", "part of the energy: valued, not metered"),
        Column("GPUs in use", "share of all, in the window"), Column("Mean wait"), Column("p50"), Column("p95"),
        Column("p99"), Column("Longest"), Column("Wait in all", "mean, with waits after preemption"),
        Column("Slowdown p50", "time to completion over run time"), Column("Slowdown p99"),
        Column("Worst unfairness", "of one job: time to finish over that on an equal part of the cluster; 1 is fair"),
        Column("Most starts", "of one job"), Column("Tail", "after the window; not charged"),
    ]  # fmt: skip
    rows = in_one_unit(
        (_policy_row(policy, i, result.currency) for i, policy in enumerate(result.policies)),
        {1: fmt.energy, **dict.fromkeys(range(6, 12), fmt.duration), 16: fmt.duration},
    )
    return html_table("All schedulers, sizes, types and nodes as today", columns, rows, sortable=False)


def _policy_row(policy: StudyPolicy, index: int, currency: str) -> list[Cell]:
    notes = {"as-logged": "the log itself", "baseline": "what is compared with"}
    note = f"chooses the {policy.relaxes}" if policy.relaxes else notes.get(policy.role, "")
    return [
        Cell(policy.policy, colour=policy_colour(index), note=note),
        Cell("", policy.energy_kwh),
        Cell(fmt.money(policy.cost, currency)),
        Cell("" if policy.role == "baseline" else signed_pct(policy.saved_pct)),
        Cell(signed_pct(policy.unfinished_pct)),
        Cell(fmt.percent(policy.gpu_utilization)),
        Cell("", policy.mean_wait_s),
        Cell("", policy.p50_wait_s),
        Cell("", policy.p95_wait_s),
        Cell("", policy.p99_wait_s),
        Cell("", policy.longest_wait_s),
        Cell("", policy.mean_total_wait_s),
        Cell(f"{policy.slowdown_p50:,.2f}"),
        Cell(f"{policy.slowdown_p99:,.1f}"),
        Cell(fmt.UNKNOWN if policy.unfairness_worst is None else f"{policy.unfairness_worst:,.2f}"),
        Cell(fmt.count(policy.most_starts)),
        Cell("", policy.tail_s),
    ]


def _tenants(result: StudyResult) -> str:
    shown = [policy for policy in result.policies if policy.role in ("as-logged", "baseline", "ours")]
    names = [tenant.tenant for tenant in shown[0].tenants] if shown else []
    by_policy = [{tenant.tenant: tenant for tenant in policy.tenants} for policy in shown]
    parts = []
    for field, title in _WAITS:
        columns = [Column("Tenant", number=False), *(Column(policy.policy) for policy in shown)]
        rows = [
            [Cell(name), *(Cell("", _wait(own.get(name), field)) for own in by_policy)] for name in names[:MOST_TENANTS]
        ]
        units = dict.fromkeys(range(1, len(shown) + 1), fmt.duration)
        parts.append(
            html_table(
                f"{title} wait", columns, in_one_unit(rows, units), empty="There are no tenants.", sortable=False
            )
        )
    if len(names) > MOST_TENANTS:
        parts.append(
            f'<p class="note">Not shown: {fmt.plural(len(names) - MOST_TENANTS, "tenant")} with fewer jobs.</p>'
        )
    return "\n".join(parts)


def _wait(tenant: StudyTenant | None, field: str) -> float | None:
    return None if tenant is None else getattr(tenant, field)


def _treatments(result: StudyResult) -> Iterator[str]:
    for text in treated(result):
        yield f"<li>{escape(text)}</li>"
    if not result.about.treatments:
        yield "<li>none</li>"


def _made(result: StudyResult) -> str:
    facts = (
        ("commonwatt", result.version),
        ("Seeds", ", ".join(str(seed) for seed in result.about.seeds)),
        ("Periods from", ", ".join(result.about.begin)),
        ("Input digest (SHA-256)", result.input_digest),
    )
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
