"""Helios: ``cluster_log.csv`` of HeliosData, or a table of the same shape.

Columns: job_id, user, gpu_num, submit_time, start_time, duration; ``vc``, where there is one, is the tenant, else the
user is; ``cpu_num`` may be there. Times have no zone and are read as UTC. Jobs without a GPU and jobs that never ran
are left out. No GPU type is named.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from commonwatt.data.log import JobLog, utc
from commonwatt.data.table import MOMENT, moment_s, read_table

__all__ = ["read"]

_COLUMNS = ("job_id", "user", "vc", "gpu_num", "cpu_num", "submit_time", "start_time", "duration")
_NEVER = {"", "None", "nan", "NaT"}


def read(path: Path) -> JobLog:
    """Read the table."""
    table = read_table(path, keep=_COLUMNS)
    submit_s = table.moments("submit_time")
    start_s = table.parse("start_time", _started, MOMENT, blank=np.nan)
    duration_s, gpus = table.seconds("duration", blank=0.0), table.counts("gpu_num")
    origin_s = submit_s.min()
    return JobLog.of(
        "Helios job log",
        job=table.text("job_id"),
        tenant=table.text("vc" if "vc" in table else "user"),
        submit_s=submit_s - origin_s,
        duration_s=duration_s,
        gpus=gpus,
        start_s=start_s - origin_s,
        origin=utc(origin_s),
        reasons={
            "without a GPU": gpus == 0,
            "never started": np.isnan(start_s),
            "without run time": duration_s == 0,
        },
        path=path,
        cpus=table.counts("cpu_num") if "cpu_num" in table else None,
    )


def _started(cell: str) -> float:
    return np.nan if cell in _NEVER else moment_s(cell)
