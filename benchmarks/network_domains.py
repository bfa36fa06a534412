"""In how many racks jobs of several nodes start, with racks declared (`nodes.domain`) and without.

A week of a job log on nodes of 8 GPUs in racks, several policies. Whatever a policy decides, the control plane
exchanges what starts on equal nodes; energy and completion times say what that costs. Without the log, a generated
week takes its place.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

import numpy as np

from commonwatt.control.events import EventKind
from commonwatt.control.policy import warm_up
from commonwatt.model.policies import PolicySpec
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import HOUR_S, J_PER_KWH, MICRO
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.runner import Prepared
from commonwatt.simulation.workload import prepare

STATES = [{"name": "sleep", "power_w": 60, "enter_s": 15, "wake_s": 120, "wake_j": 40000}]
BEGINS = (EventKind.STARTED, EventKind.RESUMED, EventKind.RESIZED, EventKind.MIGRATED)


def racks_of(nodes: int, each: int, blocks: int, *, declared: bool) -> list[dict]:
    """Return *nodes* equal nodes, *each* so many a rack, and so many *blocks* of racks."""
    racks = -(-nodes // each)
    made = []
    for rack in range(racks):
        where = {"domain": f"block-{rack * blocks // racks + 1}/rack-{rack + 1}"} if declared else {}
        made.append(
            {
                "name": f"r{rack + 1:02}", "count": min(each, nodes - rack * each), "gpu_type": "P100", "gpus": 8,
                "idle_w": 400, "gpu_w": 160, "states": STATES, **where,
            }
        )  # fmt: skip
    return made


def measured(prepared: Prepared, spec: PolicySpec, rack: int) -> dict:
    """Run one policy; return in how many racks of *rack* nodes each start of a job of several nodes was."""
    warm_up(spec)
    controller = run_policy(prepared.scenario, spec, prepared.cluster, prepared.table, 0, past=prepared.past).controller
    starts = [e for e in controller.log.since(0) if e.kind in BEGINS and len(e.nodes) > 1]
    in_racks = np.array([len({n // rack for n in e.nodes}) for e in starts])
    fewest = np.array([-(-len(e.nodes) // rack) for e in starts])
    registry = controller.registry
    ended_s, submit_s = registry.job("ended_s"), registry.job("submit_s")
    return {
        "policy": spec.label,
        "starts": len(starts),
        "fewest": float(np.mean(in_racks == fewest)),
        "mean_racks": float(in_racks.mean()),
        "least_mean_racks": float(fewest.mean()),
        "energy_kwh": controller.ledger.meter.energy_uj / MICRO / J_PER_KWH,
        "mean_completion_h": float(np.nanmean(ended_s - submit_s)) / HOUR_S,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--begin", default="2017-11-06")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--nodes", nargs="+", type=int, default=[60, 120])
    parser.add_argument("--rack", type=int, default=6, help="nodes of a rack")
    parser.add_argument("--solvers", nargs="+", default=["fifo", "easy", "srtf", "lookahead"])
    options = parser.parse_args()
    out = sys.stderr if options.json else sys.stdout
    rows, sentence = [], ""
    print(
        f"{'nodes':>5} {'policy':<10} {'racks':<9} {'starts':>7} {'fewest':>7} {'mean':>6} {'kWh':>9} {'mean h':>8}",
        file=out,
    )
    for nodes, solver, declared in product(options.nodes, options.solvers, (False, True)):
        scenario = Scenario.model_validate(
            {
                "name": "network-domains",
                "workload": {
                    "source": "philly", "stand_in": True, "begin": options.begin, "days": options.days,
                    "malleable": False, "due_dates": "none", "logged_gpu_type": "P100",
                },
                "unused_nodes": {"state": "sleep"},
                "nodes": racks_of(nodes, options.rack, 2, declared=declared),
                "policies": [{"solver": solver}],
            }
        )  # fmt: skip
        prepared = prepare(scenario, Path(), 0)
        sentence = prepared.sentence
        declares = "declared" if declared else "not"
        row = {"nodes": nodes, "racks": declares, **measured(prepared, scenario.policies[0], options.rack)}
        rows.append(row)
        print(
            f"{nodes:5} {row['policy']:<10} {declares:<9} {row['starts']:7} {100 * row['fewest']:6.1f}% "
            f"{row['mean_racks']:6.2f} {row['energy_kwh']:9.2f} {row['mean_completion_h']:8.3f}",
            file=out, flush=True,
        )  # fmt: skip
    if options.json:
        print(json.dumps({"workload": sentence, "rack": options.rack, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
