"""What each policy loses when run times are not known in advance.

Generated days on a shared cluster of 48 GPUs, under each policy and each kind of knowledge. An oracle sees no declared
limits; otherwise limits are as users declare them: the run time over the limit is uniform between 0 and 1 (A. Mu'alem
and D. Feitelson, IEEE TPDS 12(6), 2001), and limits are rounded up to one of a few values (D. Tsafrir, Y. Etsion and
D. Feitelson, JSSPP 2005).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from commonwatt.control.run_time_estimates import requested_rows
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.runner import Prepared, run_seeds
from commonwatt.simulation.workload import prepare

LIMITS_S = np.array([0.25, 1, 4, 12, 24, 48, 96, 168, 336, 672]) * 3600.0
POLICIES = (
    "easy", "fair-share", "fifo", "edf", "priority", "srtf", "las", "qssf", "gavel", "themis", "sia", "random-greedy",
    "local-search", "completion", "lookahead",
)  # fmt: skip
ROUNDS = {solver: {"rounds": {"length_s": 360}, "preemption": {"lose_work": False}} for solver in ("gavel", "themis")}
UNDEFINED = {("qssf", "none"), ("themis", "none"), ("completion", "none")}  # these go by run times
KNOWLEDGE = ("oracle", "user-limit", "predicted", "none")
SHOWN = ("energy_kwh", "tardiness_cost", "total_cost", "late_jobs", "mean_jct_s", "mean_wait_s", "p95_wait_s",
         "preemptions", "scheduler_s")  # fmt: skip


def scenario(jobs_per_day: float, days: float, speed_error: float, knowledge: Sequence[str]) -> Scenario:
    document = {
        "workload": {"source": "week", "jobs_per_day": jobs_per_day, "days": days, "tenants": 8},
        "nodes": [
            {"name": "v", "count": 6, "gpu_type": "V100", "gpus": 4, "idle_w": 150, "gpu_w": 250},
            {"name": "t", "count": 6, "gpu_type": "T4", "gpus": 4, "idle_w": 120, "gpu_w": 60},
        ],
        "speed_error": speed_error,
        "policies": [
            {
                "solver": solver,
                "name": f"{solver} {known}",
                "knowledge": known,
                "iterations": 100,
                **ROUNDS.get(solver, {}),
            }
            for solver in POLICIES
            for known in knowledge
            if (solver, known) not in UNDEFINED
        ],
    }
    return Scenario.model_validate(document)


def declared(prepared: Prepared) -> Prepared:
    """Let users declare limits, drawn with the seed."""
    table = prepared.table
    run_s = table.config_time_s[requested_rows(table)]
    wished_s = run_s / np.random.default_rng([prepared.seed, 9]).uniform(0.02, 1.0, len(table))
    at = np.minimum(np.searchsorted(LIMITS_S, wished_s), len(LIMITS_S) - 1)
    return replace(prepared, table=replace(table, time_limit_s=np.maximum(LIMITS_S[at], run_s)))


class _Dots:
    def at(self, policy: str, time_s: float) -> None:
        """Say nothing."""

    def follow(self, times_s: object) -> None:
        """Say nothing."""

    def done(self) -> None:
        """Report the end of a run."""
        print(".", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs-per-day", type=float, default=200.0)
    parser.add_argument("--days", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--speed-error", type=float, default=0.0)
    options = parser.parse_args()
    settings = (options.jobs_per_day, options.days, options.speed_error)
    known, unknown = scenario(*settings, KNOWLEDGE[:1]), scenario(*settings, KNOWLEDGE[1:])
    seeds = range(options.seeds)
    runs = (
        [prepare(known, Path(), seed, fit_types="any") for seed in seeds],
        [declared(prepare(unknown, Path(), seed, fit_types="any")) for seed in seeds],
    )
    found = [
        (made, run_seeds(own, jobs=2, listener=_Dots())[0]) for made, own in zip((known, unknown), runs, strict=True)
    ]
    print(file=sys.stderr)
    rows = []
    for made, results in found:
        for k, policy in enumerate(made.policies):
            own = [result.policies[k] for result in results]
            means = {name: float(np.mean([getattr(one, name) or 0 for one in own])) for name in SHOWN}
            rows.append({"policy": policy.solver, "knowledge": policy.knowledge, "jobs": own[0].jobs, **means})
    rows.sort(key=lambda row: POLICIES.index(row["policy"]))
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    for row in rows:
        print(
            f"{row['policy']:<14} {row['knowledge']:<10} {row['energy_kwh']:7.0f} kWh  cost {row['total_cost']:7.1f}  "
            f"late {row['late_jobs']:5.0f}  mean completion {row['mean_jct_s'] / 3600:5.2f} h  "
            f"mean wait {row['mean_wait_s'] / 60:6.1f} min  preemptions {row['preemptions']:5.0f}"
        )


if __name__ == "__main__":
    main()
