"""Gap of randomized greedy and local search to the exact optimum of eq. (1), on problems where it is known."""

from __future__ import annotations

import argparse
import json

import numpy as np
from tests.placement.made import crowded_problem

from commonwatt.placement import Exact, RandomGreedy, objective
from commonwatt.placement._local_search import LocalSearch

SIZES = ((2, 4), (4, 8), (6, 12), (8, 16), (10, 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    rows = []
    for nodes, jobs in SIZES:
        gaps: dict[str, list[float]] = {"random-greedy": [], "local-search": []}
        proven = 0
        for seed in range(options.seeds):
            case = crowded_problem(nodes=nodes, jobs=jobs, seed=seed)
            exact = Exact(time_limit_s=120).solve(case, np.random.default_rng(0))
            if not exact.optimal:
                continue
            proven += 1
            best = objective(case, exact.best).total
            for name, solver in (("random-greedy", RandomGreedy()), ("local-search", LocalSearch())):
                found = solver.solve(case, np.random.default_rng(seed)).best
                gaps[name].append(objective(case, found).total / best - 1)
        rows.append(
            {
                "nodes": nodes,
                "jobs": jobs,
                "problems": proven,
                **{f"{name} mean gap": float(np.mean(g)) for name, g in gaps.items()},
                **{f"{name} largest gap": float(np.max(g)) for name, g in gaps.items()},
                **{f"{name} optimal": int(np.sum(np.array(g) < 1e-6)) for name, g in gaps.items()},
            }
        )
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    for row in rows:
        print(
            f"{row['nodes']:>3} nodes {row['jobs']:>3} jobs, {row['problems']} optima proven: "
            f"randomized greedy mean gap {row['random-greedy mean gap']:.1%}, "
            f"optimal {row['random-greedy optimal']} times; "
            f"local search {row['local-search mean gap']:.2%}, optimal {row['local-search optimal']} times"
        )


if __name__ == "__main__":
    main()
