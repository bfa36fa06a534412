"""Any table with a submission, a run time and a GPU count for each job.

Columns, under these names or others given to ``read``: ``gpus``, and either ``submit_s`` and ``duration_s``, or
``start_s`` and ``end_s``, must be there; ``job`` (row number if absent), ``tenant`` ("default"), ``gpu_type``,
``time_limit_s``, ``nodes`` (where it ran, a list of hosts in Slurm's notation), ``partition``, ``user``, ``qos`` and
``energy_j``, ``cpus`` and ``memory_gib`` (of the whole job) may, and ``submit_s`` beside ``start_s``, which otherwise
stands for it. ``known_s`` is when the cluster knew that the job would come at ``submit_s`` (a begin time, a
reservation); blank: with its submission. ``after`` names the jobs that a job waits for, as ``sbatch --dependency``
does: ``afterok:12:13,afterany:7``. A number without a row stands for all tasks of that array (``12`` for ``12_0``,
``12_1``). Jobs of a log have run, so what they waited for came true: ``afternotok`` counts as until its end, and a job
that is not in the log as ended. ``submit_time`` or ``submit``, ``start_time`` or ``start``, ``end_time`` or ``end`` are
other names of the three, ``num_gpus`` of ``gpus``; without ``tenant`` it is the ``account`` or ``user``. Capitals, and
spaces for underscores, do not matter. Times are seconds, or ISO 8601 moments. Jobs with 0 GPUs, no run time or no start
are left out; one without an end was running at the last moment in the file. One with an end, but neither a submission
nor a start, was running when the log begins: it counts from the first moment in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commonwatt.data.log import AFTER_UNKNOWN, EARLY, JobLog, utc
from commonwatt.data.table import TextTable, read_table
from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.dependencies import Dependency, in_order, parse_after, shown_circle
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of

__all__ = ["COLUMNS", "plainly", "read"]

AFTER_FAILURE = "waited for a job to fail (afternotok): until it ends"

COLUMNS = ("job", "tenant", "submit_s", "start_s", "end_s", "duration_s", "gpus", "gpu_type", "time_limit_s", "nodes",
           "partition", "energy_j", "user", "qos", "cpus", "memory_gib", "known_s", "after")  # fmt: skip
_ALSO = {
    "submit_s": ("submit_time", "submit"), "start_s": ("start_time", "start"), "end_s": ("end_time", "end"),
    "gpus": ("num_gpus",), "tenant": ("account", "user"),
}  # fmt: skip


class _Times(NamedTuple):
    """Submissions, starts and run times, and the moment that is 0, if the file has moments."""

    submit_s: Floats
    start_s: Floats | None
    duration_s: Floats
    censored: Bools | None
    origin_s: float | None
    early: Bools | None = None  # running before the file begins
    first_s: float = 0.0  # time in the file that is 0, without moments


def read(path: Path, columns: Mapping[str, str] | None = None) -> JobLog:
    """Read the table; *columns* says what a column is called in the file where that differs."""
    named = dict(columns or {})
    for name in named:
        if name not in COLUMNS:
            raise InputError(one_of(COLUMNS, name), field="columns", value=name)
    table = read_table(path)
    for name in named.values():
        table.text(name)
    spelt: dict[str, str] = {}
    for column in table.columns:
        spelt.setdefault(plainly(column), column)
    called = {name: named.get(name, name) for name in COLUMNS}
    for name in COLUMNS:
        if called[name] not in table:
            others = (name, *_ALSO.get(name, ()))
            called[name] = next((spelt[other] for other in others if other in spelt), called[name])
    times, gpus = _times(table, called), table.counts(called["gpus"])
    count = len(table)
    names = _or(table, called["job"], [f"row-{i}" for i in range(1, count + 1)])
    after, unknown = _after(table, called["after"], names)
    never = np.zeros(count, bool) if times.start_s is None else np.isnan(times.start_s)
    return JobLog.of(
        f"job log {path.name}",
        job=names,
        tenant=_or(table, called["tenant"], ["default"] * count),
        submit_s=times.submit_s,
        duration_s=times.duration_s,
        gpus=gpus,
        gpu_type=_or(table, called["gpu_type"], [""] * count),
        time_limit_s=_limits(table, called["time_limit_s"]),
        start_s=times.start_s,
        censored=times.censored,
        origin=None if times.origin_s is None else utc(times.origin_s),
        reasons={"without a GPU": gpus == 0, "never started": never, "without run time": times.duration_s == 0},
        path=path,
        nodes=table.text(called["nodes"]) if called["nodes"] in table else None,
        partition=table.text(called["partition"]) if called["partition"] in table else None,
        user=table.text(called["user"]) if called["user"] in table else None,
        qos=table.text(called["qos"]) if called["qos"] in table else None,
        energy_j=_quantity(table, called["energy_j"], "joules"),
        cpus=_quantity(table, called["cpus"], "CPUs"),
        memory_gib=_quantity(table, called["memory_gib"], "GiB"),
        known_s=_notice(table, called["known_s"], times),
        treated=({} if times.early is None else {EARLY: times.early}) | unknown,
        after=after,
    )


def plainly(column: str) -> str:
    """Return the name of a column without capitals, and with underscores for spaces and hyphens."""
    return re.sub(r"[\s_-]+", "_", column.strip().casefold())


def _quantity(table: TextTable, name: str, unit: str) -> Floats | None:
    return table.parse(name, _not_negative, f"{unit}, 0 or more", np.nan) if name in table else None


def _notice(table: TextTable, name: str, times: _Times) -> Floats | None:
    """Return when it was known that each job would come, on the clock of *times*; ``None`` without the column."""
    if name not in table:
        return None
    known_s = _on(table, name, times.origin_s) - (0.0 if times.origin_s is not None else times.first_s)
    known_s = np.where(np.isnan(known_s), times.submit_s, known_s)
    if (rows := np.flatnonzero(known_s > times.submit_s)).size:
        raise table.error(int(rows[0]), name, "a moment no later than the submission")
    return known_s


def _after(table: TextTable, name: str, jobs: list[str]) -> tuple[list[dict[str, Dependency]] | None, dict[str, Bools]]:
    """Return the jobs of the table that each job waits for, and which jobs wait for others; ``None``: none waits."""
    if name not in table or not any(table.text(name)):
        return None, {}
    there: set[str] = set(jobs)
    tasks: dict[str, list[str]] = {}
    for job in jobs:
        if "_" in job:
            tasks.setdefault(job.rpartition("_")[0], []).append(job)
    after: list[dict[str, Dependency]] = []
    unknown, failures = np.zeros(len(table), dtype=bool), np.zeros(len(table), dtype=bool)
    for row, cell in enumerate(table.text(name)):
        try:
            dependencies = parse_after(cell)
        except ValueError:
            expected = "after, afterany, afterok or afternotok and :JOB, with commas between (afterok:12:13)"
            raise table.error(row, name, expected) from None
        own: dict[str, Dependency] = {}
        for job, kind in dependencies.items():
            members = [job] if job in there else tasks.get(job, [])
            unknown[row] |= not members
            failures[row] |= kind == "afternotok"
            own |= dict.fromkeys(members, "afterany" if kind == "afternotok" else kind)
        after.append(own)
    try:
        in_order(dict(zip(jobs, after, strict=True)))
    except CycleError as error:
        circle = error.args[1]
        if jobs.count(circle[0]) > 1:
            raise InputError("distinct job names", file=table.path, field="job", value=circle[0]) from None
        expected = f"jobs that do not wait for each other ({shown_circle(circle)})"
        raise table.error(jobs.index(circle[0]), name, expected) from None
    return after, {AFTER_UNKNOWN: unknown, AFTER_FAILURE: failures}


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < np.inf:
        raise ValueError
    return value


def _times(table: TextTable, called: Mapping[str, str]) -> _Times:
    submit, start, end = (called[name] for name in ("submit_s", "start_s", "end_s"))
    if called["duration_s"] in table or not (start in table and end in table):
        submit_s, origin_s = _clock(table, submit)
        return _Times(submit_s, None, table.seconds(called["duration_s"]), None, origin_s)
    start_s, origin_s = _clock(table, start, blank=np.nan)
    end_s = _on(table, end, origin_s)
    submit_s = _on(table, submit, origin_s) if submit in table else start_s
    early = np.isnan(submit_s) & np.isnan(start_s) & ~np.isnan(end_s)
    if early.any():
        begins_s = np.fmin.reduce(np.concatenate((submit_s, start_s, end_s)))
        submit_s, start_s = np.where(early, begins_s, submit_s), np.where(early, begins_s, start_s)
    submit_s = np.where(np.isnan(submit_s), start_s, submit_s)
    for name, earlier, later in ((start, submit_s, start_s), (end, start_s, end_s)):
        if (rows := np.flatnonzero(later < earlier)).size:
            raise table.error(int(rows[0]), name, "no earlier moment than those before it")
    running = np.isnan(end_s) & ~np.isnan(start_s)
    last_s = max(np.nanmax(times_s, initial=0.0) for times_s in (submit_s, start_s, end_s))
    duration_s = np.nan_to_num(np.where(running, last_s, end_s) - start_s)
    first_s = 0.0 if origin_s is None or np.isnan(submit_s).all() else float(np.nanmin(submit_s))
    since_s = None if origin_s is None else origin_s + first_s
    zero_s = first_s if origin_s is None else 0.0
    return _Times(np.nan_to_num(submit_s - first_s), start_s - first_s, duration_s, running, since_s, early, zero_s)


def _on(table: TextTable, name: str, origin_s: float | None) -> Floats:
    """Read a column on the clock of another one, whose origin is *origin_s* if it has moments."""
    return table.seconds(name, np.nan) if origin_s is None else table.moments(name, np.nan) - origin_s


def _or(table: TextTable, name: str, otherwise: list[str]) -> list[str]:
    if name not in table:
        return otherwise
    return [cell or other for cell, other in zip(table.text(name), otherwise, strict=True)]


def _clock(table: TextTable, name: str, blank: float | None = None) -> tuple[Floats, float | None]:
    """Times and, if they are moments, the first of them; the first cell that is not blank decides which they are."""
    first = next(filter(None, table.text(name)), "0")
    try:
        float(first)
    except ValueError:
        moments_s = table.moments(name, blank)
        return moments_s - np.nanmin(moments_s), float(np.nanmin(moments_s))
    return table.seconds(name, blank), None


def _limits(table: TextTable, name: str) -> Floats | None:
    return table.seconds(name, blank=np.nan) if name in table else None
