"""Ours, the first policy, against the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commonwatt.model.results import PolicyResult, SimulationResult
from commonwatt.report import format as fmt

__all__ = ["METRICS", "Metric", "Rivals", "bound_ratio", "change", "change_text", "rivals"]


@dataclass(frozen=True)
class Metric:
    """A number of a policy that is better when smaller."""

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
    """The other policies worth naming: the cheapest and, if it is another one, the most expensive."""

    best: PolicyResult
    worst: PolicyResult | None


def rivals(result: SimulationResult) -> Rivals | None:
    """Return whom the first policy is compared with; ``None`` if it ran alone."""
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
    """Return by what share ours differs from theirs (-0.2: a fifth less).

    ``None`` if either is unknown, or theirs is 0 and ours is not.
    """
    if ours is None or theirs is None or not (fmt.known(ours) and fmt.known(theirs)):
        return None
    if theirs == 0:
        return 0.0 if ours == 0 else None
    return ours / theirs - 1.0


def change_text(ours: float | None, theirs: float | None, whom: str = "") -> str:
    """Return the difference in words: ``12.0% less``, ``3.50× as much``, ``the same``, unknown if it is.

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
