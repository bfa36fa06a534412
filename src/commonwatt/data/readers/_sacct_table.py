"""``sacct --parsable2``: a header and rows separated by bars."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from commonwatt.data.readers._sacct import SacctJob, gpus_of
from commonwatt.data.table import MOMENT, Table, moment_s, read_table
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = ["duration_s", "read_rows"]

_ASK = "sacct --parsable2 --format=JobID,Account,User,Submit,Start,Elapsed,Timelimit,State,AllocTRES,ReqTRES"
_UNKNOWN = {"", "Unknown", "None", "N/A"}
_DURATION = "a time such as 1-02:03:04 or 02:03:04"
_Read = Callable[[str], float]
_CLOCK = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?")


def read_rows(path: Path, text: str) -> list[SacctJob]:
    """Read every job, leaving out its steps."""
    table = read_table(path, text=text)
    elapsed_s = _one_of(table, {"ElapsedRaw": (1.0, _plain), "Elapsed": (1.0, duration_s)})
    limit_s = _one_of(table, {"TimelimitRaw": (60.0, _limit), "Timelimit": (1.0, _limit)}, np.nan)
    submit_s = table.parse("Submit", moment_s, MOMENT)
    start_s = table.parse("Start", _started, MOMENT)
    ids, states = table.text("JobID"), table.text("State")
    resources = [table.text(name) for name in ("AllocTRES", "ReqTRES") if name in table]
    if not resources:
        raise InputError(f"this column or ReqTRES ({_ASK})", file=path, field="AllocTRES")
    jobs = []
    for row, name in enumerate(ids):
        if "." in name:
            continue
        gpus, gpu_type = _gpus(table, row, [column[row] for column in resources])
        jobs.append(
            SacctJob(
                name=name,
                tenant=_tenant(table, row),
                submit_s=submit_s[row],
                start_s=start_s[row],
                elapsed_s=elapsed_s[row],
                limit_s=limit_s[row],
                gpus=gpus,
                gpu_type=gpu_type,
                running=states[row].startswith(("RUNNING", "SUSPENDED")),
            )
        )
    return jobs


def duration_s(text: str) -> float:
    """Read Slurm's ``[[days-]hours:]minutes:seconds``; raises ``ValueError``."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(_DURATION)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds


def _limit(text: str) -> float:
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    if text in _UNKNOWN or text == "Partition_Limit":
        return math.nan
    return _plain(text) if text.isdecimal() else duration_s(text)


def _plain(text: str) -> float:
    if not text.isdecimal():
        raise ValueError
    return float(text)


def _started(text: str) -> float:
    return math.nan if text in _UNKNOWN else moment_s(text)


def _one_of(table: Table, columns: Mapping[str, tuple[float, _Read]], blank: float | None = None) -> Floats:
    for name, (unit_s, read) in columns.items():
        if name in table:
            return table.parse(name, read, _DURATION, blank) * unit_s
    if blank is not None:
        return np.full(len(table), blank)
    raise InputError(f"this column ({_ASK})", file=table.path, field=list(columns)[-1])


def _gpus(table: Table, row: int, cells: list[str]) -> tuple[int, str]:
    """Allocated GPUs, or requested ones where none were allocated."""
    for cell in cells:
        entries = (part.partition("=") for part in cell.split(",") if part)
        try:
            gpus, gpu_type = gpus_of((name, int(count)) for name, _, count in entries if "gpu" in name)
        except ValueError:
            raise InputError(
                "resources such as cpu=8,gres/gpu=4", file=f"{table.path}, line {table.lines[row]}",
                field="AllocTRES", value=cell,
            ) from None  # fmt: skip
        if gpus:
            return gpus, gpu_type
    return 0, ""


def _tenant(table: Table, row: int) -> str:
    for name in ("Account", "User"):
        if name in table and table.text(name)[row]:
            return table.text(name)[row]
    return "unknown"
