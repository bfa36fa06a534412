"""The result in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commonwatt.model.results import PolicyResult, SimulationResult
from commonwatt.report import format as fmt
from commonwatt.report.comparison import change
from commonwatt.report.words import summary

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["summary", "table"]

_TITLES = ("Energy", "Late\ncost", "Total\ncost", "Late\njobs", "Mean\nwait", "Mean\nJCT", "Saved")
_SHORT = {
    "\N{NO-BREAK SPACE}million": "M",
    "\N{NO-BREAK SPACE}billion": "bn",
    "\N{NO-BREAK SPACE}days": "\N{NO-BREAK SPACE}d",
}


def table(result: SimulationResult) -> Table:
    """Return one row for each policy, and what the first one saves against it. Fits 80 columns."""
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
    for policy in result.policies:
        cells = _cells(policy, result.currency)
        saved = "" if policy is ours else _saved(ours, policy)
        style = "bold" if policy is ours else ""
        shown.add_row(*(Text(cell, style=style) for cell in (*cells, saved)))
    return shown


def _caption(result: SimulationResult) -> str:
    from rich.markup import escape

    bounds = {fmt.money(policy.lower_bound_cost, result.currency) for policy in result.policies}
    bound = f"Lower bound on the total cost: {bounds.pop()}. " if len(bounds) == 1 else ""
    others = f"Saved: by {result.policies[0].policy}, of the total cost. " if len(result.policies) > 1 else ""
    return escape(f"{bound}{others}The rest of the total is energy. ?: unknown.")


def _cells(policy: PolicyResult, currency: str) -> tuple[str, ...]:
    numbers = (
        fmt.energy(policy.energy_kwh),
        fmt.money(policy.tardiness_cost, currency),
        fmt.money(policy.total_cost, currency),
        fmt.count(policy.late_jobs),
        fmt.duration(policy.mean_wait_s),
        fmt.duration(policy.mean_jct_s),
    )
    return policy.policy, *(_brief(number) for number in numbers)


def _brief(text: str) -> str:
    for long, short in _SHORT.items():
        text = text.replace(long, short)
    return "?" if text == fmt.UNKNOWN else text


def _saved(ours: PolicyResult, other: PolicyResult) -> str:
    share = change(ours.total_cost, other.total_cost)
    if share is None:
        return "?" if other.total_cost != 0 else "none"
    return fmt.percent(-share)
