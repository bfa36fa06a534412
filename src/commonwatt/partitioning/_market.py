"""One configuration and the tenants who share it: the market to be solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.errors import InputError
from commonwatt.partitioning._curves import Curves
from commonwatt.partitioning._envelope import shape_of
from commonwatt.partitioning._scaling_laws import ScalingLaw

__all__ = ["SPREAD", "Market", "together"]

SPREAD = 1e12
"""Weights, PEs and rates lie within this factor of each other, and of 1, so that none is lost in rounding."""


@dataclass(frozen=True)
class Market:
    """Core clusters, tenants, and how fast each tenant is on each of them. Use ``Market.make``, which checks.

    Attributes
    ----------
    pe_count
        PEs of each core cluster. Shape [C], positive.
    budgets
        Weights of the tenants scaled to sum to 1. Shape [N], positive.
    rate
        Average frequency of one PE for a tenant over the base frequency (k); 0 is useless. Shape [N, C].
    curves
        Speedup by share of each tenant on each core cluster, by whatever law.
    lifted
        Where the concave envelope lies above the law itself. Shape [N, C].
    limits
        Most PEs of all core clusters together that each tenant can hold, infinite for any number. Shape [N].
    """

    pe_count: Floats
    budgets: Floats
    rate: Floats = field(repr=False)
    curves: Curves = field(repr=False)
    lifted: Bools = field(repr=False)
    limits: Floats | None = field(repr=False, default=None)

    @classmethod
    def make(
        cls,
        pe_count: Sequence[float] | Floats,
        weights: Sequence[float] | Floats,
        rate: Sequence[Sequence[float]] | Floats,
        parallel_fraction: Sequence[Sequence[float]] | Floats,
        limits: Sequence[float] | Floats | None = None,
    ) -> Market:
        """Return the market of tenants who follow Amdahl's law (see ``Curves.amdahl``), after checks.

        *weights* are scaled to sum to 1. Raises ``InputError`` naming the field.
        """
        pes, given = np.asarray(pe_count, float), np.asarray(weights, float)
        k, f = np.asarray(rate, float), np.asarray(parallel_fraction, float)
        _vector(pes, "pe_count", "a list of positive numbers of PEs, one for each core cluster")
        _vector(given, "weights", "a list of positive weights, one for each tenant")
        shape = (len(given), len(pes))
        for values, name in ((k, "rate"), (f, "parallel_fraction")):
            if values.shape != shape:
                raise InputError(f"{shape[0]} rows (tenants) of {shape[1]} numbers (core clusters)", field=name)
        _within(k, "rate", 0.0, np.inf, "a finite number, 0 or more")
        _within(f, "parallel_fraction", 0.0, 1.0, "a number from 0 to 1")
        together(given, "weights")
        _sized(pes, "pe_count")
        _sized(k[k > 0], "rate")
        useless = np.flatnonzero(~(k > 0).any(axis=1))
        if len(useless):
            expected = "a rate above 0 on at least one core cluster: this tenant can use none"
            raise InputError(expected, field=f"rate.{useless[0]}", value=k[useless[0]].tolist())
        return cls(
            pes, given / given.sum(), k, Curves.amdahl(k, f), np.zeros(shape, np.bool_), limits=_binding(limits, pes, k)
        )

    def under(self, laws: Sequence[Sequence[ScalingLaw]], *, linear_below_one: bool = False) -> Market:
        """Return the market with *laws*, a row for each tenant, in place of the laws it has.

        With *linear_below_one* turns on one PE are all that less than one is worth, else eq. (3.2) holds there too for
        Amdahl's law. See ``_envelope``. Raises ``InputError`` for laws of another shape.
        """
        if [len(row) for row in laws] != [len(self.pe_count)] * len(self.budgets):
            raise InputError("a law for each tenant and core cluster", field="laws", value=[len(row) for row in laws])
        shapes = [
            [shape_of(law, float(k), linear_below_one=linear_below_one) for law, k in zip(row, rates, strict=True)]
            for row, rates in zip(laws, self.rate, strict=True)
        ]
        curves = Curves.of([[shape.pieces for shape in row] for row in shapes])
        lifted = np.array([[shape.lifted for shape in row] for row in shapes])
        return replace(self, curves=curves, lifted=lifted)

    def speedups(self, shares: Floats) -> Floats:
        """Return the speedup of each tenant on each core cluster with *shares*, in PEs. Shape [N, C]."""
        return self.curves.speedups(shares)

    def total(self, shares: Floats) -> Floats:
        """Return the utility of each tenant: its speedups over core clusters add up (eq. 3.3). Shape [N]."""
        return np.asarray(self.speedups(shares).sum(axis=1))

    def entitlement(self) -> Floats:
        """Return the shares of tenants who do not trade: the weight's part of every core cluster. Shape [N, C]."""
        return self.budgets[:, None] * self.pe_count

    def columns(self, which: Bools) -> Market:
        """Return the market of some core clusters."""
        return replace(
            self, pe_count=self.pe_count[which], rate=self.rate[:, which], curves=self.curves.columns(which),
            lifted=self.lifted[:, which],
        )  # fmt: skip

    @property
    def usable(self) -> Bools:
        """Core clusters at least one tenant can use; the others have the price 0 and stay idle. Shape [C]."""
        return np.asarray((self.rate > 0).any(axis=0))

    def turns(self) -> Market:
        """Return the market of time shares: tenants take turns on whole core clusters.

        With the part x/P of the time on all P PEs a tenant gets x/P of its full speedup there, which is linear in
        x, at the rate s(P) / P. Shares stay in PEs (x/P is the part of the time).
        """
        linear = self.speedups(np.broadcast_to(self.pe_count, self.rate.shape)) / self.pe_count
        curves = Curves.amdahl(linear, np.ones_like(linear))
        return replace(self, rate=linear, curves=curves, lifted=np.zeros(linear.shape, np.bool_), limits=None)


def together(weights: Floats, name: str) -> None:
    """Raise ``InputError`` for positive *weights* so far apart that the smallest is lost in rounding."""
    if weights.max() / SPREAD > weights.min():
        expected = f"weights within a factor of {SPREAD:g} of each other"
        raise InputError(expected, field=name, value=f"{weights.min():g} and {weights.max():g}")
    _sized(weights, name)


def _binding(limits: Sequence[float] | Floats | None, pes: Floats, rate: Floats) -> Floats | None:
    """Return *limits*, infinite where they cannot bind; None where none can."""
    if limits is None:
        return None
    given = np.asarray(limits, float)
    if given.shape != (len(rate),) or not (given > 0).all():
        raise InputError("a number above 0 for each tenant", field="limits", value=given.tolist())
    binding = np.where(given < np.where(rate > 0, pes, 0.0).sum(axis=1), given, np.inf)
    return binding if np.isfinite(binding).any() else None


def _sized(values: Floats, name: str) -> None:
    wrong = values[(values < 1 / SPREAD) | (values > SPREAD)]
    if len(wrong):
        raise InputError(f"nothing below {1 / SPREAD:g} or above {SPREAD:g}", field=name, value=float(wrong[0]))


def _vector(values: Floats, name: str, expected: str) -> None:
    if values.ndim != 1 or not len(values) or not (np.isfinite(values) & (values > 0)).all():
        raise InputError(expected, field=name, value=values.tolist())


def _within(values: Floats, name: str, low: float, high: float, expected: str) -> None:
    wrong = np.argwhere(~((values >= low) & (values <= high) & np.isfinite(values)))
    if len(wrong):
        i, c = wrong[0]
        raise InputError(expected, field=f"{name}.{i}.{c}", value=values[i, c])
