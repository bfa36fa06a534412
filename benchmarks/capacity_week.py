"""How many nodes stay on over a week of 2,496 GPUs: Philly's log where it is at hand, else one in its likeness.

The same scheduler (EASY backfill) under plans of capacity: always on, last value, the threshold method, CUFF at several
targets, perfect foresight. Energy is that of the whole run, to the end of the last job; a plan's own saving is against
the same schedule had no node slept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from commonwatt.model.scenario import Scenario
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

STATES = [
    {"name": "low-clocks", "power_w": 200},
    {"name": "sleep", "power_w": 120, "enter_s": 15, "wake_s": 60, "wake_j": 6000},
    {"name": "off", "power_w": 10, "enter_s": 60, "wake_s": 180, "wake_j": 40000},
]


def policies(forecasters: list[str], targets: list[float], solver: str) -> list[dict]:
    plans = {"always-on": {"policy": "always-on"}, "last value": {"policy": "last-value"}}
    for forecaster in forecasters:
        name = Path(forecaster).stem
        plans[f"threshold, {name}"] = {"policy": "threshold", "forecaster": forecaster}
        for target in targets:
            plans[f"cuff {target:g}, {name}"] = {"policy": "cuff", "forecaster": forecaster, "target": target}
    plans["foresight"] = {"policy": "foresight"}
    return [{"name": name, "solver": solver, "capacity": plan} for name, plan in plans.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--begin", default="2017-10-23")
    parser.add_argument("--nodes", type=int, default=312, help="nodes of 8 GPUs")
    parser.add_argument("--forecaster", nargs="+", default=["last-value", "lightgbm"], help="predictors or model files")
    parser.add_argument("--target", nargs="+", type=float, default=[0.95, 0.98])
    parser.add_argument("--solver", default="easy")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    scenario = Scenario.model_validate(
        {
            "name": "capacity-week",
            "workload": {"source": "philly", "stand_in": True, "begin": options.begin, "days": options.days},
            "nodes": [
                {"name": "p100", "count": options.nodes, "gpu_type": "P100", "gpus": 8, "idle_w": 400, "gpu_w": 160}
                | {"states": STATES}
            ],
            "policies": policies(options.forecaster, options.target, options.solver),
        }
    )
    prepared = prepare(scenario, Path(), 0)
    out = sys.stderr if options.json else sys.stdout
    print(f"{prepared.sentence}; {prepared.cluster.total_gpus} GPUs", file=out, flush=True)
    began = time.perf_counter()
    results, _ = run_seeds([prepared], jobs=options.jobs)
    rows = results[0].policies
    always = rows[0].energy_kwh
    print(
        f"{'plan':<28} {'MWh':>8} {'saved':>7} {'cost':>9} {'on':>7} {'served':>8} {'delayed':>8} {'mean s':>7}",
        file=out,
    )
    for row in rows:
        plan = row.capacity
        saved = 100 * (1 - row.energy_kwh / always)
        print(
            f"{row.policy:<28} {row.energy_kwh / 1000:8.2f} {saved:6.2f}% {row.total_cost:9.0f} "
            f"{plan.mean_gpus_on:7.1f} "
            f"{100 * plan.slots_served:7.2f}% {plan.jobs_delayed:8} {plan.mean_delay_s or 0:7.0f}",
            file=out,
        )
    print(f"{time.perf_counter() - began:.0f} s", file=out)
    if options.json:
        print(json.dumps({"rows": [row.model_dump(mode="json", exclude={"tenants"}) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
