"""Mapping: how fast, and how near the optimum: ``python -m benchmarks.mapping [--plot gaps.png] [--json]``.

Speed: G# (operators, evaluation and selection) on batches drawn by ``commonwatt map batch --class mix``, costed by the
published model, on S5, on four S6 (64 sub-accelerators), and with 10,000 jobs; beside it, in the same run, Algorithm 1
as a plain Python loop. Compiling is done before. All times are of the processor, as other programs may run.

Cases, where the reference data is at hand (``COMMONWATT_DATA``): all 20 the published search was run on (batch,
setting, bandwidth; instance 0). ``auto`` with one second and G# with 10,500 evaluations, over the mean of the published
search and over the best row of any method, and the gap of ``auto`` to our lower bound, which ``--plot`` draws
(``benchmarks/mapping_search.py`` goes deeper into these).

Warm: a second decision while a schedule runs, ``cw.map_layers(after=, budget=500, bound="quick")`` half way, with
everything it does; beside it, in the same run, how much shorter 10,000 evaluations make it.

Unseen: the same two, longest-first earliest-finish and the gap, on batches of the networks' layers that nothing was
tuned on, under both cost models.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from tests.mapping import literal

import commonwatt as cw
from benchmarks.mapping_cases import BATCHES, PUBLISHED, case, published
from commonwatt.data.layer_batches import BatchClass, sample_batch
from commonwatt.mapping import ALGORITHMS, GSharp, MappingProblem, lower_bound, timeline
from commonwatt.mapping.costs import MODELS, PLATFORMS, ModelName, job_table
from commonwatt.model.map_file import MapFile, MapTable

Row = dict[str, Any]

EVALUATIONS, SEEDS, SECONDS, WARM = 10_500, 5, 1.0, 500
SIZES = ((100, "S5", 1, 10_000), (1_000, "S6", 4, 10_000), (10_000, "S5", 1, 1_000))
CLASSES: tuple[BatchClass, ...] = ("vision", "lang", "recom", "mix", "random")
UNSEEN = (("S2", 16.0), ("S4", 256.0), ("S5", 1.0))


def drawn(batch_class: BatchClass, jobs: int, setting: str, times: int, gbs: float, model: ModelName) -> MappingProblem:
    """Return a batch of seed 1000 on some copies of a platform, whose buffers hold any layer."""
    layers = sample_batch(batch_class, jobs, 1000)
    arrays = [replace(array, sg_bytes=None, sl_bytes=None) for array in PLATFORMS[setting]] * times
    table = job_table(layers, arrays, MODELS[model])
    return MappingProblem(np.ascontiguousarray(table.latency), np.ascontiguousarray(table.bandwidth), gbs)


def timed(work: Callable[[], object]) -> float:
    """Seconds of processor time *work* takes."""
    began = process_time()
    work()
    return process_time() - began


def for_a_second(problem: MappingProblem, seed: int) -> float:
    """Makespan ``auto`` finds in a second of processor time."""
    began = process_time()
    found = ALGORITHMS["auto"](10**9).solve(
        problem, np.random.default_rng(seed), lambda: process_time() - began < SECONDS
    )
    return found.cost


def speed() -> Iterator[Row]:
    """Yield one row for each size."""
    for jobs, setting, times, evaluations in SIZES:
        problem = drawn("mix", jobs, setting, times, 16.0, "maestro")
        GSharp(200).solve(problem, np.random.default_rng(0))
        search_s = timed(lambda: GSharp(evaluations).solve(problem, np.random.default_rng(1)))  # noqa: B023
        mapping = GSharp(200).solve(problem, np.random.default_rng(2)).best
        loops = 3 if jobs > 100 else 30
        plain_s = timed(lambda: [literal.makespan(problem, mapping) for _ in range(loops)]) / loops  # noqa: B023
        assert np.isclose(literal.makespan(problem, mapping), timeline(problem, mapping).makespan, rtol=1e-9)
        bound_s = timed(lambda: lower_bound(problem))  # noqa: B023
        yield {
            "jobs": jobs, "sub-accelerators": problem.accelerators, "evaluations": evaluations, "search_s": search_s,
            "plain_loop_s_each": plain_s, "times_faster": plain_s * evaluations / search_s, "bound_s": bound_s,
        }  # fmt: skip


def cases(seeds: int) -> Iterator[Row]:
    """Yield one row for each case of the published search."""
    for batch in BATCHES:
        for setting, gbs in PUBLISHED:
            problem, rows = case(batch, 0, setting, gbs), published()[batch, 0, setting, gbs]
            bound, theirs = lower_bound(problem), float(np.mean(rows["MAGMA-GA"]))
            best = min(min(found) for found in rows.values())
            ours = float(np.mean([
                GSharp(EVALUATIONS).solve(problem, np.random.default_rng(seed)).cost for seed in range(seeds)
            ]))  # fmt: skip
            auto = for_a_second(problem, 0)
            yield {
                "batch": batch, "setting": setting, "gbs": gbs, "gsharp_over_published": ours / theirs,
                "auto_over_published": auto / theirs, "auto_over_best_row": auto / best, "gap": auto / bound - 1.0,
            }  # fmt: skip


def warm() -> Iterator[Row]:
    """Yield one row for each class and platform: the second batch is another one of 60 layers."""
    for batch_class, (setting, gbs) in itertools.product(("vision", "lang", "mix"), UNSEEN):
        first, second = (file_of(batch_class, setting, gbs, seed) for seed in (1000, 1001))
        runs = cw.map_layers(first, budget=10_000)
        beside: dict[str, Any] = {"after": runs.schedule(), "at_cycles": runs.makespan_cycles / 2}
        made = cw.map_layers(second, budget=WARM, bound="quick", **beside)
        times_s = [
            timed(lambda k=k: cw.map_layers(second, budget=WARM, bound="quick", seed=k, **beside))  # noqa: B023
            for k in range(20)
        ]
        longer = cw.map_layers(second, budget=10_000, bound="quick", **beside)
        yield {
            "class": batch_class, "setting": setting, "gbs": gbs, "jobs": len(made.jobs),
            "median_ms": 1e3 * float(np.median(times_s)), "worst_ms": 1e3 * max(times_s),
            "over_10000_evaluations": made.makespan_cycles / longer.makespan_cycles,
        }  # fmt: skip


def file_of(batch_class: BatchClass, setting: str, gbs: float, seed: int) -> MapFile:
    """Return a batch of 60 layers as a file."""
    table = job_table(sample_batch(batch_class, 60, seed), PLATFORMS[setting], MODELS["roofline"])
    rows = MapTable(latency_cycles=table.latency.tolist(), bandwidth_gbs=table.bandwidth.tolist())
    return MapFile(system_bandwidth_gbs=gbs, table=rows)


def unseen() -> Iterator[Row]:
    """Yield one row for each class, platform and cost model."""
    models: tuple[ModelName, ...] = ("maestro", "roofline")
    for model in models:
        for batch_class in CLASSES:
            for setting, gbs in UNSEEN:
                problem = drawn(batch_class, 100, setting, 1, gbs, model)
                bound, auto = lower_bound(problem), for_a_second(problem, 0)
                gsharp = GSharp(EVALUATIONS).solve(problem, np.random.default_rng(0)).cost
                rule = ALGORITHMS["heft"](1).solve(problem, np.random.default_rng(0)).cost
                yield {
                    "cost_model": model, "class": batch_class, "setting": setting, "gbs": gbs,
                    "auto_over_rule": auto / rule, "auto_over_gsharp": auto / gsharp, "gap": auto / bound - 1.0,
                }  # fmt: skip


def geometric(rows: list[Row], name: str) -> float:
    """Geometric mean of a ratio; of a gap, of 1 plus it, less 1."""
    add = 1.0 if name == "gap" else 0.0
    return float(np.exp(np.mean([np.log(add + row[name]) for row in rows]))) - add


def shown(rows: Iterator[Row]) -> list[Row]:
    """Print rows as they come, under a header."""
    found: list[Row] = []
    for row in rows:
        if not found:
            print("  ".join(f"{name:>{max(10, len(name))}}" for name in row))
        cells = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values())
        print("  ".join(f"{cell:>{max(10, len(name))}}" for name, cell in zip(row, cells, strict=True)), flush=True)
        found.append(row)
    return found


def totals(rows: list[Row], names: tuple[str, ...]) -> None:
    """Print geometric means over all cases and by bandwidth."""
    for gbs in (None, *sorted({row["gbs"] for row in rows})):
        some = [row for row in rows if gbs in (None, row["gbs"])]
        means = ", ".join(
            f"{name} {geometric(some, name):.4f} (worst {max(row[name] for row in some):.4f})" for name in names
        )
        print(f"{'all' if gbs is None else f'{gbs:g} GB/s'}, {len(some)} cases: {means}")


def draw(rows: list[Row], path: Path) -> None:
    """Draw the gap of each case, bandwidth by bandwidth."""
    from commonwatt.report.pictures import saved

    with saved(path, (9.0, 4.2)) as figure:
        axes = figure.subplots()
        ordered = sorted(rows, key=lambda row: (row["gbs"], row["setting"]))
        names = [f"{row['batch']}\n{row['setting']}\n{row['gbs']:g}" for row in ordered]
        axes.bar(range(len(ordered)), [100 * row["gap"] for row in ordered], color="#4477aa")
        axes.set_xticks(range(len(ordered)), names, fontsize=7)
        axes.set_ylabel("gap to the lower bound, %")
        axes.set_title("auto, one second: at most so far above the optimum (batch, setting, GB/s)", loc="left")
        axes.grid(axis="y", alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the gaps of the cases")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of G#")
    parser.add_argument("--only", choices=("speed", "cases", "unseen", "warm"), action="append")
    options = parser.parse_args()
    only, found = options.only or ["speed", "cases", "unseen", "warm"], {}
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        for_a_second(drawn("mix", 100, "S2", 1, 16.0, "maestro"), 0)  # compiles
        if "speed" in only:
            found["speed"] = shown(speed())
        if "cases" in only:
            found["cases"] = shown(cases(options.seeds))
            totals(found["cases"], ("gsharp_over_published", "auto_over_published", "auto_over_best_row", "gap"))
            if options.plot is not None:
                draw(found["cases"], options.plot)
        if "unseen" in only:
            found["unseen"] = shown(unseen())
            totals(found["unseen"], ("auto_over_rule", "auto_over_gsharp", "gap"))
        if "warm" in only:
            found["warm"] = shown(warm())
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
