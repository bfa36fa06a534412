"""Tables and tiles of the page. All input is escaped here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from commonwatt.model.results import LedgerRow, PolicyResult, SimulationResult, TenantResult
from commonwatt.model.units import HOUR_S, J_PER_KWH, MICRO, NANO
from commonwatt.report import format as fmt
from commonwatt.report.format import column as in_one
from commonwatt.report.pictures import policy_colour
from commonwatt.report.text import METRICS, bound_ratio, change, change_text, rivals
from commonwatt.simulation.record import Record

__all__ = [
    "MOST_LATE",
    "MOST_TENANTS",
    "Cell",
    "Column",
    "html_table",
    "in_one_unit",
    "late_table",
    "ledger_table",
    "policy_table",
    "saving_table",
    "tenant_table",
    "tiles",
]


@dataclass(frozen=True)
class Column:
    """A column: its heading, its meaning, and whether it contains numbers."""

    title: str
    meaning: str = ""
    number: bool = True
    wide: bool = False  # sentences


@dataclass(frozen=True)
class Cell:
    """Text, number to sort by, colour of its mark, and note."""

    text: str
    sort: float | None = None
    colour: str = ""
    note: str = ""


def in_one_unit(
    rows: Iterable[Sequence[Cell]], shows: Mapping[int, Callable[[float | None, float | None], str]]
) -> list[list[Cell]]:
    """Return *rows* with the numbers of some columns in one unit each; *shows* formats them, by column."""
    same = [list(row) for row in rows]
    for i, show in shows.items():
        for row, text in zip(same, in_one(show, [row[i].sort for row in same]), strict=True):
            row[i] = replace(row[i], text=text)
    return same


def html_table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    *,
    empty: str = "",
    sortable: bool = True,
    last_is_sum: bool = False,
) -> str:
    """Return a table in a region that scrolls sideways and is reachable by keyboard.

    The first cell of a row is its heading. Without rows, the sentence *empty* takes its place.
    """
    body = "\n".join(_row(row, columns) for row in rows)
    if not body:
        return f'<p class="none">{escape(empty)}</p>'
    scroll = "scroll tall" if sortable else "scroll"
    kind = ' class="sortable"' if sortable else ' class="summed"' if last_is_sum else ""
    heads = "".join(
        f'<th scope="col"{_class(column)}{_title(column)}>{escape(column.title)}</th>' for column in columns
    )
    return (
        f'<div class="{scroll}" role="region" tabindex="0" aria-label="{escape(caption)}">\n<table{kind}>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
        "</table>\n</div>"
    )


def _row(row: Sequence[Cell], columns: Sequence[Column]) -> str:
    first, *rest = zip(row, columns, strict=True)
    cells = "".join(_cell("td", cell, column) for cell, column in rest)
    return "<tr>" + _cell('th scope="row"', *first) + cells + "</tr>"


def _cell(tag: str, cell: Cell, column: Column) -> str:
    value = "" if cell.sort is None or not math.isfinite(cell.sort) else f" data-v={cell.sort:.6g}"
    chip = f'<i class="chip" style="background:{cell.colour}"></i>' if cell.colour else ""
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    return f"<{tag}{_class(column)}{value}>{chip}{escape(cell.text)}{note}</{tag.split()[0]}>"


def _class(column: Column) -> str:
    return "" if column.number else " class=wide" if column.wide else " class=text"


def _title(column: Column) -> str:
    return f' title="{escape(column.meaning)}"' if column.meaning else ""


MOST_LATE = 200
MOST_TENANTS = 200


def tiles(result: SimulationResult) -> str:
    """Return the headline numbers of the first policy, compared with its rivals."""
    ours, money = result.policies[0], result.currency
    bound = bound_ratio(ours)
    tiles_ = [
        ("Total cost", fmt.money(ours.total_cost, money), _against(result, "Total cost")),
        ("Energy at the nodes", fmt.energy(ours.energy_kwh), _against(result, "Energy")),
        (
            "Late jobs",
            f"{fmt.count(ours.late_jobs)} of {fmt.count(ours.jobs)}",
            _against(result, "Late jobs"),
        ),
        ("Mean waiting", fmt.duration(ours.mean_wait_s), _against(result, "Mean waiting")),
        ("Mean completion", fmt.duration(ours.mean_jct_s), _against(result, "Mean completion")),
        (
            "Total cost over lower bound",
            fmt.ratio(bound),
            [f"a lower bound for any scheduler: {fmt.money(ours.lower_bound_cost, money)}"],
        ),
    ]
    return "\n".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd><b>{escape(value)}</b>'
        + "".join(f"<span>{escape(line)}</span>" for line in lines)
        + "</dd></div>"
        for name, value, lines in tiles_
    )


def policy_table(result: SimulationResult) -> str:
    """Return all numbers, a row each, with a column for each policy."""
    columns = [Column("", number=False), *(Column(policy.policy) for policy in result.policies)]
    rows = [
        [Cell(name, note=meaning), *(Cell(show(policy)) for policy in result.policies)]
        for name, meaning, show in _numbers(result)
    ]
    return html_table("All numbers of each policy", columns, rows, sortable=False)


def saving_table(result: SimulationResult) -> str:
    """Return the savings of the first policy against each other one; empty if it ran alone."""
    ours = result.policies[0]
    if len(result.policies) < 2:
        return ""
    columns = [Column("Compared with", number=False), *(Column(metric.name) for metric in METRICS)]
    rows = [
        [Cell(other.policy, colour=policy_colour(i))]
        + [Cell(change_text(m.of(ours), m.of(other)), change(m.of(ours), m.of(other))) for m in METRICS]
        for i, other in enumerate(result.policies)
        if i > 0
    ]
    return html_table(f"{ours.policy} compared with the other policies", columns, rows)


def tenant_table(policy: PolicyResult, currency: str) -> str:
    """Return a row for each tenant, most GPU time first."""
    columns = [
        Column("Tenant", number=False), Column("Jobs"), Column("Late jobs"), Column("GPU hours"), Column("Energy"),
        Column("Energy cost"), Column("Tardiness cost"), Column("Mean waiting"), Column("p50"), Column("p95"),
        Column("p99"), Column("Longest"), Column("Mean completion"),
    ]  # fmt: skip
    tenants = sorted(policy.tenants, key=lambda t: (-t.gpu_hours if fmt.is_finite(t.gpu_hours) else math.inf, t.tenant))
    table = html_table(
        f"Tenants under {policy.policy}",
        columns,
        in_one_unit(
            (_tenant_row(tenant, currency) for tenant in tenants[:MOST_TENANTS]),
            {4: fmt.energy, **dict.fromkeys(range(7, 13), fmt.duration)},
        ),
        empty="There are no tenants.",
    )
    rest = tenants[MOST_TENANTS:]
    if not rest:
        return table
    left_out = sum(tenant.jobs for tenant in rest)
    note = f"Not shown: {fmt.plural(len(rest), 'tenant')} with less GPU time, {fmt.plural(left_out, 'job')} in all."
    return f'{table}\n<p class="note">{escape(note)}</p>'


def late_table(record: Record, currency: str) -> str:
    """Return the most costly late jobs, and a note on the others."""
    jobs = record.jobs
    late_s, cost = np.nan_to_num(jobs.late_s), np.nan_to_num(jobs.tardiness_cost)
    rows = np.flatnonzero(late_s > 0)
    rows = rows[np.lexsort((rows, -late_s[rows], -cost[rows]))]
    columns = [
        Column("Job", number=False), Column("Tenant", number=False), Column("Cost"), Column("Late by"),
        Column("Submitted at", "since the first submission"), Column("Due after", "its submission"),
        Column("Waited", "from submission to first start"), Column("Least run time", "on the fastest GPUs"),
        Column("Starts", "including moves and restarts"), Column("Reason", number=False, wide=True),
    ]  # fmt: skip
    table = html_table(
        f"Late jobs under {record.policy}, most costly first",
        columns,
        in_one_unit(
            (_late_row(record, i, currency) for i in rows[:MOST_LATE].tolist()),
            dict.fromkeys(range(3, 8), fmt.duration),
        ),
        empty="No job was late.",
    )
    rest = rows[MOST_LATE:]
    if not len(rest):
        return table
    note = (
        f"Not shown: {fmt.plural(len(rest), 'more late job')}, costing {fmt.money(float(cost[rest].sum()), currency)} "
        f"of {fmt.money(float(cost[rows].sum()), currency)}."
    )
    return f'{table}\n<p class="note">{escape(note)}</p>'


def ledger_table(policy: PolicyResult, currency: str) -> str:
    """Return energy, cost, carbon and GPU time by account."""
    columns = [
        Column("Account", number=False), Column("Energy"), Column("Share of energy"), Column("Cost"), Column("Carbon"),
        Column("GPU hours"),
    ]  # fmt: skip
    total = next((row.energy_uj for row in policy.ledger if row.row == "total"), None)
    rows = in_one_unit((_ledger_row(row, total, currency) for row in policy.ledger), {1: fmt.energy, 4: fmt.carbon})
    return html_table(
        f"Ledger of {policy.policy}",
        columns,
        rows,
        empty="There is no ledger.",
        sortable=False,
        last_is_sum=True,
    )


def _against(result: SimulationResult, name: str) -> list[str]:
    against = rivals(result)
    if against is None:
        return []
    of = next(metric.of for metric in METRICS if metric.name == name)
    named = [against.best] + ([against.worst] if against.worst else [])
    return [change_text(of(result.policies[0]), of(other), other.policy) for other in named]


def _numbers(result: SimulationResult) -> list[tuple[str, str, Callable[[PolicyResult], str]]]:
    """Return name, meaning and formatter of every number, in one unit for all policies."""
    currency = result.currency

    def alike(
        show: Callable[[float | None, float | None], str], of: Callable[[PolicyResult], float | None]
    ) -> Callable[[PolicyResult], str]:
        like = fmt.typical(map(of, result.policies))
        return lambda p: show(of(p), like)

    return [
        ("Total cost", "energy and tardiness", lambda p: fmt.money(p.total_cost, currency)),
        ("Energy cost", "including PUE", lambda p: fmt.money(p.energy_cost, currency)),
        ("Tardiness cost", "", lambda p: fmt.money(p.tardiness_cost, currency)),
        ("Lower bound", "on the total cost of any scheduler", lambda p: fmt.money(p.lower_bound_cost, currency)),
        ("Total cost over lower bound", "", lambda p: fmt.ratio(bound_ratio(p))),
        ("Energy", "at the nodes", alike(fmt.energy, lambda p: p.energy_kwh)),
        ("Carbon", "including PUE", alike(fmt.carbon, lambda p: p.carbon_kg)),
        ("Late jobs", "ended after their due date", lambda p: fmt.count(p.late_jobs)),
        ("Mean waiting", "submission to first start", alike(fmt.duration, lambda p: p.mean_wait_s)),
        ("95th percentile of waiting", "", alike(fmt.duration, lambda p: p.p95_wait_s)),
        ("99th percentile of waiting", "", alike(fmt.duration, lambda p: p.p99_wait_s)),
        ("Longest waiting", "", alike(fmt.duration, lambda p: p.longest_wait_s)),
        ("Mean time without GPUs", "after preemptions too", alike(fmt.duration, lambda p: p.mean_total_wait_s)),
        ("Slowdown, median", "completion over run time as requested", lambda p: fmt.ratio(p.slowdown_p50)),
        ("Slowdown, 99th percentile", "", lambda p: fmt.ratio(p.slowdown_p99)),
        (
            "Finish-time fairness, worst",
            "against 1/n of the cluster",
            lambda p: fmt.ratio(p.finish_time_fairness.worst),
        ),
        ("Finish-time fairness, mean", "", lambda p: fmt.ratio(p.finish_time_fairness.mean)),
        ("Mean completion time", "submission to end", alike(fmt.duration, lambda p: p.mean_jct_s)),
        ("95th percentile of completion time", "", alike(fmt.duration, lambda p: p.p95_jct_s)),
        ("Makespan", "first submission to last end", alike(fmt.duration, lambda p: p.makespan_s)),
        ("GPU utilization", "allocated GPU time", lambda p: fmt.percent(p.gpu_utilization)),
        (
            "Energy in the window",
            "first to last submission, and of the work unfinished then",
            alike(fmt.energy, lambda p: p.window_energy_kwh),
        ),
        ("Cost of that energy", "", lambda p: fmt.money(p.window_cost, currency)),
        ("GPU utilization in the window", "", lambda p: fmt.percent(p.window_gpu_utilization)),
        ("Tail", "last submission to last end, not in the window", alike(fmt.duration, lambda p: p.tail_s)),
        ("Energy in the tail", "", alike(fmt.energy, lambda p: p.tail_energy_kwh)),
        ("Preemptions", "running jobs stopped to wait", lambda p: fmt.count(p.preemptions)),
        ("Migrations", "running jobs moved or resized", lambda p: fmt.count(p.migrations)),
        ("Most starts of a job", "moves and restarts included", lambda p: fmt.count(p.most_starts)),
        ("Decisions", "rescheduling points", lambda p: fmt.count(p.decisions)),
        ("Scheduler time", "wall clock", alike(fmt.duration, lambda p: p.scheduler_s)),
    ]


def _tenant_row(tenant: TenantResult, currency: str) -> Sequence[Cell]:
    waits = (tenant.mean_wait_s, tenant.p50_wait_s, tenant.p95_wait_s, tenant.p99_wait_s, tenant.longest_wait_s)
    return [
        Cell(tenant.tenant),
        Cell(fmt.count(tenant.jobs), tenant.jobs),
        Cell(fmt.count(tenant.late_jobs), tenant.late_jobs),
        Cell(_hours(tenant.gpu_hours), tenant.gpu_hours),
        Cell(fmt.energy(tenant.energy_kwh), tenant.energy_kwh),
        Cell(fmt.money(tenant.energy_cost, currency), tenant.energy_cost),
        Cell(fmt.money(tenant.tardiness_cost, currency), tenant.tardiness_cost),
        *(Cell(fmt.duration(wait_s), wait_s) for wait_s in waits),
        Cell(fmt.duration(tenant.mean_jct_s), tenant.mean_jct_s),
    ]


def _late_row(record: Record, i: int, currency: str) -> Sequence[Cell]:
    jobs = record.jobs
    submit = float(jobs.submit_s[i])
    times = (
        float(jobs.late_s[i]),
        submit - float(jobs.submit_s.min()),
        float(jobs.due_s[i]) - submit,
        float(jobs.began_s[i]) - submit,
        float(jobs.fastest_s[i]),
    )
    cost = float(jobs.tardiness_cost[i])
    return [
        Cell(jobs.name[i]),
        Cell(jobs.tenant[i]),
        Cell(fmt.money(cost, currency), cost),
        *(Cell(fmt.duration(t), t) for t in times),
        Cell(fmt.count(int(jobs.starts[i])), int(jobs.starts[i])),
        Cell(jobs.why_late[i] or fmt.UNKNOWN),
    ]


def _ledger_row(row: LedgerRow, total_uj: int | None, currency: str) -> Sequence[Cell]:
    kwh = None if row.energy_uj is None else row.energy_uj / MICRO / J_PER_KWH
    share = row.energy_uj / total_uj if row.energy_uj is not None and total_uj else None
    cost = None if row.cost_n is None else row.cost_n / NANO
    kg = None if row.carbon_ug is None else row.carbon_ug / NANO
    hours = row.gpu_us / MICRO / HOUR_S
    return [
        Cell(row.row),
        Cell(fmt.energy(kwh), kwh),
        Cell(fmt.percent(share), share),
        Cell(fmt.money(cost, currency), cost),
        Cell(fmt.carbon(kg), kg),
        Cell(_hours(hours), hours),
    ]


def _hours(hours: float) -> str:
    return fmt.UNKNOWN if not fmt.is_finite(hours) else f"{hours:,.0f}" if hours >= 1000 else f"{hours:.1f}"
