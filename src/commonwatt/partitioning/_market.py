"""One configuration and the tenants who share it: the market to be solved; and its concave curves, from scaling laws.

A market has an equilibrium only if speedup is a concave function of the share. Amdahl's law is one. Of the others the
market takes the **concave envelope**, the least concave function that is nowhere below the law:

- PEs that would slow a tenant down are left idle (free disposal): beyond its peak a law is flat;
- between two numbers of PEs at which the law is known a tenant can be at each for a part of the time, so that every
  chord can be reached, also across a dent of the law. ``schedule`` does that, as far as several tenants fit.

A measured table is known where it was measured: its curve has straight pieces between these points, and nothing is
claimed beyond the last. The Universal Scalability Law (and Amdahl's where so asked) is straight below one PE, which
turns on one PE reach; from one PE to its peak it is concave itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import LawSpec
from commonwatt.partitioning._curves import LEAST_F, MOST_F, Curves, Piece
from commonwatt.partitioning._scaling_laws import (
    Amdahl,
    ScalingLaw,
    TabulatedLaw,
    UniversalScalability,
    choose_law,
    fit_all,
)

__all__ = ["SPREAD", "Market", "Shape", "make_law", "shape_of", "together"]

# -- envelopes of laws


_FLAT = 1e-9  # of the first slope: less is none


@dataclass(frozen=True)
class Shape:
    """The envelope of a law: its pieces, and whether it lies above the law at a point where the law is known."""

    pieces: tuple[Piece, ...]
    lifted: bool


def make_law(spec: LawSpec) -> ScalingLaw:
    """Return the law that *spec* describes; of ``fit`` the one that fits best. Raises ``InputError``."""
    if spec.law == "linear":
        return Amdahl(1.0)
    if spec.law == "amdahl":
        return Amdahl(float(spec.parallel_fraction or 0.0))
    if spec.law == "usl":
        return UniversalScalability(float(spec.contention or 0.0), float(spec.coherence or 0.0))
    above = [(n, s) for n, s in zip(spec.pes or (), spec.speedups or (), strict=True) if n > 1]
    if not above:
        raise InputError(
            "a speedup at more than one PE" if spec.law in ("table", "fit") else "a law read from its file",
            field="pes", value=list(spec.pes or ()),
        )  # fmt: skip
    pes, speedups = [n for n, _ in above], [s for _, s in above]
    if spec.law == "fit":
        return choose_law(fit_all(pes, speedups))[0].law
    return TabulatedLaw.fit(np.array(pes), np.array(speedups))


def shape_of(law: ScalingLaw, rate: float, *, linear_below_one: bool) -> Shape:
    """Return the envelope of *rate* times *law*; no pieces for a rate of 0.

    With *linear_below_one* also Amdahl's law is straight up to one PE, else it is eq. (3.2) as printed.
    """
    if not rate > 0:
        return Shape((), lifted=False)
    if isinstance(law, Amdahl):
        pieces = _amdahl(law.fraction, linear_below_one=linear_below_one)
        lifted = False
    elif isinstance(law, UniversalScalability):
        pieces, lifted = _usl(law.contention, law.coherence)
    elif isinstance(law, TabulatedLaw):
        pieces, lifted = _table(law.threads, law.speedups)
    else:
        raise InputError("a law the market knows: amdahl, usl or table", field="law", value=law.name)
    return Shape(tuple(piece.scaled(rate) for piece in pieces), lifted)


def _amdahl(fraction: float, *, linear_below_one: bool) -> tuple[Piece, ...]:
    f = 1.0 if fraction > MOST_F else fraction
    if f >= 1.0:
        return (Piece(1.0),)
    if not linear_below_one:
        f = max(f, LEAST_F)
        return (Piece(1.0 / f, linear=(1.0 - f) / f),)
    return (Piece(1.0, 1.0), Piece(f, linear=1.0 - f)) if f > _FLAT else (Piece(1.0, 1.0),)


def _usl(contention: float, coherence: float) -> tuple[tuple[Piece, ...], bool]:
    """Return the piece up to one PE, where the law is 1, and the rest shifted to begin there."""
    steep = 1.0 - contention - coherence
    if steep <= _FLAT:
        return (Piece(1.0, 1.0),), True
    if coherence == 0.0:
        return (Piece(1.0, 1.0), Piece(steep, linear=contention)), False
    peak = np.sqrt((1.0 - contention) / coherence)
    rest = Piece(steep, float(peak) - 1.0, coherence, contention + coherence, coherence)
    return (Piece(1.0, 1.0), rest), True


def _table(pes: Sequence[float], speedups: Sequence[float]) -> tuple[tuple[Piece, ...], bool]:
    """Return the chords of the upper hull of the points and of (0, 0), up to the highest."""
    points = [(0.0, 0.0), *zip(pes, speedups, strict=True)]
    top = max(range(len(points)), key=lambda at: points[at][1])
    hull: list[tuple[float, float]] = []
    for point in points[: top + 1]:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    pieces = [Piece(_slope(a, b), b[0] - a[0]) for a, b in pairwise(hull)]
    kept = tuple(piece for piece in pieces if piece.slope > _FLAT * pieces[0].slope)
    return kept, len(hull) < len(points)


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


# -- the market


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
        Amdahl's law. See the module's text. Raises ``InputError`` for laws of another shape.
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
