"""Total cost of the policies in the two scenarios of ANDREAS section V-B, relative to randomized greedy.

The paper reports reductions of total cost by randomized greedy of around 62% on average in one scenario and almost 30%
in the other, against FIFO, EDF and priority scheduling. It prints neither loads nor due dates: ours are said in
``commonwatt.data.generators.andreas``. "Costly" preemption: 60 s of restart, and the work since the last epoch is lost.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

import numpy as np

from commonwatt.model.scenario import Scenario
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

BASELINES = ("fifo", "edf", "priority")
OURS = ("local-search", "lookahead")


def run(nodes: int, scenario: int, load: float, *, costly: bool, seeds: int, placements: int | None, jobs: int) -> dict:
    """One row: means over the seeds."""
    spec = Scenario.model_validate(
        {
            "name": "andreas",
            "workload": {"source": "andreas", "nodes": nodes, "scenario": scenario, "load": load},
            "electricity": {"price_per_kwh": 0.172, "pue": 1.33},
            "preemption": {"restart_s": 60, "lose_work": True} if costly else {"restart_s": 0, "lose_work": False},
            "policies": [
                {"solver": "random-greedy", "placements": placements},
                *({"solver": name} for name in (*OURS, *BASELINES)),
            ],
        }
    )
    results, _ = run_seeds([prepare(spec, Path(), seed) for seed in range(seeds)], jobs=jobs)
    total = {
        policy.policy: float(np.mean([result.policies[k].total_cost for result in results]))
        for k, policy in enumerate(results[0].policies)
    }
    greedy = total["random-greedy"]
    return {
        "scenario": scenario,
        "nodes": nodes,
        "load": load,
        "costly": costly,
        "over_bound": greedy / float(np.mean([result.policies[0].lower_bound_cost for result in results])),
        "reductions": {name: 1 - greedy / total[name] for name in BASELINES},
        "relative": {name: total[name] / greedy for name in OURS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 30])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.7, 1.0, 1.5, 2.0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--free-only", action="store_true", help="leave out costly preemption")
    parser.add_argument(
        "--all-candidates", action="store_true", help="all 1,000 candidates a decision, however many jobs wait (slow)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    rows = []
    for scenario, nodes, load, costly in product((1, 2), options.nodes, options.loads, (False, True)):
        if costly and options.free_only:
            continue
        placements = None if options.all_candidates else 10_000
        row = run(nodes, scenario, load, costly=costly, seeds=options.seeds, placements=placements, jobs=options.jobs)
        rows.append(row)
        _tell(row, sys.stderr if options.json else sys.stdout)
    summary = {
        f"scenario {s}": float(np.mean([list(row["reductions"].values()) for row in rows if row["scenario"] == s]))
        for s in (1, 2)
    }
    worst = {
        name: max((row["relative"][name] for row in rows if row["over_bound"] > 1.01), default=None) for name in OURS
    }
    if options.json:
        print(json.dumps({"rows": rows, "mean_reduction": summary, "largest_relative_cost": worst}, indent=2))
        return
    print("mean reduction by randomized greedy against FIFO, EDF and priority:", summary)
    print("largest cost relative to randomized greedy, where that is over 1% above the bound:", worst)


def _tell(row: dict, out: object) -> None:
    preemption = "costly" if row["costly"] else "free  "
    print(
        f"scenario {row['scenario']} N {row['nodes']:>3} load {row['load']:<4} {preemption}"
        f" greedy/bound {row['over_bound']:.3f}; reductions "
        + " ".join(f"{name} {value:.0%}" for name, value in row["reductions"].items())
        + "; relative "
        + " ".join(f"{name} {value:.3f}" for name, value in row["relative"].items()),
        file=out,
        flush=True,
    )


if __name__ == "__main__":
    main()
