"""A simulation as text: a table in the terminal, and the first policy against the others in words; a leaderboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commonwatt.model.results import PolicyResult, SimulationResult
from commonwatt.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from commonwatt.model.suite_results import BenchResult, BenchSuite

__all__ = [
    "METRICS",
    "Metric",
    "Rivals",
    "bound_ratio",
    "change",
    "change_text",
    "leaderboard",
    "paragraph",
    "rivals",
    "service_table",
    "summary",
    "table",
]

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
        "Window: first to last submission; unfinished work is valued at its cost as requested. Slowdown: "
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
    legend = " ?: unknown." if any("?" in row for row in _cells(result.policies, result.currency)) else ""
    return escape(f"{bound}{others}Total cost = energy cost + late cost, until the policy's last job ends.{legend}")


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


@dataclass(frozen=True)
class Metric:
    """A number of a policy; smaller is better."""

    name: str
    of: Callable[[PolicyResult], float | None]


_SAME_CHANGE = 0.01  # differences of two policies that are as good as equal

METRICS = (
    Metric("Total cost", lambda p: p.total_cost),
    Metric("Energy", lambda p: p.energy_kwh),
    Metric("Energy cost", lambda p: p.energy_cost),
    Metric("Tardiness cost", lambda p: p.tardiness_cost),
    Metric("Late jobs", lambda p: p.late_jobs),
    Metric("Mean waiting", lambda p: p.mean_wait_s),
    Metric("Mean completion", lambda p: p.mean_jct_s),
)


@dataclass(frozen=True)
class Rivals:
    """The cheapest of the other policies and, if it is another one, the most expensive."""

    best: PolicyResult
    worst: PolicyResult | None


def rivals(result: SimulationResult) -> Rivals | None:
    """Return the policies to compare the first one with; ``None`` if it ran alone."""
    others = list(result.policies[1:])
    if not others:
        return None
    priced = [policy for policy in others if fmt.is_finite(policy.total_cost)]
    if not priced:
        return Rivals(others[0], others[-1] if len(others) > 1 else None)
    best = min(priced, key=_total)
    worst = max(priced, key=_total)
    return Rivals(best, None if worst is best else worst)


def change(ours: float | None, theirs: float | None) -> float | None:
    """Return the relative difference of ours from theirs (-0.2: a fifth less).

    ``None`` if either is unknown, or if theirs is 0 and ours is not.
    """
    if ours is None or theirs is None or not (fmt.is_finite(ours) and fmt.is_finite(theirs)):
        return None
    if theirs == 0:
        return 0.0 if ours == 0 else None
    return ours / theirs - 1.0


def change_text(ours: float | None, theirs: float | None, whom: str = "") -> str:
    """Return the difference in words: ``12.0% less``, ``3.50× as much``, ``the same``, or unknown.

    With *whom*: ``12.0% less than fifo``, ``3.50× as much as fifo``.
    """
    share = change(ours, theirs)
    if share is None:
        text, joint = ("more", "than") if fmt.is_finite(ours) and theirs == 0 else (fmt.UNKNOWN, "against")
    elif abs(share) < 0.0005:
        text, joint = "the same", "as"
    elif share >= 1:
        text, joint = f"{fmt.ratio(1 + share)} as much", "as"
    else:
        text, joint = f"{fmt.percent(abs(share))} {'less' if share < 0 else 'more'}", "than"
    return f"{text} {joint} {whom}" if whom else text


def bound_ratio(policy: PolicyResult) -> float | None:
    """Return total cost over the lower bound; ``None`` if it is unknown or the bound is 0."""
    if policy.total_cost is None or not policy.lower_bound_cost > 0:
        return None
    return policy.total_cost / policy.lower_bound_cost


def _total(policy: PolicyResult) -> float:
    return float("inf") if policy.total_cost is None else policy.total_cost


def summary(result: SimulationResult) -> str:
    """Return the outcome of the first policy, against the others, in a sentence or two."""
    ours = result.policies[0]
    ran = f"{ours.policy} ran {fmt.plural(ours.jobs, 'job')}"
    if not fmt.is_finite(ours.total_cost):
        return f"{ran}; their cost is unknown."
    window = ""
    parts = [f"{ran} for {fmt.money(ours.total_cost, result.currency)}{_of_bound(ours)}"]
    against = rivals(result)
    if against is not None:
        named = [against.best] + ([against.worst] if against.worst else [])
        parts += [_against(ours, other, result.currency) for other in named if fmt.is_finite(other.total_cost)]
        window = _in_window(ours, named)
    return ", ".join(parts[:2]) + (f" and {parts[2]}" if len(parts) > 2 else "") + f".{window}"


def _in_window(ours: PolicyResult, others: Sequence[PolicyResult]) -> str:
    """Return a sentence on the energy of the common window, where what follows it says something else."""
    told, differs = [], False
    for other in others:
        whole, window = change(ours.energy_cost, other.energy_cost), change(ours.window_cost, other.window_cost)
        if whole is None or window is None:
            return ""
        differs |= abs(whole - window) >= _SAME_CHANGE
        told.append(change_text(ours.window_cost, other.window_cost, other.policy))
    return f" In the window its energy costs {' and '.join(told)}." if differs else ""


def paragraph(result: SimulationResult) -> list[str]:
    """Return the sentences of the summary at the top of the page."""
    ours = result.policies[0]
    return [
        summary(result),
        _made_of(ours, result.currency),
        _compared(result, f"It used {fmt.energy(ours.energy_kwh)} at the nodes", lambda p: p.energy_kwh, fmt.energy),
        _compared(
            result,
            f"{fmt.count(ours.late_jobs)} of {fmt.plural(ours.jobs, 'job')} ended after the due date",
            lambda p: p.late_jobs,
            fmt.count,
        ),
        _compared(
            result,
            f"A job waited {fmt.duration(ours.mean_wait_s)} on average before it first started",
            lambda p: p.mean_wait_s,
            fmt.duration,
        ),
    ]


def _made_of(policy: PolicyResult, currency: str) -> str:
    energy, late = fmt.money(policy.energy_cost, currency), fmt.money(policy.tardiness_cost, currency)
    return f"That is {energy} for energy and {late} for jobs that ended late."


def _of_bound(policy: PolicyResult) -> str:
    ratio = bound_ratio(policy)
    return "" if ratio is None else f" ({fmt.ratio(ratio)} the lower bound)"


def _against(ours: PolicyResult, other: PolicyResult, currency: str) -> str:
    text = change_text(ours.total_cost, other.total_cost, other.policy)
    return f"{text} ({fmt.money(other.total_cost, currency)})"


def _compared(
    result: SimulationResult,
    start: str,
    of: Callable[[PolicyResult], float | None],
    show: Callable[[float | None], str],
) -> str:
    against = rivals(result)
    if against is None:
        return f"{start}."
    named = [against.best] + ([against.worst] if against.worst else [])
    return f"{start} ({'; '.join(f'{other.policy}: {show(of(other))}' for other in named)})."


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
