"""Which configuration: welfare of the utilities a market gives, and how the choice hangs on weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning.market import solve
from commonwatt.partitioning.problem import Market

__all__ = ["WELFARES", "Choice", "Welfare", "choose", "sweep_weight", "welfare"]

Welfare = Literal["nash", "weighted-nash", "utilitarian", "egalitarian"]
WELFARES: tuple[Welfare, ...] = ("nash", "weighted-nash", "utilitarian", "egalitarian")


@dataclass(frozen=True)
class Choice:
    """A ranking of configurations."""

    best: int
    order: tuple[int, ...]  # best first; of equals the earlier
    values: tuple[float, ...]  # welfare of each, see ``welfare``
    margin: float | None  # relative advantage of the best over the next; None: there is no other


def welfare(utilities: Floats, budgets: Floats, kind: Welfare) -> float:
    """Return the welfare of *utilities*: the logarithm of the product (of powers of the weights), sum or least."""
    if kind == "utilitarian":
        return float(utilities.sum())
    if kind == "egalitarian":
        return float(utilities.min())
    with np.errstate(divide="ignore"):
        logarithms = np.log(utilities)
    return float(logarithms.sum() if kind == "nash" else budgets @ logarithms)


def choose(utilities: Sequence[Floats], budgets: Floats, kind: Welfare = "nash") -> Choice:
    """Rank configurations by the *utilities* tenants have in them.

    The margin of a sum or least utility is relative to the next. That of Nash welfare is the relative advantage of the
    geometric mean of utilities, so that it does not grow with the number of tenants.
    """
    values = tuple(welfare(each, budgets, kind) for each in utilities)
    order = tuple(sorted(range(len(values)), key=lambda at: -values[at]))
    margin = None
    if len(values) > 1:
        first, second = values[order[0]], values[order[1]]
        if kind in ("nash", "weighted-nash"):
            margin = float(np.expm1((first - second) / (len(budgets) if kind == "nash" else 1)))
        else:
            margin = first / second - 1.0 if second > 0 else np.inf
    return Choice(order[0], order, values, margin)


def sweep_weight(
    markets: Sequence[Market], tenant: int, weights: Sequence[float], kind: Welfare = "nash"
) -> tuple[Choice, ...]:
    """Return the choice among *markets* for each weight of *tenant*, the others keeping their weights.

    Weights are relative to budgets that sum to 1 as the markets stand: 1 means as much as everybody together.
    """
    choices = []
    for weight in weights:
        budgets = markets[0].budgets.copy()
        budgets[tenant] = weight
        budgets /= budgets.sum()
        found = [solve(replace(market, budgets=budgets)).utilities for market in markets]
        choices.append(choose(found, budgets, kind))
    return tuple(choices)
