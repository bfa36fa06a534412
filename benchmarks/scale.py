"""How long a simulated day takes on clusters of several sizes, with as many jobs as they have.

Beside it, in the same process: the same day with all jobs planned anew at every event, and what the two differ in.
Seconds are of processor time, which other programs disturb less than the clock. The exponent is the slope of processor
time over jobs from the smallest size to this one, on logarithmic scales: 1 is in proportion.
"""

from __future__ import annotations

import argparse
import json
import resource
from math import log
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

from commonwatt.control import replanning
from commonwatt.model.results import PolicyResult
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

JOBS_PER_NODE = 10  # a day


def day(nodes: int, solver: str, days: float) -> Scenario:
    """Return a generated period on *nodes* of 8 GPUs, half of them V100 and half A100."""
    each = {"count": nodes // 2, "gpus": 8}
    return Scenario.model_validate(
        {
            "workload": {"source": "week", "jobs_per_day": JOBS_PER_NODE * nodes, "days": days},
            "nodes": [
                {"name": "v", "gpu_type": "V100", "idle_w": 400, "gpu_w": 250, **each},
                {"name": "a", "gpu_type": "A100", "idle_w": 500, "gpu_w": 350, **each},
            ],
            "policies": [{"solver": solver}],
        }
    )


def timed(scenario: Scenario) -> tuple[float, PolicyResult]:
    prepared = prepare(scenario, Path(), 0)
    began = process_time()
    results, _ = run_seeds([prepared])
    return process_time() - began, results[0].policies[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--solver", default="lookahead")
    parser.add_argument("--alone", action="store_true", help="leave out the comparison")
    options = parser.parse_args()
    timed(day(2, options.solver, 0.1))  # compiles
    rows: list[dict[str, Any]] = []
    for nodes in options.nodes:
        scenario = day(nodes, options.solver, options.days)
        spent_s, ours = timed(scenario)
        row: dict[str, Any] = {
            "nodes": nodes, "jobs": ours.jobs, "ticks": ours.decisions, "s": spent_s,
            "s_per_day": spent_s / options.days, "energy_kwh": ours.energy_kwh, "mean_jct_s": ours.mean_jct_s,
            "late_jobs": ours.late_jobs, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "exponent": None,
        }  # fmt: skip
        if rows:
            row["exponent"] = log(spent_s / rows[0]["s"]) / log(ours.jobs / rows[0]["jobs"])
        if not options.alone:
            with patch.object(replanning, "SMALL", 1 << 60):
                whole_s, whole = timed(scenario)
            row |= {
                "all_over_ours": whole_s / spent_s, "all_energy_kwh": whole.energy_kwh,
                "all_mean_jct_s": whole.mean_jct_s, "all_late_jobs": whole.late_jobs,
            }  # fmt: skip
        rows.append(row)
        if not options.json:
            print(", ".join(f"{name} {value:,.4g}" for name, value in row.items() if value is not None), flush=True)
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
