"""What is looked at before a job is accepted: dates, folders, GPU types, whether it can ever run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from commonwatt.data.table import moment_s
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile
from commonwatt.model.nodes import Cluster
from commonwatt.service.desk import Desk

__all__ = ["due_s", "look_at"]


def due_s(file: JobFile, now_s: float) -> float | None:
    """Return when a job submitted now should be finished, seconds since 1970; raises ``InputError``."""
    if file.due_in_s is not None:
        return now_s + file.due_in_s
    if file.due is None:
        return None
    try:
        return moment_s(file.due)
    except (ValueError, OverflowError):
        expected = "a moment of ISO 8601 such as 2026-12-01T08:00+01:00"
        raise InputError(expected, field="due", value=file.due) from None


def look_at(desk: Desk, file: JobFile, tenant: str, now_s: float, due_s: float | None) -> tuple[str, ...]:
    """Look at a job to be submitted; returns warnings for its owner.

    Raises ``InputError`` on what is wrong in this cluster, ``JobNeverFitsError`` if no node can ever run it.
    """
    _types(desk, file)
    if desk.config.engine == "local":
        _folders(file)
    warnings = []
    if due_s is not None and due_s <= now_s:
        when = datetime.fromtimestamp(due_s, UTC).isoformat(timespec="seconds") if 0 <= due_s < 2e11 else file.due
        if desk.config.live.server.past_due == "refuse":
            raise InputError("a moment to come", field="due", value=when)
        warnings.append(f"the due date ({when}) has passed: the job is late already")
    if due_s is not None and not file.tardiness_weight:
        warnings.append("tardiness_weight is 0: the due date has no effect on decisions")
    desk.job_times(file, tenant)
    return tuple(warnings)


def _types(desk: Desk, file: JobFile) -> None:
    known = Cluster.of(desk.config.nodes).gpu_types
    asked = {"gpu_type": (file.gpu_type,) if file.gpu_type is not None else (), "gpu_types": file.gpu_types or ()}
    for field, values in asked.items():
        for value in values:
            if value not in known:
                raise InputError(f"a GPU type of this cluster ({', '.join(known)})", field=field, value=value)


def _folders(file: JobFile) -> None:
    for field in ("folder", "snapshots"):
        path = getattr(file, field)
        try:
            there = path is None or Path(path).is_dir()
        except (OSError, ValueError):
            there = False
        if not there:
            raise InputError("a folder that exists", field=field, value=path)
