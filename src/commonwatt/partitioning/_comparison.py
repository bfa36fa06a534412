"""Compare divisions: their welfare, another mechanism, and what a division makes of fairness, efficiency and PEs.

**Welfare** has one vocabulary for core clusters and MIG, with weights w that sum to 1:

- ``nash``: ``sum_i w_i log u_i``, the logarithm of the weighted geometric mean. A tenant whose utility is 0 makes it
  minus infinity. The market's own welfare: with linear utilities its equilibrium maximises this.
- ``utilitarian``: ``sum_i w_i u_i``, the weighted mean.
- ``egalitarian``: ``min_i u_i / (N w_i)``, the least utility for its weight (weighted max-min), weights in units of
  their mean.

With equal weights they rank as the thesis does (section 2.2.3 and Definition 3.4.6: product, sum, least utility), which
prints no weights. Pass equal weights for its Nash welfare of tenants whose weights differ.

Violations of fairness and efficiency are sizes, 0 if there is none.

**Utilization** (section 5.2.4 shows it but does not define it). A tenant that holds x PEs and is sped up x/(x(1-F)+F)
times over one of them (or as its own law says) keeps that many PEs busy on average; the others wait for its serial
part. We call utilization the sum of busy PEs over all PEs of the configuration. Below one PE the law would make more
PEs busy than are held: no more than x count. What is held but useless (rate 0) is not busy. With time shares a tenant
has all P PEs for x/P of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._solve import Equilibrium

__all__ = [
    "PartitionChoice",
    "PartitionExplanation",
    "Reason",
    "best_weighted",
    "busy",
    "choose_configuration",
    "envy",
    "explain",
    "pareto_violation",
    "sharing_incentive_violation",
    "utilization",
    "weighted_equal_speedup",
    "welfare",
]


@dataclass(frozen=True)
class PartitionChoice:
    """A ranking of configurations."""

    best: int
    order: tuple[int, ...]  # best first; of equals the earlier
    values: tuple[float, ...]  # welfare of each, see ``welfare``
    margin: float | None  # relative advantage of the best over the next; None: there is no other


def welfare(kind: str, weights: Floats, utilities: Floats) -> float:
    """Return the welfare of *utilities* ([N]); *weights* ([N]) sum to 1. See the module's text."""
    if kind == "nash":
        return float(weights @ np.log(utilities)) if (utilities > 0).all() else -np.inf
    if kind == "utilitarian":
        return float(weights @ utilities)
    return float((utilities / (weights * len(weights))).min())


def choose_configuration(utilities: Sequence[Floats], budgets: Floats, kind: str = "nash") -> PartitionChoice:
    """Rank configurations by the *utilities* tenants have in them; *budgets* sum to 1.

    The margin is the relative advantage over the next; for Nash welfare that of the weighted geometric mean.
    """
    values = tuple(welfare(kind, budgets, each) for each in utilities)
    order = tuple(sorted(range(len(values)), key=lambda at: -values[at]))
    margin = None
    if len(values) > 1:
        first, second = values[order[0]], values[order[1]]
        if kind == "nash":
            margin = float(np.expm1(first - second)) if np.isfinite(second) else np.inf
        else:
            margin = first / second - 1.0 if second > 0 else np.inf
    return PartitionChoice(order[0], order, values, margin)


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


def sharing_incentive_violation(market: Market, shares: Floats) -> float:
    """Return the largest relative loss of a tenant against its entitlement (sharing incentive, Theorem 3.4.4)."""
    return max(0.0, float((1.0 - market.total(shares) / market.total(market.entitlement())).max()))


def envy(market: Market, shares: Floats) -> float:
    """Return the largest relative gain of a tenant from another's shares, scaled by the ratio of their weights.

    It is 0 in an equilibrium, where the scaled shares cost exactly the tenant's budget.
    """
    own = market.total(shares)
    worst = 0.0
    for i, had in enumerate(own):
        others = shares * (market.budgets[i] / market.budgets)[:, None]
        would = _by(market, i).total(others).max()
        worst = max(worst, float(would / had - 1.0) if had > 0 else np.inf)
    return worst


def _by(market: Market, i: int) -> Market:
    """Return the market in which every tenant has the speedups of tenant *i*."""
    rows = np.full(len(market.budgets), i)
    return replace(market, rate=market.rate[rows], curves=market.curves.rows(rows))


def pareto_violation(market: Market, shares: Floats, rounds: int = 200) -> float:
    """Return an upper bound on the t for which other shares raise every utility by the factor 1 + t.

    The maximum of any weighted sum of relative utilities bounds 1 + t. The weights move towards the tenants with the
    smallest gain over *rounds* rounds, and the smallest bound is returned. 0, up to rounding, proves Pareto efficiency.
    """
    had = market.total(shares)
    if not (had > 0).all():
        return np.inf
    steep = (market.rate > 0) * market.curves.marginal(shares * (1.0 - 1e-9)) * shares
    worth = steep.sum(axis=1) / market.budgets
    factors = had / worth  # an equilibrium's own: 1 / lambda, times utility
    least = np.inf
    for number in range(rounds):
        factors /= factors.sum()
        ratio = market.total(best_weighted(market, factors / had)) / had
        least = min(least, float(factors @ ratio) - 1.0)
        if least < 1e-12:
            break
        factors *= np.exp(-np.clip(ratio - ratio.mean(), -20.0, 20.0) / (1.0 + number) ** 0.5)
    return max(0.0, least)


def best_weighted(market: Market, factors: Floats) -> Floats:
    """Return the shares that maximise the sum of utilities times *factors* ([N]). Shape [N, C].

    On each core cluster all holders have the same marginal value, found by bisection; tenants with equal marginal
    values divide what is left in proportion.
    """
    curves = market.curves
    scale = factors[:, None]
    highest = (scale * curves.marginal(np.zeros_like(market.rate))).max(axis=0)
    high = np.where(market.usable, highest * (1.0 + 1e-12), 1.0)  # above it in spite of rounding
    low = high * 1e-14
    for _ in range(120):
        middle = np.sqrt(low * high)
        over = curves.demand(middle / scale).sum(axis=0) > market.pe_count
        ended = ((middle == low) | (middle == high)).all()
        low, high = np.where(over, middle, low), np.where(over, high, middle)
        if ended:
            break
    least, most = curves.demand(high / scale), np.minimum(curves.demand(low / scale), market.pe_count)
    room, left = (most - least).sum(axis=0), market.pe_count - least.sum(axis=0)
    part = np.divide(left, room, out=np.zeros_like(left), where=room > 0)
    return np.asarray(least + (most - least) * np.clip(part, 0.0, 1.0))


# -- why a tenant has what it has

Reason = Literal["all-of-it", "specialised", "spread-out", "sated"]

_SATED = 1e-9  # percent of speedup for one percent more budget: none
_TOUCH = 1e-9  # what comes after a share that fills a piece is worth what the next piece is


@dataclass(frozen=True)
class PartitionExplanation:
    """Why a tenant has what it has in an equilibrium."""

    reason: Reason
    spent: Floats  # part of its budget by core cluster, [C]
    elasticity: float  # percent of speedup for one percent more budget
    sentence: str


def explain(market: Market, equilibrium: Equilibrium, names: Sequence[str]) -> tuple[PartitionExplanation, ...]:
    """Explain the shares of every tenant; *names* are those of the core clusters."""
    entitled = market.total(market.entitlement())
    return tuple(_explain(market, equilibrium, names, i, float(entitled[i])) for i in range(len(market.budgets)))


def _explain(
    market: Market, equilibrium: Equilibrium, names: Sequence[str], i: int, entitled: float
) -> PartitionExplanation:
    spent = equilibrium.shares[i] * equilibrium.prices / market.budgets[i]
    elasticity = float(equilibrium.money_values[i] * market.budgets[i] / equilibrium.utilities[i])
    if len(market.budgets) == 1:
        return PartitionExplanation("all-of-it", spent, elasticity, "It is alone and has every PE it can use.")
    most = int(spent.argmax())
    value = equilibrium.money_values[i] * equilibrium.prices
    worth = market.curves.marginal(np.zeros_like(equilibrium.shares))[i]
    unbought = (market.rate[i] > 0) & (equilibrium.shares[i] <= 0)
    dear = np.divide(value, worth, out=np.zeros_like(value), where=unbought)
    useless = [name for name, rate in zip(names, market.rate[i], strict=True) if rate <= 0]
    has = f"for {equilibrium.shares[i, most]:.3g} of {market.pe_count[most]:g} PEs"
    parts = [f"It spends {100 * spent[most]:.0f}% of its budget on {names[most]} {has}"]
    if dear.any():
        c = int(dear.argmax())
        parts.append(f"buys no {names[c]} (a PE there costs {dear[c]:.2f} times what the first is worth to it)")
    if useless:
        parts.append(f"cannot use {', '.join(useless)}")
    ratio = equilibrium.utilities[i] / entitled
    if equilibrium.money_values[i] <= _SATED * equilibrium.utilities[i] / market.budgets[i]:
        kept = 100.0 * max(0.0, 1.0 - float(spent.sum()))
        sentence = (
            f"{', '.join(parts)}; it has all that makes it faster, keeps {kept:.2g}% of its budget and would pay "
            f"nothing for more. It runs "
            f"{equilibrium.utilities[i] / entitled:.3f} times as fast as with its entitlement."
        )
        return PartitionExplanation("sated", spent, 0.0, sentence)
    own = float(market.curves.marginal(equilibrium.shares * (1.0 + _TOUCH))[i, most])
    bid = own / equilibrium.money_values[i] / market.budgets[i]
    more = f"For a PE more of {names[most]} it would pay {100 * bid:.2g}% of its budget"
    sentence = (
        f"{', '.join(parts)}; it runs {ratio:.3f} times as fast as with its entitlement. "
        f"{more}; 1% more budget would make it {elasticity:.2g}% faster."
    )
    return PartitionExplanation("specialised" if dear.any() or useless else "spread-out", spent, elasticity, sentence)
