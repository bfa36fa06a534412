"""From counts to GPUs: which instance stands where, who is on it for what share of the time, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning._solve import Equilibrium
from commonwatt.partitioning.mig._layouts import Placed
from commonwatt.partitioning.mig._problem import GpuGroup, LayoutChoice, MigProblem

__all__ = ["GpuPlan", "InstancePlan", "gpu_sentence", "plan_gpus", "tenant_sentence"]

CRUMB = 1e-5
"""A share of an instance below this is nobody's: less than a second of a day."""


@dataclass(frozen=True)
class InstancePlan:
    """An instance, and who uses it for what share of the time."""

    placed: Placed
    type: int  # its class
    stays: bool
    users: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class GpuPlan:
    """One GPU cut up."""

    gpu: int
    group: GpuGroup
    choice: LayoutChoice
    instances: tuple[InstancePlan, ...]

    @property
    def drained(self) -> tuple[Placed, ...]:
        """Instances it has now that cannot stay."""
        return tuple(placed for placed in self.group.present or () if placed not in self.choice.layout)


def plan_gpus(problem: MigProblem, picked: list[list[int]], shares: Floats) -> tuple[GpuPlan, ...]:
    """Give each GPU its layout and each instance its users, in the order of the GPUs.

    *shares* are in instances of each class ([N, K]). Tenants fill the instances of a class one after the other, so that
    few share one. Who has whole instances gets whole instances.
    """
    cut = sorted(_cut(problem, picked), key=lambda pair: pair[0])
    at = {(t, p.key): c for c, (t, p) in enumerate(problem.classes)}
    queues = [_Queue(shares[:, c]) for c in range(len(problem.classes))]
    plans = []
    for gpu, group, choice in cut:
        instances = []
        for placed in choice.layout:
            c = at[group.type, placed.profile]
            stays = placed in (group.present or ())
            instances.append(InstancePlan(placed, c, stays, queues[c].next_instance()))
        plans.append(GpuPlan(gpu, group, choice, tuple(instances)))
    return tuple(plans)


def _cut(problem: MigProblem, picked: list[list[int]]) -> Iterator[tuple[int, GpuGroup, LayoutChoice]]:
    for group, numbers in zip(problem.groups, picked, strict=True):
        members = iter(group.members)
        for choice, number in zip(group.choices, numbers, strict=True):
            for _ in range(number):
                yield next(members), group, choice


class _Queue:
    """Shares of one class, handed out instance by instance; whole ones first."""

    def __init__(self, shares: Floats) -> None:
        whole = np.floor(shares + CRUMB)
        rest = shares - whole
        self._parts = [(int(i), 1.0) for i in np.flatnonzero(whole) for _ in range(int(whole[i]))]
        self._parts += [(int(i), float(rest[i])) for i in np.argsort(-rest, kind="stable") if rest[i] > CRUMB]

    def next_instance(self) -> tuple[tuple[int, float], ...]:
        room, users = 1.0, []
        while self._parts and room > CRUMB:
            i, share = self._parts.pop(0)
            taken = min(room, share)
            users.append((int(i), float(taken)))
            room -= taken
            if share - taken > CRUMB:
                self._parts.insert(0, (i, share - taken))
        return tuple(users)


def tenant_sentence(
    problem: MigProblem, i: int, shares: Floats, utility: float, market: Equilibrium | None
) -> tuple[str, str]:
    """Return a typed reason and one sentence for what tenant *i* gets (*shares*, [K]), and what more would cost it."""
    parts = [f"{share:.3g} x {problem.classes[c][1].name}" for c, share in enumerate(shares.tolist()) if share > CRUMB]
    has = " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]
    small = sum(not rate > 0 for rate in problem.rates[i].tolist())
    reason = "time-shares" if any(abs(s - round(s)) > CRUMB for s in shares.tolist()) else "whole-instances"
    text = f"It has {has}, {utility:.3g} times what its best single instance gives"
    if market is not None and market.limit_prices[i] > 0:
        reason = "at-limit"
        kept = problem.limits[i] * market.limit_prices[i] / problem.weights[i]
        text += f"; it can use no more at a time, and {kept:.0%} of its budget is left over"
    elif small:
        text += f"; it cannot use {small} of {len(shares)} instance profiles (memory or speed)"
    if market is not None and reason != "at-limit":
        name, price = _cheapest(problem, i, market)
        part = f"{price / problem.weights[i]:.0%}"
        of_budget = "all" if part == "100%" else part
        text += f"; its next purchase would be a {name}, which costs {of_budget} of its budget"
    return reason, text + "."


def _cheapest(problem: MigProblem, i: int, market: Equilibrium) -> tuple[str, float]:
    """Return the instance with the most speed for its price, and that price."""
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(problem.rates[i] > 0, problem.rates[i] / market.prices, 0.0)
    c = int(np.argmax(worth))
    return problem.classes[c][1].name, float(market.prices[c])


def gpu_sentence(plan: GpuPlan) -> tuple[str, str]:
    """Return a typed reason and one sentence for the layout of a GPU."""
    shape = " + ".join(placed.profile for placed in plan.choice.layout)
    if plan.group.present is None:
        return "new", f"It is cut into {shape}; what it has now is not stated."
    if not plan.drained and len(plan.group.present) == len(plan.choice.layout):
        return "unchanged", f"Its layout is unchanged: {shape}."
    if not plan.drained:
        return "extended", f"It is cut into {shape}; all it has now stays."
    gone = ", ".join(map(str, plan.drained))
    return "reconfigured", f"It is cut into {shape}; {gone} must drain first."
