"""G# and auto beside the published search on the reference batches.

``python -m benchmarks.mapping_search [--part NAME] [--json]``, NAME one of these:

- ``gsharp``: five seeds of 10,500 evaluations, as many as the published search made, in the 20 cases it was run on.
- ``auto``: one second of processor time (not of wall-clock time: other programs may run) in the same cases, against
  the best of all published rows; and the gap to the lower bound. ``--all``: in the 180 cases that have any row.
- ``ablation``: mutation only, with crossover-gen, with all operators (5.6.1, Fig. 12): mean makespan over that of all
  operators at the end, after so many generations; five seeds on the batches 1 and 2.
- ``speed``: processor time of 10,000 evaluations with all operators, of the bound, and of auto on 10,000 jobs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from time import process_time
from typing import Any

import numpy as np

from benchmarks.mapping_cases import BATCHES, PUBLISHED, case, published
from commonwatt.mapping import ALGORITHMS, GSharp, GSharpSettings, MappingProblem, lower_bound

Row = dict[str, Any]
LEVELS = {
    "mutation only": GSharpSettings(crossover_gen=0.0, crossover_rg=0.0, crossover_accel=0.0),
    "and crossover-gen": GSharpSettings(crossover_rg=0.0, crossover_accel=0.0),
    "all operators": GSharpSettings(),
}


def mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.log(ratios).mean()))


def gsharp() -> Row:
    ratios = []
    for name in BATCHES:
        for setting, bandwidth in PUBLISHED:
            theirs = float(np.mean(published()[name, 0, setting, float(bandwidth)]["MAGMA-GA"]))
            problem = case(name, 0, setting, bandwidth)
            found = [GSharp(10_500).solve(problem, np.random.default_rng(seed)).cost for seed in range(5)]
            ratios.append(float(np.mean(found)) / theirs)
            print(f"gsharp {name:5s} {setting} {bandwidth:3d} GB/s: mean {np.mean(found):.5g}, worst {max(found):.5g}, "
                  f"published {theirs:.5g}, ratio {ratios[-1]:.4f}", flush=True)  # fmt: skip
    print(f"gsharp over the published search: geometric mean {mean(ratios):.4f}, worst {max(ratios):.4f}", flush=True)
    return {"cases": len(ratios), "mean": mean(ratios), "worst": max(ratios)}


def auto(*, everywhere: bool = False) -> list[Row]:
    over_best: dict[int, list[float]] = {}
    over_search: dict[int, list[float]] = {}
    gaps: dict[int, list[float]] = {}
    for (name, number, setting, wide), rows in published().items():
        if not everywhere and "MAGMA-GA" not in rows:
            continue
        problem, bandwidth = case(name, number, setting, wide), int(wide)
        began = process_time()
        found = ALGORITHMS["auto"](10**9).solve(
            problem, np.random.default_rng(0), lambda began=began: process_time() - began < 1.0
        )
        best = min(min(row) for row in rows.values())
        over_best.setdefault(bandwidth, []).append(found.cost / best)
        gaps.setdefault(bandwidth, []).append(found.cost / lower_bound(problem))
        searched = "-"
        if "MAGMA-GA" in rows:
            over_search.setdefault(bandwidth, []).append(found.cost / float(np.mean(rows["MAGMA-GA"])))
            searched = f"{over_search[bandwidth][-1]:.4f}"
        print(f"auto {name:5s} {number} {setting} {bandwidth:3d} GB/s: {found.cost:.6g}, over the best row "
              f"{over_best[bandwidth][-1]:.4f}, over the published search {searched}, gap "
              f"{100 * (gaps[bandwidth][-1] - 1):.2f}%", flush=True)  # fmt: skip
    rows = []
    for bandwidth in sorted(gaps):
        best, gap, search = over_best[bandwidth], gaps[bandwidth], over_search[bandwidth]
        print(f"auto at {bandwidth} GB/s, {len(gap)} cases: over the best row {mean(best):.4f}, worst {max(best):.4f}; "
              f"over the published search, {len(search)} cases, {mean(search):.4f}; gap {100 * (mean(gap) - 1):.2f}%, "
              f"worst {100 * (max(gap) - 1):.2f}%")  # fmt: skip
        rows.append({
            "gbs": bandwidth, "cases": len(gap), "over_best": mean(best), "worst_over_best": max(best),
            "over_search": mean(search), "gap": mean(gap) - 1, "worst_gap": max(gap) - 1,
        })  # fmt: skip
    return rows


def ablation() -> list[Row]:
    after = (5, 10, 20, 50, 100)
    traces: dict[str, list[list[float]]] = {level: [] for level in LEVELS}
    for problem in (case(name, number, *at) for name in BATCHES for number in (1, 2) for at in PUBLISHED):
        here = {}
        for level, settings in LEVELS.items():
            runs = [GSharp(10_000, settings).solve(problem, np.random.default_rng(seed)).history for seed in range(5)]
            here[level] = [
                float(np.mean([min(worth for spent, worth in run if spent <= 100 * n) for run in runs])) for n in after
            ]
        for level, trace in here.items():
            traces[level].append([worth / here["all operators"][-1] for worth in trace])
    print("ablation: generations", *after)
    rows = []
    for level, found in traces.items():
        means = [mean(list(column)) for column in zip(*found, strict=True)]
        print(f"{level:18s}", *(f"{value:.4f}" for value in means), flush=True)
        rows.append({"operators": level, "after": dict(zip(map(str, after), means, strict=True))})
    return rows


def speed() -> list[Row]:
    rows = []
    rng = np.random.default_rng(0)
    for jobs, places in ((100, 8), (1000, 64), (10_000, 8)):
        latency = rng.integers(1, 100_000, (jobs, places)).astype(float)
        problem = MappingProblem(latency, 4 * rng.random((jobs, places)), 16.0)
        GSharp(200).solve(problem, rng)
        for label, work in (
            ("gsharp, 10,000 evaluations", lambda problem=problem: GSharp(10_000).solve(problem, rng)),
            ("auto, 10,000 evaluations", lambda problem=problem: ALGORITHMS["auto"](10_000).solve(problem, rng)),
            ("lower bound", lambda problem=problem: lower_bound(problem)),
        ):
            began = process_time()
            work()
            spent_s = process_time() - began
            print(f"speed {jobs} x {places}: {label}: {spent_s:.3f} s", flush=True)
            rows.append({"jobs": jobs, "accelerators": places, "what": label, "s": spent_s})
    return rows


def main() -> None:
    parts: dict[str, Callable[[], Row | list[Row]]] = {
        "gsharp": gsharp,
        "auto": auto,
        "ablation": ablation,
        "speed": speed,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=parts)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--all", action="store_true", help="auto in all 180 cases: minutes")
    chosen = parser.parse_args()
    parts["auto"] = lambda: auto(everywhere=chosen.all)
    with redirect_stdout(sys.stderr if chosen.json else sys.stdout):
        found = {name: part() for name, part in parts.items() if chosen.part in {None, name}}
    if chosen.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
