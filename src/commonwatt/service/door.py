"""What is looked at before a job is accepted: dates, folders, GPU types, whether it can ever run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile, check_image
from commonwatt.model.jobs import read_times
from commonwatt.service.desk import Desk
from commonwatt.service.limits import check_configurations, check_limits

__all__ = ["look_at"]


def look_at(desk: Desk, file: JobFile, now_s: float, due_s: float | None) -> tuple[str, ...]:
    """Look at a job to be submitted; returns warnings for its owner.

    Raises ``InputError`` on what is wrong in this cluster, ``JobNeverFitsError`` if no node can ever run it.
    """
    _types(desk, file)
    check_limits(file)
    if file.image is not None:
        check_image(file.image)
    check_configurations(file, len(desk.maker.check(file)))
    if desk.config.engine == "local":
        _folders(file)
    warnings = list(_without_times(file))
    if desk.config.engine == "slurm":  # nodes may see what this machine does not
        seen = "is not to be seen from the machine of the control plane; it has to be there on the nodes"
        warnings += [f"{field}: {path} {seen}" for field, path in _missing(file)]
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
    asked = {
        "gpu_type": () if file.gpu_type is None else (file.gpu_type,),
        "gpu_types": file.gpu_types or (),
        "times_s": file.times_s or (),
    }
    for field, values in asked.items():
        for value in values:
            if value.casefold() not in folded:
                raise InputError(f"a GPU type of the cluster ({', '.join(known)})", field=field, value=value)

    if file.gpu_type is not None and file.gpu_types is not None:
        allowed = {name.casefold() for name in file.gpu_types}
        if file.gpu_type.casefold() not in allowed:
            expected = f"one of gpu_types ({', '.join(file.gpu_types)}), or only one of gpu_type and gpu_types"
            raise InputError(expected, field="gpu_type", value=file.gpu_type)


def _without_times(file: JobFile) -> Iterator[str]:
    """Yield what is asked for and gets nothing, as some times are declared and none for it."""
    if file.times_s is None:
        return
    times = {name.casefold(): row for name, row in read_times(file.times_s, file.name).items()}
    for field, names in (("gpu_type", [file.gpu_type] if file.gpu_type else []), ("gpu_types", file.gpu_types or ())):
        if without := [name for name in names if name.casefold() not in times]:
            yield f"{field}: times_s has no time for {', '.join(without)}, where the job will therefore not run"
    if without := [str(count) for count in file.gpu_counts or () if all(count not in row for row in times.values())]:
        yield f"gpu_counts: times_s has no time for {', '.join(without)} GPUs, which the job will therefore not get"


def _folders(file: JobFile) -> None:
    for field, path in _missing(file):
        raise InputError("a folder that exists", field=field, value=path)


def _missing(file: JobFile) -> Iterator[tuple[str, str]]:
    """Yield folders that are not to be seen from here, with the field that names them."""
    for field in ("folder", "snapshots"):
        path = getattr(file, field)
        try:
            there = path is None or Path(path).is_dir()
        except (OSError, ValueError):
            there = False
        if not there:
            yield field, path
