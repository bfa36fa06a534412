"""How long the store takes, on all three databases: a tick, a page of the queue, a submission.

    python -m benchmarks.store [--jobs 10000] [--changed 1000] [--rounds 5] [--json]

The queue holds --jobs jobs. MariaDB and PostgreSQL run on this machine, started for the run (with the programs that
are installed; left out where there are none) and write to disk at every commit, as in production. Each figure is the
median over the rounds, the databases taking turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.store.servers import MariaDB, PostgreSQL

from commonwatt.model.job_file import JobFile
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import prepare
from commonwatt.store.records import EventRow, JobStatus, SampleRow
from commonwatt.store.tables import jobs as jobs_table

SPENT = {"energy_uj": 10**6, "cost_n": 10**3, "carbon_ug": 10**2, "gpu_us": 10**6}


def fill(store: ApiStore, number: int) -> None:
    """Submit one job, then copy its row."""
    store.add_tenant("ada", 1.0, 0.0)
    first, _ = store.submit(
        "ada", JobFile(name="job", command="python train.py", epochs=90, times_s={"V100": {1: 9e3, 2: 5e3}}), 1.0
    )
    with store.database.transaction() as c:
        row = dict(c.execute(jobs_table.select().where(jobs_table.c.id == first.id)).mappings().one())
        del row["id"]
        c.execute(jobs_table.insert(), [row | {"name": f"job{k}", "submit_s": float(k)} for k in range(number - 1)])


def big_tick(ids: list[int], now_s: float) -> Tick:
    """One in ten starts, the others get another reason and expectation; each has an event and a row of the ledger."""
    tick = Tick(sample=SampleRow(now_s, 1, 2.0, 3, 4, 5, 6, 0.1))
    for k, job in enumerate(ids):
        if k % 10 == 0:
            tick.change(
                job, status=JobStatus.RUNNING, nodes=["n1"], gpu_type="V100", gpus_per_node=2, attempts=1,
                started_s=now_s, began_s=now_s, reason="starts", sentence="it starts now", expected_end_s=now_s + 9.0,
            )  # fmt: skip
            tick.segments[job] = SPENT
        else:
            tick.change(job, reason="waits", sentence=f"it waits for {k} others", expected_start_s=now_s + k)
        tick.ledger["job", job] = SPENT
        tick.events.append(EventRow(0, now_s, "waits", job, (), 0, "waits", "it waits"))
    tick.ledger["meter", 0] = SPENT
    return tick


def measures(
    store: ApiStore, ticks: ControllerStore, ids: list[int], changed: int, rounds: int
) -> dict[str, Callable[[int], object]]:
    """Return what is timed; each is given the number of the round."""
    large = [big_tick(ids[:changed], 100.0 + k) for k in range(rounds)]
    small = [big_tick(ids[:1], 1000.0 + k) for k in range(rounds)]
    return {
        f"a tick with {changed:,} changed jobs": lambda k: ticks.write(large[k]),
        "a tick with 1 changed job": lambda k: ticks.write(small[k]),
        "a page of 100 jobs": lambda _: store.jobs(status=(JobStatus.WAITING,), after=ids[len(ids) // 2], limit=100),
        "counts by status": lambda _: store.counts(),
        "all active jobs": lambda _: ticks.active_jobs(),
        "a submission": lambda k: store.submit("ada", JobFile(name="job", command="true"), 1.0, key=f"k{k}"),
        "a job": lambda k: store.job(ids[k]),
    }


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--changed", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="commonwatt-bench-"))
    servers = [kind(durable=True) for kind in (MariaDB, PostgreSQL) if kind.missing() is None]
    try:
        addresses = {"sqlite": str(folder / "store.db")} | {server.name: server.database() for server in servers}
        rows = measure(addresses, options.jobs, options.changed, options.rounds)
    finally:
        for server in servers:
            server.close()
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps({"jobs": options.jobs, "changed": options.changed, "median_ms": rows}, indent=2))
        return
    print(f"{options.jobs:,} jobs; medians of {options.rounds}, in ms")
    print(f"{'':<32}" + "".join(f"{name:>12}" for name in addresses))
    for what, times in rows.items():
        print(f"{what:<32}" + "".join(f"{times[name]:>12.1f}" for name in addresses))


def measure(addresses: dict[str, str], number: int, changed: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return medians in milliseconds, by what is timed and database."""
    timed: dict[str, dict[str, Callable[[int], object]]] = {}
    for name, where in addresses.items():
        database = Database(address(where, Path.cwd()))
        prepare(database)
        store, ticks = ApiStore(database), ControllerStore(database)
        fill(store, number)
        ids = [job.id for job in ticks.active_jobs()]
        timed[name] = measures(store, ticks, ids, changed, rounds + 1)
    times: dict[str, dict[str, list[float]]] = {}
    for k in range(rounds + 1):
        for name, calls in timed.items():
            for what, call in calls.items():
                begin = time.perf_counter()
                call(k)
                if k:  # the first round is for warming up
                    times.setdefault(what, {}).setdefault(name, []).append(1e3 * (time.perf_counter() - begin))
    return {
        what: {name: statistics.median(values) for name, values in by_name.items()} for what, by_name in times.items()
    }


if __name__ == "__main__":
    main()
