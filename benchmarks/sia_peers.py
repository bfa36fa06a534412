"""Published schedulers and ours on the workloads of Sia's simulator, under its rules, beside its own results.

Needs the folder ``peers/sia`` beside the traces (``COMMONWATT_DATA``). First its rigid policies, in rounds of 360 s:
here, and as its simulator ran them. Then ours, at 360 s, 60 s and at every event. ``--jobs`` lists every job.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from commonwatt.control.policy import warm_up
from commonwatt.data import third_party
from commonwatt.data.files import validate
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import J_PER_KWH, MICRO
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.workload import prepare

PEERS: dict[str, dict] = {
    "Gavel fifo": {"solver": "gavel", "objective": "fifo"},
    "Gavel max-min": {"solver": "gavel", "objective": "max-min"},
    "Gavel max-sum": {"solver": "gavel", "objective": "max-sum"},
    "Themis": {"solver": "themis"},
}
OTHERS: dict[str, dict] = {
    "Tiresias": {"solver": "las"},
    "QSSF": {"solver": "qssf"},
    "Gavel min-jct": {"solver": "gavel", "objective": "min-jct"},
    "Gavel makespan": {"solver": "gavel", "objective": "makespan"},
}
SIA: dict[str, dict] = {
    "Sia, power -0.5": {"solver": "sia"},
    "Sia, power 0.5": {"solver": "sia", "fairness_power": 0.5},
}
"""Beside its own simulator's ``sia_fix``, which keeps the size of jobs as ours does: in rounds of 60 s."""
REFERENCE = {
    "Gavel fifo": "fifo",
    "Gavel max-min": "las",
    "Gavel max-sum": "gavel",
    "Themis": "themis",
    "Sia, power 0.5": "sia_fix",
}
"""What the reference calls these: the names of its files. Its ``las`` is no Tiresias."""
SURE, UNSURE = {"solver": "completion"}, {"solver": "completion", "limits": {"min_run_s": 1200}}
OURS: dict[str, dict] = {
    "completion, power 1": SURE | {"tail_power": 1},
    "completion": SURE,
    "completion, power 2": SURE | {"tail_power": 2},
    "srtf": {"solver": "srtf"},
    "lookahead": {"solver": "lookahead", "work_conserving": True},
    "completion, predicted": UNSURE | {"knowledge": "predicted"},
    "completion, unknown": UNSURE | {"knowledge": "none"},
    "srtf, unknown": {"solver": "srtf", "knowledge": "none"},
}
ROUNDS: dict[str, dict | None] = {"360 s": {"length_s": 360}, "60 s": {"length_s": 60}, "events": None}


@dataclass(frozen=True)
class Run:
    """One policy on one workload; times of completion from submission, s."""

    workload: str
    rounds: str
    policy: str
    jct_s: dict[str, float]
    energy_kwh: float | None = None
    starts: float | None = None  # per job, those the scheduler sees
    wall_s: float | None = None

    @property
    def mean_s(self) -> float:
        """Mean completion."""
        return float(np.mean(list(self.jct_s.values())))

    @property
    def median_s(self) -> float:
        """Median completion."""
        return float(np.median(list(self.jct_s.values())))

    @property
    def p99_s(self) -> float:
        """As the reference counts it."""
        return sorted(self.jct_s.values())[int(0.99 * len(self.jct_s))]


def simulated(workload: str, rounds: str, name: str, policy: dict) -> Run:
    """Run *policy* under the rules of the reference: a restart at every start, no work lost."""
    document = {
        "workload": {"source": "sia", "workload": workload}, "rounds": ROUNDS[rounds], "policies": [policy],
        "preemption": {"restart_s": 60, "lose_work": False, "first_start": True},
    }  # fmt: skip
    made = prepare(validate(document, Scenario), Path(), 0)
    spec = made.scenario.policies[0]
    warm_up(spec)
    began = perf_counter()
    run = run_policy(made.scenario, spec, made.cluster, made.table, 0, hosts=made.hosts).controller
    registry, metered = run.registry, run.ledger.meter.energy_uj
    jct_s = registry.job("ended_s") - registry.job("submit_s")
    return Run(
        workload, rounds, name, dict(zip(registry.names, jct_s.tolist(), strict=True)),
        None if metered is None else metered / MICRO / J_PER_KWH, float(registry.job("starts").mean()),
        perf_counter() - began,
    )  # fmt: skip


def referred(folder: Path, workload: str, name: str) -> Run | None:
    """What the reference has of a policy; ``None``: nothing, or not of all jobs."""
    path = folder / "results" / f"{REFERENCE[name]}-{workload}.csv"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return Run(workload, "360 s", name, {row["name"]: float(row["jct_s"]) for row in rows})


def compared(ours: Run, theirs: Run) -> dict[str, object]:
    """Deviations of *ours* from *theirs*."""
    apart = [abs(jct_s - theirs.jct_s[name]) for name, jct_s in ours.jct_s.items()]
    return {
        "workload": ours.workload, "policy": ours.policy, "mean_s": ours.mean_s, "their_mean_s": theirs.mean_s,
        "mean_off": ours.mean_s / theirs.mean_s - 1, "median_s": ours.median_s, "their_median_s": theirs.median_s,
        "median_off": ours.median_s / theirs.median_s - 1, "p99_s": ours.p99_s, "their_p99_s": theirs.p99_s,
        "jobs": len(apart), "within_6_s": sum(each <= 6 for each in apart),
    }  # fmt: skip


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", default=["core-1", "core-2", "core-3"])
    parser.add_argument("--rounds", nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--jobs", action="store_true", help="list every job of the first table")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    folder = third_party.peer_folder("sia")
    if folder is None:
        parser.exit(2, f"no folder peers/sia beside the traces: set {third_party.VARIABLE}\n")
    document = {"peers": [], "runs": []}
    for head in () if asked.json else (HEAD, HEAD_OF_RUNS):
        print(head, flush=True)
    for workload in asked.workloads:
        plan = [("360 s", name, policy) for name, policy in (PEERS | OTHERS).items()]
        plan += [("60 s", name, policy) for name, policy in SIA.items()]
        plan += [(rounds, name, policy) for rounds in asked.rounds for name, policy in OURS.items()]
        for rounds, name, policy in plan:
            run = simulated(workload, rounds, name, policy)
            theirs = referred(folder, workload, name) if name in REFERENCE else None
            figures = {"mean_s": run.mean_s, "median_s": run.median_s, "p99_s": run.p99_s}
            document["runs"].append(asdict(run) | figures)
            if theirs is not None:
                document["peers"].append(compared(run, theirs))
            if not asked.json:
                show(run, theirs, every_job=asked.jobs)
    if asked.json:
        print(json.dumps(document))


HEAD = """First table, where the reference has the policy; second, every run. Rows are printed as they are ready.

| workload | policy | mean (s) | theirs | off | median (s) | theirs | off | p99 (s) | theirs | within 6 s |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""
HEAD_OF_RUNS = """
| workload | rounds | policy | mean (s) | median (s) | p99 (s) | energy (kWh) | starts | run (s) |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"""


def show(run: Run, theirs: Run | None, *, every_job: bool) -> None:
    """Print the rows of a run."""
    if theirs is not None:
        row = compared(run, theirs)
        print(
            f"| {run.workload} | {run.policy} | {run.mean_s:.0f} | {theirs.mean_s:.0f} | {row['mean_off']:+.1%} "
            f"| {run.median_s:.0f} | {theirs.median_s:.0f} | {row['median_off']:+.1%} | {run.p99_s:.0f} "
            f"| {theirs.p99_s:.0f} | {row['within_6_s']} of {row['jobs']} |"
        )
        for name, jct_s in run.jct_s.items() if every_job else ():
            print(f"{run.workload} {run.policy} {name}: {jct_s:.0f} s, theirs {theirs.jct_s[name]:.0f} s")
    print(
        f"| {run.workload} | {run.rounds} | {run.policy} | {run.mean_s:.0f} | {run.median_s:.0f} | {run.p99_s:.0f} "
        f"| {run.energy_kwh or 0:.0f} | {run.starts or 0:.1f} | {run.wall_s or 0:.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
