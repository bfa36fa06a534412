"""The front of placement policies on weeks of Philly: energy against late jobs, completion time and slowdown.

Each row is one policy on one period at one offered load (GPUs wanted on average over GPUs there are), with jobs of
fixed size (rigid) or not, and run times known (oracle) or predicted. ``lookahead`` is a curve over its
``slowdown_price``, ``limited`` a point of it that may also limit the power of GPUs. *dominated by* names those no worse
in any of the four, and better in some. Rows are kept in ``--out`` and not run again.

A smaller cluster is made by taking every n-th job of the log (``--sample``), and as many nodes as the load asks for, of
which a third are V100 and the others P100. ``--plot`` draws the front: a panel for each load, size of jobs and
knowledge, with energy against p99 slowdown, and the number of late jobs beside each point.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonwatt.data import third_party
from commonwatt.data.demand import demand_of
from commonwatt.data.log import JobLog, time_of
from commonwatt.data.readers import read_log
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import DAY_S
from commonwatt.report.pictures import policy_colour, saved
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RULES = ("srtf", "easy", "fifo", "edf", "random-greedy")
KNOB = (0.0, 0.01, 0.05, 0.3, 2.0)
LIMITED = {"solver": "lookahead", "slowdown_price": 0.01, "power_limits": [0.6, 0.8]}
_ROUNDS = {"rounds": {"length_s": 60}}
PEERS: dict[str, dict[str, object]] = {
    "las": {"solver": "las"},
    "qssf": {"solver": "qssf"},
    "lucid": {"solver": "lucid"},
    "drf": {"solver": "drf"},
    "sia": {"solver": "sia", **_ROUNDS},
    "pollux": {"solver": "pollux", **_ROUNDS},
    "powerflow": {"solver": "powerflow"},
    "powerflow 2": {"solver": "powerflow", "energy_budget": 2.0},
}
"""Published schedulers, by name in the table. Gavel and Themis are not among them: here stopped jobs lose work."""
LOADS = (0.5, 0.8, 1.0, 1.3)
NODE_GPUS = 8
LEAST_NODES = 4  # for the largest gangs
SHOWN = ("energy_kwh", "late_jobs", "mean_jct_s", "slowdown_p99")
RESULTS = (*SHOWN, "tardiness_cost", "preemptions", "migrations", "most_starts", "jobs")


@dataclass(frozen=True)
class Cell:
    """What policies are compared on."""

    begin: str
    days: float
    sample: int
    load: float
    malleable: bool
    knowledge: str

    def wanted_gpus(self, whole: JobLog) -> float:
        """Return how many GPUs the jobs of the period want on average."""
        begin_s = time_of(whole, self.begin)
        return float(demand_of(whole, 60.0, begin_s, begin_s + self.days * DAY_S).wanted.gpus.mean())

    def scenario(self, log: Path, whole: JobLog, policy: dict[str, object]) -> Scenario:
        """Return the simulation of *policy*, on the sampled *log*; *whole* is what that file holds."""
        count = max(LEAST_NODES, round(self.wanted_gpus(whole) / self.load / NODE_GPUS))
        fast = {"name": "v100", "count": count // 3, "gpu_type": "V100", "gpus": NODE_GPUS, "idle_w": 400, "gpu_w": 200}
        slow = {
            "name": "p100",
            "count": count - count // 3,
            "gpu_type": "P100",
            "gpus": NODE_GPUS,
            "idle_w": 400,
            "gpu_w": 160,
        }
        workload = {
            "source": "philly", "path": str(log), "begin": self.begin, "days": self.days, "malleable": self.malleable,
        }  # fmt: skip
        document = {"workload": workload, "nodes": [slow, fast], "knowledge": self.knowledge, "policies": [policy]}
        return Scenario.model_validate(document)


def sampled(log: Path, every: int, folder: Path) -> Path:
    """Write every n-th job of *log* into *folder*; returns the file."""
    path = folder / f"philly-1-of-{every}.csv"
    if not path.exists():
        with gzip.open(log, "rt", newline="") as file:
            rows = list(csv.reader(file))
        whole = path.with_suffix(".part")
        with whole.open("w", newline="") as file:
            csv.writer(file).writerows([rows[0], *rows[1::every]])
        whole.rename(path)
    return path


def policies(knob: tuple[float, ...], *, peers: bool = False) -> list[dict[str, object]]:
    """Return the rules, lookahead over its *knob*, and lookahead that may limit the power of GPUs; and the *peers*."""
    over_knob = [{"solver": "lookahead", "slowdown_price": price} for price in knob]
    return [*({"solver": name} for name in RULES), *over_knob, LIMITED, *(PEERS.values() if peers else ())]


def named(policy: dict[str, object]) -> str:
    """Name of *policy* in the table."""
    if "slowdown_price" not in policy:
        return next((name for name, peer in PEERS.items() if peer is policy), str(policy["solver"]))
    return f"{'limited' if policy is LIMITED else policy['solver']} {policy['slowdown_price']:g}"


def measured(cell: Cell, policy: dict[str, object], log: Path, whole: JobLog) -> dict[str, object]:
    """Simulate *policy*; returns a row."""
    prepared = prepare(cell.scenario(log, whole, policy), Path(), 0)
    result = run_seeds([prepared])[0][0].policies[0]
    figures = {name: getattr(result, name) for name in RESULTS}
    nodes = len(prepared.cluster)
    real = {"nodes": nodes, "real_load": cell.wanted_gpus(whole) / (nodes * NODE_GPUS)}
    return {**asdict(cell), "policy": named(policy), **real, **figures}


def dominating(row: dict[str, object], rows: list[dict[str, object]]) -> str:
    """Return the policies that are no worse than *row* in any of the four figures, and better in some."""
    better = []
    for other in rows:
        pairs = [(float(other[name]), float(row[name])) for name in SHOWN]  # type: ignore[arg-type]
        if all(a <= b for a, b in pairs) and any(a < b for a, b in pairs):
            better.append(str(other["policy"]))
    return ", ".join(better)


def cells_of(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the rows of each cell."""
    cells: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["begin"], row["load"], row["malleable"], row["knowledge"]), []).append(row)
    return [cells[key] for key in sorted(cells)]


def against(rows: list[dict[str, Any]], yardstick: str = "srtf") -> list[dict[str, Any]]:
    """Compare every policy with *yardstick* over all cells, by size of jobs."""
    found = []
    for malleable in (False, True):
        cells = [{row["policy"]: row for row in cell} for cell in cells_of(rows) if cell[0]["malleable"] == malleable]
        pairs = [(cell, cell[yardstick]) for cell in cells if yardstick in cell]
        for policy in dict.fromkeys(name for cell, _ in pairs for name in cell if name != yardstick):
            own = [(cell[policy], other) for cell, other in pairs if policy in cell]
            energy = [row["energy_kwh"] / other["energy_kwh"] - 1 for row, other in own]
            later = [row["late_jobs"] - other["late_jobs"] for row, other in own]
            found.append({
                "policy": policy, "malleable": malleable, "cells": len(own), "least_energy": min(energy),
                "mean_energy": sum(energy) / len(own), "most_energy": max(energy),
                "more_late": sum(n > 0 for n in later), "fewer_late": sum(n < 0 for n in later),
                "late_jobs": sum(row["late_jobs"] for row, _ in own),
                "late_jobs_of_yardstick": sum(other["late_jobs"] for _, other in own),
                "dominated": sum(yardstick in dominating(row, [other]) for row, other in own),
                "dominated_by_any": sum(bool(row["dominated_by"]) for row, _ in own),
                "saves_3_pct": sum(e <= -0.03 and n <= 0 for e, n in zip(energy, later, strict=True)),
            })  # fmt: skip
    return found


def table(rows: list[dict[str, object]]) -> str:
    """Return the front of each cell in Markdown."""
    head = ("begin", "load", "nodes", "jobs", "knowledge", "policy", "energy (kWh)", "late", "mean completion (h)")
    head += ("p99 slowdown", "moves and stops", "dominated by")
    lines = [
        f"| {' | '.join(head)} |",
        "| --- | ---: | ---: | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for own in cells_of(rows):
        for row in own:
            size = "malleable" if row["malleable"] else "rigid"
            disturbed = int(row["preemptions"]) + int(row["migrations"])  # type: ignore[call-overload]
            lines.append(
                f"| {row['begin']} | {float(row['real_load']):.2f} | {row['nodes']} | {size} | {row['knowledge']} | "  # type: ignore[arg-type]
                f"{row['policy']} | "
                f"{row['energy_kwh']:.0f} | {row['late_jobs']} | {float(row['mean_jct_s']) / 3600:.2f} | "  # type: ignore[arg-type]
                f"{row['slowdown_p99']:.2f} | {disturbed:,} | {row['dominated_by']} |"
            )
    return "\n".join(lines)


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Draw a panel for each cell: a point for each rule, and ``lookahead`` as a line over its knob."""
    cells: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in rows:
        cells.setdefault((row["begin"], row["malleable"], row["knowledge"], row["load"]), []).append(row)
    across = len({row["load"] for row in rows})
    down = math.ceil(len(cells) / across)
    with saved(path, (4.0 * across, 2.4 * down)) as figure:
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for axes, (_, own) in zip(panels, sorted(cells.items()), strict=False):
            _panel(axes, own)
        for axes in panels[len(cells) :]:
            axes.set_axis_off()
        figure.supxlabel("energy (kWh); numbers: late jobs", fontsize=8)
        figure.supylabel("p99 slowdown", fontsize=8)
        panels[0].legend(fontsize=6)


def _panel(axes: Axes, rows: list[dict[str, object]]) -> None:
    size = "malleable" if rows[0]["malleable"] else "rigid"
    axes.set_title(f"{size}, {rows[0]['knowledge']}, load {rows[0]['real_load']:.2f}", fontsize=8)
    knob = [row for row in rows if str(row["policy"]).startswith("lookahead") and row["policy"] != "lookahead 0"]
    knob.sort(key=lambda row: float(str(row["policy"]).split()[1]))
    axes.plot(*_points(knob), marker="o", markersize=3, color=policy_colour(0), linewidth=0.8, label="lookahead")
    others = sorted({str(row["policy"]) for row in rows if row not in knob})
    for k, name in enumerate(others, 1):
        only = [row for row in rows if row["policy"] == name]
        axes.plot(*_points(only), marker="s", markersize=3, color=policy_colour(k), linestyle="", label=name)
    for row in rows:
        axes.annotate(f" {row['late_jobs']}", (row["energy_kwh"], row["slowdown_p99"]), fontsize=6)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.tick_params(labelsize=6, which="both")


def _points(rows: list[dict[str, object]]) -> tuple[list[object], list[object]]:
    return [row["energy_kwh"] for row in rows], [row["slowdown_p99"] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/placement-front"))
    parser.add_argument("--begin", nargs="+", default=["2017-10-17"])
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--sample", type=int, default=1, help="take every n-th job")
    parser.add_argument("--load", type=float, nargs="+", default=LOADS)
    parser.add_argument("--size", nargs="+", default=["rigid", "malleable"], choices=["rigid", "malleable"])
    parser.add_argument("--knowledge", nargs="+", default=["oracle", "predicted"])
    parser.add_argument("--slowdown-price", type=float, nargs="+", default=KNOB)
    parser.add_argument("--policy", nargs="+", help="only these, by name in the table")
    parser.add_argument("--peers", action="store_true", help="published schedulers, too")
    parser.add_argument("--quick", action="store_true", help="every 8th job of two days")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the front into a PNG or SVG file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.days, options.sample = 2.0, 8
    source = third_party.find("philly_jobs.csv.gz")
    if source is None:
        sys.exit("philly_jobs.csv.gz: not in the folder COMMONWATT_DATA names")
    options.out.mkdir(parents=True, exist_ok=True)
    log = sampled(source, options.sample, options.out)
    whole = read_log("philly", log, {})
    kept = options.out / "rows.jsonl"
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    rows = []
    for begin in options.begin:
        for load in options.load:
            for size in options.size:
                for knowledge in options.knowledge:
                    cell = Cell(begin, options.days, options.sample, load, size == "malleable", knowledge)
                    for policy in policies(tuple(options.slowdown_price), peers=options.peers):
                        if options.policy and named(policy) not in options.policy:
                            continue
                        key = {**asdict(cell), "policy": named(policy)}
                        row = next((row for row in done if key.items() <= row.items()), None)
                        if row is None:
                            row = measured(cell, policy, log.resolve(), whole)
                            with kept.open("a") as file:
                                file.write(json.dumps(row) + "\n")
                            print(".", end="", file=sys.stderr, flush=True)
                        rows.append(row)
    print(file=sys.stderr)
    for cell in cells_of(rows):
        for row in cell:
            row["dominated_by"] = dominating(row, cell)
    if options.plot is not None:
        draw(rows, options.plot)
    print(json.dumps({"rows": rows, "against_srtf": against(rows)}, indent=2) if options.json else table(rows))


if __name__ == "__main__":
    main()
