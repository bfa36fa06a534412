"""The Standard Workload Format: 18 numbers a line, comments after ``;``.

Processors are read as GPUs: the format knows nothing else. A job has the processors it was allocated, or those it
asked for where the log does not say. Lines that are parts of a job that was checkpointed (status 2 to 4) are left
out, as are jobs that never ran. Users are tenants. A job waits for the end of its preceding job, if that is on an
earlier line and its number occurs once; the think time is in its submission.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np

from commonwatt.data.log import AFTER_UNKNOWN, JobLog, utc
from commonwatt.data.table import MOST_GPUS
from commonwatt.data.text import read_text
from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.dependencies import Dependency
from commonwatt.model.errors import InputError

__all__ = ["read"]

_FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time", "used memory",
    "requested processors", "requested time", "requested memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding job", "think time",
)  # fmt: skip
_AT = {name: i for i, name in enumerate(_FIELDS)}
_UNIX_START = re.compile(r"^;\s*UnixStartTime:\s*(\d+)", re.MULTILINE)


def read(path: Path) -> JobLog:
    """Read the log; its origin is the header's ``UnixStartTime``, if there is one."""
    text = read_text(path)
    values = _numbers(path, text)
    submit_s, wait_s, run_s = (values[:, _AT[name]] for name in ("submit time", "wait time", "run time"))
    asked_s = values[:, _AT["requested time"]]
    allocated = values[:, _AT["allocated processors"]]
    gpus = np.where(allocated > 0, allocated, values[:, _AT["requested processors"]])
    started = _UNIX_START.search(text)
    after, unknown = _after(values)
    return JobLog.of(
        f"SWF log {path.name} (processors read as GPUs)",
        job=[f"{number:.0f}" for number in values[:, 0]],
        tenant=[f"user-{user:.0f}" if user >= 0 else "unknown" for user in values[:, _AT["user"]]],
        submit_s=submit_s,
        duration_s=run_s,
        gpus=gpus,
        time_limit_s=np.where(asked_s > 0, asked_s, np.nan),
        start_s=np.where(wait_s >= 0, submit_s + wait_s, np.nan),
        origin=utc(float(started[1])) if started else None,
        reasons={
            "parts of a checkpointed job": np.isin(values[:, _AT["status"]], (2, 3, 4)),
            "without a processor": gpus <= 0,
            "without run time": run_s <= 0,
        },
        path=path,
        after=after,
        treated={AFTER_UNKNOWN: unknown},
    )


def _after(values: Floats) -> tuple[list[dict[str, Dependency]] | None, Bools]:
    """Return the preceding job of each job, and which ones name none that counts; ``None``: no job has one."""
    numbers, preceding = values[:, _AT["job number"]].tolist(), values[:, _AT["preceding job"]].tolist()
    times, seen = Counter(numbers), set()
    after: list[dict[str, Dependency]] = []
    unknown = np.zeros(len(values), dtype=bool)
    for row, (number, other) in enumerate(zip(numbers, preceding, strict=True)):
        counts = other in seen and times[other] == 1
        unknown[row] = other >= 0 and not counts
        after.append({f"{other:.0f}": "afterany"} if counts else {})
        seen.add(number)
    return (after if any(after) else None), unknown


def _numbers(path: Path, text: str) -> Floats:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.split(";", 1)[0].split()
        if content:
            rows.append(_line(f"{path}, line {number}", content))
    if not rows:
        raise InputError("at least one job", file=path, value="none")
    return np.array(rows)


def _line(where: str, cells: list[str]) -> list[float]:
    if len(cells) < len(_FIELDS):
        raise InputError(f"{len(_FIELDS)} fields", file=where, value=f"{len(cells)} fields")
    values = []
    for name, cell in zip(_FIELDS, cells, strict=False):
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError("a number (-1: unknown)", file=where, field=name, value=cell)
        values.append(value)
    for name in ("allocated processors", "requested processors"):
        value = values[_AT[name]]
        if value != int(value) or value > MOST_GPUS:
            raise InputError("a whole number (-1: unknown)", file=where, field=name, value=cells[_AT[name]])
    if values[_AT["submit time"]] < 0:
        raise InputError("a number of seconds, 0 or more", file=where, field="submit time", value=cells[1])
    return values
