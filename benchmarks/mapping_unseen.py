"""Mapping against its peers: ``python -m benchmarks.mapping_unseen [--json]``.

180 cases: four classes of batches, 15 settings and bandwidths, three batches each. ``--cases unseen`` (the default)
draws them as the reference batches were drawn: 100 layers with replacement from the layers of all five of a class, by
seeds that nothing was tuned on (``--seed``). ``--cases shared`` takes the 180 reference cases with published rows.

- ``auto`` with so many seconds (``--seconds``, 1), and its proven gap.
- The published search: on shared cases its rows where it has any, on unseen ones a replica of it from the notes of the
  reference data (10,500 evaluations): 100 children of the best tenth by weight of fitness, five elites, mutation 0.05,
  crossovers that do half of what they should. ``--check`` compares the replica with the published rows.
- Peers (``--peers``, of the extra ``search`` and of OR-tools, ``pip install ortools``): nevergrad's DE and discrete 1+1
  at 1,000 evaluations and CP-SAT on the assignment of jobs alone, which it can state exactly: where it puts them,
  longest first, as one mapping, with as much of its deterministic time on one thread.

Seconds are of the processor, as other programs may run. Programs with integers get a tenth of the time by the clock,
stretched by how crowded the machine is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from time import perf_counter, process_time
from typing import Any, TextIO

import numpy as np
from numpy.random import Generator

from benchmarks.mapping_cases import BATCHES, PUBLISHED, case, published
from commonwatt.bench.cp_sat import CpSatMapping
from commonwatt.mapping import ALGORITHMS, Mapping, MappingProblem, population_costs
from commonwatt.mapping._auto import Auto
from commonwatt.mapping._integer_bound import sharp_bound
from commonwatt.model.arrays import Floats, Ints

Row = dict[str, Any]
AT = tuple((setting, float(gbs)) for setting, gbs in (
    ("S1", 16), ("S2", 16), ("S3", 1), ("S3", 16), ("S3", 256), ("S4", 1), ("S4", 16), ("S4", 256), ("S5", 1),
    ("S5", 16), ("S5", 256), ("S6", 1), ("S6", 16), ("S6", 256), ("S2", 1),
))  # fmt: skip
SEEDS = 3
EVALUATIONS = 10_500
AGAINST = ("best row", "published", "replica", "de", "one-plus-one", "cp-sat")


def unseen(seed: int) -> Iterator[tuple[str, MappingProblem, list[float]]]:
    """Yield name, problem and no published makespans of 180 cases."""
    for batch in BATCHES:
        for n in range(SEEDS):
            rng = np.random.default_rng([seed, n, BATCHES.index(batch)])
            drawn = rng.integers(500, size=100)
            for setting, gbs in AT:
                pool = [case(batch, i, setting, gbs) for i in range(5)]
                latency = np.vstack([p.latency for p in pool])[drawn]
                bandwidth = np.vstack([p.bandwidth for p in pool])[drawn]
                yield f"{batch} {seed}/{n} {setting} {gbs:g}", MappingProblem(latency, bandwidth, gbs), []


def shared() -> Iterator[tuple[str, MappingProblem, list[float]]]:
    """Yield name, problem and the published makespans of all reference cases that have some."""
    for (batch, number, setting, gbs), rows in published().items():
        best = [min(found) for found in rows.values()]
        yield f"{batch} {number} {setting} {gbs:g}", case(batch, number, setting, gbs), best


def replica(problem: MappingProblem, rng: Generator, evaluations: int = EVALUATIONS) -> float:
    """Makespan the published search would find; operators as the notes of the reference data describe its code."""
    size, elites, jobs, places = 100, 5, len(problem), problem.accelerators
    accelerator, priority = rng.integers(places, size=(size, jobs)), rng.random((size, jobs))
    costs = population_costs(problem, Mapping(accelerator, priority))
    best = np.inf
    for _ in range(evaluations // (size + elites)):
        order = np.argsort(costs, kind="stable")
        accelerator, priority, costs = accelerator[order], priority[order], costs[order]
        parents = size // 10
        weight = 1.0 / costs[:parents]
        pairs = rng.choice(parents, size=(size // 2, 2), p=weight / weight.sum())
        one, two = _children(accelerator[pairs], priority[pairs], rng, places)
        accelerator = np.vstack([accelerator[:elites], one])
        priority = np.vstack([priority[:elites], two])
        costs = population_costs(problem, Mapping(accelerator, priority))
        best = min(best, float(costs.min()))
    return best


def _children(where: Ints, when: Floats, rng: Generator, places: int) -> tuple[Ints, Floats]:
    """Two children of each pair ([N, 2, J]): the second of crossover-gen is a copy, those of crossover-rg are equal."""
    where, when = where.copy(), when.copy()
    count, _, jobs = where.shape
    for n in range(count):
        if rng.random() < 0.9:
            genome, pivot = (where, when)[int(rng.random() < 0.5)], int(rng.integers(jobs))
            genome[n, 0, pivot:] = genome[n, 1, pivot:]
        if rng.random() < 0.1:
            pivot = int(rng.integers(jobs))
            for genome in (where, when):
                genome[n, 0, pivot:] = genome[n, 1, pivot:]
                genome[n, 1, :pivot] = genome[n, 0, :pivot]
        if rng.random() < 0.1:
            a = int(rng.integers(places))
            taken = where[n, 1] == a
            where[n, 0, taken], when[n, 0, taken] = a, when[n, 1, taken]
    where, when = where.reshape(-1, jobs), when.reshape(-1, jobs)
    drawn = rng.random(where.shape) < 0.05
    where = np.where(drawn, rng.integers(places, size=where.shape), where)
    return where, np.where(rng.random(when.shape) < 0.05, rng.random(when.shape), when)


def crowding() -> float:
    """Seconds of the clock in a second of the processor, now: HiGHS limits its time by the clock."""
    began_s, began = perf_counter(), process_time()
    while process_time() - began < 0.02:
        pass
    return max(1.0, (perf_counter() - began_s) / (process_time() - began))


def auto(problem: MappingProblem, seconds: float, seed: int = 0) -> tuple[float, float, bool, float]:
    """Makespan, bound, whether it is proven optimal, and the seconds of the processor it took."""
    slice_s = 0.1 * seconds * crowding()
    began = process_time()
    solver = Auto(10**9, slice_s=slice_s, used=lambda: (process_time() - began) / seconds)
    found = solver.solve(problem, np.random.default_rng(seed), lambda: process_time() - began < seconds)
    took = process_time() - began
    return found.cost, found.bound or sharp_bound(problem, found.cost), bool(found.optimal), took


def peers(problem: MappingProblem, seconds: float) -> Iterator[tuple[str, float]]:
    """Yield what other optimisers find, those that are installed."""
    for name in ("de", "one-plus-one"):
        try:
            yield name, ALGORITHMS[name](1000).solve(problem, np.random.default_rng(0)).cost
        except ImportError:
            return
    try:
        yield "cp-sat", CpSatMapping(limit=seconds).solve(problem, np.random.default_rng(0)).cost
    except ImportError:
        return


def check() -> dict[str, float]:
    """Return the replica over the published search where that was run, three seeds each."""
    ratios = []
    for batch in BATCHES:
        for setting, gbs in PUBLISHED:
            theirs = float(np.mean(published()[batch, 0, setting, float(gbs)]["MAGMA-GA"]))
            problem = case(batch, 0, setting, float(gbs))
            ours = float(np.mean([replica(problem, np.random.default_rng(seed)) for seed in range(3)]))
            ratios.append(ours / theirs)
    return {"cases": len(ratios), "mean": mean(ratios), "least": min(ratios), "most": max(ratios)}


def mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.log(ratios).mean()))


def summary(rows: list[Row]) -> Iterator[Row]:
    """Yield totals over all cases, then by bandwidth."""
    for gbs in (None, *sorted({row["gbs"] for row in rows})):
        some = [row for row in rows if gbs in (None, row["gbs"])]
        gaps = [row["makespan"] / row["bound"] - 1.0 for row in some]
        total: Row = {
            "gbs": gbs, "cases": len(some), "mean_gap": float(np.mean(gaps)), "worst_gap": max(gaps),
            "optimal": sum(row["optimal"] for row in some), "took_s": float(np.mean([row["took_s"] for row in some])),
        }  # fmt: skip
        for name in AGAINST:
            ratios = [row["makespan"] / row[name] for row in some if row.get(name)]
            total[f"over {name}"] = (
                {"mean": mean(ratios), "worst": max(ratios), "cases": len(ratios)} if ratios else None
            )
        yield total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", choices=("unseen", "shared"), default="unseen")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=7, help="of the unseen batches")
    parser.add_argument("--every", type=int, default=1, help="only each n-th case")
    parser.add_argument("--peers", action="store_true", help="also run nevergrad and CP-SAT")
    parser.add_argument("--replica", action="store_true", help="also run the replica of the published search")
    parser.add_argument("--check", action="store_true", help="only compare the replica with the published rows")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    out = sys.stderr if options.json else sys.stdout
    found: Row = {"check": check()} if options.check else measured(options, out)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for row in found.get("totals", [found]):
        print(shown(row))


def measured(options: argparse.Namespace, out: TextIO) -> Row:
    """Return all rows, shown on *out* as they come, and their totals."""
    auto(case("mix", 0, "S5", 1.0), 1.0)  # compiles
    rows: list[Row] = []
    cases = shared() if options.cases == "shared" else unseen(options.seed)
    for n, (name, problem, theirs) in enumerate(cases):
        if n % options.every:
            continue
        cost, bound, optimal, took = auto(problem, options.seconds)
        row: Row = {"case": name, "gbs": problem.system_bandwidth, "makespan": cost, "bound": bound,
                    "optimal": optimal, "took_s": took, "best row": min(theirs, default=None)}  # fmt: skip
        if options.cases == "shared":
            batch, number, setting, gbs = name.split()
            searched = published()[batch, int(number), setting, float(gbs)].get("MAGMA-GA")
            row["published"] = float(np.mean(searched)) if searched else None
        if options.replica:
            row["replica"] = replica(problem, np.random.default_rng(0))
        if options.peers:
            row |= dict(peers(problem, options.seconds))
        rows.append(row)
        print(shown({key: value for key, value in row.items() if value is not None}), file=out, flush=True)
    return {"totals": list(summary(rows)), "rows": rows}


def shown(row: Row) -> str:
    """Return a line of the values of *row*."""
    return "  ".join(
        f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
    )


if __name__ == "__main__":
    main()
