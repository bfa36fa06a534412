"""How long it takes to cut GPUs up by MIG, by their number: ``python -m benchmarks.mig_choice [--seeds N]``.

Random problems: tenants with weights 0.5 to 4, F 0.9 to 0.999 and 5 or 15 GB; on half A100 and half H100, on the first
of which they run at 0.6 of the speed. At most 60 s each; ``<=`` says by how much more welfare than found is possible.
With limits, every fourth tenant uses one instance at a time. Market advantage: what taking turns adds to the Nash
welfare of whole instances.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import MigFile
from commonwatt.partitioning.mig import MigDecision, MigProblem, solve_integer, solve_market

SIZES = [(1, 5), (1, 20), (2, 5), (4, 10), (8, 10), (8, 20)]
LIMIT_S = 60.0


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
) -> str:
    took, gaps = [], []
    for problem in problems:
        began = perf_counter()
        try:
            found = solve(problem, kind, lambda began=began: LIMIT_S - (perf_counter() - began))  # type: ignore[misc]
        except InputError:
            return "-"
        took.append(perf_counter() - began)
        gaps.append(0.0 if found.optimal else found.bound - found.value)
    return f"{median(took):.2f} s" + (f" (<= {max(gaps):.2g})" if max(gaps) else "")


def main() -> None:
    seeds = int(sys.argv[sys.argv.index("--seeds") + 1]) if "--seeds" in sys.argv else 3
    for mixed in (False, True):
        print("half A100, half H100" if mixed else "H100", flush=True)
        print("GPUs x tenants | market | with limits | utilitarian | egalitarian | whole instances | advantage")
        for gpus, tenants in SIZES if not mixed else SIZES[2:]:
            plain = [made(seed, gpus, tenants, mixed=mixed) for seed in range(seeds)]
            tight = [made(seed, gpus, tenants, mixed=mixed, limited=True) for seed in range(seeds)]
            cells = [timed(solve_market, "nash", plain), timed(solve_market, "nash", tight)]
            cells += [timed(solve_market, kind, plain) for kind in ("utilitarian", "egalitarian")]
            cells.append(timed(solve_integer, "nash", plain))
            gain = "-"
            if cells[-1] != "-":
                gains = [np.expm1(solve_market(p).value - solve_integer(p).value) for p in plain]
                gain = f"{min(gains):.1%} to {max(gains):.1%}"
            print(f"{gpus} x {tenants} | " + " | ".join([*cells, gain]), flush=True)


if __name__ == "__main__":
    main()
