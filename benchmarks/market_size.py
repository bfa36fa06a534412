"""How long a market takes to solve, by its size: ``python -m benchmarks.market_size [--large] [--scipy]``.

Three parts, each with its goal beside it. Bidding: rounds until no price changes by 1e-8 (budgets sum to 1), and what
tenants could then still gain. Equilibrium: to a residual of 1e-7, as ``commonwatt partition`` does. SciPy: the prices
of linear markets (F = 1) by the dual of Eisenberg and Gale's convex program, both on this machine, one after the
other. ``--large`` adds 10,000 tenants by 1,000 core clusters, ``--scipy`` 200 by 50 against SciPy: minutes both.
"""

from __future__ import annotations

import resource
import sys
from time import perf_counter

import numpy as np

from commonwatt.partitioning.market import residual, solve
from commonwatt.partitioning.problem import Market
from commonwatt.partitioning.proportional import run

SIZES = [(10, 5), (100, 10), (100, 100), (1000, 100)]
GOALS = {(1000, 100): "goal 2 s", (10_000, 1000): "goal 60 s, 4 GB"}


def made(n: int, c: int, *, linear: bool = False) -> Market:
    rng = np.random.default_rng([n, c])
    f = np.ones((n, c)) if linear else rng.uniform(0.5, 0.999, (n, c))
    return Market.make(rng.integers(4, 65, c), rng.uniform(0.5, 5, n), np.exp(rng.normal(0, 1, (n, c))), f)


def by_size(sizes: list[tuple[int, int]]) -> None:
    print("tenants x core clusters | bidding to 1e-8: rounds, s, gain left | equilibrium: rounds + steps, s, residual")
    for n, c in sizes:
        market = made(n, c)
        began = perf_counter()
        state = run(market, 100_000, 1e-8)
        bid_s = perf_counter() - began
        off, _ = residual(market, state.prices, state.bids / state.prices)
        began = perf_counter()
        found = solve(market)
        solve_s = perf_counter() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{n:6d} x {c:4d} | {state.iterations:5d}, {bid_s:7.3f} s, {off:.1e} | "
            f"{found.rounds:4d} + {found.steps:3d}, "
            f"{solve_s:7.2f} s, {found.residual:.1e} | {memory:.2f} GB  {GOALS.get((n, c), '')}",
            flush=True,
        )


def by_scipy(market: Market, method: str) -> tuple[np.ndarray, float]:
    """Prices from the dual in logarithms: least sum P e^q + sum b v, where v_i >= log k_ic - q_c."""
    from scipy.optimize import LinearConstraint, minimize
    from scipy.sparse import coo_matrix, diags

    n, c = market.rate.shape
    logs, pairs = np.log(market.rate), np.arange(n * c)
    places = np.concatenate([np.tile(np.arange(c), n), c + np.repeat(np.arange(n), c)])
    rows = coo_matrix((np.ones(2 * n * c), (np.tile(pairs, 2), places))).tocsr()
    q = np.full(c, -np.log(market.pe_count.sum()))
    start = np.concatenate([q, (logs - q).max(axis=1) + 0.1])
    pes, b = market.pe_count, market.budgets

    def value(z: np.ndarray) -> float:
        return float(pes @ np.exp(z[:c]) + b @ z[c:])

    def slope(z: np.ndarray) -> np.ndarray:
        return np.concatenate([pes * np.exp(z[:c]), b])

    began = perf_counter()
    if method == "SLSQP":
        dense = rows.toarray()
        limits = {"type": "ineq", "fun": lambda z: rows @ z - logs.ravel(), "jac": lambda _: dense}
        done = minimize(value, start, jac=slope, method="SLSQP", constraints=limits, options={"ftol": 1e-15})
    else:
        done = minimize(
            value, start, jac=slope, hess=lambda z: diags(np.concatenate([pes * np.exp(z[:c]), 0 * b])),
            method="trust-constr", constraints=LinearConstraint(rows, logs.ravel(), np.inf),
            options={"gtol": 1e-11, "xtol": 1e-13, "barrier_tol": 1e-11, "maxiter": 600},
        )  # fmt: skip
    return np.exp(done.x[:c]), perf_counter() - began


def against_scipy(cases: list[tuple[int, int, str]]) -> None:
    print("\nlinear markets | ours, s | SciPy, s | ratio | largest relative difference of a price")
    for n, c, method in cases:
        market = made(n, c, linear=True)
        began = perf_counter()
        found = solve(market)
        ours = perf_counter() - began
        theirs, seconds = by_scipy(market, method)
        apart = np.abs(theirs / found.prices - 1).max()
        goal = "goal 10x, 1e-6" if (n, c) == (200, 50) else ""
        print(f"{n:5d} x {c:3d} | {ours:.3f} | {seconds:.2f} {method} | {seconds / ours:.0f}x | {apart:.1e}  {goal}")


def main() -> None:
    by_size([*SIZES, *([(10_000, 1000)] if "--large" in sys.argv else [])])
    against_scipy([(20, 10, "SLSQP"), (50, 20, "SLSQP"), (50, 20, "trust-constr")])
    if "--scipy" in sys.argv:  # minutes
        against_scipy([(200, 50, "trust-constr")])


if __name__ == "__main__":
    main()
