"""Any table with a submission, a run time and a GPU count for each job.

Columns, under these names or others given to ``read``: ``submit_s`` (seconds, or ISO 8601 moments), ``duration_s``
and ``gpus`` must be there; ``job`` (row number if absent), ``tenant`` ("default"), ``gpu_type`` and ``time_limit_s``
may. Jobs with 0 GPUs or no run time are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from commonwatt.data.log import JobLog, utc
from commonwatt.data.table import Table, read_table
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = ["COLUMNS", "read"]

COLUMNS = ("job", "tenant", "submit_s", "duration_s", "gpus", "gpu_type", "time_limit_s")


def read(path: Path, columns: Mapping[str, str] | None = None) -> JobLog:
    """Read the table; *columns* says what a column is called in the file where that differs."""
    named = dict(columns or {})
    for name in named:
        if name not in COLUMNS:
            raise InputError(f"one of {', '.join(COLUMNS)}", field="columns", value=name)
    called = {name: named.get(name, name) for name in COLUMNS}
    table = read_table(path)
    for name in named.values():
        table.text(name)
    submit_s, origin_s = _submissions(table, called["submit_s"])
    duration_s, gpus = table.seconds(called["duration_s"]), table.counts(called["gpus"])
    count = len(table)
    return JobLog.of(
        f"job log {path.name}",
        job=_or(table, called["job"], [f"row-{i}" for i in range(1, count + 1)]),
        tenant=_or(table, called["tenant"], ["default"] * count),
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        gpu_type=_or(table, called["gpu_type"], [""] * count),
        time_limit_s=_limits(table, called["time_limit_s"]),
        origin=None if origin_s is None else utc(origin_s),
        reasons={"without a GPU": gpus == 0, "without run time": duration_s == 0},
        path=path,
    )


def _or(table: Table, name: str, otherwise: list[str]) -> list[str]:
    if name not in table:
        return otherwise
    return [cell or other for cell, other in zip(table.text(name), otherwise, strict=True)]


def _submissions(table: Table, name: str) -> tuple[Floats, float | None]:
    """Times and, if they were moments, the first of them; the first cell decides which they are."""
    first = table.text(name)[0]
    try:
        float(first)
    except ValueError:
        moments_s = table.moments(name)
        return moments_s - moments_s.min(), float(moments_s.min())
    return table.seconds(name), None


def _limits(table: Table, name: str) -> Floats | None:
    return table.seconds(name, blank=np.nan) if name in table else None
