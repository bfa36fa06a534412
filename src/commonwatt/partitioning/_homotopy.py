"""The way to an equilibrium where Newton's method loses it: the path of softened markets, wherever it turns.

For every tau there are prices at which a market softened by tau clears; from a large tau, where there is but one such
market, they form a smooth path that for almost all softenings ends in an equilibrium. It may turn back on its way: tau
rises for a while. So the path is followed by its own length (Keller's pseudo-arclength), in the logarithms of prices
and tau, with every tenant's exact answer to the prices.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning._newton import assembled, centred, eliminate, polish, workspace
from commonwatt.partitioning._pieces import Pieces, Point

__all__ = ["follow"]

_LONGEST, _SHORTEST = 1.0, 1e-7
_TRY_FROM = np.log(1e-2)  # tau from which on Newton's method is tried
_LEAST_TAU = np.log(1e-9)
_GOOD = 1e-9
_FIRST, _CORRECTIONS = 60, 8
_ON_IT = 1e-6  # part of a core cluster: near enough to the path

_Spot = tuple[Floats, Point, Floats]
"""Logarithms of prices and tau, [C + 1]; the point; how what is short changes by them, [C, C + 1]."""


def follow(pieces: Pieces, *, tau: float = 10.0, limit: int = 2000) -> tuple[Point, int, float] | None:
    """Follow the path from *tau* down; return what ``polish`` makes of its end, or None if the way is lost."""
    size = len(pieces.pe_count)
    start = np.append(np.log(pieces.part / pieces.pe_count), np.log(tau))
    found = _correct(pieces, start, np.append(np.zeros(size), 1.0), _FIRST)
    tangent = np.append(np.zeros(size), -1.0)
    stride, tried = 0.1, 0.0
    for taken in range(1, limit + 1):
        if found is None:
            return None
        spot, _, jacobian = found
        way = np.linalg.svd(jacobian)[2][-1]  # along which the market stays cleared
        tangent = way if way @ tangent > 0 else -way
        found = _correct(pieces, spot + stride * tangent, tangent, _CORRECTIONS)
        while found is None and stride > _SHORTEST:
            stride /= 2.0
            found = _correct(pieces, spot + stride * tangent, tangent, _CORRECTIONS)
        if found is None:
            return None
        stride = min(_LONGEST, 1.5 * stride)
        depth = float(found[0][-1])
        if depth < min(_TRY_FROM, tried - 1.0) or depth < _LEAST_TAU:
            tried = depth
            end = found[1].copy()
            more, off = polish(pieces, end, float(np.exp(depth)), shrink=0.3, limit=60)
            if off < _GOOD or depth < _LEAST_TAU:
                return end, taken + more, off
    return None


def _correct(pieces: Pieces, spot: Floats, tangent: Floats, rounds: int) -> _Spot | None:
    """Go back to the path, at right angles to *tangent*; None if that does not work in so many *rounds*."""
    size, money = len(pieces.pe_count), None
    work, matrix, right, doubled = (
        workspace(len(pieces.weight), len(pieces.budgets), size), np.empty((size, size)), np.empty(size),
        np.empty(size),
    )  # fmt: skip
    for _ in range(rounds):
        tau = float(np.exp(spot[-1]))
        at = centred(pieces, np.exp(spot[:-1]), tau, money)
        eliminate(pieces, at, 2.0 * tau, work)
        assembled(pieces, at, 2.0 * tau, work, matrix, doubled)
        eliminate(pieces, at, tau, work)
        assembled(pieces, at, tau, work, matrix, right)
        money = at.tenant[0]
        if not np.isfinite(right).all():
            return None
        by_tau = doubled - right  # linear in tau
        jacobian = np.hstack([matrix * at.prices, -by_tau[:, None]]) / pieces.pe_count[:, None]
        if np.abs(right / pieces.pe_count).max() < _ON_IT:
            return spot, at, jacobian
        try:
            way = np.linalg.solve(np.vstack([jacobian, tangent]), np.append(right / pieces.pe_count, 0.0))
        except np.linalg.LinAlgError:
            return None
        longest = float(np.abs(way).max())
        if rounds == _CORRECTIONS and longest > 2.0:
            return None
        spot = spot + way * min(1.0, 1.0 / longest)
    return None
