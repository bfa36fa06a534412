"""The Fisher market solved: prices clear the market.

Speedups are concave curves of pieces (``_curves``): Amdahl's law, straight lines, measured tables, the Universal
Scalability Law; and a tenant may be limited in all PEs together. With prices p of 0 or more an equilibrium means that

- every bundle is the best its tenant can pay, and the least among the best,
- no more is held than there is, and all of what has a price.

There is one for all concave curves: in a box of prices excess demand is upper hemicontinuous, so that some prices solve
its variational inequality, and nobody can pay those at the far sides of the box. Nobody is worse off than with its
entitlement, nobody would rather have another's bundle by weight, and none can be better off without another's loss.

A tenant at its limit pays a fee for each PE beside its price, which goes to nobody: at prices and fees together it
spends its whole budget, and no other bundle is worth as much to it for the same money. What it does not spend on PEs is
the part of its budget that has become useless to it. With linear speedups shares so maximise the weighted Nash welfare
within the limits.

One way leads there: Newton's method (``_newton``) from where bidding is (``_paths``, for Amdahl's law and linear
speedups) or from the tenants' own answers to starting prices; where it fails, a slower one (``_paths``);
and a crossover (``_crossover``) where rounding is left. The ``residual`` judges whatever is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError, SolverError
from commonwatt.partitioning._crossover import at_bounds, crossings, drop_negligible_prices
from commonwatt.partitioning._curves import Pieces, Point
from commonwatt.partitioning._demand import residual
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._newton import centred, placed, polish
from commonwatt.partitioning._paths import Bidding, limited_path, run_bidding, softened_path

__all__ = ["Equilibrium", "Method", "residual", "solve"]

Method = Literal["auto", "proportional-response"]

# Rounds of bidding, and where (tau) and how boldly (shrink) Newton's method goes from there, until one works.
_FROM_BIDS = ((30, 0.3, 0.03), (200, 1.0, 0.3))
# The same from the tenants' answers to starting prices, then along the path (shrink 0), pieces softened unlike.
_FROM_ANSWERS = (
    (1.0, 0.1, 0.0), (100.0, 0.3, 0.0), (1.0, 0.5, 0.0), (1.0, 0.1, 1.0), (1.0, 0.3, 2.0), (10.0, 0.0, 0.0),
    (1000.0, 0.0, 0.0), (10.0, 0.0, 1.0), (10.0, 0.0, 2.0),
)  # fmt: skip
_MANY, _MORE_ROUNDS = 10_000, 100  # bids from which on it pays to bid longer first
_LONGEST_PATH = 3000
_FEW_PAIRS = 1000  # of tenant and core cluster, for dense systems
_STARTS = 3  # of Newton's method before a dense system is tried
_STEPS = 1000  # of Newton's method in one go
_FINE, _ENOUGH = 1e-9, 1e-11  # residuals at which no crossover is tried, without and with limits
_KEPT = 1000  # prices of the history
_EPSILON = float(np.finfo(float).eps)  # rounding: nothing is closer than this for sure


@dataclass(frozen=True)
class Equilibrium:
    """A market equilibrium; budgets sum to 1."""

    prices: Floats  # per PE, [C]; 0 where nobody can use a core cluster
    shares: Floats = field(repr=False)  # in PEs, [N, C]
    utilities: Floats = field(repr=False)  # [N]
    money_values: Floats = field(repr=False)  # lambda, [N]: speedup a tenant would gain for a little more money
    limit_prices: Floats = field(repr=False)  # fee for each PE of a tenant at its limit, 0 elsewhere, [N]
    residual: float
    price_change: float  # largest absolute change of a price in the last round of bidding, or step
    rounds: int  # of bidding
    steps: int  # of Newton's method
    history: tuple[Floats, ...] = field(repr=False)  # prices from the start, those of Newton's steps last

    @property
    def iterations(self) -> int:
        """Rounds of bidding and steps of Newton's method."""
        return self.rounds + self.steps


def solve(
    market: Market, *, method: Method = "auto", tolerance: float = 1e-9, change: float | None = None,
    limit: int | None = None, rounds: int | None = None,
) -> Equilibrium:  # fmt: skip
    """Return the equilibrium of *market*.

    Parameters
    ----------
    method
        ``auto``: see the module's text. ``proportional-response``: bidding alone, where all follow Amdahl's law.
    tolerance
        The largest residual allowed.
    change
        With bidding alone, also the largest change of a price; 1e-9 if not given.
    limit
        Iterations at most; 30,000, or 100,000 with bidding alone.
    rounds
        How many rounds to bid before Newton's method; if not given 30, or 100 with more than 10,000 bids.

    Raises
    ------
    SolverError
        If the residual is not within the tolerance by then; the message says what it is.
    """
    if not tolerance > 0:
        raise InputError("a number above 0", field="tolerance", value=tolerance)
    on = market.usable
    search = _Search(market if on.all() else market.columns(on), tolerance)
    if method == "proportional-response":
        if not search.bidding:
            raise InputError("auto, where not all tenants follow Amdahl's law", field="method", value=method)
        search.bid(1e-9 if change is None else change, limit or 100_000)
    else:
        search.run(limit or 30_000, rounds)
    best = search.best
    if best is None or not best.residual <= tolerance:
        said = "unknown" if best is None else f"{best.residual:.2g}"
        raise SolverError(
            f"the market has not converged after {search.rounds + search.steps} iterations: residual {said}, "
            f"expected at most {tolerance:.2g}; allow more iterations or a larger tolerance"
        )
    return best if on.all() else _spread(best, on)


class _Search:
    """What was tried so far, and the best of it. Every core cluster must be of use to somebody."""

    def __init__(self, market: Market, tolerance: float) -> None:
        self.market, self.tolerance = market, tolerance
        self.bidding = market.curves.endless and market.limits is None
        self.best: Equilibrium | None = None
        self.rounds = self.steps = 0
        self.state: Bidding | None = None

    def run(self, limit: int, rounds: int | None) -> None:
        """Try one way after the other; at last bid alone."""
        with np.errstate(all="ignore"):
            for done in self._ways(limit, rounds):
                if done is not None and np.isfinite(done[1].prices).all() and np.isfinite(done[1].y).all():
                    self._judge(*done)
                if self.rounds + self.steps >= limit or self._good():
                    return
        if self.bidding:
            self.bid(np.inf, limit - self.steps)

    def _ways(self, limit: int, rounds: int | None) -> Iterator[tuple[Pieces, Point, list[Floats]] | None]:
        """Yield the points that ways lead to, None where one leads nowhere."""
        market = self.market
        curves, size = market.curves, (market.pe_count, market.budgets, market.limits)
        if self.bidding:
            for number, (goal, tau, shrink) in enumerate(_FROM_BIDS):
                few = _MORE_ROUNDS if market.rate.size > _MANY else goal
                state = self._bid_to(min(limit, (rounds or few) if number == 0 else max(goal, self.rounds)))
                pieces = Pieces.of(curves, *size)
                yield self._polished(pieces, placed(pieces, state.bids, state.prices, tau), tau, shrink, limit)
        linear = market.limits is not None and curves.straight
        for tau, shrink, unlike in _FROM_ANSWERS[: _STARTS if linear and market.rate.size <= _FEW_PAIRS else None]:
            pieces = Pieces.of(curves, *size, unlike)
            if shrink:
                start = centred(pieces, pieces.part / market.pe_count, tau)
                yield self._polished(pieces, start, tau, shrink, limit)
                continue
            if market.limits is not None:
                break  # answers along the path know no fees
            path = softened_path(pieces, tau=tau, limit=min(limit - self.rounds - self.steps, _LONGEST_PATH))
            self.steps += 0 if path is None else path[1]
            yield None if path is None else (pieces, path[0], [path[0].prices])
        if linear:
            pieces = Pieces.of(curves, *size)
            at = limited_path(pieces)
            yield pieces, at, [at.prices]

    def _polished(
        self, pieces: Pieces, start: Point, tau: float, shrink: float, limit: int
    ) -> tuple[Pieces, Point, list[Floats]]:  # fmt: skip
        history = [start.prices.copy()]
        most = max(1, min(limit - self.rounds - self.steps, _STEPS))
        self.steps += polish(pieces, start, tau, shrink=shrink, limit=most, history=history)[0]
        return pieces, start, history

    def _judge(self, pieces: Pieces, at: Point, history: list[Floats]) -> None:
        """Take a point if it is the best so far; cross over to the equilibrium where rounding is left."""
        prices, fees = drop_negligible_prices(pieces, at.prices, at.tenant[2])
        off = self._take(pieces, prices, fees, at_bounds(pieces, at), history)
        limited = self.market.limits is not None
        unsold = at.left > _FINE * pieces.pe_count  # must cost nothing
        if off <= (_ENOUGH if limited else min(self.tolerance, _FINE)) and not (limited and prices[unsold].any()):
            return
        for prices, fees, x in crossings(pieces, at):
            off = min(off, self._take(pieces, *drop_negligible_prices(pieces, prices, fees), x, history))
            if off <= _ENOUGH:
                return

    def _take(self, pieces: Pieces, prices: Floats, fees: Floats, x: Floats, history: list[Floats]) -> float:
        shares = pieces.shares(x)
        off, money = residual(self.market, prices, shares, fees)
        off = max(off, _EPSILON)
        if self.best is None or not off >= self.best.residual:
            seen = (*(self.state.history if self.state else ()), *history, prices)[-_KEPT:]
            change = float(np.abs(seen[-1] - seen[-2]).max()) if self.state is None else self.state.change
            self.best = Equilibrium(
                prices, shares, self.market.total(shares), money, fees, off, change, self.rounds, self.steps, seen
            )
        return off

    def _good(self) -> bool:
        return self.best is not None and self.best.residual <= self.tolerance

    def _bid_to(self, goal: int) -> Bidding:
        """Bid up to so many rounds in all, also where prices rest: bids may not yet."""
        if self.state is None:
            self.state = run_bidding(self.market, 0)
        before = self.state
        self.state = run_bidding(
            self.market, goal - before.iterations, -1.0, relative=-1.0, bids=before.bids,
            keep=max(0, _KEPT - len(before.history)),
        )  # fmt: skip
        self.state.iterations += before.iterations
        self.state.history = before.history + self.state.history[1:]
        self.rounds = self.state.iterations
        return self.state

    def bid(self, change: float, limit: int) -> None:
        """Bid until prices rest and the residual is small, looking at the latter ever more rarely."""
        goal = max(self.rounds, min(limit, 20))
        fees = np.zeros(len(self.market.budgets))
        while True:
            state = self._bid_to(goal)
            shares = state.bids / state.prices
            off, money = residual(self.market, state.prices, shares)
            if (off <= self.tolerance and state.change <= change) or self.rounds >= limit:
                break
            goal = min(limit, goal + max(10, goal // 5))
        if self.best is None or off < self.best.residual:
            self.best = Equilibrium(
                state.prices, shares, self.market.total(shares), money, fees, off, state.change, self.rounds,
                self.steps, tuple(state.history),
            )  # fmt: skip


def _spread(equilibrium: Equilibrium, on: np.ndarray) -> Equilibrium:
    """Put core clusters nobody can use back in, at no price and idle."""

    def spread(values: Floats) -> Floats:
        wide = np.zeros((*values.shape[:-1], len(on)))
        wide[..., on] = values
        return wide

    return replace(
        equilibrium, prices=spread(equilibrium.prices), shares=spread(equilibrium.shares),
        history=tuple(spread(prices) for prices in equilibrium.history),
    )  # fmt: skip
