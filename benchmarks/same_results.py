"""Digests of what simulations decide, to be compared before and after a change that must not change any result.

Each run's digest is of its events, its result and each job's account, all but the seconds spent deciding. Run it with
`--out before.json`, make the change, and run it with `--compare before.json`: it exits with 1 if any digest differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from commonwatt.model.scenario import Scenario
from commonwatt.simulation.record import Record
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

LIMITS = {"reserve_after_s": 1800, "max_starts": 4, "min_run_s": 300, "max_deliberate_wait_s": 1200}
PEERS: dict[str, dict[str, Any]] = {
    "las": {"solver": "las"}, "gavel": {"solver": "gavel"}, "themis": {"solver": "themis"}, "qssf": {"solver": "qssf"},
    "completion": {"solver": "completion"},
}  # fmt: skip
ROUNDS: dict[str, object] = {"rounds": {"length_s": 360}, "preemption": {"restart_s": 60, "lose_work": False}}
SOLVERS = ("lookahead", "local-search", "random-greedy", "easy", "fair-share", "srtf", "fifo", "edf")


def scenario(nodes: int, days: float, load: float, policy: dict[str, Any], **more: object) -> Scenario:
    """Return a generated period on *nodes* of 8 GPUs, with *load* jobs a day and node."""
    sleep = {"name": "sleep", "power_w": 30, "enter_s": 5, "wake_s": 40, "wake_j": 4000}
    states = [sleep, {"name": "off", "wake_s": 120}]
    half = {"count": nodes // 2, "gpus": 8}
    return Scenario.model_validate(
        {
            "workload": {"source": "week", "jobs_per_day": load * nodes, "days": days},
            "nodes": [
                {"name": "v", "gpu_type": "V100", "idle_w": 400, "gpu_w": 250, "states": states, **half},
                {"name": "a", "gpu_type": "A100", "idle_w": 500, "gpu_w": 350, "states": states, **half},
            ],
            "preemption": {"restart_s": 60},
            "policies": [{"iterations": 20, **policy}],
        }
        | more
    )


def cases() -> dict[str, Scenario]:
    """Return scenarios by name; each is to have what the others have not."""
    found = {solver: scenario(6, 0.4, 25, {"solver": solver}) for solver in SOLVERS}
    plan = {"solver": "lookahead", "capacity": {"policy": "last-value"}}
    outage = [{"node": "v-01", "from_s": 9000, "to_s": 20000}, {"node": "a-02", "from_s": 15000, "to_s": 30000}]
    day, night = ({"price_per_kwh": price, "carbon_g_per_kwh": grams} for price, grams in ((0.3, 300), (0.1, 90)))
    prices = {"series": [{"from_s": 0, **day}, {"from_s": 20000, **night}], "repeat_s": 43200}
    asleep = {"state": "sleep", "after_s": 60}
    return found | {
        "large": scenario(80, 0.3, 15, {"solver": "lookahead"}),
        "crowded": scenario(40, 0.3, 45, {"solver": "lookahead"}),
        "capacity": scenario(20, 0.5, 10, plan),
        "capacity easy": scenario(20, 0.5, 10, plan | {"solver": "easy"}),
        "outages": scenario(20, 0.5, 20, {"solver": "lookahead"}, outages=outage),
        "prices": scenario(20, 0.5, 20, {"solver": "lookahead"}, electricity=prices),
        "tuned": scenario(20, 0.5, 25, {"solver": "lookahead", "price": "mean", "idle_power": "sunk"}),
        "limits": scenario(20, 0.5, 25, {"solver": "lookahead", "limits": LIMITS}),
        "limits easy": scenario(20, 0.5, 25, {"solver": "easy", "limits": LIMITS}),
        "locked": scenario(40, 0.3, 25, {"solver": "lookahead"}, preemption={"allowed": False}),
        **{
            knowledge: scenario(40, 0.3, 20, {"solver": "lookahead", "knowledge": knowledge}, speed_error=0.2)
            for knowledge in ("predicted", "user-limit", "none")
        },
        "errors": scenario(30, 0.3, 25, {"solver": "easy"}, runtime_error=0.3, unused_nodes=asleep),
        "steady": scenario(12, 0.4, 25, {"solver": "lookahead", "slowdown_price": 0.05}),
        "fairness": scenario(6, 0.4, 25, {"solver": "lookahead", "fairness": {"phi": 0.5}}),
        "waits": scenario(
            10, 0.4, 15, {"solver": "lookahead", "wait_for_price": {"may_wait_s": 7200}}, electricity=prices
        ),
        "capped": scenario(10, 0.3, 15, {"solver": "lookahead"}, electricity={"power_cap_w": 16000}),
        **{peer: scenario(6, 0.3, 20, policy, **ROUNDS) for peer, policy in PEERS.items()},
    }


def digest(record: Record) -> str:
    """Return the SHA-256 of a run's events, result and accounts."""
    result = record.result.model_dump(mode="json", exclude={"scheduler_s"})
    sha = hashlib.sha256(json.dumps(result, sort_keys=True).encode())
    for part in (record.events, record.jobs, record.samples, record.segments):
        for name, column in sorted(vars(part).items()):
            sha.update(name.encode())
            sha.update(column.tobytes() if hasattr(column, "tobytes") else json.dumps(column).encode())
    return sha.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="only these scenarios")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the digests to FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with the digests in FILE")
    options = parser.parse_args()
    before = json.loads(options.compare.read_text()) if options.compare else {}
    now: dict[str, str] = {}
    for name, each in cases().items():
        for seed in range(options.seeds) if not options.only or name in options.only else ():
            (record,) = run_seeds([prepare(each, Path(), seed)])[1]
            key = f"{name} {seed}"
            now[key] = digest(record)
            verdict = "" if not before else "the same" if before.get(key) == now[key] else "DIFFERS"
            print(f"{key:>18} {now[key][:16]} {len(record.events.kind)} events {verdict}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(now, indent=2))
    if before and any(before.get(key) != value for key, value in now.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()
