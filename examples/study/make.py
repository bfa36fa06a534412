"""Write jobs.txt and nodes.txt: a log as `sacct` prints it, and a cluster as `scontrol show node` does.

Both are made up: two weeks of jobs similar to Philly, on 28 GPUs of two types, scheduled by EASY backfill. Run it to
write them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

import commonwatt as cw
from commonwatt.data.generators.week import generate_week
from commonwatt.model.scenario import WeekWorkload

HERE = Path(__file__).parent
ORIGIN = datetime(2026, 9, 7, tzinfo=UTC)  # a Monday
DAYS, JOBS_PER_DAY, SEED = 14.5, 70, 11
NODES = {"v": (4, 4, "V100", "v100"), "a": (3, 4, "A100", "a100")}  # count, GPUs, type, as Slurm spells it
LONGEST_S = 2 * 86400  # the partition's time limit
TEAMS = ("vision", "speech", "language", "robots", "climate")


def jobs() -> Iterator[dict[str, Any]]:
    """Draw what users submit: size, type, limit, and how long it runs."""
    log = generate_week(
        WeekWorkload(source="week", days=DAYS, jobs_per_day=JOBS_PER_DAY, tenants=len(TEAMS)),
        np.random.default_rng(SEED),
    )
    rng = np.random.default_rng(SEED + 1)
    for i in np.flatnonzero(log.gpus <= 8):
        spelt = "a100" if rng.random() < 0.35 else "v100"
        run_s = int(min(max(log.duration_s[i], 60), LONGEST_S))
        asked_h = np.ceil(run_s * rng.uniform(1.1, 4) / 3600)
        yield {
            "job": str(4000 + i), "tenant": TEAMS[int(log.tenant[i].rsplit("-")[-1]) % len(TEAMS)],
            "submit_s": int(log.submit_s[i]), "duration_s": run_s, "gpus": int(log.gpus[i]), "gpu_type": spelt,
            "time_limit_s": int(min(asked_h * 3600, LONGEST_S)),
        }  # fmt: skip


def schedule(rows: list[dict[str, Any]]) -> Iterator[tuple[str, float, float, list[str]]]:
    """Return start, end and nodes of each job under EASY backfill."""
    import polars as pl

    path = HERE / "made.csv"
    pl.DataFrame(rows).write_csv(path)
    try:
        done = cw.simulate(
            {
                "workload": {"source": "csv", "path": str(path), "days": 2 * DAYS},
                "nodes": [
                    {"name": name, "count": count, "gpu_type": kind, "gpus": gpus, "idle_w": 300, "gpu_w": 250}
                    for name, (count, gpus, kind, _) in NODES.items()
                ],
                "unused_nodes": {"state": None},
                "policies": [{"solver": "easy"}],
            },
            jobs=1,
        )
    finally:
        path.unlink()
    (record,) = done.records
    nodes = {job: [] for job in range(len(rows))}
    for job, node in zip(record.segments.job, record.segments.node, strict=True):
        nodes[int(job)].append(record.cluster.names[int(node)])
    for j, name in enumerate(record.jobs.name):
        yield name, record.jobs.began_s[j], record.jobs.ended_s[j], sorted(set(nodes[j]))


def clock(seconds: float) -> str:
    """Return a duration as Slurm writes it."""
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    return f"{f'{days}-' if days else ''}{hours:02}:{rest // 60:02}:{rest % 60:02}"


def moment(seconds: float) -> str:
    """Return a moment as Slurm writes it."""
    return (ORIGIN + timedelta(seconds=round(seconds))).strftime("%Y-%m-%dT%H:%M:%S")


def main() -> None:
    """Write both files."""
    rows = list(jobs())
    first_s = rows[0]["submit_s"]
    placed = {name: rest for name, *rest in schedule(rows)}
    lines = ["JobID|Account|User|Submit|Start|End|Elapsed|Timelimit|State|NodeList|AllocTRES"]
    for row in rows:
        began_s, ended_s, nodes = placed[row["job"]]
        start, end = round(first_s + began_s), round(first_s + ended_s)
        gpus = row["gpus"]
        tres = f"cpu={8 * gpus},node={len(nodes)},gres/gpu={gpus},gres/gpu:{row['gpu_type']}={gpus}"
        who = f"{row['job']}|{row['tenant']}|{row['tenant']}-{int(row['job']) % 4}"
        lines.append(
            f"{who}|{moment(row['submit_s'])}|{moment(start)}|"
            f"{moment(end)}|{clock(end - start)}|{clock(row['time_limit_s'])}|COMPLETED|{','.join(nodes)}|{tres}"
        )
    (HERE / "jobs.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = []
    for name, (count, gpus, _, spelt) in NODES.items():
        found += [
            f"NodeName={name}-{i} Arch=x86_64 CoresPerSocket=32\n   CPUAlloc=0 CPUTot=64 CPULoad=0.10\n"
            f"   Gres=gpu:{spelt}:{gpus}(S:0-1)\n   NodeAddr={name}-{i} NodeHostName={name}-{i} Version=23.11.4\n"
            f"   RealMemory=512000 State=IDLE ThreadsPerCore=1\n   Partitions=batch\n"
            for i in range(1, count + 1)
        ]
    (HERE / "nodes.txt").write_text("\n".join(found), encoding="utf-8")


if __name__ == "__main__":
    main()
