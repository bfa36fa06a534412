"""What waiting for a lower price of electricity saves, and how much of what the price-aware bound says can be saved.

Generated days of jobs with a day of slack each, on a shared cluster, at two prices by time of day and on a day-ahead
curve (generated: low at night and at noon, high in the morning and the evening, noise from hour to hour). Each solver
runs without ``wait_for_price``, with it, and with ``preempt: true`` too. What can be saved is the cost without it less
the bound, which knows all prices and jobs; a policy knows prices for a day.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commonwatt.model.results import PolicyResult
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

SOLVERS = ("lookahead", "easy", "fifo", "srtf")
VARIANTS: dict[str, dict[str, Any] | None] = {
    "": None, " waits": {"known_s": 86400}, " pauses": {"known_s": 86400, "preempt": True},
}  # fmt: skip
SHAPE = (62, 55, 50, 48, 50, 60, 80, 105, 115, 100, 80, 62, 52, 46, 50, 62, 82, 110, 132, 140, 125, 104, 88, 74)
"""Mean price of each hour of the day-ahead curve, per MWh."""


def two_prices() -> dict[str, Any]:
    return {"daily": {"00:00": 0.05, "07:00": 0.50, "22:00": 0.05}, "pue": 1.0}


def day_ahead(days: int, seed: int) -> dict[str, Any]:
    """Return a price for each hour: the mean day times noise that lasts for hours."""
    rng = np.random.default_rng([seed, 77])
    noise, level = [], 0.0
    for _ in range(24 * days):
        level = 0.9 * level + 0.12 * float(rng.normal())
        noise.append(float(np.exp(level)))
    prices = [SHAPE[hour % 24] / 1000 * noise[hour] for hour in range(24 * days)]
    return {"series": [{"from_s": 3600 * h, "price_per_kwh": round(p, 4)} for h, p in enumerate(prices)], "pue": 1.0}


def jobs(options: argparse.Namespace, seed: int, *, malleable: bool) -> list[dict[str, Any]]:
    """Return jobs submitted at random, most of them by day, with run times from minutes to *longest_h* hours."""
    rng = np.random.default_rng([seed, 78])
    made: list[dict[str, Any]] = []
    for i in range(round(options.jobs_per_day * options.days)):
        hour = float(rng.normal(13.0, 4.0)) % 24
        submit_s = 86400 * int(rng.integers(options.days)) + 3600 * hour
        alone_s = 3600 * min(float(np.exp(rng.normal(np.log(2.0), 1.0))), options.longest_h)
        gpus = int(rng.choice([1, 2, 4], p=[0.6, 0.2, 0.2]))
        sizes = (1, 2, 4) if malleable else (gpus,)
        made.append({
            "name": f"j{i}", "submit_s": submit_s, "due_s": submit_s + alone_s + 3600 * options.slack_h,
            "tardiness_weight": 2e-4 * gpus, "times_s": {"V100": {g: alone_s * (gpus / g) ** 0.85 for g in sizes}},
            "epochs": max(1, round(alone_s / 600)), "requested_gpus": gpus,
        })  # fmt: skip
    return made


def scenario(
    electricity: dict[str, Any], options: argparse.Namespace, nodes: int, seed: int, *, malleable: bool
) -> Scenario:
    return Scenario.model_validate({
        "workload": {"source": "jobs", "jobs": jobs(options, seed, malleable=malleable)},
        "nodes": [{"name": "v", "count": nodes, "gpu_type": "V100", "gpus": 4, "idle_w": 150, "gpu_w": 250}],
        "electricity": electricity,
        "preemption": {"restart_s": 60},
        "policies": [
            {"solver": solver, "name": f"{solver}{name}", "wait_for_price": wait}
            for solver in options.solvers
            for name, wait in VARIANTS.items()
        ],
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--longest-h", type=float, default=12.0)
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 4])
    parser.add_argument("--slack-h", type=float, default=24.0)
    parser.add_argument("--jobs-per-day", type=float, default=50.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS))
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    rows = averaged([row for case in cases(options) for row in case])
    print(file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    print(
        "curve       size      nodes  use  policy               cost  bound  part of what can be saved  least  late "
        " wait (h)"
    )
    for row in rows:
        part, least = ("" if row[of] is None else f"{100 * row[of]:.0f}%" for of in ("part", "least_part"))
        print(
            f"{row['curve']:<11} {row['size']:<9} {row['nodes']:5d} {row['use']:5.2f}  {row['policy']:<17} "
            f"{row['cost']:7.2f} {row['bound']:6.2f} {part:>26} {least:>6} {row['late']:5d} {row['wait_h']:8.1f}"
        )


def cases(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each case."""
    for curve in ("two prices", "day ahead"):
        for malleable in (False, True):
            for nodes in options.nodes:
                for seed in range(options.seeds):
                    site = two_prices() if curve == "two prices" else day_ahead(30, seed)
                    made = prepare(scenario(site, options, nodes, seed, malleable=malleable), Path(), seed)
                    (result,), _ = run_seeds([made], jobs=options.processes)
                    print(".", end="", file=sys.stderr, flush=True)
                    size = "malleable" if malleable else "rigid"
                    common = {"curve": curve, "size": size, "nodes": nodes, "seed": seed}
                    yield [common | row for row in compared(result.policies)]


def averaged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each case and policy: means over seeds, the least part saved, and all late jobs."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[of] for of in ("curve", "size", "nodes", "policy")), []).append(row)
    found = []
    for (curve, size, nodes, policy), own in groups.items():
        parts = [row["part"] for row in own if row["part"] is not None]
        means = {
            of: float(np.mean([row[of] for row in own])) for of in ("cost", "bound", "wait_h", "use", "scheduler_s")
        }
        found.append({
            "curve": curve, "size": size, "nodes": nodes, "policy": policy, **means,
            "part": float(np.mean(parts)) if parts else None, "least_part": min(parts, default=None),
            "late": sum(row["late"] for row in own), "preemptions": sum(row["preemptions"] for row in own),
        })  # fmt: skip
    return found


def compared(policies: Sequence[PolicyResult]) -> Iterator[dict[str, Any]]:
    """Yield a row for each policy; the first of each solver does not wait."""
    for k, one in enumerate(policies):
        blind, bound = policies[k - k % len(VARIANTS)], one.lower_bound_cost
        saved, possible = blind.total_cost - one.total_cost, blind.total_cost - bound
        yield {
            "policy": one.policy, "cost": one.total_cost, "bound": bound,
            "part": None if one is blind else saved / possible,
            "late": one.late_jobs, "wait_h": one.mean_wait_s / 3600, "use": blind.gpu_utilization,
            "preemptions": one.preemptions, "scheduler_s": one.scheduler_s,
        }  # fmt: skip


if __name__ == "__main__":
    main()
