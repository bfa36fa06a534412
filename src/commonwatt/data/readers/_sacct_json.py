"""``sacct --json`` of Slurm 21 to 24: the same facts in slowly changing shapes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from commonwatt.data.readers._sacct import SacctJob, gpus_of
from commonwatt.model.errors import InputError

__all__ = ["read_json"]

_YEAR_10000_S = 253402300800.0  # a moment computers can name lies before it


def read_json(path: Path, text: str) -> list[SacctJob]:
    """Read every job of the document."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError("valid JSON", file=f"{path}, line {error.lineno}", value=error.msg) from None
    records = document.get("jobs")
    if not isinstance(records, list):
        raise InputError("a list of jobs, as sacct --json prints", file=path, field="jobs", value=records)
    return [_job(path, i, record) for i, record in enumerate(records)]


def _job(path: Path, index: int, record: dict[str, Any]) -> SacctJob:
    where = f"jobs[{index}]"
    try:
        times, tres = record["time"], record["tres"]
        states = _states(record.get("state"))
        gpus, gpu_type = gpus_of(_resources(tres.get("allocated")))
        if not gpus:
            gpus, gpu_type = gpus_of(_resources(tres.get("requested")))
        submit_s, start_s, elapsed_s = (_number(times.get(k)) for k in ("submission", "start", "elapsed"))
        limit_s = _number(times.get("limit")) * 60  # Slurm counts limits in minutes
        name, tenant = _name(record), _tenant(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        expected = "a job with job_id, time and tres, as sacct --json prints"
        raise InputError(expected, file=path, field=where, value=repr(error)) from None
    if not 0 < submit_s < _YEAR_10000_S:
        raise InputError(
            "seconds since 1970", file=path, field=f"{where}.time.submission", value=times.get("submission")
        )
    for name_, seconds in (("start", start_s), ("elapsed", elapsed_s)):
        if not (math.isnan(seconds) or 0 <= seconds < _YEAR_10000_S):
            expected = "a number of seconds, 0 or more"
            raise InputError(expected, file=path, field=f"{where}.time.{name_}", value=times.get(name_))
    return SacctJob(
        name=name,
        tenant=tenant,
        submit_s=submit_s,
        start_s=start_s if start_s > 0 else math.nan,
        elapsed_s=0.0 if math.isnan(elapsed_s) else elapsed_s,
        limit_s=limit_s if limit_s > 0 else math.nan,
        gpus=gpus,
        gpu_type=gpu_type,
        running="RUNNING" in states or "SUSPENDED" in states,
    )


def _number(value: Any) -> float:  # noqa: ANN401
    """Read a number, or the record newer versions wrap it in; NaN if it is not set."""
    if isinstance(value, dict):
        if value.get("infinite"):
            return math.inf
        value = value.get("number") if value.get("set", True) else None
    return math.nan if value is None else float(value)


def _states(state: Any) -> list[str]:  # noqa: ANN401
    current = state.get("current") if isinstance(state, dict) else state
    return [current] if isinstance(current, str) else list(current or ())


def _resources(entries: list[dict[str, Any]] | None) -> list[tuple[str, int]]:
    gres = (e for e in entries or () if e.get("type") == "gres")
    return [(str(e.get("name")), int(_number(e.get("count")))) for e in gres]


def _name(record: dict[str, Any]) -> str:
    array = record.get("array") or {}
    task = _number(array.get("task_id"))
    if array.get("job_id") and not math.isnan(task):
        return f"{array['job_id']}_{task:.0f}"
    return str(record["job_id"])


def _tenant(record: dict[str, Any]) -> str:
    association = record.get("association") or {}
    return str(record.get("account") or association.get("account") or record.get("user") or "unknown")
