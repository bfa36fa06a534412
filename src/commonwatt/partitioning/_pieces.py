"""A market laid out for compiled code: the pieces of all curves in one row, and a point on the way to equilibrium."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.partitioning._curves import Curves

__all__ = ["Pieces", "Point"]

_GOLDEN = 0.6180339887498949


class Pieces(NamedTuple):
    """The pieces of all tenants, tenant by tenant; speedups in units of ``scale`` by tenant."""

    first: Ints  # where each tenant's begin, [N + 1]
    tenant: Ints  # [E]
    cluster: Ints  # [E]
    shape: Floats  # slope, width, bend, linear, square, [5, E]
    pe_count: Floats  # [C]
    budgets: Floats  # [N]
    limits: Floats  # PEs on all core clusters together, [N]; infinite: none
    part: Floats  # of all money, likely spent on each core cluster, [C]
    left: Floats  # softness of what is not sold, 0 where everything is, [C]
    keep: Floats  # softness of money kept, 0 where all is spent, [N]
    weight: Floats  # softness of each piece, [E]
    scale: Floats  # [N]

    @classmethod
    def of(
        cls, curves: Curves, pe_count: Floats, budgets: Floats, limits: Floats | None = None, unlike: float = 0.0
    ) -> Pieces:  # fmt: skip
        """Lay out *curves*; every core cluster must be of use to somebody, and every tenant can use one.

        *unlike* makes the softness of pieces differ by up to so many powers of e either way.
        """
        on = (curves.slope > 0) & (curves.width > 0)
        tenant, cluster = (np.ascontiguousarray(each) for each in np.nonzero(on)[:2])  # one layout: compiled once
        shape = np.stack([array[on] for array in curves.arrays()])
        limits = np.full(len(budgets), np.inf) if limits is None else limits
        scale = curves.speedups(budgets[:, None] * pe_count).sum(axis=1) / budgets
        shape[[0, 2]] /= scale[tenant]
        of_use = on.any(axis=2)
        part = (budgets[:, None] * of_use / of_use.sum(axis=1, keepdims=True)).sum(axis=0)
        endless = bool(np.isinf(shape[1]).all())
        left, keep = float(not endless or bool(np.isfinite(limits).any())), float(not endless)
        first = np.searchsorted(tenant, np.arange(len(budgets) + 1))
        spread = np.exp(unlike * (2.0 * (np.arange(len(tenant)) * _GOLDEN % 1.0) - 1.0))
        weight = (budgets / np.diff(first))[tenant] * part[cluster] * spread
        return cls(
            first, tenant, cluster, shape, np.ascontiguousarray(pe_count, float), budgets, limits, part, left * part,
            keep * budgets, weight, scale,
        )  # fmt: skip

    def shares(self, x: Floats) -> Floats:
        """Return what pieces add up to. Shape [N, C]."""
        found = np.zeros((len(self.budgets), len(self.pe_count)))
        np.add.at(found, (self.tenant, self.cluster), x)
        return found

    @property
    def limited(self) -> Bools:
        """Who has a limit. Shape [N]."""
        return np.isfinite(self.limits)


class Point(NamedTuple):
    """An inner point: everything positive, but what is 0 from the start. Its arrays are moved in place."""

    prices: Floats  # [C]
    left: Floats  # PEs not sold, [C]
    tenant: Floats  # value of money, money kept, price of the limit, room below it, [4, N]
    y: Floats  # shares, room to the width, how much too dear, how much cheaper than worth, [4, E]

    @property
    def x(self) -> Floats:
        """Shares of the pieces. Shape [E]."""
        return self.y[0]

    def copy(self) -> Point:
        """Return the same, to be moved."""
        return Point(self.prices.copy(), self.left.copy(), self.tenant.copy(), self.y.copy())
