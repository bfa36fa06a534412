"""How long a market takes to solve, by its size: ``python -m benchmarks.market_size [--large] [--plot FILE]``.

Four parts, each with its goal beside it. Bidding: rounds until no price changes by 1e-8 (budgets sum to 1), and what
tenants could then still gain. Equilibrium: to a residual of 1e-9, as ``commonwatt partition`` does. SciPy: the prices
of linear markets (F = 1) by the dual of Eisenberg and Gale's convex program, both on this machine, one after the
other. Other laws: markets of measured tables, the Universal Scalability Law and Amdahl's, a third each. ``--large``
adds 10,000 tenants by 1,000 core clusters: minutes. ``--plot`` draws iterations against size.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

from commonwatt.model.partition_file import LawSpec
from commonwatt.partitioning import Market, bid, law_of, residual, solve
from commonwatt.report.saving import saved

SIZES = [(10, 5), (30, 10), (100, 10), (100, 100), (300, 30), (1000, 100)]
OF_LAWS = [(10, 5), (30, 10), (100, 20), (300, 30)]
GOALS = {(1000, 100): "goal 2 s", (10_000, 1000): "goal 60 s, 4 GB"}


def made(n: int, c: int, *, linear: bool = False) -> Market:
    rng = np.random.default_rng([n, c])
    f = np.ones((n, c)) if linear else rng.uniform(0.5, 0.999, (n, c))
    return Market.make(rng.integers(4, 65, c), rng.uniform(0.5, 5, n), np.exp(rng.normal(0, 1, (n, c))), f)


Counts = list[tuple[int, int]]  # pairs of a market and iterations


def by_size(sizes: list[tuple[int, int]]) -> tuple[Counts, Counts]:
    bidding: Counts = []
    equilibrium: Counts = []
    print("tenants x core clusters | bidding to 1e-8: rounds, s, gain left | equilibrium: rounds + steps, s, residual")
    for n, c in sizes:
        market = made(n, c)
        began = perf_counter()
        state = bid(market, 100_000, 1e-8)
        bid_s = perf_counter() - began
        off, _ = residual(market, state.prices, state.bids / state.prices)
        began = perf_counter()
        found = solve(market)
        solve_s = perf_counter() - began
        bidding.append((n * c, state.iterations))
        equilibrium.append((n * c, found.iterations))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{n:6d} x {c:4d} | {state.iterations:5d}, {bid_s:7.3f} s, {off:.1e} | "
            f"{found.rounds:4d} + {found.steps:3d}, "
            f"{solve_s:7.2f} s, {found.residual:.1e} | {memory:.2f} GB  {GOALS.get((n, c), '')}",
            flush=True,
        )
    return bidding, equilibrium


def with_laws(n: int, c: int) -> Market:
    rng, given = np.random.default_rng([n, c, 1]), made(n, c)
    pes = (2.0, 4.0, 8.0, 16.0)

    def law() -> LawSpec:
        kind = rng.integers(3)
        if kind == 0:
            return LawSpec(law="amdahl", parallel_fraction=rng.uniform(0.5, 0.999))
        if kind == 1:
            return LawSpec(law="usl", contention=rng.uniform(0, 0.3), coherence=rng.uniform(0, 0.02))
        return LawSpec(law="table", pes=pes, speedups=1.0 + np.cumsum(rng.uniform(0, 1, 4) * [1, 2, 4, 8]))

    return given.under([[law_of(law()) for _ in range(c)] for _ in range(n)])


def by_laws(sizes: list[tuple[int, int]]) -> Counts:
    print("\nother laws | Newton's steps | s | residual")
    taken: Counts = []
    for n, c in sizes:
        market = with_laws(n, c)
        began = perf_counter()
        found = solve(market)
        print(f"{n:5d} x {c:3d} | {found.steps:4d} | {perf_counter() - began:.2f} | {found.residual:.1e}", flush=True)
        taken.append((n * c, found.steps))
    return taken


def draw(lines: dict[str, Counts], path: Path) -> None:
    with saved(path, (6.5, 4.0)) as figure:
        axes = figure.subplots()
        for name, counts in lines.items():
            axes.plot(*zip(*sorted(counts), strict=True), marker="o", markersize=4, label=name)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("tenants times core clusters")
        axes.set_ylabel("iterations")
        axes.legend(fontsize=7, loc="upper center")


def by_scipy(market: Market) -> tuple[np.ndarray, float]:
    """Prices from the dual in logarithms: least sum P e^q + sum b v, where v_i >= log k_ic - q_c.

    SLSQP with the constraints that matter: three a tenant at first, then whatever is violated. With all of them at once
    it takes half a minute at 50 x 20.
    """
    from scipy.optimize import minimize

    logs, pes, b = np.log(market.rate), market.pe_count, market.budgets
    n, c = logs.shape
    began = perf_counter()
    z = np.concatenate([np.full(c, -np.log(pes.sum())), np.zeros(n)])
    on = np.zeros((n, c), bool)
    while True:
        over = logs - z[:c]
        wrong = over - z[c:, None] > 1e-11
        if on.any() and not wrong.any():
            return np.exp(z[:c]), perf_counter() - began
        on |= wrong & on.any() | ((-over).argsort(axis=1).argsort(axis=1) < 3)
        z[c:] = over.max(axis=1)
        i, j = np.nonzero(on)
        rows = np.zeros((len(i), c + n))
        rows[np.arange(len(i)), j] = rows[np.arange(len(i)), c + i] = 1
        limits = {"type": "ineq", "fun": lambda y, a=rows, k=logs[i, j]: a @ y - k, "jac": lambda _, a=rows: a}
        z = minimize(
            lambda y: float(pes @ np.exp(y[:c]) + b @ y[c:]), z, method="SLSQP", constraints=limits,
            jac=lambda y: np.concatenate([pes * np.exp(y[:c]), b]), options={"ftol": 1e-15, "maxiter": 300},
        ).x  # fmt: skip


def against_scipy(sizes: list[tuple[int, int]]) -> None:
    print("\nlinear markets | ours, s | SciPy SLSQP, s | ratio | largest relative difference of a price")
    for n, c in sizes:
        market = made(n, c, linear=True)
        began = perf_counter()
        found = solve(market)
        ours = perf_counter() - began
        theirs, seconds = by_scipy(market)
        apart = np.abs(theirs / found.prices - 1).max()
        goal = "goal 10x, 1e-6" if (n, c) == (200, 50) else ""
        print(f"{n:5d} x {c:3d} | {ours:.3f} | {seconds:.2f} | {seconds / ours:.0f}x | {apart:.1e}  {goal}", flush=True)


def main() -> None:
    bidding, equilibrium = by_size([*SIZES, *([(10_000, 1000)] if "--large" in sys.argv else [])])
    laws = by_laws(OF_LAWS)
    if "--plot" in sys.argv:
        lines = {
            "bidding, until no price changes by 1e-8": bidding,
            "bidding and Newton's steps, to the equilibrium": equilibrium,
            "Newton's steps, other laws than Amdahl's": laws,
        }
        draw(lines, Path(sys.argv[sys.argv.index("--plot") + 1]))
    against_scipy([(20, 10), (50, 20), (200, 50)])


if __name__ == "__main__":
    main()
