"""Concave speedup by share, of any scaling law: what the market asks of a utility, in pieces.

A piece is ``g(y) = y (slope - bend y) / (1 + linear y + square y^2)`` from 0 to ``width`` PEs, increasing and concave.
Amdahl's law is one piece without end, a measured table a straight piece for each chord of its concave envelope, and
the Universal Scalability Law a straight one up to one PE and a curved one to its peak. Pieces of a tenant on a core
cluster stand in order of falling slope, so that speedup is theirs, filled one after another; beyond the last one
more PEs are worth nothing.

MarketPieces lays a market out for compiled code: the pieces of all curves in one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import njit

__all__ = ["LEAST_F", "MOST_F", "Curves", "Piece", "Pieces", "Point", "bought", "slope_at", "slopes"]

LEAST_F = 1e-6
"""F below this is read as this: F = 0 makes Amdahl's law a step, whose every equilibrium is a limit."""
MOST_F = 1.0 - 1e-9
"""F above this is read as 1: the two differ by less than a billionth of the speedup for each PE held."""

Number = Any  # a float; through ``py_func`` also an array


@dataclass(frozen=True)
class Piece:
    """One piece of a speedup curve; a straight one has only a slope."""

    slope: float  # speedup for a PE at its beginning
    width: float = np.inf  # PEs
    bend: float = 0.0
    linear: float = 0.0
    square: float = 0.0

    def scaled(self, rate: float) -> Piece:
        """Return the piece with *rate* times the speedup."""
        return Piece(rate * self.slope, self.width, rate * self.bend, self.linear, self.square)

    @property
    def straight(self) -> bool:
        """Whether it is a chord."""
        return self.bend == self.linear == self.square == 0.0


@dataclass(frozen=True)
class Curves:
    """The curves of all tenants on all core clusters: arrays of pieces, [N, C, S], of width 0 where there is none."""

    slope: Floats
    width: Floats
    bend: Floats
    linear: Floats
    square: Floats

    @classmethod
    def of(cls, pieces: Sequence[Sequence[Sequence[Piece]]]) -> Curves:
        """Return the arrays of pieces given by tenant, core cluster and order."""
        n, c = len(pieces), len(pieces[0])
        arrays = np.zeros((5, n, c, max(1, *(len(each) for row in pieces for each in row))))
        for i, row in enumerate(pieces):
            for k, each in enumerate(row):
                for s, piece in enumerate(each):
                    arrays[:, i, k, s] = piece.slope, piece.width, piece.bend, piece.linear, piece.square
        return cls(*arrays)

    @classmethod
    def amdahl(cls, rate: Floats, parallel_fraction: Floats) -> Curves:
        """Return the curves of Amdahl's law: one endless piece each, none for a rate of 0. Shapes [N, C].

        With the share x (in PEs, real-valued) a tenant runs ``k x / (x (1 - F) + F)`` times as fast as on one base PE
        (eq. 3.2), k being the average frequency of a PE for that tenant over the base frequency.
        """
        fraction = np.maximum(parallel_fraction, LEAST_F)
        k, f = rate[:, :, None], np.where(fraction > MOST_F, 1.0, fraction)[:, :, None]
        nothing = np.zeros_like(k)
        return cls(k / f, np.where(k > 0, np.inf, 0.0), nothing, (1.0 - f) / f, nothing)

    @property
    def of_use(self) -> Bools:
        """Where a tenant gets faster by PEs. Shape [N, C]."""
        return np.asarray((self.slope > 0).any(axis=2))

    @property
    def endless(self) -> bool:
        """Whether all follow Amdahl's law as printed: more PEs are always worth something."""
        return self.slope.shape[2] == 1 and bool(np.isinf(self.width[self.slope > 0]).all())

    @property
    def straight(self) -> bool:
        """Whether every piece is a line without end."""
        return self.endless and not self.linear.any()

    def rows(self, which: Sequence[int] | slice | Bools) -> Curves:
        """Return the curves of some tenants."""
        return Curves(*(array[which] for array in self.arrays()))

    def columns(self, which: Sequence[int] | slice | Bools) -> Curves:
        """Return the curves on some core clusters."""
        return Curves(*(array[:, which] for array in self.arrays()))

    def speedups(self, shares: Floats) -> Floats:
        """Return the speedup with *shares* PEs. Shape [N, C]."""
        return np.asarray(self._gained(self._filled(shares)).sum(axis=2))

    def marginal(self, shares: Floats) -> Floats:
        """Return how much a little more than *shares* would speed up, for each PE. Shape [N, C]."""
        y = self._filled(shares)
        at = np.where(y < self.width, slope_at.py_func(self.slope, self.bend, self.linear, self.square, y)[0], 0.0)
        return np.asarray(at.max(axis=2))

    def most(self) -> Floats:
        """Return the PEs beyond which more are worth nothing, infinite where there is no end. Shape [N, C]."""
        return np.asarray(self.width.sum(axis=2))

    def highest(self) -> Floats:
        """Return the speedup no number of PEs exceeds. Shape [N, C]."""
        return np.asarray(self._highest().sum(axis=2))

    def demand(self, value: Floats) -> Floats:
        """Return the least PEs held where one more must bring more than *value* (above 0, broadcast to [N, C]).

        Infinite where a straight piece has no end. Shape [N, C].
        """
        asked = np.broadcast_to(np.broadcast_to(value, self.slope.shape[:2])[:, :, None], self.slope.shape)
        shape = np.stack([array.ravel() for array in self.arrays()])
        return np.asarray(_all_bought(shape, asked.ravel()).reshape(self.slope.shape).sum(axis=2))

    def chords(self, shares: Floats) -> tuple[Floats, Floats]:
        """Return between which numbers of PEs tenants with *shares* take turns: [N, C] each.

        The ends of the straight piece a share lies on, if they are whole; elsewhere the whole numbers next to it.
        """
        low = np.floor(shares * (1.0 + 1e-12))
        high = low + 1.0
        start = np.zeros(shares.shape)
        for s in range(self.slope.shape[2]):
            end = start + self.width[:, :, s]
            straight = (self.bend[:, :, s] == 0) & (self.linear[:, :, s] == 0) & (self.square[:, :, s] == 0)
            ends = np.where(np.isfinite(end), end, 0.5)  # no end is no whole number
            whole = np.abs(start - np.rint(start)) + np.abs(ends - np.rint(ends)) < 1e-9
            here = straight & whole & (end > start) & (shares > start * (1.0 + 1e-9)) & (shares <= end * (1.0 + 1e-9))
            low, high = np.where(here, start, low), np.where(here, end, high)
            start = np.where(np.isfinite(end), end, start)
        return low, high

    def at_level(self, level: Floats) -> Floats:
        """Return the least PEs with a speedup of *level* ([N, C]), infinite where none has it. Shape [N, C]."""
        left, pes, highest = (
            np.broadcast_to(level, self.slope.shape[:2]),
            np.zeros(self.slope.shape[:2]),
            self._highest(),
        )
        for s in range(self.slope.shape[2]):
            slope, width, bend, linear, square = (array[:, :, s] for array in self.arrays())
            part = np.minimum(left, highest[:, :, s])
            b = slope - part * linear  # the root of (bend + part square) y^2 - b y + part
            with np.errstate(divide="ignore", invalid="ignore"):
                y = 2.0 * part / (b + np.sqrt(np.maximum(b * b - 4.0 * (bend + part * square) * part, 0.0)))
            pes = pes + np.where(part <= 0, 0.0, np.where(part >= highest[:, :, s], width, y))
            left = left - part
        return np.where(left > 1e-12 * highest.sum(axis=2), np.inf, pes)

    def arrays(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Return slope, width, bend, linear and square. Shape [N, C, S] each."""
        return self.slope, self.width, self.bend, self.linear, self.square

    def _gained(self, y: Floats) -> Floats:
        """Return the speedup by *y* PEs of each piece. Shape [N, C, S]."""
        return y * (self.slope - self.bend * y) / (1.0 + y * (self.linear + self.square * y))

    def _highest(self) -> Floats:
        """Return the speedup that each piece adds at most. Shape [N, C, S]."""
        ends = np.where(np.isfinite(self.width), self.width, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            endless = np.where(self.slope > 0, self.slope / self.linear, 0.0)
        return np.where(np.isinf(self.width), endless, self._gained(ends))

    def _filled(self, shares: Floats) -> Floats:
        """Return how much of each piece *shares* fill. Shape [N, C, S]."""
        left = np.broadcast_to(shares, self.slope.shape[:2]).astype(float)
        filled = np.empty_like(self.slope)
        for s in range(filled.shape[2]):
            filled[:, :, s] = np.minimum(left, self.width[:, :, s])
            left = left - filled[:, :, s]
        return filled


@njit(cache=True, error_model="numpy")
def slopes(shape: Floats, e: int, y: float) -> tuple[float, float]:
    """Return the marginal speedup of piece *e* at *y*, and its derivative; *shape* has five numbers each, [5, E]."""
    return slope_at(shape[0, e], shape[2, e], shape[3, e], shape[4, e], y)


@njit(cache=True, error_model="numpy")
def slope_at(slope: Number, bend: Number, linear: Number, square: Number, y: Number) -> tuple[Number, Number]:
    """Return the marginal speedup of a piece at *y*, and its derivative; ``py_func`` does so for arrays of pieces."""
    below = 1.0 + y * (linear + square * y)
    mixed = slope * square + bend * linear
    top = slope - y * (2.0 * bend + mixed * y)
    bent = -2.0 * ((bend + mixed * y) * below + top * (linear + 2.0 * square * y)) / (below * below * below)
    return top / (below * below), np.minimum(bent, 0.0)


@njit(cache=True, error_model="numpy")
def bought(shape: Floats, e: int, value: float, cap: float) -> float:
    """Return the least PEs of piece *e* where one more brings no more than *value*, at most *cap*."""
    slope, width = shape[0, e], min(shape[1, e], cap)
    if slope <= value:
        return 0.0
    if shape[2, e] == 0.0 and shape[4, e] == 0.0:
        return width if shape[3, e] == 0.0 else min(width, (np.sqrt(slope / value) - 1.0) / shape[3, e])
    low, high = 0.0, width
    while True:
        y = 0.5 * (low + high)
        if y <= low or y >= high:
            return low
        if slopes(shape, e, y)[0] >= value:
            low = y
        else:
            high = y


@njit(cache=True, error_model="numpy")
def _all_bought(shape: Floats, values: Floats) -> Floats:
    pes = np.empty(len(values))
    for e in range(len(values)):
        pes[e] = bought(shape, e, values[e], np.inf)
    return pes


# -- for compiled code


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
        shares = np.zeros((len(self.budgets), len(self.pe_count)))
        np.add.at(shares, (self.tenant, self.cluster), x)
        return shares

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
