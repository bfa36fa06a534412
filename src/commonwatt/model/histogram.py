"""A histogram in the form of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["FINE_BOUNDS_S", "Histogram"]

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
FINE_BOUNDS_S = tuple(round(0.0005 * 1.1**k, 9) for k in range(123))
"""10% apart, from half a millisecond to a minute: for quantiles."""


class Histogram:
    """Counts of values by bucket, and their sum; by default for times in seconds."""

    def __init__(self, bounds: Sequence[float] = BOUNDS_S) -> None:
        self.bounds = tuple(bounds)  # upper, each inclusive; one more bucket is above the last
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count *value*."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> Histogram:
        """Return an independent copy."""
        other = Histogram(self.bounds)
        other.counts, other.sum = list(self.counts), self.sum
        return other

    def buckets(self) -> list[tuple[str, float]]:
        """Return the upper bounds as text, with the cumulative counts, as Prometheus expects them."""
        names = [*map(repr, map(float, self.bounds)), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))
