"""The result as a table in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commonwatt.model.results import PolicyResult, SimulationResult
from commonwatt.report import format as fmt
from commonwatt.report.comparison import change, summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

__all__ = ["service_table", "summary", "table"]

_TITLES = ("Energy", "Late\ncost", "Total\ncost", "Late\njobs", "Mean\nwait", "Mean\nJCT", "Saved")
_SERVICE_TITLES = (
    "Window\nenergy", "Window\ncost", "p99\nwait", "Longest\nwait", "Slowdown\np99", "Unfair", "Most\nstarts",
)  # fmt: skip
_SHORT = {
    "\N{NO-BREAK SPACE}million": "M",
    "\N{NO-BREAK SPACE}billion": "bn",
    "\N{NO-BREAK SPACE}days": "\N{NO-BREAK SPACE}d",
}


def table(result: SimulationResult) -> Table:
    """Return a row for each policy, with the savings of the first policy against it. Fits 80 columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    ours = result.policies[0]
    shown = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), caption_justify="left", caption=_caption(result)
    )
    shown.add_column("Policy", overflow="fold", min_width=min(14, max(len(p.policy) for p in result.policies)))
    for title in _TITLES:
        shown.add_column(title, justify="right", overflow="fold")
    for policy, cells in zip(result.policies, _cells(result.policies, result.currency), strict=True):
        saved = "" if policy is ours else _saved(ours, policy)
        style = "bold" if policy is ours else ""
        shown.add_row(*(Text(cell, style=style) for cell in (*cells, saved)))
    return shown


def service_table(result: SimulationResult) -> Table:
    """Return a row for each policy: energy over the common window, and who waits. Fits 80 columns."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    caption = (
        "Window: first to last submission, with the work unfinished then at what it takes as requested. Slowdown: "
        "completion over run time as requested. Unfair: worst finish-time fairness, against 1/n of the cluster."
    )
    shown = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), caption_justify="left", caption=escape(caption)
    )
    shown.add_column("Policy", overflow="fold", min_width=min(14, max(len(p.policy) for p in result.policies)))
    for title in _SERVICE_TITLES:
        shown.add_column(title, justify="right", overflow="fold")
    policies = result.policies
    columns = (
        fmt.column(fmt.energy, [p.window_energy_kwh for p in policies]),
        [fmt.money(p.window_cost, result.currency) for p in policies],
        fmt.column(fmt.duration, [p.p99_wait_s for p in policies]),
        fmt.column(fmt.duration, [p.longest_wait_s for p in policies]),
        [fmt.ratio(p.slowdown_p99) for p in policies],
        [fmt.ratio(p.finish_time_fairness.worst) for p in policies],
        [fmt.count(p.most_starts) for p in policies],
    )
    for policy, *cells in zip(policies, *columns, strict=True):
        style = "bold" if policy is policies[0] else ""
        shown.add_row(*(Text(cell, style=style) for cell in (policy.policy, *map(_brief, cells))))
    return shown


def _caption(result: SimulationResult) -> str:
    from rich.markup import escape

    bounds = {fmt.money(policy.lower_bound_cost, result.currency) for policy in result.policies}
    bound = f"Lower bound on the total cost: {bounds.pop()}. " if len(bounds) == 1 else ""
    ours = result.policies[0].policy
    others = f"Saved: by {ours}, of the policy's total cost. " if len(result.policies) > 1 else ""
    return escape(f"{bound}{others}Total cost = energy cost + late cost. ?: unknown.")


def _cells(policies: Sequence[PolicyResult], currency: str) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row; each column has one unit."""
    columns = (
        fmt.column(fmt.energy, [p.energy_kwh for p in policies]),
        [fmt.money(p.tardiness_cost, currency) for p in policies],
        [fmt.money(p.total_cost, currency) for p in policies],
        [fmt.count(p.late_jobs) for p in policies],
        fmt.column(fmt.duration, [p.mean_wait_s for p in policies]),
        fmt.column(fmt.duration, [p.mean_jct_s for p in policies]),
    )
    for policy, *numbers in zip(policies, *columns, strict=True):
        yield policy.policy, *map(_brief, numbers)


def _brief(text: str) -> str:
    for long, short in _SHORT.items():
        text = text.replace(long, short)
    return "?" if text == fmt.UNKNOWN else text


def _saved(ours: PolicyResult, other: PolicyResult) -> str:
    share = change(ours.total_cost, other.total_cost)
    if share is None:
        return "?" if other.total_cost != 0 else "none"
    return fmt.percent(-share)
