"""Time and memory of replaying a week on 2,496 GPUs: Philly's log where it is at hand, else one in its likeness.

Each policy runs alone in a process of its own, so that the peak of memory is its own; compilation is not counted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from pathlib import Path

from commonwatt.control.policy import warm_up
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

POLICIES = ("random-greedy", "lookahead", "easy", "fair-share", "fifo")


def replay(solver: str, begin: str, days: float) -> dict:
    scenario = Scenario.model_validate(
        {
            "name": "week",
            "workload": {"source": "philly", "stand_in": True, "begin": begin, "days": days},
            "nodes": [
                {"name": "p100", "count": 156, "gpu_type": "P100", "gpus": 8, "idle_w": 400, "gpu_w": 160},
                {"name": "v100", "count": 156, "gpu_type": "V100", "gpus": 8, "idle_w": 400, "gpu_w": 200},
            ],
            "policies": [{"solver": solver}],
        }
    )
    prepared = prepare(scenario, Path(), 0)
    warm_up(scenario.policies[0])
    began = time.perf_counter()
    results, _ = run_seeds([prepared])
    took_s = time.perf_counter() - began
    policy = results[0].policies[0]
    return {
        "policy": solver,
        "workload": prepared.sentence,
        "jobs": len(prepared.table),
        "gpus": prepared.cluster.total_gpus,
        "took_s": took_s,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "energy_kwh": policy.energy_kwh,
        "migrations": policy.migrations,
        "late_jobs": policy.late_jobs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--begin", default="2017-10-23")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--policy", nargs="+", default=POLICIES, choices=POLICIES)
    options = parser.parse_args()
    rows = []
    for solver in options.policy:
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            row = alone.apply(replay, (solver, options.begin, options.days))
        rows.append(row)
        print(
            f"{row['policy']:>14} {row['jobs']} jobs, {row['gpus']} GPUs: {row['took_s']:6.1f} s, "
            f"peak {row['peak_memory_mb']:.0f} MB, {row['energy_kwh']:.0f} kWh, {row['migrations']} migrations",
            file=sys.stderr if options.json else sys.stdout,
            flush=True,
        )
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
