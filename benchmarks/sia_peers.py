"""Published schedulers and ours on the workloads of Sia's simulator, under its rules, beside its own results.

Needs the folder ``peers/sia`` beside the traces (``COMMONWATT_DATA``). First its rigid policies, in rounds of 360 s:
here, and as its simulator ran them. Then ours, at 360 s, 60 s and at every event. ``--jobs`` lists every job.

``--batch adaptive`` runs Sia, which there chooses GPUs and batch sizes, and ours on jobs whose batch sizes adapt. Two
tables more say what our model of these jobs leaves out. One replays the allocations that the simulator recorded, at
our speeds: with progress as one fraction of the job, as our controller counts it, and epoch by epoch. The other has, of
each application, the speed of configurations in each epoch over that in the whole training, relative to one T4.
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
from commonwatt.data.sia_goodput import TYPES, GoodputModel, read_trainings
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
    "Sia": "sia",
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
ADAPTIVE = {"Sia": {"solver": "sia"}, "Pollux": {"solver": "pollux"}}
OURS_ADAPTIVE = {name: OURS[name] for name in ("completion, power 1", "completion", "srtf", "lookahead")}
"""`completion` gives jobs the GPUs they asked for; the others choose."""
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


def simulated(workload: str, rounds: str, name: str, policy: dict, batch: str = "fixed") -> Run:
    """Run *policy* under the rules of the reference: a restart at every start, no work lost."""
    document = {
        "workload": {"source": "sia", "workload": workload, "batch": batch},
        "rounds": ROUNDS[rounds], "policies": [policy],
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


def replayed(folder: Path, workload: str) -> dict[str, object]:
    """Completion times of the reference's allocations of ``sia`` at our speeds, beside its own, s."""
    cluster = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
    trainings = read_trainings(folder, cluster["slowdown"])
    with (folder / "allocations" / f"sia-{workload}.csv").open(encoding="utf-8") as file:
        changes: dict[str, list[dict[str, str]]] = {}
        for row in csv.DictReader(file):
            changes.setdefault(row["name"], []).append(row)
    with (folder / "results" / f"sia-{workload}.csv").open(encoding="utf-8") as file:
        jobs = list(csv.DictReader(file))
    theirs, means = np.array([float(job["jct_s"]) for job in jobs]), {}
    for name, by_epoch in (("by_fraction", False), ("by_epoch", True)):
        ends = [
            _end_s(changes[job["name"]], trainings[job["application"]],
                   cluster["restart_s"][job["application"]], by_epoch=by_epoch)
            for job in jobs
        ]  # fmt: skip
        ours = np.array(ends) - [float(job["submission_s"]) for job in jobs]
        means[name] = {"mean_s": ours.mean(), "off": ours.mean() / theirs.mean() - 1,
                       "job_off": np.abs(ours / theirs - 1).mean()}  # fmt: skip
    return {"workload": workload, "their_mean_s": theirs.mean(), **means}


def _end_s(changes: list[dict[str, str]], training: GoodputModel, restart_s: float, *, by_epoch: bool) -> float:
    """When a job with these allocations ends; its progress is a fraction of its time, or epochs."""
    done, restarts, owed_s = 0.0, -1, 0.0
    for change, later in zip(changes, [*changes[1:], {"time_s": "inf"}], strict=True):
        if not change["gpus_per_node"]:
            continue
        if int(change["restarts_so_far"]) > restarts:
            owed_s, restarts = restart_s, int(change["restarts_so_far"])
        from_s, to_s = float(change["time_s"]), float(later["time_s"])
        waits_s = min(owed_s, to_s - from_s)
        owed_s -= waits_s
        each_s = training.best_s(TYPES[change["cluster"]], tuple(map(int, change["gpus_per_node"].split())))
        passed_s = np.cumsum([0.0, *each_s]) if by_epoch else np.array([0.0, each_s.sum()])
        parts = np.linspace(0.0, 1.0, len(passed_s))
        at_s = float(np.interp(done, parts, passed_s))
        if passed_s[-1] - at_s <= to_s - from_s - waits_s:
            return from_s + waits_s + float(passed_s[-1]) - at_s
        done = float(np.interp(at_s + to_s - from_s - waits_s, passed_s, parts))
    return float("inf")


def speeds_by_epoch(folder: Path) -> list[dict[str, object]]:
    """Of each application, how far relative speeds of configurations in one epoch are from those of the training."""
    cluster = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
    rows: list[dict[str, object]] = []
    for name, training in read_trainings(folder, cluster["slowdown"]).items():
        each_s = [
            training.best_s(TYPES[kind["cluster"]], placement)
            for kind in cluster["gpu_types"]
            for placement in [(n,) for n in (1, 2, 4) if n < kind["gpus_per_node"]]
            + [(kind["gpus_per_node"],) * hosts for hosts in range(1, kind["nodes"] + 1)]
        ]
        part = np.array([row / row.sum() for row in each_s])
        apart = part[0] / part[1:]  # the first is one T4
        low, high = np.quantile(apart, (0.05, 0.95))
        rows.append(
            {"application": name, "epochs": len(training.progress), "configurations": len(each_s),
             "least": apart.min(), "low": low, "high": high, "most": apart.max()}
        )  # fmt: skip
    return rows


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", default=["core-1", "core-2", "core-3"])
    parser.add_argument("--rounds", nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--batch", default="fixed", choices=["fixed", "adaptive"])
    parser.add_argument("--jobs", action="store_true", help="list every job of the first table")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    folder = third_party.peer_folder("sia")
    if folder is None:
        parser.exit(2, f"no folder peers/sia beside the traces: set {third_party.VARIABLE}\n")
    document: dict[str, list] = {"peers": [], "runs": []}
    for head in () if asked.json else (HEAD, HEAD_OF_RUNS):
        print(head, flush=True)
    for workload in asked.workloads:
        adaptive = asked.batch == "adaptive"
        plan = [] if adaptive else [("360 s", name, policy) for name, policy in (PEERS | OTHERS).items()]
        plan += [("60 s", name, policy) for name, policy in (ADAPTIVE if adaptive else SIA).items()]
        ours = OURS_ADAPTIVE if adaptive else OURS
        plan += [(rounds, name, policy) for rounds in asked.rounds for name, policy in ours.items()]
        for rounds, name, policy in plan:
            run = simulated(workload, rounds, name, policy, asked.batch)
            theirs = referred(folder, workload, name) if name in REFERENCE else None
            figures = {"mean_s": run.mean_s, "median_s": run.median_s, "p99_s": run.p99_s}
            document["runs"].append(asdict(run) | figures)
            if theirs is not None:
                document["peers"].append(compared(run, theirs))
            if not asked.json:
                show(run, theirs, every_job=asked.jobs)
    if asked.batch == "adaptive":
        there = [each for each in asked.workloads if (folder / "allocations" / f"sia-{each}.csv").is_file()]
        document |= {"replays": [replayed(folder, each) for each in there], "epochs": speeds_by_epoch(folder)}
        for row in () if asked.json else (*document["replays"], *document["epochs"]):
            print(json.dumps(row))
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
