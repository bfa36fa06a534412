"""Philly: the tidied table of jobs, or ``cluster_job_log`` as published (JSON).

A job's run time is the sum over its attempts and it is placed at its submission, so queueing and gaps between
attempts are left out: this is the load that was requested. The virtual cluster is the tenant. The log has no time
zone; it is read as UTC. It names no GPU type. The tidied table has hardly any job from before 2017-09-24.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from commonwatt.data.log import JobLog, utc
from commonwatt.data.table import MOMENT, moment_s, read_table
from commonwatt.data.text import read_text
from commonwatt.model.errors import InputError

__all__ = ["read"]

_SOURCE = "Philly job log"
_COMPLETE_FROM = "2017-09-24"


def read(path: Path) -> JobLog:
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
        complete_from_s=moment_s(_COMPLETE_FROM) - submit_s.min(),
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
