"""Qualities of service from ``sacctmgr --parsable2 show qos``: their priority, and their limits of jobs and GPUs.

What is not modelled is said in notes: preemption, limits of single GPU types, and limits of usage over time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commonwatt.data.files import load_yaml
from commonwatt.data.table import TextTable, read_table
from commonwatt.data.text import read_text
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import Qos
from commonwatt.model.scenario import Scenario

__all__ = ["ASK_QOS", "QosTable", "read_qos"]

ASK_QOS = "sacctmgr --parsable2 show qos > qos.txt"
"""The command that prints what is read."""

_JOBS = {"max_jobs": ("GrpJobs",), "max_jobs_per_account": ("MaxJobsPA", "MaxJobsPerAccount"),
         "max_jobs_per_user": ("MaxJobsPU", "MaxJobsPerUser")}  # fmt: skip
_GPUS = {"max_gpus": ("GrpTRES",), "max_gpus_per_account": ("MaxTRESPA", "MaxTRESPerAccount"),
         "max_gpus_per_user": ("MaxTRESPU", "MaxTRESPerUser")}  # fmt: skip
_PASSED_OVER = ("GrpTRESMins", "GrpTRESRunMins", "MaxTRESMins", "MaxTRESRunMinsPU", "MaxTRESRunMinsPA", "GrpWall")
_COUNT = "a whole number, 0 or more"


@dataclass(frozen=True)
class QosTable:
    """Qualities of service, and what of them is not modelled."""

    qos: tuple[Qos, ...]
    notes: tuple[str, ...] = ()


def read_qos(path: Path) -> QosTable:
    """Read what ``sacctmgr`` printed, or the ``qos`` of a scenario (.yaml).

    Raises ``InputError`` for a file that is neither.
    """
    if path.suffix.lower() in (".yaml", ".yml"):
        found = load_yaml(path, Scenario).qos
        if not found:
            raise InputError("at least one QOS", file=path, field="qos", value="none")
        return QosTable(found)
    text = read_text(path)
    if "|" not in text.split("\n", 1)[0]:
        raise InputError(f"columns with bars between them; run: {ASK_QOS}", file=path, value=text.split("\n", 1)[0])
    table = read_table(path, text=text)
    for name in ("Name", "Priority"):
        if name not in table:
            raise InputError(f"this column; run: {ASK_QOS}", file=path, field=name)
    names = table.text("Name")
    for row, name in enumerate(names):
        if not name or name in names[:row]:
            raise table.error(row, "Name", "a name that no row above has")
    qos = tuple(_row(table, row, name) for row, name in enumerate(names))
    return QosTable(qos, tuple(_notes(table)))


def _row(table: TextTable, row: int, name: str) -> Qos:
    counts = {field: _limit(table, row, columns) for field, columns in _JOBS.items()}
    gpus = {field: _gpus(table, row, columns) for field, columns in _GPUS.items()}
    priority = _whole(table, row, "Priority", table.text("Priority")[row] or "0")
    return Qos(name=name, priority=priority, **counts, **gpus)


def _cell(table: TextTable, row: int, columns: tuple[str, ...]) -> tuple[str, str]:
    """Return the column of a limit that there is, and its cell."""
    column = next((name for name in columns if name in table), columns[0])
    return column, table.text(column)[row] if column in table else ""


def _limit(table: TextTable, row: int, columns: tuple[str, ...]) -> int | None:
    column, cell = _cell(table, row, columns)
    return _whole(table, row, column, cell) if cell else None


def _gpus(table: TextTable, row: int, columns: tuple[str, ...]) -> int | None:
    column, cell = _cell(table, row, columns)
    for part in cell.split(","):
        resource, _, count = part.partition("=")
        if resource in ("gres/gpu", "gpu"):
            return _whole(table, row, column, count)
    return None


def _whole(table: TextTable, row: int, column: str, text: str) -> int:
    if not text.isdecimal():
        raise table.error(row, column, _COUNT)
    return int(text)


def _notes(table: TextTable) -> Iterator[str]:
    """Say what is not modelled, by QOS."""
    typed, passed, preempting = [], [], []
    for row, name in enumerate(table.text("Name")):
        limits = [_cell(table, row, columns)[1] for columns in _GPUS.values()]
        typed += [name] if any("gres/gpu:" in cell for cell in limits) else []
        over_time = [column for column in _PASSED_OVER if column in table and "gpu" in table.text(column)[row]]
        passed += [f"{name} ({', '.join(over_time)})"] if over_time else []
        preempting += [name] if _cell(table, row, ("Preempt",))[1] else []
    if typed:
        yield f"limits of single GPU types are not kept, of QOS {', '.join(typed)}"
    if passed:
        yield f"limits of GPU time are not kept, of QOS {', '.join(passed)}"
    if preempting:
        yield f"QOS preempt no running jobs here, as they may on the cluster: {', '.join(preempting)}"
