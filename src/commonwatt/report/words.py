"""The result in plain words: one sentence for the terminal, one paragraph for the page."""

from __future__ import annotations

from collections.abc import Callable

from commonwatt.model.results import PolicyResult, SimulationResult
from commonwatt.report import format as fmt
from commonwatt.report.comparison import bound_ratio, change_text, rivals

__all__ = ["paragraph", "summary"]


def summary(result: SimulationResult) -> str:
    """Return the outcome of the first policy, against the others, in one sentence."""
    ours = result.policies[0]
    ran = f"{ours.policy} ran {fmt.plural(ours.jobs, 'job')}"
    if not fmt.known(ours.total_cost):
        return f"{ran}; what they cost is unknown."
    parts = [f"{ran} for {fmt.money(ours.total_cost, result.currency)}{_of_bound(ours)}"]
    against = rivals(result)
    if against is not None:
        named = [against.best] + ([against.worst] if against.worst else [])
        parts += [_against(ours, other, result.currency) for other in named if fmt.known(other.total_cost)]
    return ", ".join(parts[:2]) + (f" and {parts[2]}" if len(parts) > 2 else "") + "."


def paragraph(result: SimulationResult) -> list[str]:
    """Return the sentences of the summary on top of the page."""
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
