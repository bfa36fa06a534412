"""Any workload a scenario can name, made into jobs and nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from commonwatt.data import locate
from commonwatt.data.generators.andreas import generate_andreas
from commonwatt.data.generators.week import generate_week
from commonwatt.data.log import JobLog, window
from commonwatt.data.malleable import malleable
from commonwatt.data.profiles import canonical, load_profiles
from commonwatt.data.readers import read_log
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import Job, JobTable, read_times
from commonwatt.model.nodes import NodeSpec
from commonwatt.model.scenario import (
    AndreasWorkload,
    JobsWorkload,
    LogWorkload,
    Scenario,
    ScenarioJob,
    WeekWorkload,
)

__all__ = ["PUBLIC_LOGS", "Made", "make_workload", "read_workload_log"]

PUBLIC_LOGS = {"philly": "philly_jobs.csv.gz", "alibaba": "alibaba_jobs.csv.gz"}
"""Logs that are looked for in the folder of traces if a workload gives no path."""


@dataclass(frozen=True)
class Made:
    """Jobs, and the nodes they run on."""

    nodes: tuple[NodeSpec, ...]
    table: JobTable
    sentence: str  # where the jobs come from


def make_workload(scenario: Scenario, folder: Path, rng: np.random.Generator) -> Made:
    """Make the jobs of *scenario*, whose paths are relative to *folder*.

    Raises ``InputError`` on whatever is wrong in the workload or its log.
    """
    workload = scenario.workload
    if isinstance(workload, AndreasWorkload):
        nodes, table = generate_andreas(workload, rng)
        many = f"{len(table)} jobs on {workload.nodes} nodes, offered load {workload.load:g}"
        return Made(nodes, table, f"generator of ANDREAS section V-B, scenario {workload.scenario}: {many}")
    gpu_types = tuple(dict.fromkeys(node.gpu_type for node in scenario.nodes))
    if isinstance(workload, JobsWorkload):
        table = JobTable.of(_job(job, gpu_types) for job in workload.jobs)
        return Made(scenario.nodes, table, f"{len(table)} jobs written out in the scenario")
    log = _log(workload, folder, rng)
    profiles = load_profiles(workload.profiles)
    table = malleable(log, workload, profiles, gpu_types, rng)
    return Made(scenario.nodes, table, f"{log.source}; {profiles.source}")


def _log(workload: LogWorkload | WeekWorkload, folder: Path, rng: np.random.Generator) -> JobLog:
    if isinstance(workload, WeekWorkload):
        return generate_week(workload, rng)
    if workload.stand_in and locate.find(PUBLIC_LOGS[workload.source]) is None:
        made = generate_week(WeekWorkload(source="week", days=workload.days), rng)
        return replace(made, source=f"the Philly log is not at hand, {made.source}")
    return read_workload_log(workload, folder)


def read_workload_log(workload: LogWorkload, folder: Path) -> JobLog:
    """Read the log of *workload* and select its period; the path is relative to *folder*."""
    log = read_log(workload.source, _path(workload, folder), workload.columns)
    return window(log, workload.begin, workload.days, carry_in=workload.carry_in)


def _path(workload: LogWorkload, folder: Path) -> Path:
    if workload.path is not None:
        return folder / workload.path
    name = PUBLIC_LOGS.get(workload.source)
    found = None if name is None else locate.find(name)
    if found is None:
        otherwise = "" if name is None else f", or {name} in the folder {locate.VARIABLE} names"
        raise InputError(f"the path of a log{otherwise}", field="workload.path", value="none")
    return found


def _job(job: ScenarioJob, gpu_types: Sequence[str]) -> Job:
    where = f"workload.jobs.{job.name}"
    spelt = {name.casefold(): name for name in gpu_types}
    times = {_gpu_type(name, spelt, f"{where}.times_s"): row for name, row in read_times(job.times_s, where).items()}
    for name, watts in job.gpu_w.items():
        if not watts >= 0:
            raise InputError("a number of watts, 0 or more", field=f"{where}.gpu_w.{name}", value=watts)
    asked = job.requested_gpu_type and _gpu_type(job.requested_gpu_type, spelt, f"{where}.requested_gpu_type")
    if asked and asked not in times:
        expected = f"a GPU type the job has times for ({', '.join(times)})"
        raise InputError(expected, field=f"{where}.requested_gpu_type", value=asked)
    try:
        return Job(
            name=job.name,
            tenant=job.tenant,
            submit_s=job.submit_s,
            due_s=math.inf if job.due_s is None else job.due_s,
            tardiness_weight=job.tardiness_weight,
            times_s=times,
            epochs=job.epochs,
            gpu_w={_gpu_type(name, spelt, f"{where}.gpu_w"): watts for name, watts in job.gpu_w.items()},
            requested_gpus=job.requested_gpus,
            requested_type=asked,
            time_limit_s=math.inf if job.time_limit_s is None else job.time_limit_s,
        )
    except InputError as error:
        raise InputError(error.expected, field=f"workload.jobs.{error.field}", value=error.value) from None


def _gpu_type(name: str, spelt: dict[str, str], field: str) -> str:
    """Spell *name* as the cluster does; one it lacks may stand, unless it is no GPU type at all."""
    if name.casefold() in spelt:
        return spelt[name.casefold()]
    if canonical(name) is None:
        raise InputError(f"a GPU type of the cluster ({', '.join(spelt.values())})", field=field, value=name)
    return name
