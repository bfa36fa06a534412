"""Alibaba: the tidied tables of v2023 and v2025 (DLRM), or ``openb_pod_list_*.csv`` of v2023 as published.

A job with a fraction of a GPU counts as one whole GPU, unless the workload says `fractions: share`. Pods without a GPU
and pods that were never scheduled are left out. A pod without an end was running when the log was taken; the last
moment in the file stands for its end. The trace names no users: the class of service (LS, BE, ...) is the
tenant. Times are seconds from an unknown origin.
Pods that ended before 9,964,972 s are missing at the publisher's, so a period should begin there or later. GPU types
are not read: only variants of the list have them, added to a third of the pods afterwards.

The instances of v2025 have an application, which is the tenant. One without a submission was running when the trace
begins, at 0 s: it counts from there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from commonwatt.data.log import EARLY, JobLog
from commonwatt.data.table import TextTable, read_table
from commonwatt.model.arrays import Bools, Floats

__all__ = ["read"]

_COMPLETE_FROM_S = 9_964_972.0
_PUBLISHED = {
    "job_id": "name",
    "submit_s": "creation_time",
    "scheduled_s": "scheduled_time",
    "deletion_s": "deletion_time",
}


def read(path: Path) -> JobLog:
    """Read either form."""
    table = read_table(path)
    named = {ours: theirs if theirs in table else ours for ours, theirs in _PUBLISHED.items()}
    submit_s = table.seconds(named["submit_s"], blank=np.nan)
    start_s = table.seconds(named["scheduled_s"], blank=np.nan)
    dlrm = "app_name" in table
    early = np.isnan(submit_s) & dlrm
    if not dlrm and np.isnan(submit_s).any():
        raise table.error(int(np.isnan(submit_s).argmax()), named["submit_s"], "a number of seconds, 0 or more")
    submit_s, start_s = np.where(early, 0.0, submit_s), np.where(early, 0.0, start_s)
    end_s, censored = _ends(table, named["deletion_s"], submit_s, start_s)
    gpus = table.counts("num_gpu")
    return JobLog.of(
        "Alibaba v2025 instances of DLRM" if dlrm else "Alibaba v2023 sample of pods",
        job=table.text(named["job_id"]),
        tenant=table.text("app_name" if dlrm else "qos"),
        submit_s=submit_s,
        duration_s=end_s - start_s,
        gpus=gpus,
        start_s=start_s,
        censored=censored,
        reasons={
            "without a GPU": gpus == 0,
            "never scheduled": np.isnan(start_s),
            "without run time": ~(end_s > start_s),
        },
        path=path,
        complete_from_s=None if dlrm else _COMPLETE_FROM_S,
        treated={EARLY: early},
        gpu_milli=table.counts("gpu_milli", blank=1000) if "gpu_milli" in table else None,
    )


def _ends(table: TextTable, column: str, submit_s: Floats, start_s: Floats) -> tuple[Floats, Bools]:
    end_s = table.seconds(column, blank=np.nan)
    censored = np.isnan(end_s)
    if "censored" in table:
        censored |= table.counts("censored") > 0
    last_s = np.nanmax(np.concatenate((end_s, start_s, submit_s)))
    return np.where(np.isnan(end_s), last_s, end_s), censored
