"""Predicted against metered cost of ANDREAS' eight jobs (Table III): ``python -m benchmarks.live_deviation [--json]``.

The eight jobs of ARMIDA (examples/armida.yaml), run by the live control plane on the local engine, all times divided by
a scale. Each job is a process that takes the declared time for each epoch on the GPUs it is given (it sleeps), and
holds its GPUs for the restart time before it works again. Energy is metered by the declared power of nodes and GPUs
over the time that really passes: what deviates is time, not power. Predicted is what ``simulate`` says of the same
jobs, once as the paper's simulator has it (preemption is free) and once with restarts and lost work. Prices are
multiplied by the scale, so that costs are those of the full length.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from commonwatt.controlplane.supervisor import Pace
from commonwatt.controlplane.wiring import open_live
from commonwatt.data.generators.andreas import armida_scenario
from commonwatt.model.job_file import JobFile
from commonwatt.model.scenario import PolicySpec, Preemption, Scenario
from commonwatt.model.units import NANO
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.workload import prepare
from commonwatt.store.api_store import ApiStore
from commonwatt.store.records import ACTIVE

SCALE = 200.0
RESTART_S = 60.0
SOLVERS = ("random-greedy", "lookahead", "fifo", "edf", "priority")
TYPES = ("V100", "V100", "V100", "T4")  # of the GPUs, in the order of the nodes
WORKER = """
import json, os, sys, time
began = time.monotonic()
times, epochs, restart_s, types = json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), json.loads(sys.argv[4])
slots = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
epoch_s = times[types[int(slots[0])]][str(len(slots))] / epochs
progress = os.environ["COMMONWATT_PROGRESS"]
try:
    with open(progress) as file:
        done = int(json.load(file)["kept_epochs"])
except (OSError, ValueError):
    done = 0
mark = progress + ".begun"
if os.path.exists(mark):
    began += restart_s
open(mark, "w").close()
for k in range(done + 1, epochs + 1):
    time.sleep(max(0.0, began + (k - done) * epoch_s - time.monotonic()))
    with open(progress + ".part", "w") as file:
        json.dump({"done_epochs": k, "kept_epochs": k}, file)
    os.replace(progress + ".part", progress)
"""


def scaled(solver: str, scale: float, jobs: int) -> tuple[Scenario, list[dict[str, Any]]]:
    """Return the scenario of one policy with its times divided by *scale*, and its first *jobs* jobs."""
    scenario = armida_scenario((PolicySpec(solver=solver, iterations=1000, placements=None),))
    document = scenario.model_dump(mode="json", exclude_unset=True)
    rows = document["workload"]["jobs"][:jobs]
    for row in rows:
        for name in ("submit_s", "due_s"):
            row[name] /= scale
        row["tardiness_weight"] *= scale
        row["times_s"] = {
            kind: {int(gpus): t / scale for gpus, t in times.items()} for kind, times in row["times_s"].items()
        }
    document["workload"]["jobs"] = rows
    document["interval_s"] /= scale
    document["preemption"] = {"restart_s": RESTART_S / scale, "lose_work": True}
    document["electricity"]["price_per_kwh"] *= scale
    return Scenario.model_validate(document), rows


def predicted(scenario: Scenario, *, free: bool) -> float:
    """Cost of energy as simulated."""
    if free:
        scenario = scenario.model_copy(update={"preemption": Preemption(restart_s=0.0, lose_work=False)})
    workload = prepare(scenario, Path(), 0)
    found = run_policy(scenario, scenario.policies[0], workload.cluster, workload.table, 0)
    return float((found.controller.ledger.meter.cost_n or 0) / NANO)


def metered(scenario: Scenario, rows: list[dict[str, Any]], folder: Path) -> dict[str, float]:
    """Cost of energy by the ledger, from the first submission to the end of the last job; preemptions."""
    document = scenario.model_dump(mode="json", exclude_unset=True)
    del document["workload"], document["unused_nodes"]
    live = {"local": {"grace_s": 0.05}, "retries": 3, "decision_limit_s": 5.0}
    document |= {"engine": "local", "live": live, "tenants": [{"name": "default"}]}
    path = folder / "live.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    with closing(open_live(path, pace=Pace(beat_s=0.1, requests_s=5.0))) as plane:
        plane.supervisor.start()
        while not plane.supervisor.snapshot().ticks:
            time.sleep(0.01)
        began_s, before_n = time.time(), _cost_n(plane.store)
        jobs = []
        for row in rows:
            time.sleep(max(0.0, began_s + row["submit_s"] - time.time()))
            command = (
                sys.executable, "-I", "-c", WORKER, json.dumps(row["times_s"]), str(row["epochs"]),
                str(scenario.preemption.restart_s), json.dumps(TYPES),
            )  # fmt: skip
            file = JobFile(
                name=row["name"], command=command, epochs=row["epochs"], times_s=row["times_s"],
                due_in_s=row["due_s"] - row["submit_s"], tardiness_weight=row["tardiness_weight"],
            )  # fmt: skip
            now_s = time.time()
            jobs.append(plane.store.submit("default", file, now_s, due_s=now_s + row["due_s"] - row["submit_s"])[0].id)
            plane.supervisor.wake()
        while any((row := plane.store.job(job)) is not None and row.status in ACTIVE for job in jobs):
            time.sleep(0.05)
        cost = (_cost_n(plane.store) - before_n) / NANO
        events = [event.kind for event in plane.store.events(limit=100_000)]
        statuses = {plane.store.job(job).status for job in jobs}  # type: ignore[union-attr]
    return {
        "metered": cost, "preempted": events.count("preempted"),
        "moved": events.count("migrated") + events.count("resized"), "failed": float(statuses != {"completed"}),
    }  # fmt: skip


def _cost_n(store: ApiStore) -> int:
    return sum(row["cost_n"] for row in store.ledger() if row["row"] == "meter")


def deviation(solver: str, scale: float = SCALE, jobs: int = 8) -> dict[str, Any]:
    """Run the jobs under one policy; deviations in % of what was predicted, as Table III has them."""
    scenario, rows = scaled(solver, scale, jobs)
    free, full = predicted(scenario, free=True), predicted(scenario, free=False)
    with tempfile.TemporaryDirectory() as folder:
        found = metered(scenario, rows, Path(folder))
    off = {"off_free": 100 * (free - found["metered"]) / free, "off_full": 100 * (full - found["metered"]) / full}
    return {"policy": solver, "predicted_free": free, "predicted": full, **found, **off}


def main() -> None:
    as_json = "--json" in sys.argv
    rows = []
    if not as_json:
        print("policy          predicted (free preemption)   predicted   metered   deviation (free)   deviation")
    for solver in SOLVERS:
        row = deviation(solver)
        rows.append(row)
        if not as_json:
            costs = f"{row['predicted_free']:>27.4f}   {row['predicted']:>9.4f}   {row['metered']:>7.4f}"
            off = f"{row['off_free']:>15.1f}%   {row['off_full']:>8.1f}%"
            print(f"{solver:<15} {costs}   {off}   {row['preempted']} preempted, {row['moved']} moved", flush=True)
    if as_json:
        print(json.dumps({"scale": SCALE, "rows": rows}))


if __name__ == "__main__":
    main()
