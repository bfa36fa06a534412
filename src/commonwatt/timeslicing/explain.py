"""A typed reason and one sentence for each tenant's slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonwatt.model.arrays import Ints
from commonwatt.timeslicing.policies import Policy
from commonwatt.timeslicing.problem import Problem

__all__ = ["Explanation", "Reason", "explain"]

Reason = Literal["no-demand", "demand-met", "guarantee-only", "evened-out"]


@dataclass(frozen=True)
class Explanation:
    """Why a tenant's slice is as long as it is."""

    reason: Reason
    guaranteed: int  # units
    sentence: str


def explain(problem: Problem, policy: Policy, slices: Ints) -> tuple[Explanation, ...]:
    """Explain *slices*, the answer of *policy* to *problem*."""
    guarantee = policy.guarantee(problem)
    what = "energy" if policy.name in {"etf", "ef"} else "time"
    return tuple(_explain(problem, what, i, int(guarantee[i]), int(slices[i])) for i in range(len(problem)))


def _explain(problem: Problem, what: str, i: int, sure: int, got: int) -> Explanation:
    demand, quantum = int(problem.demands[i]), problem.quantum
    if demand == 0:
        return Explanation("no-demand", 0, "It asks for nothing and gets nothing.")
    if got == demand < quantum:
        return Explanation("demand-met", sure, f"It gets all {demand} units it asks for.")
    if got == sure:
        return Explanation(
            "guarantee-only", sure,
            f"It gets the {sure} units guaranteed to it: the others are behind it in {what} per weight.",
        )  # fmt: skip
    return Explanation(
        "evened-out", sure,
        f"It gets {sure} guaranteed units and {got - sure} more, as it was behind in {what} per weight.",
    )  # fmt: skip
