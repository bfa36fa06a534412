"""Jobs submitted to the same Slurm directly: what they request, what they have, how long they took."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Literal

from commonwatt.control.external_jobs import ExternalJob
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.parsing import host_names
from commonwatt.engines.slurm.snapshot import own_jobs
from commonwatt.model.errors import EngineDownError

__all__ = ["FIELDS", "external_jobs", "parse_external_jobs"]

FIELDS = (
    "JobID:|,UserName:|,State:|,SubmitTime:|,StartTime:|,EndTime:|,TimeLimit:|,tres-alloc:|,tres-per-node:|,"
    "tres-per-job:|,NumNodes:|,NodeList:|,Reason:|,tres-per-task:|,NumTasks:|,tres-per-socket:|,sct:|,ArrayJobID:|,"
    "ArrayTaskID:|"
)
"""``squeue --Format``: no field has text that a user can choose."""

_RUNS = {"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"}
_RAN = {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "NODE_FAIL", "PREEMPTED", "DEADLINE"}
_NOT_YET = {"BeginTime", "Dependency", "DependencyNeverSatisfied", "JobArrayTaskLimit", "JobHeldAdmin", "JobHeldUser"}
_ALLOCATED = re.compile(r"(?:^|,)gres/gpu=(\d+)(?=$|,)")
_NODES = re.compile(r"(?:^|,)node=(\d+)(?=$|,)")
_ASKED = re.compile(r"(?:^|,)gres[:/]gpu(?::([^:=,()]+)(?=[:=]))?(?:[:=]([^:=,()]+))?(?=$|[,(])")
_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_CLOCK = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
_FOR_EVER_S = 365 * 86400.0
_MOST_TASKS = 100
"""Waiting tasks of a job array that are considered: planning thousands would take long."""


def external_jobs(slurm: Slurm, identity: str) -> list[ExternalJob]:
    """Ask Slurm for the jobs that do not carry our *identity*; raises ``EngineError`` if it does not answer."""
    slurm.ping()
    own = {job.id for _, job in own_jobs(slurm, identity)}
    text = slurm.run("squeue", "--states=all", "--all", f"--Format={FIELDS}")
    if not text.startswith("JOBID") or not text.endswith("\n"):
        msg = f"squeue: its answer cannot be read: no list of jobs: {text.strip()[:80]!r}"
        raise EngineDownError(msg)
    return parse_external_jobs(text, own)


def parse_external_jobs(text: str, own: Collection[int]) -> list[ExternalJob]:
    """Parse the output of ``squeue``; leaves out our *own* jobs, jobs without GPUs, and jobs that may not start yet."""
    found: list[ExternalJob] = []
    arrays: list[tuple[ExternalJob, str, str]] = []
    running: Counter[str] = Counter()
    for line in text.splitlines():
        row = [part.strip() for part in line.split("|")]
        if len(row) < 19 or not row[0].isdigit() or int(row[0]) in own:
            continue
        state = _state(row[2], row[12])
        submit_s, start_s, end_s = (_moment(part) for part in row[3:6])
        gpus, gpu_type = _gpus(row)
        if state is None or not gpus or submit_s is None:
            continue
        try:
            nodes = host_names(row[11])
        except ValueError:
            continue
        job = ExternalJob(
            id=int(row[0]), user=row[1], state=state, submit_s=submit_s,
            start_s=None if state == "waiting" else start_s, end_s=end_s if state == "ended" else None,
            limit_s=_limit(row[6]), gpus=gpus, gpu_type=gpu_type, nodes=nodes,
        )  # fmt: skip
        running[row[17]] += state == "running"
        if state == "waiting" and row[18][:1].isdigit():
            arrays.append((job, row[17], row[18]))
        else:
            found.append(job)
    for job, array, tasks in arrays:
        found += (replace(job, task=task) for task in _tasks(tasks, running[array]))
    return found


def _tasks(text: str, running: int) -> list[int]:
    """Return the waiting tasks of an array such as ``1-9:2,12%4``, as many as may run beside those *running*."""
    listed, _, at_once = text.partition("%")
    most = min(_MOST_TASKS, int(at_once) - running) if at_once.isdigit() else _MOST_TASKS
    found: list[int] = []
    for part in listed.split(","):
        if (match := _TASKS.fullmatch(part)) is None:  # Slurm shortens long ones: `1,3,5,...`
            break
        first, last, step = match.groups()
        found += islice(range(int(first), int(last or first) + 1, int(step or 1)), _MOST_TASKS)
    return found[: max(0, most)]


def _state(word: str, reason: str) -> Literal["waiting", "running", "ended"] | None:
    if word == "PENDING":
        return None if reason in _NOT_YET else "waiting"
    if word in _RUNS:
        return "running"
    return "ended" if word in _RAN else None


def _moment(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return None


def _limit(text: str) -> float | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    limit_s = ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds
    return limit_s if 0 < limit_s < _FOR_EVER_S else None


def _gpus(row: Sequence[str]) -> tuple[int, str | None]:
    """Return how many GPUs a job requests, and their type, if it names one; with a range of nodes, for the fewest."""
    least = _NODES.search(row[7])
    nodes = int(least[1]) if least else _number(row[10])
    sockets = _number(row[16].partition(":")[0])  # of each node
    times = {8: nodes, 9: 1, 13: _number(row[14]), 15: nodes * sockets}
    asked = [(kind, count, times[k]) for k in times for kind, count in _ASKED.findall(row[k])]
    named = [(kind or ("" if count.isdigit() else count), count, many) for kind, count, many in asked]
    gpu_type = next((kind for kind, _, _ in named if kind), None)
    if counted := _ALLOCATED.search(row[7]):
        return int(counted[1]), gpu_type
    return sum(_number(count) * many for _, count, many in named), gpu_type


def _number(text: str) -> int:
    """Return a count; 1 where there is none."""
    return int(text) if text.isdigit() else 1
