"""Processor time of one decision: the randomized greedy with 1,000 candidates, at three sizes, on one core.

Beside it, in the same process: one candidate by a plain Python reference, which must give the same schedule; the ratio
is what the compiled loops buy.
"""

from __future__ import annotations

import argparse
import json
from time import process_time

import numpy as np
from tests.placement.made import crowded_problem
from tests.placement.plain_greedy import plain_greedy

from commonwatt.placement import PlacementProblem, RandomGreedy
from commonwatt.placement._local_search import LocalSearch
from commonwatt.placement._lookahead import Lookahead

SIZES = ((100, 100, 0.030), (100, 1000, 0.5), (1000, 10_000, 10.0))


def best_of(repeats: int, solver: RandomGreedy | LocalSearch | Lookahead, case: PlacementProblem) -> float:
    times = []
    for _ in range(repeats):
        began = process_time()
        solver.solve(case, np.random.default_rng(0))
        times.append(process_time() - began)
    return min(times)


def plain_s(case: PlacementProblem) -> float:
    """One candidate by the plain Python reference; it must be the same schedule as that of the compiled loops."""
    began = process_time()
    schedule = plain_greedy(case)
    spent_s = process_time() - began
    compiled = RandomGreedy(iterations=1).solve(case, np.random.default_rng(0)).best
    assert np.array_equal(schedule.choice, compiled.choice)
    return spent_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for nodes, jobs, wanted_s in SIZES:
        case = crowded_problem(nodes=nodes, jobs=jobs, seed=0)
        RandomGreedy(iterations=2).solve(case, np.random.default_rng(0))
        LocalSearch(start=RandomGreedy(iterations=2), steps=2).solve(case, np.random.default_rng(0))
        Lookahead().solve(case, np.random.default_rng(0))
        repeats = options.repeats if jobs < 5000 else 2
        greedy_s = best_of(repeats, RandomGreedy(iterations=1000), case)
        rows.append(
            {
                "nodes": nodes,
                "jobs": jobs,
                "random_greedy_1000_s": greedy_s,
                "wanted_s": wanted_s,
                "local_search_20000_s": best_of(repeats, LocalSearch(), case),
                "lookahead_s": best_of(repeats, Lookahead(), case),
                "plain_python_over_ours": plain_s(case) * 1000 / greedy_s,
            }
        )
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    print(
        f"{'nodes':>6} {'jobs':>6} {'greedy x1000':>13} {'wanted':>8} "
        f"{'local search':>13} {'lookahead':>10} {'plain Python':>12}"
    )
    for row in rows:
        ratio = f"{row['plain_python_over_ours']:.0f}x"
        print(
            f"{row['nodes']:>6} {row['jobs']:>6} {row['random_greedy_1000_s']:>11.4f} s {row['wanted_s']:>6.2f} s "
            f"{row['local_search_20000_s']:>11.4f} s {row['lookahead_s']:>8.4f} s {ratio:>12}"
        )


if __name__ == "__main__":
    main()
