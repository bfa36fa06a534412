"""The first policy against the others in words: a sentence for the terminal, a paragraph for the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commonwatt.model.results import PolicyResult, SimulationResult
from commonwatt.report import format as fmt

__all__ = ["METRICS", "Metric", "Rivals", "bound_ratio", "change", "change_text", "paragraph", "rivals", "summary"]


@dataclass(frozen=True)
class Metric:
    """A number of a policy; smaller is better."""

    name: str
    of: Callable[[PolicyResult], float | None]


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
    priced = [policy for policy in others if fmt.known(policy.total_cost)]
    if not priced:
        return Rivals(others[0], others[-1] if len(others) > 1 else None)
    best = min(priced, key=_total)
    worst = max(priced, key=_total)
    return Rivals(best, None if worst is best else worst)


def change(ours: float | None, theirs: float | None) -> float | None:
    """Return the relative difference of ours from theirs (-0.2: a fifth less).

    ``None`` if either is unknown, or if theirs is 0 and ours is not.
    """
    if ours is None or theirs is None or not (fmt.known(ours) and fmt.known(theirs)):
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
        text, joint = ("more", "than") if fmt.known(ours) and theirs == 0 else (fmt.UNKNOWN, "against")
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
    """Return the outcome of the first policy, against the others, in one sentence."""
    ours = result.policies[0]
    ran = f"{ours.policy} ran {fmt.plural(ours.jobs, 'job')}"
    if not fmt.known(ours.total_cost):
        return f"{ran}; their cost is unknown."
    parts = [f"{ran} for {fmt.money(ours.total_cost, result.currency)}{_of_bound(ours)}"]
    against = rivals(result)
    if against is not None:
        named = [against.best] + ([against.worst] if against.worst else [])
        parts += [_against(ours, other, result.currency) for other in named if fmt.known(other.total_cost)]
    return ", ".join(parts[:2]) + (f" and {parts[2]}" if len(parts) > 2 else "") + "."


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
