"""From scaling laws to the concave curves a market needs.

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
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import LawSpec
from commonwatt.partitioning._curves import LEAST_F, MOST_F, Piece
from commonwatt.partitioning._scaling_laws import (
    Amdahl,
    ScalingLaw,
    TabulatedLaw,
    UniversalScalability,
    choose,
    fit_all,
)

__all__ = ["Shape", "law_of", "shape_of"]

_FLAT = 1e-9  # of the first slope: less is none


@dataclass(frozen=True)
class Shape:
    """The envelope of a law: its pieces, and whether it lies above the law at a point where the law is known."""

    pieces: tuple[Piece, ...]
    lifted: bool


def law_of(spec: LawSpec) -> ScalingLaw:
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
        return choose(fit_all(pes, speedups))[0].law
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
