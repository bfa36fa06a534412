"""How long a market takes to solve, by its size: ``python -m benchmarks.market_size [--large] [--plot FILE] [--json]``.

Four parts, each with its goal beside it. Bidding: rounds until no price changes by 1e-8 (budgets sum to 1), and what
tenants could then still gain. Equilibrium: to a residual of 1e-9, as ``commonwatt partition`` does. Other laws: ten
markets a size of measured tables, the Universal Scalability Law and Amdahl's, a third each, and ten of tables alone;
median and worst. cvxpy: linear markets (F = 1), with and without limits, by Eisenberg and Gale's convex program with
Clarabel (``pip install cvxpy-base clarabel``), on this machine, one after the other; what both give is judged by the
same residual. Times are processor time. ``--large`` adds 10,000 tenants by 1,000 core clusters, and 1,000 by 100 for
cvxpy: minutes. ``--plot`` draws iterations against size.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from commonwatt.model.partition_file import LawSpec
from commonwatt.partitioning import Market, make_law, residual, run_bidding, solve
from commonwatt.report.pictures import saved

SIZES = [(10, 5), (30, 10), (100, 10), (100, 100), (300, 30), (1000, 100)]
OF_LAWS = [(10, 5), (30, 10), (100, 20), (300, 30)]
GOALS = {(1000, 100): "goal 2 s", (10_000, 1000): "goal 60 s, 4 GB"}
LINEAR = [(20, 10), (50, 20), (200, 50)]
MARKETS = 10  # a size, of other laws


def made(n: int, c: int, *, linear: bool = False, limited: bool = False, seed: int | None = None) -> Market:
    """Without *seed* the market that earlier versions measured; *limited*: half of the tenants to their part."""
    rng = np.random.default_rng([n, c] if seed is None else [n, c, 2, seed])
    f = np.ones((n, c)) if linear else rng.uniform(0.5, 0.999, (n, c))
    pes, weights = rng.integers(4, 65, c), rng.uniform(0.5, 5, n)
    rate = np.exp(rng.normal(0, 1, (n, c)))
    part = np.where(rng.random(n) < 0.5, pes.sum() * weights / weights.sum(), np.inf) if limited else None
    return Market.make(pes, weights, rate, f, part)


Row = dict[str, Any]
Counts = list[tuple[int, int]]  # pairs of a size of a market and iterations


def by_size(sizes: list[tuple[int, int]]) -> list[Row]:
    rows = []
    print("tenants x core clusters | bidding to 1e-8: rounds, s, gain left | equilibrium: rounds + steps, s, residual")
    for n, c in sizes:
        market = made(n, c)
        began = process_time()
        state = run_bidding(market, 100_000, 1e-8)
        bid_s = process_time() - began
        off, _ = residual(market, state.prices, state.bids / state.prices)
        began = process_time()
        found = solve(market)
        solve_s = process_time() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append({
            "tenants": n, "core_clusters": c, "bidding_rounds": state.iterations, "bidding_s": bid_s, "gain_left": off,
            "rounds": found.rounds, "steps": found.steps, "s": solve_s, "residual": found.residual, "memory_gb": memory,
        })  # fmt: skip
        print(
            f"{n:6d} x {c:4d} | {state.iterations:5d}, {bid_s:7.3f} s, {off:.1e} | "
            f"{found.rounds:4d} + {found.steps:3d}, "
            f"{solve_s:7.2f} s, {found.residual:.1e} | {memory:.2f} GB  {GOALS.get((n, c), '')}",
            flush=True,
        )
    return rows


def with_laws(n: int, c: int, seed: int | None = None, kinds: int = 3) -> Market:
    """Of *kinds* 1 all laws are tables."""
    rng, given = np.random.default_rng([n, c, 1] if seed is None else [n, c, 1, seed]), made(n, c, seed=seed)
    pes = (2.0, 4.0, 8.0, 16.0)

    def law() -> LawSpec:
        kind = rng.integers(3) if kinds == 3 else 2
        if kind == 0:
            return LawSpec(law="amdahl", parallel_fraction=rng.uniform(0.5, 0.999))
        if kind == 1:
            return LawSpec(law="usl", contention=rng.uniform(0, 0.3), coherence=rng.uniform(0, 0.02))
        return LawSpec(law="table", pes=pes, speedups=1.0 + np.cumsum(rng.uniform(0, 1, 4) * [1, 2, 4, 8]))

    return given.under([[make_law(law()) for _ in range(c)] for _ in range(n)])


def by_laws(sizes: list[tuple[int, int]]) -> list[Row]:
    print("\nother laws | Newton's steps | s: median, worst | worst residual")
    rows = []
    for n, c in sizes:
        for kinds, name in ((3, "mixed"), (1, "tables")):
            steps, seconds, off = [], [], []
            for seed in (None, *range(1, MARKETS)):
                market = with_laws(n, c, seed, kinds)
                began = process_time()
                found = solve(market)
                seconds.append(process_time() - began)
                steps.append(found.steps)
                off.append(found.residual)
            goal = "goal 5 s" if (n, c) == (300, 30) else ""
            print(
                f"{n:5d} x {c:3d} {name:6s} | {median(steps):4.0f} | {median(seconds):.3f}, {max(seconds):.3f} | "
                f"{max(off):.1e}  {goal}",
                flush=True,
            )
            rows.append({
                "tenants": n, "core_clusters": c, "laws": name, "first_steps": steps[0], "median_s": median(seconds),
                "worst_s": max(seconds), "worst_residual": max(off),
            })  # fmt: skip
    return rows


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


def by_cvxpy(market: Market) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Shares, prices, prices of limits and seconds, by Eisenberg and Gale's program."""
    import cvxpy

    began = process_time()
    x = cvxpy.Variable(market.rate.shape, nonneg=True)
    sold = cvxpy.sum(x, axis=0) <= market.pe_count
    bound = np.flatnonzero(np.isfinite(market.limits)) if market.limits is not None else np.zeros(0, int)
    held = [cvxpy.sum(x[bound], axis=1) <= market.limits[bound]] if market.limits is not None else []
    utility = cvxpy.sum(cvxpy.multiply(market.rate, x), axis=1)
    problem = cvxpy.Problem(cvxpy.Maximize(market.budgets @ cvxpy.log(utility)), [sold, *held])
    problem.solve(solver=cvxpy.CLARABEL)
    fees = np.zeros(len(market.budgets))
    if held:
        fees[bound] = held[0].dual_value
    return x.value, sold.dual_value, fees, process_time() - began


def against_cvxpy(sizes: list[tuple[int, int]]) -> list[Row]:
    try:
        import cvxpy  # noqa: F401
    except ModuleNotFoundError:
        print("\ncvxpy is not installed; run: pip install cvxpy-base clarabel")
        return []
    rows = []
    print("\nlinear markets | ours, s, residual | cvxpy, s, residual | ratio | prices apart")
    for limited in (False, True):
        for n, c in sizes:
            market = made(n, c, linear=True, limited=limited)
            ours = []
            for _ in range(3):
                began = process_time()
                found = solve(market)
                ours.append(process_time() - began)
            shares, prices, fees, seconds = by_cvxpy(market)
            off, _ = residual(market, np.maximum(prices, 0.0), np.maximum(shares, 0.0), np.maximum(fees, 0.0))
            apart = np.abs(prices / found.prices - 1).max() if (found.prices > 0).all() else np.nan
            print(
                f"{n:5d} x {c:3d}{' limited' if limited else '':8s} | {min(ours):.3f}, {found.residual:.1e} | "
                f"{seconds:.3f}, {off:.1e} | {seconds / min(ours):.1f}x | "
                f"{apart:.1e}",
                flush=True,
            )
            rows.append({
                "tenants": n, "core_clusters": c, "limits": limited, "s": min(ours), "residual": found.residual,
                "cvxpy_s": seconds, "cvxpy_residual": off, "ratio": seconds / min(ours), "prices_apart": float(apart),
            })  # fmt: skip
    return rows


def counts(rows: list[Row], steps: str) -> Counts:
    return [(row["tenants"] * row["core_clusters"], row[steps]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    for market in (made(5, 3), made(30, 25), with_laws(5, 3), with_laws(30, 25)):
        solve(market)  # compiles, which no time below includes
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        sizes = by_size([*SIZES, *([(10_000, 1000)] if options.large else [])])
        laws = by_laws(OF_LAWS)
        linear = against_cvxpy([*LINEAR, *([(1000, 100)] if options.large else [])])
    if options.plot is not None:
        lines = {
            "bidding, until no price changes by 1e-8": counts(sizes, "bidding_rounds"),
            "bidding and Newton's steps, to the equilibrium": [
                (size, rounds + steps)
                for (size, rounds), (_, steps) in zip(counts(sizes, "rounds"), counts(sizes, "steps"), strict=True)
            ],
            "Newton's steps, other laws than Amdahl's": counts(
                [r for r in laws if r["laws"] == "mixed"], "first_steps"
            ),
        }
        draw(lines, options.plot)
    if options.json:
        print(json.dumps({"sizes": sizes, "laws": laws, "linear": linear}, indent=1))


if __name__ == "__main__":
    main()
