"""The Slurm cluster at one moment: the GPUs our jobs may have there, and the jobs submitted to it directly."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Literal

from commonwatt.control.external_jobs import ExternalJob
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.parsing import SlurmJob, SlurmNode, host_names
from commonwatt.engines.slurm.run import SlurmRun, run_of
from commonwatt.model.errors import EngineDownError

__all__ = ["FIELDS", "NodeUse", "SlurmSnapshot", "external_jobs", "look", "own_jobs", "parse_external_jobs"]


@dataclass(frozen=True)
class NodeUse:
    """What our own jobs have of a node."""

    gpus: int = 0
    cpus: int = 0
    completing_gpus: int = 0  # of completing jobs


@dataclass(frozen=True)
class SlurmSnapshot:
    """Nodes by name and our jobs by handle and attempt, at one moment of the monotonic clock.

    A run may be in Slurm several times, as its number is free again once records were moved aside. The last that is not
    over counts; *doubled* are the ids of the others that are not over.
    """

    at_s: float
    nodes: Mapping[str, SlurmNode]
    jobs: Mapping[tuple[int, int], SlurmJob]
    doubled: tuple[int, ...] = ()

    def job_of(self, spec: RunSpec) -> SlurmJob | None:
        """Return the job of one of our runs."""
        return self.jobs.get((spec.handle, spec.attempt))

    def used_by(self, specs: Iterable[RunSpec]) -> NodeUse:
        """Return what our runs have of a node; each of them is on it."""
        seen = [(spec, job) for spec in specs if (job := self.job_of(spec)) is not None]
        jobs = [(spec, job) for spec, job in seen if job.allocated]
        gpus = sum(spec.gpus_per_node for spec, _ in jobs)
        completing = sum(spec.gpus_per_node for spec, job in seen if job.completing)
        return NodeUse(gpus, sum(job.cpus // len(spec.nodes) for spec, job in jobs), completing)

    def usable(self, name: str, gpu_type: str, gpus: int, own: NodeUse, cpus_per_gpu: int, before: int | None) -> int:
        """GPUs of a node, declared with *gpus*, that our jobs may have: all but those of external jobs.

        A node that is drained, or does not respond for a moment, keeps what it runs; right after a restart of Slurm's
        controller, when none has responded yet, the count *before* holds. GPUs of our own completing jobs are included;
        where only external jobs complete, nothing is usable: how much they have is unknown.
        """
        node = self.nodes.get(name)
        if node is None:
            return 0
        if "unknown" in node.states and before is not None and not node.out:
            return before
        kept = own.gpus + own.completing_gpus
        if node.out or node.silent or ("idle" in node.states and node.completing and not kept):
            return kept
        idle = "idle" in node.states and not node.used_cpus  # its GPU count lags, after a restart of the controller
        external = 0 if idle else max(0, node.count(node.used_gpus, gpu_type) - own.gpus)
        left = min(gpus, node.count(node.gpus, gpu_type)) - external
        if cpus_per_gpu:
            left = min(left, (node.cpus - max(0, node.used_cpus - own.cpus)) // cpus_per_gpu)
        return max(0, left)


def own_jobs(
    slurm: Slurm, identity: str, users: Collection[str] = (), *, plain: bool = False,
    runs: Iterable[SlurmRun] = (),
) -> list[tuple[tuple[int, int], SlurmJob]]:  # fmt: skip
    """Ask Slurm for all our jobs, each with its handle and attempt.

    They are of this process's user or of one of *users*, who may change the comments of their jobs: one of *runs* is
    known by its number, whatever its comment says, and a job in the name of another user's run is none of ours.
    """
    me, expected = _user(), {run.key: run.spec.user for run in runs}
    numbers = {run.job_number(): run.key for run in runs if run.folder.own is not None}
    jobs = []
    for job in slurm.jobs({me, *users}, plain=plain):
        run = numbers.get(job.id) or run_of(identity, job.comment)
        if run is not None and job.user == (expected.get(run, job.user) or me):
            jobs.append((run, job))
    return jobs


def look(
    slurm: Slurm, identity: str, before: SlurmSnapshot | None = None, runs: Iterable[SlurmRun] = (),
    users: Collection[str] = (),
) -> SlurmSnapshot:  # fmt: skip
    """Ask Slurm for its nodes and for our jobs; raises ``EngineError`` if it does not answer.

    Nodes first: a job that starts in between is then not counted as an external one. Our jobs carry our identity and
    are our user's or one of *users*'; if Slurm has a run twice, the one that is not over counts.

    What was there *before*, or should be there as one of *runs*, and is missing, is asked for again in another form. A
    job of a known number is gone once Slurm says so of that number; where its answers contradict each other, it counts
    as not answering.
    """
    at_s = time.monotonic()
    slurm.ping()
    nodes = {node.name: node for node in slurm.nodes()}
    if before is not None and before.nodes.keys() - nodes.keys():
        nodes |= {node.name: node for node in slurm.nodes(plain=True)}
        if not before.nodes.keys() & nodes.keys():
            msg = f"sinfo lists none of the nodes of a moment ago ({len(before.nodes)}), which is not believed"
            raise EngineDownError(msg)
    runs = tuple(runs)
    users = {*users, *(run.spec.user for run in runs if run.spec.user is not None)}
    run_jobs = own_jobs(slurm, identity, users, runs=runs)
    there = {run for run, _ in run_jobs}
    if missing := [run for run in runs if run.key not in there and run.expected]:
        again = own_jobs(slurm, identity, users, plain=True, runs=runs)
        run_jobs += [(run, job) for run, job in again if run not in there]
        there |= {run for run, _ in again}
        _confirm(slurm, [run for run in missing if run.key not in there])
    jobs: dict[tuple[int, int], SlurmJob] = {}
    doubled = []
    for key, job in sorted(run_jobs, key=lambda tagged: (not tagged[1].over, tagged[1].id)):
        if key in jobs and not jobs[key].over:
            doubled.append(jobs[key].id)
        jobs[key] = job
    return SlurmSnapshot(at_s, nodes, jobs, tuple(doubled))


def _confirm(slurm: Slurm, missing: Iterable[SlurmRun]) -> None:
    """Raise ``EngineDownError`` if Slurm has a job that it left out of its list."""
    for run in missing:
        number = run.job_number()
        if number is not None and slurm.has(number):
            msg = f"squeue: it does not list job {number}, which Slurm has"
            raise EngineDownError(msg)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


FIELDS = (
    "JobID:|,UserName:|,State:|,SubmitTime:|,StartTime:|,EndTime:|,TimeLimit:|,tres-alloc:|,tres-per-node:|,"
    "tres-per-job:|,NumNodes:|,NodeList:|,Reason:|,tres-per-task:|,NumTasks:|,tres-per-socket:|,sct:|,ArrayJobID:|,"
    "ArrayTaskID:|,Partition:|"
)
"""``squeue --Format``: no field has text that a user can choose."""

_RUNS = {"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"}
_RAN = {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "NODE_FAIL", "PREEMPTED", "DEADLINE"}
_LIMITS = (
    "QOS", "Assoc", "Partition", "Licenses", "BadConstraints", "Invalid", "Account", "Max", "BurstBuffer",
    "Reservation", "JobH", "launch", "DeadLine", "Prolog", "FedJob",
)  # fmt: skip
"""How the reasons of jobs begin that nodes would not let start."""
_NOT_YET = {"BeginTime", "Dependency", "DependencyNeverSatisfied", "JobArrayTaskLimit", "JobHeldAdmin", "JobHeldUser"}
_ALLOCATED = re.compile(r"(?:^|,)gres/gpu=(\d+)(?=$|,)")
_NODES = re.compile(r"(?:^|,)node=(\d+)(?=$|,)")
_ASKED = re.compile(r"(?:^|,)gres[:/]gpu(?::([^:=,()]+)(?=[:=]))?(?:[:=]([^:=,()]+))?(?=$|[,(])")
_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_CLOCK = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
_FOR_EVER_S = 365 * 86400.0
_MOST_TASKS = 10_000
"""Waiting tasks of a job array that are considered."""


def external_jobs(slurm: Slurm, identity: str, users: Collection[str] = ()) -> list[ExternalJob]:
    """Ask Slurm for the jobs that do not carry our *identity*; raises ``EngineError`` if it does not answer.

    *users* as for ``own_jobs``.
    """
    slurm.ping()
    own = {job.id for _, job in own_jobs(slurm, identity, users)}
    text = slurm.run("squeue", "--states=all", "--all", f"--Format={FIELDS}")
    unreadable = "squeue: its answer cannot be read"
    if not text.startswith("JOBID") or not text.endswith("\n"):
        msg = f"{unreadable}: no list of jobs: {text.strip()[:80]!r}"
        raise EngineDownError(msg)
    try:
        return parse_external_jobs(text.partition("\n")[2], own)
    except ValueError as error:
        msg = f"{unreadable}: {error}"
        raise EngineDownError(msg) from None


def parse_external_jobs(text: str, own: Collection[int]) -> list[ExternalJob]:
    """Parse the lines of ``squeue``; leaves out our *own* jobs, jobs without GPUs, and jobs that may not start yet.

    Raises ``ValueError`` on a line that does not have all fields.
    """
    jobs: list[ExternalJob] = []
    arrays: list[tuple[ExternalJob, str, str]] = []
    running: Counter[str] = Counter()
    for line in text.splitlines():
        if not line.strip():
            continue
        row = [part.strip() for part in line.split("|")]
        if len(row) != 21 or not row[0].isdigit():
            msg = f"a line that is no job: {line[:80]!r}"
            raise ValueError(msg)
        if int(row[0]) in own:
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
            partition=row[19], limited=state == "waiting" and row[12].startswith(_LIMITS),
            array=f"{row[17]}_{row[18]}" if state == "running" and row[18].isdigit() else "",
        )  # fmt: skip
        running[row[17]] += state == "running"
        if state == "waiting" and row[18][:1].isdigit():
            arrays.append((job, row[17], row[18]))
        else:
            jobs.append(job)
    for job, array, tasks in arrays:
        jobs += (replace(job, task=task) for task in _tasks(tasks, running[array]))
    return jobs


def _tasks(text: str, running: int) -> list[int]:
    """Return the waiting tasks of an array such as ``1-9:2,12%4``, as many as may run beside those *running*."""
    listed, _, at_once = text.partition("%")
    most = min(_MOST_TASKS, int(at_once) - running) if at_once.isdigit() else _MOST_TASKS
    tasks: list[int] = []
    for part in listed.split(","):
        if (match := _TASKS.fullmatch(part)) is None:  # Slurm shortens long ones: `1,3,5,...`
            break
        first, last, step = match.groups()
        tasks += islice(range(int(first), int(last or first) + 1, int(step or 1)), _MOST_TASKS)
    return tasks[: max(0, most)]


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
