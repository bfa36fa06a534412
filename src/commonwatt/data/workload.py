"""Jobs and nodes of a scenario's workload."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError
from pathlib import Path
from typing import Literal

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.demand import LogDemand, demand_of
from commonwatt.data.fitting import fractions_of, in_partitions, without_fractions, without_unfit
from commonwatt.data.generators.andreas import generate_andreas
from commonwatt.data.generators.week import generate_week
from commonwatt.data.log import JobLog, part_of, plural, time_of, window
from commonwatt.data.malleable import malleable, treatments
from commonwatt.data.profiles import DEFAULT_LOGGED, is_known, load_profiles, profiles_for
from commonwatt.data.readers import read_log
from commonwatt.data.sia import read_sia
from commonwatt.data.training_profiles import read_profiles, times_of
from commonwatt.model.dependencies import among, never_met, shown_circle
from commonwatt.model.errors import InputError
from commonwatt.model.fleet import FractionalModel
from commonwatt.model.jobs import Job, JobArrays, read_times
from commonwatt.model.names import did_you_mean
from commonwatt.model.nodes import Cluster, Hosts, NodeSpec
from commonwatt.model.scenario import (
    AndreasWorkload,
    JobsWorkload,
    LogWorkload,
    Scenario,
    ScenarioJob,
    SiaWorkload,
    WeekWorkload,
    Workload,
)
from commonwatt.model.units import DAY_S

__all__ = [
    "NEVER",
    "PUBLIC_LOGS",
    "BuiltWorkload",
    "FitTypes",
    "demand_before",
    "make_workload",
    "period_begins_s",
    "read_whole_log",
    "read_workload_log",
]

NEVER = "left out: wait for a job to fail, and none fails in a simulation"
PUBLIC_LOGS = {"philly": "philly_jobs.csv.gz", "alibaba": "alibaba_jobs.csv.gz"}
"""Logs in the folder of traces that are used if a workload gives no path."""


FitTypes = Literal["own", "any"]


@dataclass(frozen=True)
class BuiltWorkload:
    """Jobs and nodes."""

    nodes: tuple[NodeSpec, ...]
    table: JobArrays
    sentence: str  # source of the jobs
    log: JobLog | None = None  # a row for each job, if they are from a log
    treatments: Mapping[str, int] = field(default_factory=dict)  # jobs not taken as the log has them, by how
    workload: LogWorkload | WeekWorkload | None = None  # with the GPU type of run times without one, if from a log
    hosts: Hosts | None = None  # of nodes whose GPUs are on several
    fractions: tuple[FractionalModel, ...] = ()  # jobs of a part of a GPU, where the log's share GPUs
    speeds: str = ""  # source of how fast jobs of a log are on each GPU type


def make_workload(
    scenario: Scenario, folder: Path, rng: np.random.Generator, *, fit_types: FitTypes | None = None
) -> BuiltWorkload:
    """Return the jobs of *scenario*, whose paths are relative to *folder*.

    With *fit_types*, jobs of a log that fit no node as requested are left out: on the GPU type they ran on, or on any.

    Raises ``InputError`` on whatever is wrong in the workload or its log.
    """
    workload = scenario.workload
    if workload is None:
        raise InputError("the jobs to simulate", field="workload", value="none")
    if isinstance(workload, AndreasWorkload):
        nodes, table = generate_andreas(workload, rng)
        many = f"{plural(len(table), 'job')} on {plural(workload.nodes, 'node')}, offered load {workload.load:g}"
        return BuiltWorkload(nodes, table, f"generator of ANDREAS section V-B, scenario {workload.scenario}: {many}")
    if isinstance(workload, SiaWorkload):
        case = read_sia(workload, folder)
        return BuiltWorkload(case.nodes, case.table, case.source, hosts=case.hosts)
    gpu_types = tuple(dict.fromkeys(node.gpu_type for node in scenario.nodes if node.platform is None))
    if isinstance(workload, JobsWorkload):
        _check_partitions(workload.jobs, scenario.nodes)
        listed, never = _without_never(workload.jobs)
        table = JobArrays.of(_job(_timed(job, folder), gpu_types) for job in listed)
        sentence = f"{plural(len(table), 'job')} listed in the scenario"
        return BuiltWorkload(scenario.nodes, table, sentence, treatments={NEVER: never} if never else {})
    log = _log(workload, folder, rng)
    fractions: tuple[FractionalModel, ...] = ()
    if isinstance(workload, LogWorkload) and workload.fractions == "share":
        fractions, log = fractions_of(log), without_fractions(log)
    profiles, logged = profiles_for(
        load_profiles(workload.profiles), scenario.gpu_types, gpu_types, log.gpu_type, workload.logged_gpu_type,
        {name: read_profiles(spec.profiles, folder) for name, spec in scenario.gpu_types.items()},
    )  # fmt: skip
    workload = workload.model_copy(update={"logged_gpu_type": logged or DEFAULT_LOGGED})
    cluster = Cluster.of(scenario.nodes)
    log, elsewhere = in_partitions(log, cluster)
    unfit: dict[str, int] = {}
    if fit_types is not None:
        log, unfit = without_unfit(log, workload, profiles, cluster, own_types=fit_types == "own")
    table = malleable(log, workload, profiles, gpu_types, rng, cluster, scenario.power_limits)
    if scenario.associations:
        table = replace(table, user=log.user)
    treated = log.treatments() | elsewhere | unfit | treatments(log, workload, profiles, gpu_types, cluster)
    sentence, speeds = f"{log.source}; {profiles.source}", profiles.source
    return BuiltWorkload(scenario.nodes, table, sentence, log, treated, workload, fractions=fractions, speeds=speeds)


def _log(workload: LogWorkload | WeekWorkload, folder: Path, rng: np.random.Generator) -> JobLog:
    if isinstance(workload, WeekWorkload):
        return generate_week(workload, rng)
    if _stands_in(workload):
        made = generate_week(WeekWorkload(source="week", days=workload.days), rng)
        return replace(made, source=f"the Philly log is not available, {made.source}")
    return read_workload_log(workload, folder)


def read_whole_log(workload: LogWorkload, folder: Path) -> JobLog:
    """Read the log of *workload*, all of it; the path is relative to *folder*."""
    return read_log(workload.source, _path(workload, folder), workload.columns)


def read_workload_log(workload: LogWorkload, folder: Path) -> JobLog:
    """Read the log of *workload* and select its period; the path is relative to *folder*."""
    log = read_whole_log(workload, folder)
    if log.censored.all():
        expected = f"a log with the end of some job; all {len(log)} are still running at its end"
        raise InputError(expected, file=log.path, field="workload.path", value="no ends")
    return window(log, workload.begin, workload.days, carry_in=workload.carry_in)


def demand_before(
    workload: Workload, folder: Path, step_s: float, days: float, rng: np.random.Generator,
    pool_of: Callable[[JobLog], Sequence[str]] | None = None,
) -> dict[str, LogDemand]:  # fmt: skip
    """Return the demand of up to *days* before the period of *workload*, every *step_s*; empty if unknown.

    A generated week has another generated period before it; jobs written out and ANDREAS' generator have none.

    Parameters
    ----------
    pool_of
        Returns the pool of each job of the log: then there is the demand of each pool that has a job, by name. Without
        it all demand, under an empty name.
    """
    if isinstance(workload, WeekWorkload) or (isinstance(workload, LogWorkload) and _stands_in(workload)):
        week = workload if isinstance(workload, WeekWorkload) else WeekWorkload(source="week")
        log, begin_s, end_s = generate_week(week.model_copy(update={"days": days}), rng), 0.0, days * DAY_S
    elif isinstance(workload, LogWorkload):
        log = read_log(workload.source, _path(workload, folder), workload.columns)
        end_s = log.span_s[0] if workload.begin is None else time_of(log, workload.begin)
        begin_s = max(log.whole_from_s, end_s - days * DAY_S)
        if end_s - begin_s < step_s:
            return {}
    else:
        return {}
    if pool_of is None:
        return {"": demand_of(log, step_s, begin_s, end_s)}
    pools = np.array(pool_of(log))
    parts = {str(name): part_of(log, pools == name, "of other pools") for name in np.unique(pools)}
    return {name: demand_of(part, step_s, begin_s, end_s) for name, part in parts.items()}


def period_begins_s(workload: Workload, folder: Path) -> float | None:
    """Return the start of a log's period, on the clock of ``demand_before``; ``None`` for other workloads."""
    if not isinstance(workload, LogWorkload) or _stands_in(workload):
        return None
    log = read_log(workload.source, _path(workload, folder), workload.columns)
    begin_s = log.span_s[0] if workload.begin is None else time_of(log, workload.begin)
    return begin_s + (0.0 if log.origin is None else log.origin.timestamp())


def _stands_in(workload: LogWorkload) -> bool:
    return workload.stand_in and third_party.find(PUBLIC_LOGS[workload.source]) is None


def _path(workload: LogWorkload, folder: Path) -> Path:
    if workload.path is not None:
        return folder / workload.path
    name = PUBLIC_LOGS.get(workload.source)
    path = None if name is None else third_party.find(name)
    if path is None:
        otherwise = "" if name is None else f", or {name} in the folder {third_party.VARIABLE} names"
        raise InputError(f"the path of a log{otherwise}", field="workload.path", value="none")
    return path


def _timed(job: ScenarioJob, folder: Path) -> ScenarioJob:
    """Return *job* with the times and the power of its profiles, if it has any."""
    if not job.profiles:
        return job
    try:
        times = times_of(read_profiles(job.profiles, folder), job.epochs)
    except InputError as error:
        raise InputError(
            error.expected, file=error.file, field=error.field and f"workload.jobs.{job.name}.{error.field}",
            value=error.value,
        ) from None  # fmt: skip
    return job.model_copy(update={"times_s": times.times_s, "gpu_w": {**times.gpu_w, **job.gpu_w}})


def _job(job: ScenarioJob, gpu_types: Sequence[str]) -> Job:
    where = f"workload.jobs.{job.name}"
    spelt = {name.casefold(): name for name in gpu_types}
    given = read_times(job.times_s or {}, where)
    times = {_gpu_type(name, spelt, f"{where}.times_s"): row for name, row in given.items()}
    for name, watts in job.gpu_w.items():
        if not watts >= 0:
            raise InputError("a number of watts, 0 or more", field=f"{where}.gpu_w.{name}", value=watts)
    asked = job.requested_gpu_type and _gpu_type(job.requested_gpu_type, spelt, f"{where}.requested_gpu_type")
    if asked and asked not in times:
        expected = f"a GPU type the job has times for ({', '.join(times)}){did_you_mean(asked, times)}"
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
            partition=job.partition,
            constraint=job.constraint,
            restart_s=math.nan if job.restart_s is None else job.restart_s,
            iterations=math.nan if job.iterations is None else job.iterations,
            cpus_per_gpu=math.nan if job.cpus_per_gpu is None else job.cpus_per_gpu,
            memory_gib_per_gpu=math.nan if job.memory_gib_per_gpu is None else job.memory_gib_per_gpu,
            user=job.user,
            qos=job.qos,
            known_s=math.nan if job.known_s is None else job.known_s,
            after=job.after,
            kind=job.kind,
        )
    except InputError as error:
        raise InputError(error.expected, field=f"workload.jobs.{error.field}", value=error.value) from None


def _check_partitions(jobs: Sequence[ScenarioJob], nodes: Sequence[NodeSpec]) -> None:
    there = {name: None for node in nodes for name in node.partitions}
    for job in jobs:
        for name in job.partition.split(",") if job.partition and there else ():
            if name not in there:
                expected = f"a partition some node is in ({', '.join(there)}){did_you_mean(name, there)}"
                raise InputError(expected, field=f"workload.jobs.{job.name}.partition", value=name)


def _without_never(jobs: Sequence[ScenarioJob]) -> tuple[list[ScenarioJob], int]:
    """Return the *jobs* that start some time, with what they wait for of these; and how many never do.

    No job fails in a simulation. Raises ``InputError`` for unknown jobs, and jobs that wait in a circle.
    """
    at = {job.name: i for i, job in enumerate(jobs)}
    for i, job in enumerate(jobs):
        if at[job.name] != i:
            raise InputError("distinct job names", field="jobs.name", value=job.name)
    for job in jobs:
        for name in job.after:
            if name not in at:
                expected = f"the name of a job listed here{did_you_mean(name, at)}"
                raise InputError(expected, field=f"workload.jobs.{job.name}.after", value=name)
    after = {i: {at[name]: kind for name, kind in job.after.items()} for i, job in enumerate(jobs)}
    try:
        never = never_met(after)
    except CycleError as error:
        circle = [jobs[i].name for i in error.args[1]]
        expected = "jobs that do not wait for each other"
        raise InputError(expected, field=f"workload.jobs.{circle[0]}.after", value=shown_circle(circle)) from None
    if len(never) == len(jobs):
        expected = "a job that starts: no job fails in a simulation"
        raise InputError(expected, field=f"workload.jobs.{jobs[0].name}.after", value=next(iter(jobs[0].after)))
    kept = [job for i, job in enumerate(jobs) if i not in never]
    left, _ = among([job.after for job in kept], {job.name for job in kept})
    own = left or ({},) * len(kept)
    return [job.model_copy(update={"after": after}) for job, after in zip(kept, own, strict=True)], len(never)


def _gpu_type(name: str, spelt: dict[str, str], field: str) -> str:
    """Return *name* in the cluster's spelling; a known GPU type that the cluster lacks is accepted."""
    if name.casefold() in spelt:
        return spelt[name.casefold()]
    if not is_known(name):
        names = f"{', '.join(spelt.values())}"
        raise InputError(
            f"a GPU type of the cluster ({names}){did_you_mean(name, spelt.values())}", field=field, value=name
        )
    return name
