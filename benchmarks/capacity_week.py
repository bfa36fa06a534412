"""How many nodes stay on over a week of 2,496 GPUs: Philly's log where it is at hand, else one in its likeness.

The same scheduler (EASY backfill) under plans of capacity: always on, last value, the threshold method, CUFF at several
targets, perfect foresight. Energy and cost are those of the week, at its end jobs still run; lateness counts as far as
it has come by then. "All on" is the energy of the same schedule had no node slept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed

from commonwatt.control.policy import warm_up
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import DAY_S, J_PER_KWH, MICRO, NANO
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.runner import Prepared
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


def week(prepared: Prepared, number: int, until_s: float) -> dict:
    """Run one policy to the end of the week."""
    spec = prepared.scenario.policies[number]
    warm_up(spec)
    began = time.perf_counter()
    controller = run_policy(
        prepared.scenario, spec, prepared.cluster, prepared.table, 0, past=prepared.past, until_s=until_s
    ).controller
    ledger, plan, book = controller.ledger, controller.capacity, controller.registry
    ended_s = np.where(np.isnan(book.job("ended_s")), until_s, book.job("ended_s"))
    late_s = np.maximum(0.0, ended_s - book.job("due_s"))
    widths_s = np.diff([sample.time_s for sample in controller.samples])
    on = np.array([sample.on_gpus for sample in controller.samples[:-1]])
    used = np.array([sample.busy_gpus for sample in controller.samples[:-1]])
    energy_cost, tardiness_cost = ledger.meter.cost_n / NANO, float(late_s @ book.job("weight"))
    delays_s = list(plan.counters.delays_s.values())
    return {
        "plan": spec.label,
        "energy_kwh": ledger.meter.energy_uj / MICRO / J_PER_KWH,
        "all_on_kwh": (ledger.meter.energy_uj + ledger.slept_uj) / MICRO / J_PER_KWH,
        "energy_cost": energy_cost,
        "tardiness_cost": tardiness_cost,
        "total_cost": energy_cost + tardiness_cost,
        "ended": int((~np.isnan(book.job("ended_s"))).sum()),
        "mean_gpus_on": float(on @ widths_s / widths_s.sum()),
        "mean_gpus_used": float(used @ widths_s / widths_s.sum()),
        "plans": plan.counters.steps,
        "slots_served": plan.counters.served / plan.counters.steps,
        "fallback_plans": plan.counters.fallback,
        "wakes": plan.counters.wakes,
        "jobs_delayed": len(delays_s),
        "mean_delay_s": float(np.mean(delays_s)) if delays_s else None,
        "took_s": time.perf_counter() - began,
    }  # fmt: skip


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
    node = {"name": "p100", "count": options.nodes, "gpu_type": "P100", "gpus": 8, "idle_w": 400, "gpu_w": 160}
    scenario = Scenario.model_validate(
        {
            "name": "capacity-week",
            "workload": {"source": "philly", "stand_in": True, "begin": options.begin, "days": options.days},
            "nodes": [node | {"states": STATES}],
            "policies": policies(options.forecaster, options.target, options.solver),
        }
    )
    prepared = prepare(scenario, Path(), 0)
    out = sys.stderr if options.json else sys.stdout
    print(f"{prepared.sentence}; {prepared.cluster.total_gpus} GPUs", file=out, flush=True)
    print(f"{'plan':<24} {'MWh':>7} {'all on':>7} {'cost':>8} {'GPUs on':>8} {'used':>7} {'served':>8} {'delayed':>8} {'mean s':>7}", file=out)  # fmt: skip # noqa: E501
    tasks = (delayed(week)(prepared, number, options.days * DAY_S) for number in range(len(scenario.policies)))
    rows = []
    for row in Parallel(options.jobs, return_as="generator")(tasks):
        rows.append(row)
        print(
            f"{row['plan']:<24} {row['energy_kwh'] / 1000:7.2f} {row['all_on_kwh'] / 1000:7.2f} "
            f"{row['total_cost']:8.0f} {row['mean_gpus_on']:8.1f} {row['mean_gpus_used']:7.1f} "
            f"{100 * row['slots_served']:7.2f}% {row['jobs_delayed']:8} {row['mean_delay_s'] or 0:7.0f}",
            file=out,
            flush=True,
        )
    if options.json:
        print(json.dumps({"workload": prepared.sentence, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
