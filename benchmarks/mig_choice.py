"""How long it takes to cut GPUs up by MIG, by their number: ``python -m benchmarks.mig_choice [--seeds N] [--json]``.

Random problems: tenants with weights 0.5 to 4, F 0.9 to 0.999 and 5 or 15 GB; on half A100 and half H100, on the first
of which they run at 0.6 of the speed. At most 60 s each; ``<=`` says by how much more welfare than found is possible.
With limits, every fourth tenant uses one instance at a time. Market advantage: what taking turns adds to the Nash
welfare of whole instances.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import MigFile
from commonwatt.partitioning.mig import MigDecision, MigProblem, solve_integer, solve_market

SIZES = [(1, 5), (1, 20), (2, 5), (4, 10), (8, 10), (8, 20), (200, 100)]
LIMIT_S = 60.0
COLUMNS = ("market", "with limits", "utilitarian", "egalitarian", "whole instances")
Found = dict[str, float | None] | None  # seconds, and by how much more welfare there may be at most


def made(seed: int, gpus: int, tenants: int, *, mixed: bool, limited: bool = False) -> MigProblem:
    rng = np.random.default_rng([seed, gpus, tenants])
    people = [
        {
            "name": f"t{i}", "weight": float(rng.uniform(0.5, 4)), "memory_gb": float(rng.choice([5, 15])),
            "parallel_fraction": float(rng.uniform(0.9, 0.999)), "gpu_speed": {"A100-80GB": 0.6} if mixed else {},
            "max_instances": 1 if limited and i % 4 == 0 else None,
        }
        for i in range(tenants)
    ]  # fmt: skip
    kinds = ["A100-80GB" if mixed and g < gpus // 2 else "H100-80GB" for g in range(gpus)]
    return MigProblem.of(
        MigFile.model_validate({"gpus": [{"name": f"g{g}", "type": k} for g, k in enumerate(kinds)], "tenants": people})
    )


def timed(
    solve: Callable[[MigProblem, str, Callable[[], float]], MigDecision], kind: str, problems: list[MigProblem]
) -> tuple[Found, list[MigDecision]]:
    took, gaps, decisions = [], [], []
    for problem in problems:
        began = perf_counter()
        try:
            found = solve(problem, kind, lambda began=began: LIMIT_S - (perf_counter() - began))  # type: ignore[misc]
        except InputError:
            return None, []
        took.append(perf_counter() - began)
        gaps.append(0.0 if found.optimal else found.bound - found.value)
        decisions.append(found)
    return {"s": median(took), "more": max(gaps) or None}, decisions


def cell(found: Found) -> str:
    if found is None:
        return "-"
    return f"{found['s']:.2f} s" + (f" (<= {found['more']:.2g})" if found["more"] else "")


def row(gpus: int, tenants: int, seeds: int, *, mixed: bool) -> dict[str, Any]:
    plain = [made(seed, gpus, tenants, mixed=mixed) for seed in range(seeds)]
    tight = [made(seed, gpus, tenants, mixed=mixed, limited=True) for seed in range(seeds)]
    found: dict[str, Any] = {"gpus": gpus, "tenants": tenants, "mixed": mixed}
    found["market"], shares = timed(solve_market, "nash", plain)
    found["with limits"], _ = timed(solve_market, "nash", tight)
    for kind in ("utilitarian", "egalitarian"):
        found[kind], _ = timed(solve_market, kind, plain)
    found["whole instances"], whole = timed(solve_integer, "nash", plain)
    gains = [float(np.expm1(a.value - b.value)) for a, b in zip(shares, whole, strict=False)]
    return found | {"least_advantage": min(gains, default=None), "most_advantage": max(gains, default=None)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    row(1, 2, 1, mixed=False)  # compiles, which no time below includes
    print("GPUs x tenants | " + " | ".join(COLUMNS) + " | advantage", file=sys.stderr if options.json else sys.stdout)
    for mixed in (False, True):
        for gpus, tenants in SIZES if not mixed else SIZES[2:]:
            rows.append(row(gpus, tenants, options.seeds, mixed=mixed))
            least, most = rows[-1]["least_advantage"], rows[-1]["most_advantage"]
            gain = "-" if least is None else f"{least:.1%} to {most:.1%}"
            print(
                f"{gpus} x {tenants}{', half A100' if mixed else ''} | "
                + " | ".join([*(cell(rows[-1][name]) for name in COLUMNS), gain]),
                file=sys.stderr if options.json else sys.stdout,
                flush=True,
            )
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
