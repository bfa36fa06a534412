"""Other ways to divide a configuration, and what a division makes of it.

**Utilization** (section 5.2.4 shows it but does not define it). A tenant that holds x PEs and is sped up x/(x(1-F)+F)
times over one of them (or as its own law says) keeps that many PEs busy on average; the others wait for its serial
part. We call utilization the sum of busy PEs over all PEs of the configuration. Below one PE the law would make more
PEs busy than are held: no more than x count. What is held but useless (rate 0) is not busy. With time shares a tenant
has all P PEs for x/P of the time.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning._market import Market

__all__ = ["busy", "utilization", "weighted_equal_speedup"]


def weighted_equal_speedup(market: Market) -> Floats:
    """Return the shares that make speedups by weight equal on each core cluster, and as high as can be (eq. 5.1).

    The shares that reach a level grow with it, so that the highest level at which they still fit is found by bisection
    to the last bit. It is below the level at which a law or the PEs of a tenant alone end. Tenants who can make no
    use of a core cluster get none of it (eq. 5.1 with them would be 0 whatever the shares). Where tenants use different
    core clusters their totals differ. Shape [N, C].
    """
    curves, w, of_use = market.curves, market.budgets[:, None], market.rate > 0
    alone = market.speedups(np.broadcast_to(market.pe_count, market.rate.shape))
    highest = np.where(of_use, np.minimum(curves.highest(), alone) / w, np.inf).min(axis=0)
    low, high = np.zeros(len(highest)), np.where(market.usable, highest, 0.0)

    def at(level: Floats) -> Floats:
        return np.where(of_use, curves.at_level(level * w), 0.0)

    if np.isfinite(top := at(high)).all() and (top.sum(axis=0) <= market.pe_count).all():
        return top
    for _ in range(2000):
        middle = low + (high - low) / 2
        if ((middle <= low) | (middle >= high)).all():
            break
        fits = at(middle).sum(axis=0) <= market.pe_count
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return at(low)


def busy(market: Market, shares: Floats, whole: Market | None = None) -> Floats:
    """Return how many PEs each tenant keeps busy on each core cluster. Shape [N, C].

    For time shares give the market of space shares as *whole*: what is held are parts of its time.
    """
    rate = np.where(market.rate > 0, (whole or market).rate, 1.0)
    if whole is None:
        working = np.minimum(shares, market.speedups(shares) / rate)
    else:
        full = whole.speedups(np.broadcast_to(whole.pe_count, shares.shape)) / rate
        working = shares / whole.pe_count * np.minimum(full, whole.pe_count)
    return np.where(market.rate > 0, working, 0.0)


def utilization(market: Market, shares: Floats, whole: Market | None = None) -> float:
    """Return the part of all PEs that are busy; see the module's text."""
    return float(busy(market, shares, whole).sum() / market.pe_count.sum())
