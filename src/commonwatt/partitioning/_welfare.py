"""Welfare of tenants' utilities, and the choice of a configuration by it.

One vocabulary for core clusters and MIG, with weights w that sum to 1:

- ``nash``: ``sum_i w_i log u_i``, the logarithm of the weighted geometric mean. A tenant whose utility is 0 makes it
  minus infinity. The market's own welfare: with linear utilities its equilibrium maximises this.
- ``utilitarian``: ``sum_i w_i u_i``, the weighted mean.
- ``egalitarian``: ``min_i u_i / (N w_i)``, the least utility for its weight (weighted max-min), weights in units of
  their mean.

With equal weights they rank as the thesis does (section 2.2.3 and Definition 3.4.6: product, sum, least utility), which
prints no weights. Pass equal weights for its Nash welfare of tenants whose weights differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats

__all__ = ["PartitionChoice", "choose", "welfare"]


@dataclass(frozen=True)
class PartitionChoice:
    """A ranking of configurations."""

    best: int
    order: tuple[int, ...]  # best first; of equals the earlier
    values: tuple[float, ...]  # welfare of each, see ``welfare``
    margin: float | None  # relative advantage of the best over the next; None: there is no other


def welfare(kind: str, weights: Floats, utilities: Floats) -> float:
    """Return the welfare of *utilities* ([N]); *weights* ([N]) sum to 1. See the module's text."""
    if kind == "nash":
        return float(weights @ np.log(utilities)) if (utilities > 0).all() else -np.inf
    if kind == "utilitarian":
        return float(weights @ utilities)
    return float((utilities / (weights * len(weights))).min())


def choose(utilities: Sequence[Floats], budgets: Floats, kind: str = "nash") -> PartitionChoice:
    """Rank configurations by the *utilities* tenants have in them; *budgets* sum to 1.

    The margin is the relative advantage over the next; for Nash welfare that of the weighted geometric mean.
    """
    values = tuple(welfare(kind, budgets, each) for each in utilities)
    order = tuple(sorted(range(len(values)), key=lambda at: -values[at]))
    margin = None
    if len(values) > 1:
        first, second = values[order[0]], values[order[1]]
        if kind == "nash":
            margin = float(np.expm1(first - second)) if np.isfinite(second) else np.inf
        else:
            margin = first / second - 1.0 if second > 0 else np.inf
    return PartitionChoice(order[0], order, values, margin)
