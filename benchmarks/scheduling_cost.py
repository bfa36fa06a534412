"""What a decision of the timeslicing scheduler costs: pick, account, enqueue.

Run with ``python -m benchmarks.scheduling_cost``.
"""

from __future__ import annotations

import argparse
import random
from time import perf_counter_ns

import numpy as np

from commonwatt.timeslicing.fifo import FifoScheduler
from commonwatt.timeslicing.policies import Etf
from commonwatt.timeslicing.scheduler import FairScheduler, Scheduler
from commonwatt.timeslicing.tasks import Task

STEP_NS = 1_000_000


def costs(scheduler: Scheduler, tenants: int, decisions: int, rng: random.Random, *, idle: float) -> np.ndarray:
    """Nanoseconds of each decision; a part *idle* of the tenants comes and goes with every task, others always wait."""
    members = [scheduler.add(str(i), rng.uniform(0.5, 4), rng.uniform(20, 300)) for i in range(tenants)]
    flighty = set(rng.sample(range(tenants), round(idle * tenants)))
    for member in members:
        for _ in range(1 if member.number in flighty else 2):
            scheduler.submit(Task(member))
    away = [member for member in members if member.number in flighty]
    spent = np.empty(decisions)
    for i in range(decisions + 200):
        began = perf_counter_ns()
        task = scheduler.next()
        scheduler.account(task, STEP_NS, 0.1, ended=True)
        comes = rng.choice(away) if away and task.tenant.number in flighty else task.tenant
        scheduler.submit(Task(comes))
        if i >= 200:
            spent[i - 200] = perf_counter_ns() - began
    return spent


def main() -> None:
    """Print one row for each number of tenants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=20_000)
    decisions = parser.parse_args().decisions
    print("tenants  who comes and goes  median us  p99 us  mean us  / FIFO  of 1 ms steps")
    for tenants in (10, 100, 1000):
        for idle in (0.0, 0.5):
            spent = costs(FairScheduler(Etf(0.7), 10**8), tenants, decisions, random.Random(0), idle=idle)
            plain = costs(FifoScheduler(), tenants, decisions, random.Random(0), idle=idle)
            who = "nobody" if idle == 0 else "half of them"
            print(
                f"{tenants:7d}  {who:18s}  {np.median(spent) / 1e3:9.2f}  {np.quantile(spent, 0.99) / 1e3:6.1f}  "
                f"{spent.mean() / 1e3:7.2f}  {np.median(spent) / np.median(plain):6.2f}  "
                f"{100 * spent.mean() / (STEP_NS + spent.mean()):.2f}%"
            )


if __name__ == "__main__":
    main()
