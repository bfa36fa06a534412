"""Job logs as published: Philly, Helios and Alibaba, as their publishers keep them or as tidied tables.

**Philly**: the tidied table of jobs, or ``cluster_job_log`` as published (JSON).

A job's run time is the sum over its attempts and it is placed at its submission, so queueing and gaps between
attempts are left out: this is the load that was requested. The virtual cluster is the tenant. The log has no time
zone; it is read as UTC. It names no GPU type. The tidied table has hardly any job from before 2017-09-24.

**Helios**: ``cluster_log.csv`` of HeliosData, or a table of the same shape.

Columns: job_id, user, gpu_num, submit_time, start_time, duration; ``vc``, where there is one, is the tenant, else the
user is. Times have no zone and are read as UTC. Jobs without a GPU and jobs that never ran are left out. No GPU type
is named.

**Alibaba**: the tidied tables of v2023 and v2025 (DLRM), or ``openb_pod_list_*.csv`` of v2023 as published.

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

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from commonwatt.data.log import EARLY, JobLog, utc
from commonwatt.data.table import MOMENT, TextTable, moment_s, read_table
from commonwatt.data.text import read_text
from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.errors import InputError

__all__ = ["read_alibaba", "read_helios", "read_philly"]

_SOURCE = "Philly job log"
_PHILLY_FROM = "2017-09-24"


def read_philly(path: Path) -> JobLog:
    """Read either form."""
    text = read_text(path)
    return _published(path, text) if text.lstrip().startswith("[") else _tidied(path, text)


def _tidied(path: Path, text: str) -> JobLog:
    table = read_table(path, text=text)
    submit_s = table.moments("submit_time")
    duration_s, gpus = table.seconds("duration_s"), table.counts("num_gpus")
    return JobLog.of(
        _SOURCE,
        job=table.text("job_id"),
        tenant=table.text("virtual_cluster"),
        submit_s=submit_s - submit_s.min(),
        duration_s=duration_s,
        gpus=gpus,
        censored=table.counts("censored") if "censored" in table else None,
        origin=utc(submit_s.min()),
        reasons={"without a GPU": gpus == 0, "without run time": duration_s == 0},
        path=path,
        complete_from_s=moment_s(_PHILLY_FROM) - submit_s.min(),
    )


def _published(path: Path, text: str) -> JobLog:
    try:
        records = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError("valid JSON", file=f"{path}, line {error.lineno}", value=error.msg) from None
    rows = [_row(path, i, record) for i, record in enumerate(records)]
    columns = list(zip(*rows, strict=True)) or [()] * 6
    submit_s, duration_s, gpus = (np.array(c, dtype=float) for c in columns[2:5])
    origin_s = np.nanmin(submit_s) if np.isfinite(submit_s).any() else 0.0
    return JobLog.of(
        _SOURCE,
        job=columns[0],
        tenant=columns[1],
        submit_s=submit_s - origin_s,
        duration_s=duration_s,
        gpus=gpus,
        start_s=np.array(columns[5], dtype=float) - origin_s,
        origin=utc(origin_s),
        reasons={
            "without a submission time": np.isnan(submit_s),
            "without a complete attempt, or still running": np.isnan(duration_s),
            "without a GPU": gpus == 0,
            "without run time": duration_s == 0,
        },
        path=path,
    )


def _row(path: Path, index: int, record: Any) -> tuple[str, str, float, float, int, float]:  # noqa: ANN401
    """Name, tenant, submission, run time (NaN: incomplete), GPUs of the last attempt, first start."""
    try:
        name, tenant, submitted, attempts = (record[k] for k in ("jobid", "vc", "submitted_time", "attempts"))
        times = [(_moment(a.get("start_time")), _moment(a.get("end_time"))) for a in attempts]
        gpus = sum(len(place["gpus"]) for place in attempts[-1]["detail"]) if attempts else 0
        submit_s = _moment(submitted)
    except (KeyError, TypeError, AttributeError) as error:
        expected = "a job with jobid, vc, submitted_time and attempts (start_time, end_time, detail)"
        raise InputError(expected, file=path, field=f"[{index}]", value=repr(error)) from None
    except ValueError as error:
        raise InputError(MOMENT, file=path, field=f"[{index}]", value=error) from None
    ran_s = sum(end - start for start, end in times) if times else math.nan
    if ran_s < 0:
        raise InputError("an end after the start", file=path, field=f"[{index}].attempts", value=f"{ran_s:g} s")
    return str(name), str(tenant), submit_s, ran_s, gpus, times[0][0] if times else math.nan


def _moment(text: str | None) -> float:
    return math.nan if text in (None, "", "None") else moment_s(text)


_HELIOS_COLUMNS = ("job_id", "user", "vc", "gpu_num", "cpu_num", "submit_time", "start_time", "duration")
_NEVER = {"", "None", "nan", "NaT"}


def read_helios(path: Path) -> JobLog:
    """Read the table."""
    table = read_table(path, keep=_HELIOS_COLUMNS)
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


_ALIBABA_FROM_S = 9_964_972.0
_ALIBABA_FILES = {
    "job_id": "name",
    "submit_s": "creation_time",
    "scheduled_s": "scheduled_time",
    "deletion_s": "deletion_time",
}


def read_alibaba(path: Path) -> JobLog:
    """Read either form."""
    table = read_table(path)
    named = {ours: theirs if theirs in table else ours for ours, theirs in _ALIBABA_FILES.items()}
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
        complete_from_s=None if dlrm else _ALIBABA_FROM_S,
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
