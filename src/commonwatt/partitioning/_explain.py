"""A typed reason and one sentence for what each tenant gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._solve import Equilibrium

__all__ = ["PartitionExplanation", "Reason", "explain"]

Reason = Literal["all-of-it", "specialised", "spread-out", "sated"]

_SATED = 1e-9  # percent of speedup for one percent more budget: none
_TOUCH = 1e-9  # what comes after a share that fills a piece is worth what the next piece is


@dataclass(frozen=True)
class PartitionExplanation:
    """Why a tenant has what it has in an equilibrium."""

    reason: Reason
    spent: Floats  # part of its budget by core cluster, [C]
    elasticity: float  # percent of speedup for one percent more budget
    sentence: str


def explain(market: Market, found: Equilibrium, names: Sequence[str]) -> tuple[PartitionExplanation, ...]:
    """Explain the shares of every tenant; *names* are those of the core clusters."""
    entitled = market.total(market.entitlement())
    return tuple(_explain(market, found, names, i, float(entitled[i])) for i in range(len(market.budgets)))


def _explain(market: Market, found: Equilibrium, names: Sequence[str], i: int, entitled: float) -> PartitionExplanation:
    spent = found.shares[i] * found.prices / market.budgets[i]
    elasticity = float(found.money_values[i] * market.budgets[i] / found.utilities[i])
    if len(market.budgets) == 1:
        return PartitionExplanation("all-of-it", spent, elasticity, "It is alone and has every PE it can use.")
    most = int(spent.argmax())
    value = found.money_values[i] * found.prices
    worth = market.curves.marginal(np.zeros_like(found.shares))[i]
    unbought = (market.rate[i] > 0) & (found.shares[i] <= 0)
    dear = np.divide(value, worth, out=np.zeros_like(value), where=unbought)
    useless = [name for name, rate in zip(names, market.rate[i], strict=True) if rate <= 0]
    has = f"for {found.shares[i, most]:.3g} of {market.pe_count[most]:g} PEs"
    parts = [f"It spends {100 * spent[most]:.0f}% of its budget on {names[most]} {has}"]
    if dear.any():
        c = int(dear.argmax())
        parts.append(f"leaves {names[c]}, which costs {dear[c]:.2f} times what its first PE is worth to it, to others")
    if useless:
        parts.append(f"cannot use {', '.join(useless)}")
    ratio = found.utilities[i] / entitled
    if found.money_values[i] <= _SATED * found.utilities[i] / market.budgets[i]:
        kept = 100.0 * max(0.0, 1.0 - float(spent.sum()))
        sentence = (
            f"{', '.join(parts)}; it has all that makes it faster, keeps {kept:.2g}% of its budget and would pay "
            f"nothing for more. It runs {found.utilities[i] / entitled:.3f} times as fast as with its entitlement."
        )
        return PartitionExplanation("sated", spent, 0.0, sentence)
    own = float(market.curves.marginal(found.shares * (1.0 + _TOUCH))[i, most])
    bid = own / found.money_values[i] / market.budgets[i]
    more = f"For a PE more of {names[most]} it would pay {100 * bid:.2g}% of its budget"
    sentence = (
        f"{', '.join(parts)}; it runs {ratio:.3f} times as fast as with its entitlement. "
        f"{more}; 1% more budget would make it {elasticity:.2g}% faster."
    )
    return PartitionExplanation("specialised" if dear.any() or useless else "spread-out", spent, elasticity, sentence)
