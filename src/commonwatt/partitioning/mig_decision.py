"""What both ways to decide (:mod:`mig_market`, :mod:`mig_integer`) have in common: decisions and their welfare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats

__all__ = ["Decision", "welfare"]


@dataclass(frozen=True)
class Decision:
    """How all GPUs are cut, and how good that is.

    Attributes
    ----------
    picked
        How many GPUs of each group take each choice.
    value, bound
        Welfare less the penalty of draining, and what no decision exceeds.
    optimal
        Whether bound and value are the same, up to rounding.
    """

    picked: list[list[int]]
    value: float
    bound: float
    optimal: bool


def welfare(kind: str, weights: Floats, utilities: Floats) -> float:
    """Return a welfare of *utilities*; *weights* sum to 1.

    ``nash``: weighted mean of their logarithms; ``utilitarian``: weighted mean; ``egalitarian``: the least utility by
    weight, weights in units of their mean.
    """
    if kind == "nash":
        return float(weights @ np.log(utilities)) if (utilities > 0).all() else -np.inf
    if kind == "utilitarian":
        return float(weights @ utilities)
    return float((utilities / (weights * len(weights))).min())
