"""Whom a promise of GPUs serves: jobs that need whole nodes, and the others, in one pool and in pools by shape.

A week of Philly's log on 90 nodes of 8 GPUs under EASY backfill; run times are those of the log. Nodes wake in two
minutes. A job is delayed if a node has to wake for it. Without the log, a generated week takes its place.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from commonwatt.control.policy import warm_up
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import J_PER_KWH, MICRO
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.runner import Prepared
from commonwatt.simulation.workload import prepare

NODE = {
    "name": "p100", "count": 90, "gpu_type": "P100", "gpus": 8, "idle_w": 400, "gpu_w": 160,
    "states": [{"name": "sleep", "power_w": 60, "enter_s": 15, "wake_s": 120, "wake_j": 40000}],
}  # fmt: skip
PLANS: dict[str, dict] = {
    "one pool": {},
    "by shape": {"pools": "shape"},
}


def served(prepared: Prepared, number: int) -> dict:
    """Run one policy; return its energy and who was delayed."""
    spec = prepared.scenario.policies[number]
    warm_up(spec)
    controller = run_policy(prepared.scenario, spec, prepared.cluster, prepared.table, 0, past=prepared.past).controller
    plan, registry = controller.capacity, controller.registry
    whole = registry.job("asked_gpus") >= NODE["gpus"]
    delays_s = np.zeros(len(whole))
    delays_s[list(plan.counters.delays_s)] = list(plan.counters.delays_s.values())
    row = {
        "pools": spec.label.split(",")[0],
        "target": spec.capacity.promised_share,
        "energy_kwh": controller.ledger.meter.energy_uj / MICRO / J_PER_KWH,
    }
    for name, own in (("whole", whole), ("parts", ~whole)):
        late = delays_s[own] > 0
        row |= {
            f"{name}_jobs": int(own.sum()),
            f"{name}_served": float(1.0 - late.mean()),
            f"{name}_mean_delay_s": float(delays_s[own].mean()),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--begin", default="2017-11-06")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--target", nargs="+", type=float, default=[0.9, 0.98, 0.999], help="shares of jobs promised")
    options = parser.parse_args()
    scenario = Scenario.model_validate(
        {
            "name": "whole-nodes",
            "workload": {
                "source": "philly", "stand_in": True, "begin": options.begin, "days": options.days,
                "malleable": False, "due_dates": "none", "logged_gpu_type": "P100",
            },
            "nodes": [NODE],
            "policies": [
                {"name": f"{name}, {target:g}", "solver": "easy", "capacity": {"target": {"jobs": target}, **plan}}
                for name, plan in PLANS.items()
                for target in options.target
            ],
        }
    )  # fmt: skip
    prepared = prepare(scenario, Path(), 0)
    out = sys.stderr if options.json else sys.stdout
    print(f"{prepared.sentence}; {prepared.cluster.total_gpus} GPUs", file=out, flush=True)
    print(f"{'pools':<9} {'target':>7} {'MWh':>7} {'whole':>8} {'mean s':>7} {'parts':>8} {'mean s':>7}", file=out)
    rows = []
    for number in range(len(scenario.policies)):
        row = served(prepared, number)
        rows.append(row)
        print(
            f"{row['pools']:<9} {row['target']:7.3f} {row['energy_kwh'] / 1000:7.2f} {100 * row['whole_served']:7.2f}% "
            f"{row['whole_mean_delay_s']:7.1f} {100 * row['parts_served']:7.2f}% {row['parts_mean_delay_s']:7.1f}",
            file=out,
            flush=True,
        )
    if options.json:
        print(json.dumps({"workload": prepared.sentence, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
