"""Distributions as curves: the share of jobs at or below a value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats

__all__ = ["Distribution", "distribution"]


@dataclass(frozen=True)
class Distribution:
    """An empirical distribution function: ``share[i]`` of the known values are ``value[i]`` or less."""

    value: Floats
    share: Floats
    unknown: int


def distribution(values: Floats, most: int = 400, least: float | None = None) -> Distribution:
    """Return the distribution of *values* in at most *most* points, the smallest and largest among them.

    Parameters
    ----------
    values
        NaN and infinity are counted as unknown and left out.
    most
        Points to keep; they are spread evenly over the jobs. Each is exact: the curve passes through it.
    least
        Values below are drawn here (a logarithmic axis has no 0).
    """
    finite = np.sort(values[np.isfinite(values)])
    unknown = len(values) - len(finite)
    if least is not None:
        finite = np.maximum(finite, least)
    if not len(finite):
        return Distribution(finite, finite, unknown)
    ranks = np.unique(np.linspace(0, len(finite) - 1, min(most, len(finite))).round().astype(np.int64))
    points = np.unique(finite[ranks])
    share = np.searchsorted(finite, points, side="right") / len(finite)
    return Distribution(points, share, unknown)
