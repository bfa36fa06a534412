"""What is looked at before a job is accepted: dates, folders, GPU types, whether it can ever run."""

from __future__ import annotations

from pathlib import Path

from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile
from commonwatt.service.desk import Desk

__all__ = ["look_at"]


def look_at(desk: Desk, file: JobFile, now_s: float, due_s: float | None) -> tuple[str, ...]:
    """Look at a job to be submitted; returns warnings for its owner.

    Raises ``InputError`` on what is wrong in this cluster, ``JobNeverFitsError`` if no node can ever run it.
    """
    _types(desk, file)
    desk.maker.check(file)
    if desk.config.engine == "local":
        _folders(file)
    warnings = []
    if due_s is not None and due_s <= now_s:
        if desk.config.live.server.past_due == "refuse":
            raise InputError("a moment to come", field="due", value=file.due)
        warnings.append(f"the due date ({file.due}) has passed: the job is late already")
    if due_s is not None and not file.tardiness_weight:
        warnings.append("tardiness_weight is 0: the due date has no effect on decisions")
    return tuple(warnings)


def _types(desk: Desk, file: JobFile) -> None:
    known = desk.maker.cluster.gpu_types
    folded = {name.casefold() for name in known}
    asked = {"gpu_type": () if file.gpu_type is None else (file.gpu_type,), "gpu_types": file.gpu_types or ()}
    for field, values in asked.items():
        for value in values:
            if value.casefold() not in folded:
                raise InputError(f"a GPU type of the cluster ({', '.join(known)})", field=field, value=value)


def _folders(file: JobFile) -> None:
    for field in ("folder", "snapshots"):
        path = getattr(file, field)
        try:
            there = path is None or Path(path).is_dir()
        except (OSError, ValueError):
            there = False
        if not there:
            raise InputError("a folder that exists", field=field, value=path)
