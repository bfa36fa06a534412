"""Slurm accounting: ``sacct --json``, or ``sacct --parsable2`` with its header.

For the latter ask for ``--format=JobID,Account,User,Submit,Start,Elapsed,Timelimit,State,AllocTRES,ReqTRES``. The
account is the tenant, else the user is. Job steps are skipped. A requeued job counts once: its first submission and
its last run. A job still running counts with the time it has run so far. Times without a zone are read as UTC
(``sacct`` prints local time: a change to summer time shifts the rest of the log by an hour).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from commonwatt.data.log import JobLog, utc
from commonwatt.data.readers._sacct import SacctJob
from commonwatt.data.readers._sacct_json import read_json
from commonwatt.data.readers._sacct_table import read_rows
from commonwatt.data.text import read_text

__all__ = ["read"]


def read(path: Path) -> JobLog:
    """Read either form."""
    text = read_text(path)
    found = read_json(path, text) if text.lstrip().startswith("{") else read_rows(path, text)
    jobs = _last_runs(found)
    submit_s = np.array([job.submit_s for job in jobs])
    start_s = np.array([job.start_s for job in jobs])
    duration_s = np.array([job.elapsed_s for job in jobs])
    gpus = np.array([job.gpus for job in jobs], dtype=np.int64)
    origin_s = float(submit_s.min()) if len(jobs) else 0.0
    return JobLog.of(
        f"Slurm accounting {path.name}",
        job=[job.name for job in jobs],
        tenant=[job.tenant for job in jobs],
        submit_s=submit_s - origin_s,
        duration_s=duration_s,
        gpus=gpus,
        gpu_type=[job.gpu_type for job in jobs],
        time_limit_s=[job.limit_s for job in jobs],
        start_s=start_s - origin_s,
        censored=[job.running for job in jobs],
        origin=utc(origin_s),
        reasons={
            "without a GPU": gpus == 0,
            "never started": np.isnan(start_s),
            "without run time": duration_s == 0,
        },
        dropped={"earlier runs of requeued jobs": len(found) - len(jobs)},
        path=path,
    )


def _last_runs(found: list[SacctJob]) -> list[SacctJob]:
    merged: dict[str, SacctJob] = {}
    for job in sorted(found, key=lambda job: job.submit_s):
        earlier = merged.get(job.name)
        merged[job.name] = job if earlier is None else replace(job, submit_s=earlier.submit_s)
    return list(merged.values())
