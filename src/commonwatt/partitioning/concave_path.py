"""The way to an equilibrium where ``concave_newton`` loses it: the path of softened markets, wherever it turns.

For every tau there are prices at which a market softened by tau clears; from a large tau, where there is but one such
market, they form a smooth path that for almost all softenings ends in an equilibrium, but it may turn back on its
way: tau has to rise for a while. So the path is followed by its own length (Keller's pseudo-arclength), in the
logarithms of prices and tau, and every tenant's answer to prices is worked out exactly on the way.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning.concave_newton import Pieces, Point, Step, centred, direction, polish

__all__ = ["follow"]

_LONGEST, _SHORTEST = 1.0, 1e-7
_TRY_FROM = np.log(1e-2)  # tau from which on Newton's method is tried
_LEAST_TAU = np.log(1e-9)
_GOOD = 1e-9
_CORRECTIONS = 8
_ON_IT = 1e-6  # part of a core cluster: near enough to the path


def follow(pieces: Pieces, *, tau: float = 10.0, limit: int = 2000) -> tuple[Point, int, float] | None:
    """Follow the path from *tau* down; return what ``polish`` makes of its end, or None if the way is lost."""
    size = len(pieces.pe_count)
    spot = np.append(np.log(pieces.part / pieces.pe_count), np.log(tau))
    found = _correct(pieces, spot, np.append(np.zeros(size), 1.0), rounds=60)
    if found is None:
        return None
    spot, at, step = found
    tangent = np.append(np.zeros(size), -1.0)
    stride, tried = 0.1, 0.0
    for taken in range(1, limit + 1):
        tangent = _tangent(pieces, spot, at, step, tangent)
        found = _correct(pieces, spot + stride * tangent, tangent)
        while found is None and stride > _SHORTEST:
            stride /= 2.0
            found = _correct(pieces, spot + stride * tangent, tangent)
        if found is None:
            return None
        spot, at, step = found
        stride = min(_LONGEST, 1.5 * stride)
        if spot[-1] < min(_TRY_FROM, tried - 1.0) or spot[-1] < _LEAST_TAU:
            tried = float(spot[-1])
            end, more, off = polish(pieces, at, float(np.exp(spot[-1])), shrink=0.3, limit=60)
            if off < _GOOD or spot[-1] < _LEAST_TAU:
                return end, taken + more, off
    return None


def _jacobian(pieces: Pieces, spot: Floats, at: Point, step: Step) -> Floats:
    """Return the change of what is short by the logarithms of prices and tau. Shape [C, C + 1]."""
    tau = float(np.exp(spot[-1]))
    by_tau = direction(pieces, at, 2.0 * tau).right - step.right  # linear in tau
    return np.hstack([step.matrix * at.prices, -by_tau[:, None]]) / pieces.pe_count[:, None]


def _tangent(pieces: Pieces, spot: Floats, at: Point, step: Step, last: Floats) -> Floats:
    """Return the way along which the market stays cleared, going on as before."""
    way = np.linalg.svd(_jacobian(pieces, spot, at, step))[2][-1]
    return np.asarray(way if way @ last > 0 else -way)


def _correct(
    pieces: Pieces, spot: Floats, tangent: Floats, rounds: int = _CORRECTIONS
) -> tuple[Floats, Point, Step] | None:  # fmt: skip
    """Go back to the path, at right angles to *tangent*; None if that does not work in so many *rounds*."""
    money, size = None, len(tangent) - 1
    for _ in range(rounds):
        tau = float(np.exp(spot[-1]))
        at = centred(pieces, np.exp(spot[:-1]), tau, money)
        step = direction(pieces, at, tau)
        money = at.money
        if not np.isfinite(step.right).all():
            return None
        if np.abs(step.right / pieces.pe_count).max() < _ON_IT:
            return spot, at, step
        whole = np.vstack([_jacobian(pieces, spot, at, step), tangent])
        try:
            way = np.linalg.solve(whole, np.append(step.right / pieces.pe_count, 0.0))
        except np.linalg.LinAlgError:
            return None
        longest = float(np.abs(way).max())
        if rounds == _CORRECTIONS and longest > 2.0:
            return None
        spot = spot + way * min(1.0, 1.0 / longest)
    assert size > 0
    return None
