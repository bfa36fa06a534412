"""What timeslicing decisions cost: slices of Algorithm 1, and a decision of the run-time scheduler.

Slices: beside the literal loop of the paper (unit by unit, plain Python), which must give the same slices.
Decisions (pick, account, enqueue): beside first come, first served in the same process. "Coming and going": half of
the tenants have work only now and then, so that slices are computed anew every few steps.
"""

from __future__ import annotations

import argparse
import json
import random
from time import perf_counter, perf_counter_ns

import numpy as np
from tests.timeslicing.literal import line_1, literal

from commonwatt.timeslicing import Etf, FairScheduler, FifoScheduler, QuantumProblem, Scheduler, Task

STEP_NS = 1_000_000


def slices_time(tenants: int, quantum: int, repeats: int = 20) -> dict[str, float | int | None]:
    """Best time of one division; and of the literal loop, where that ends today."""
    rng = np.random.default_rng(0)
    weights, powers = rng.uniform(0.5, 4, tenants).round(3).tolist(), rng.uniform(20, 300, tenants).round(3).tolist()
    problem = QuantumProblem.make(quantum, weights, powers)
    Etf(0.7).slices(problem)
    spent = []
    for _ in range(repeats):
        began = perf_counter()
        slices = Etf(0.7).slices(problem)
        spent.append(perf_counter() - began)
    loop_s = None
    if quantum * tenants <= 10**8:
        began = perf_counter()
        wanted = literal(quantum, weights, powers, [quantum] * tenants, line_1(quantum, 0.7, weights))
        loop_s = perf_counter() - began
        assert slices.tolist() == wanted
    return {
        "tenants": tenants, "quantum": quantum, "slices_ms": 1e3 * min(spent),
        "literal_over_ours": None if loop_s is None else loop_s / min(spent),
    }  # fmt: skip


def decisions_ns(scheduler: Scheduler, tenants: int, decisions: int, *, flighty: float) -> np.ndarray:
    """Nanoseconds of each decision."""
    rng = random.Random(0)
    members = [scheduler.add(str(i), rng.uniform(0.5, 4), rng.uniform(20, 300)) for i in range(tenants)]
    chosen = set(rng.sample(range(tenants), round(flighty * tenants)))
    for member in members:
        for _ in range(1 if member.number in chosen else 2):
            scheduler.submit(Task(member))
    away = [member for member in members if member.number in chosen]
    spent = np.empty(decisions + 200)
    for i in range(len(spent)):
        began = perf_counter_ns()
        task = scheduler.next()
        assert task is not None
        scheduler.account(task, STEP_NS, 0.1, ended=True)
        spent[i] = perf_counter_ns() - began
        comes = rng.choice(away) if task.tenant.number in chosen else task.tenant
        began = perf_counter_ns()
        scheduler.submit(Task(comes))
        spent[i] += perf_counter_ns() - began
    return spent[200:]


def decision_row(tenants: int, decisions: int, flighty: float) -> dict[str, float | int | bool]:
    """Return one row of the table."""
    spent = decisions_ns(FairScheduler(Etf(0.7), 10**8), tenants, decisions, flighty=flighty)
    plain = decisions_ns(FifoScheduler(), tenants, decisions, flighty=flighty)
    return {
        "tenants": tenants,
        "coming_and_going": flighty > 0,
        "median_us": float(np.median(spent)) / 1e3,
        "p99_us": float(np.quantile(spent, 0.99)) / 1e3,
        "mean_us": float(spent.mean()) / 1e3,
        "median_over_fifo": float(np.median(spent) / np.median(plain)),
        "part_of_1_ms_steps": float(spent.mean() / (STEP_NS + spent.mean())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--decisions", type=int, default=20_000)
    options = parser.parse_args()
    sizes = ((10, 10**4), (100, 10**5), (1000, 10**5), (1000, 10**9), (1000, 10**15))
    slices = [slices_time(*size) for size in sizes]
    rows = [decision_row(n, options.decisions, flighty) for n in (10, 100, 1000) for flighty in (0.0, 0.5)]
    if options.json:
        print(json.dumps({"slices": slices, "decisions": rows}))
        return
    print("tenants           T   slices, ms   literal loop / ours")
    for row in slices:
        ratio = "" if row["literal_over_ours"] is None else f"{row['literal_over_ours']:.0f}"
        print(f"{row['tenants']:7d} {row['quantum']:11.0e} {row['slices_ms']:12.3f} {ratio:>21s}")
    print("\ntenants  coming and going  median, us  p99, us  mean, us  median / FIFO  of 1 ms steps")
    for row in rows:
        print(
            f"{row['tenants']:7d}  {'half of them' if row['coming_and_going'] else 'nobody':16s}  "
            f"{row['median_us']:10.2f}  {row['p99_us']:7.1f}  {row['mean_us']:8.2f}  {row['median_over_fifo']:13.2f}  "
            f"{100 * row['part_of_1_ms_steps']:12.2f}%"
        )


if __name__ == "__main__":
    main()
