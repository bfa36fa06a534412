"""Checks of a job before it is accepted: sizes, dates, folders, GPU types, and whether a node can ever run it.

The limits of sizes are checked here and not in the model, so that jobs accepted before a limit can still be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from commonwatt.controlplane.jobs import begin_of, capped
from commonwatt.controlplane.notifications import mail_warning
from commonwatt.model.errors import InputError, QuotaError
from commonwatt.model.job_file import MOST_GPUS, JobFile, check_image
from commonwatt.model.jobs import read_times
from commonwatt.model.units import plural
from commonwatt.service.context import ServiceContext

__all__ = ["admit", "check_configurations", "check_limits"]

MOST_ARGUMENTS = 4096
MOST_CONFIGURATIONS = 1024
LONGEST_DUE = 64
SHORTEST_S, LONGEST_S = 1e-6, 1e12
_COUNTS = f"whole numbers from 1 to {MOST_GPUS}"


def check_limits(file: JobFile) -> None:
    """Check the lengths of lists and the ranges of times; raises ``InputError``."""
    if len(file.command) > MOST_ARGUMENTS:
        raise InputError(f"at most {MOST_ARGUMENTS} arguments", field="command", value=f"{len(file.command)} arguments")
    if file.due is not None and len(file.due) > LONGEST_DUE:
        raise InputError(f"at most {LONGEST_DUE} characters", field="due", value=f"{len(file.due)} characters")
    _types_once("gpu_types", file.gpu_types or ())
    _types_once("times_s", file.times_s or ())
    _counts(file.gpu_counts or ())
    for gpu_type, row in (file.times_s or {}).items():
        _times(f"times_s.{gpu_type}", row)
    if file.time_limit_s is not None:
        _time("time_limit_s", file.time_limit_s)


def _start_conditions(context: ServiceContext, file: JobFile, tenant: str, *, trusted: bool) -> None:
    begin_of(file)
    for number in file.after:
        row = context.store.job(number)
        if row is None or not (trusted or row.tenant == tenant):
            raise InputError("numbers of jobs of the same tenant", field="after", value=number)


def _check_batch_options(context: ServiceContext, file: JobFile) -> None:
    if context.config.engine == "slurm" or file.batch is None:
        return
    for option in file.batch.options:
        if not option.startswith("--mem"):
            expected = f"no such option: engine {context.config.engine} has no Slurm that would keep it"
            raise InputError(expected, field="batch.options", value=option)


def check_configurations(file: JobFile, count: int) -> None:
    """Check the number of configurations, each of which is stored and considered in every decision."""
    if count > MOST_CONFIGURATIONS:
        field = "gpu_counts" if file.times_s is None else "times_s"
        expected = f"at most {MOST_CONFIGURATIONS}, over all GPU types"
        raise InputError(expected, field=field, value=f"{count} configurations")


def _types_once(field: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            raise InputError("each GPU type once (upper and lower case are equal)", field=field, value=name)
        seen.add(name.casefold())


def _counts(counts: Sequence[int]) -> None:
    seen: set[int] = set()
    for count in counts:
        if not 1 <= count <= MOST_GPUS:
            raise InputError(_COUNTS, field="gpu_counts", value=count)
        if count in seen:
            raise InputError("each GPU count once", field="gpu_counts", value=count)
        seen.add(count)


def _times(field: str, row: Sequence[float | None] | Mapping[int, float]) -> None:
    if not isinstance(row, Mapping) and len(row) > MOST_GPUS:
        raise InputError(f"times for 1 to {MOST_GPUS} GPUs", field=field, value=plural(len(row), "time"))
    for count, seconds in row.items() if isinstance(row, Mapping) else enumerate(row, start=1):
        if not 1 <= count <= MOST_GPUS:
            raise InputError(f"GPU counts from 1 to {MOST_GPUS}", field=field, value=count)
        if seconds is not None:
            _time(f"{field}[{plural(count, 'GPU')}]", seconds)


def _time(field: str, seconds: float) -> None:
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise InputError(f"a number of seconds from {SHORTEST_S:g} to {LONGEST_S:g}", field=field, value=seconds)


def admit(
    context: ServiceContext, file: JobFile, tenant: str, now_s: float, due_s: float | None, *, trusted: bool = False
) -> tuple[str, ...]:
    """Check a job submitted by *tenant*; returns warnings for its owner.

    Only a *trusted* caller learns whether its folders exist: this machine may have files that are none of a tenant's
    business. A job whose folder does not exist fails when it starts.

    Raises ``InputError`` on values that are wrong for this cluster, ``JobNeverFitsError`` if no node can ever run it.
    """
    if file.workload is not None:
        raise InputError("nothing: a Job of Kubernetes is taken over by its label", field="workload",
                         value=file.workload.name)  # fmt: skip
    _types(context, file)
    check_limits(file)
    _start_conditions(context, file, tenant, trusted=trusted)
    _check_batch_options(context, file)
    users = context.config.live.users_of(context.config.engine)
    if users and tenant not in users:
        expected = f"a tenant that has a Unix user (live.{context.config.engine}.users)"
        raise InputError(expected, field="tenant", value=tenant)
    if file.image is not None:
        check_image(file.image)
    figures = context.maker.check(file)
    check_configurations(file, len(figures))
    limits = context.config.live.limits_of(tenant)
    most, least = context.maker.most_gpus(tenant), min(figure.gpus for figure in figures)
    if most is not None and least > most[0]:
        raise QuotaError(
            f"jobs of {most[1]} may use {plural(most[0], 'GPU')} at once, and this one needs {least}",
            reason="quota", field="gpus", value=least, frees="an operator has to raise the limit",
        )  # fmt: skip
    if context.config.engine == "local" and trusted:
        _folders(file)
    if capped(file.tardiness_weight, limits) < file.tardiness_weight:
        expected = f"at most {limits.tardiness_weight:g}, the largest weight of a job of tenant {tenant}"
        raise InputError(expected, field="tardiness_weight", value=file.tardiness_weight)
    warnings = list(_without_times(file))
    if context.config.engine != "slurm" and file.batch is not None:
        asked = [option.partition("=")[0] for option in file.batch.options]
        asked += [] if file.batch.cpus_per_task is None else ["--cpus-per-task"]
        warnings += [f"{option}: engine {context.config.engine} does not limit it" for option in asked]
    if context.config.engine in ("slurm", "kubernetes") and trusted:  # nodes may see what this machine does not
        unseen = "does not exist on the machine of the control plane; it must exist on the nodes"
        warnings += [f"{field}: {path} {unseen}" for field, path in _missing(file)]
    if file.mail_to is not None:
        notify = context.config.live.notify
        warnings += filter(None, [mail_warning(None if notify is None else notify.mail, file.mail_to)])
    if due_s is not None and due_s <= now_s:
        if context.config.live.server.past_due == "refuse":
            raise InputError("a time in the future", field="due", value=file.due)
        warnings.append(f"the due date ({file.due}) has passed: the job is already late")
    floor_s = limits.due_after_s or 0.0
    if due_s is not None and now_s < due_s < now_s + floor_s and file.tardiness_weight:
        warnings.append(f"no job of tenant {tenant} counts as due sooner than {floor_s:g} s after its submission")
    if due_s is not None and not file.tardiness_weight:
        warnings.append("tardiness_weight is 0: the due date has no effect on decisions")
    return tuple(warnings)


def _types(context: ServiceContext, file: JobFile) -> None:
    types = context.maker.cluster.gpu_types
    folded = {name.casefold() for name in types}
    asked = {
        "gpu_type": () if file.gpu_type is None else (file.gpu_type,),
        "gpu_types": file.gpu_types or (),
        "times_s": file.times_s or (),
    }
    for field, values in asked.items():
        for value in values:
            if value.casefold() not in folded:
                raise InputError(f"a GPU type of the cluster ({', '.join(types)})", field=field, value=value)

    if file.gpu_type is not None and file.gpu_types is not None:
        allowed = {name.casefold() for name in file.gpu_types}
        if file.gpu_type.casefold() not in allowed:
            expected = (
                f"one of gpu_types ({', '.join(file.gpu_types)}), or only one of the fields gpu_type and gpu_types"
            )
            raise InputError(expected, field="gpu_type", value=file.gpu_type)


def _without_times(file: JobFile) -> Iterator[str]:
    """Yield a warning for each GPU type and count that ``times_s`` leaves out."""
    if file.times_s is None:
        return
    times = {name.casefold(): row for name, row in read_times(file.times_s, file.name).items()}
    for field, names in (("gpu_type", [file.gpu_type] if file.gpu_type else []), ("gpu_types", file.gpu_types or ())):
        if without := [name for name in names if name.casefold() not in times]:
            yield f"{field}: times_s has no time for {', '.join(without)}, so the job will not run there"
    if without := [str(count) for count in file.gpu_counts or () if all(count not in row for row in times.values())]:
        yield f"gpu_counts: times_s has no time for GPU counts {', '.join(without)}, so the job will not run on them"


def _folders(file: JobFile) -> None:
    for field, path in _missing(file):
        raise InputError("a folder that exists", field=field, value=path)


def _missing(file: JobFile) -> Iterator[tuple[str, str]]:
    """Yield folders that do not exist on this machine, with the field that names them."""
    for field in ("folder", "snapshots"):
        path = getattr(file, field)
        try:
            there = path is None or Path(path).is_dir()
        except (OSError, ValueError):
            there = False
        if not there:
            yield field, path
