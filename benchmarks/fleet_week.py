"""A week of a real log with services beside it: what each decision is worth, and its time and memory.

``alibaba``: the pods of the public log of 2023, whole and fractional, on the 1,213 nodes with GPUs of the cluster's
1,523, by model and number of GPUs as in its node table. Models whose names are withheld (G2, G3) are taken as A100 of
40 and of 80 GB. ``philly``: its jobs on 90 nodes of 8 P100, and 24 nodes of 8 A100. Twenty services of generated load
run beside either. Powers and request times are assumed, as in ``examples/fleet.yaml``. Each policy runs in a process of
its own, one after another, whose processor time and peak of memory are measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from commonwatt.data import third_party
from commonwatt.data.files import validate
from commonwatt.model.scenario import Scenario
from commonwatt.report.fleet import WORTH
from commonwatt.reproduce.fleet_worth import POLICIES
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

NODES: tuple[tuple[str, int, int, int, int, bool], ...] = (
    ("A100-40GB", 549, 8, 180, 300, True), ("A100-80GB", 39, 8, 220, 300, True), ("T4", 387, 2, 80, 70, False),
    ("T4", 17, 4, 120, 70, False), ("P100", 131, 2, 100, 160, False), ("P100", 3, 1, 80, 160, False),
    ("V100", 28, 4, 150, 250, False), ("V100", 19, 1, 80, 250, False), ("V100", 8, 8, 250, 250, False),
    ("V100-32GB", 21, 8, 250, 250, False), ("V100-32GB", 9, 4, 150, 250, False), ("A10", 2, 1, 80, 150, False),
)  # fmt: skip
"""GPU type, nodes, GPUs of each (Alibaba's node table); idle power and power of a busy GPU, W; whether MIG cuts it."""

PHILLY_NODES = (
    ("P100", 90, 8, 400, 160, False), ("A100-40GB", 16, 8, 180, 300, True), ("A100-80GB", 8, 8, 220, 300, True),
)  # fmt: skip

KINDS: tuple[tuple[float, float, dict[str, tuple[float, float, float]]], ...] = (
    (0.15, 600.0, {"A100-40GB": (0.008, 250.0, 9.0), "T4": (0.05, 68.0, 9.0)}),
    (1.0, 70.0, {"A100-80GB": (0.06, 290.0, 34.0), "V100-32GB": (0.15, 245.0, 30.0)}),
    (0.25, 220.0, {"T4": (0.012, 66.0, 4.0), "P100": (0.012, 130.0, 4.0)}),
    (0.1, 900.0, {"A100-40GB": (0.003, 210.0, 5.0), "A10": (0.008, 140.0, 5.0)}),
)
"""Latency target, s; mean requests per second; for each GPU type GPU time (s), power (W), memory (GB) of a request."""

LEFT_OUT = ("naive mapping",)  # no node is a multi-core accelerator
MIG_ALONE = {"parallel_fraction": 0.97}


WORKLOADS: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "alibaba": ("alibaba_jobs.csv.gz", str(123 * 86_400), {"fractions": "share", "malleable": False}, NODES),
    "philly": ("philly_jobs.csv.gz", "2017-11-06", {"malleable": False}, PHILLY_NODES),
}
"""File of a log, the week's begin (of Alibaba's, whose last 28 days are the busy ones, in s), settings, and nodes."""


def cluster_scenario(log: str, days: float, services: int) -> dict[str, Any]:
    """Return the scenario."""
    _, begin, settings, rows = WORKLOADS[log]
    types = {kind for kind, *_ in rows}
    off = [{"name": "off", "power_w": 10, "enter_s": 30, "wake_s": 120, "wake_j": 20000}]
    nodes = [
        {"name": f"{kind.lower()}-{count}", "count": count, "gpu_type": kind, "gpus": gpus, "idle_w": idle_w,
         "gpu_w": gpu_w, "share": ["mig", "time"] if mig else ["time"], "states": off}
        for kind, count, gpus, idle_w, gpu_w, mig in rows
    ]  # fmt: skip
    listed = []
    for number in range(services):
        latency_s, mean_rps, profiles = KINDS[number % len(KINDS)]
        listed.append({
            "name": f"service-{number:02d}", "tenant": f"team-{number % 5}", "latency_s": latency_s,
            "load": {"source": "law", "mean_rps": mean_rps * (1 + number % 3), "swing": 0.6, "burst_cv": 0.15,
                     "peak_h": (9 + 3 * number) % 24, "days": days},
            "replicas": {"min": 1, "max": 64},
            "profiles": {
                kind: {"request_s": request_s, "power_w": power_w, "memory_gb": memory_gb}
                | (MIG_ALONE if kind.startswith("A100") else {})
                for kind, (request_s, power_w, memory_gb) in profiles.items()
                if kind in types
            },
        })  # fmt: skip
    return {
        "name": f"{log}-week",
        "workload": {"source": log, "begin": begin, "days": days, **settings},
        "nodes": nodes,
        "gpu_types": {
            kind: {"speed": 1.0, "relative_to": kind.partition("-")[0]} for kind in sorted(types) if "-" in kind
        },
        "electricity": {"price_per_kwh": 0.172, "pue": 1.33, "currency": "EUR"},
        "services": listed,
        "policies": [dict(policy) for policy in POLICIES if policy["name"] not in LEFT_OUT],
    }  # fmt: skip


def run(document: dict[str, Any]) -> dict[str, Any]:
    """Run a scenario of one policy; return what it is worth, and what the run took."""
    began, used = time.perf_counter(), time.process_time()
    results, _ = run_seeds([prepare(validate(document, Scenario), Path(), 0)])
    [policy] = results[0].policies
    fleet = policy.fleet
    return {
        "policy": policy.policy,
        **{name: of(policy) for name, _, of in WORTH},
        "jobs": policy.jobs,
        "mig_gpu_hours": fleet.mig_gpu_hours,
        "layouts": fleet.layouts,
        "mean_gpus_on": policy.capacity.mean_gpus_on,
        "fallback_plans": policy.capacity.fallback_plans,
        "idle_kwh": fleet.idle_kwh,
        "services_kwh": sum(service.energy_kwh for service in fleet.services),
        "gpus": results[0].gpus,
        "nodes": results[0].nodes,
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - used,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", choices=WORKLOADS, default="alibaba")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--services", type=int, default=20)
    parser.add_argument("--policies", help="Names, with commas between; all of them if not given.")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    file = WORKLOADS[given.log][0]
    if third_party.find(file) is None:
        raise SystemExit(f"no {file} at hand: set COMMONWATT_DATA")
    document = cluster_scenario(given.log, given.days, given.services)
    rows = []
    for policy in document["policies"]:
        if given.policies and policy["name"] not in given.policies.split(","):
            continue
        with get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(run, (document | {"policies": [policy]},)))
        print(rows[-1], file=sys.stderr)
    document = {"log": given.log, "days": given.days, "services": given.services, "runs": rows}
    print(json.dumps(document, indent=None if given.json else 1))


if __name__ == "__main__":
    main()
