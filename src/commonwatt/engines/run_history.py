"""The runs an engine ever started, from its records on disk; the specs of the next ones, and their batch scripts.

A batch script is run with the variables that ``sbatch`` gives.
"""

from __future__ import annotations

import getpass
import os
import pwd
import re
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from commonwatt.control.engine import RecordedRun, Start
from commonwatt.engines.local.folder import USERS
from commonwatt.engines.reports import Reports
from commonwatt.engines.run_spec import Images, JobWork, RunSpec
from commonwatt.model.errors import EngineDownError
from commonwatt.model.job_file import ScriptSpec
from commonwatt.model.nodes import Cluster

__all__ = ["RunHistory", "RunPlanner", "batch_options", "file_named", "prepare_batch"]

_SCRIPT = "script"
_REDIRECT = """
if [ -n "$2" ] && [ "$2" != "$1" ]; then
    [ -n "$3" ] || : >"$2" || exit
    echo "[commonwatt: errors go to $2]"
fi
if [ -n "$1" ]; then
    [ -n "$3" ] || : >"$1" || exit
    echo "[commonwatt: output goes to $1]"
    exec >>"$1" 2>&1 || exit
fi
if [ -n "$2" ] && [ "$2" != "$1" ]; then
    exec 2>>"$2" || exit
fi
shift 3; exec "$@"
"""
"""Redirects to the files $1 (output) and $2 (errors), which are emptied before unless $3 is set, and runs the rest."""
_PATTERN = re.compile(r"%(\d*)([%jJxuAaN])")


def file_named(pattern: str, *, job: int, name: str, batch: ScriptSpec, user: str) -> str:
    """Return the file that a *pattern* of ``sbatch`` names."""
    first, index = (batch.array[0] or job, batch.array[1]) if batch.array else (job, 4294967294)
    values = {"%": "%", "j": str(job), "J": str(job), "x": name, "u": user, "A": str(first), "a": str(index), "N": "0"}

    def value(match: re.Match[str]) -> str:
        text = values[match[2]]
        return text.zfill(min(10, int(match[1]))) if match[1] and text.isdigit() else text

    return _PATTERN.sub(value, pattern)


def prepare_batch(work: JobWork, command: Start, own: str, attempt: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Write the script of *work* to the job's *own* folder; returns the command that runs it, and its variables.

    Raises ``EngineDownError`` if it cannot be written.
    """
    batch = work.batch
    assert batch is not None
    path, name = Path(own) / _SCRIPT, command.name.partition("-")[2]
    try:
        with suppress(FileNotFoundError):
            path.unlink()  # a job may have put anything there
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o700)
        with os.fdopen(number, "w", encoding="utf-8", newline="") as file:
            file.write(batch.script)
            if work.user is not None:
                os.fchown(number, pwd.getpwnam(work.user).pw_uid, -1)
    except OSError as error:
        msg = f"start {command.name}: its script cannot be written: {error}"
        raise EngineDownError(msg) from error
    user = work.user or getpass.getuser()
    output, errors = (
        "" if pattern is None else file_named(pattern, job=command.handle, name=name, batch=batch, user=user)
        for pattern in (batch.output, batch.error)
    )
    keep = "yes" if batch.append or attempt > 1 else ""
    run = ("/bin/sh", "-c", _REDIRECT, "sh", output, errors, keep, str(path), *work.command[1:])
    return run, _variables(batch, command, name)


def _variables(batch: ScriptSpec, command: Start, name: str) -> dict[str, str]:
    nodes, tasks = len(command.nodes), len(command.nodes) * batch.tasks_per_node
    variables = {
        "SLURM_SUBMIT_DIR": batch.submit_folder, "SLURM_SUBMIT_HOST": socket.gethostname(), "SLURM_JOB_NAME": name,
        "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NNODES": str(nodes), "SLURM_NTASKS": str(tasks),
        "SLURM_GPUS_ON_NODE": str(command.gpus_per_node), "SLURM_JOB_ID": str(command.handle),
        "SLURM_JOBID": str(command.handle),
    }  # fmt: skip
    if batch.cpus_per_task is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(batch.cpus_per_task)
    if batch.array is not None:
        first, index, count, least, largest = batch.array
        variables |= {
            "SLURM_ARRAY_JOB_ID": str(first or command.handle), "SLURM_ARRAY_TASK_ID": str(index),
            "SLURM_ARRAY_TASK_COUNT": str(count), "SLURM_ARRAY_TASK_MIN": str(least),
            "SLURM_ARRAY_TASK_MAX": str(largest),
        }  # fmt: skip
    return variables


def batch_options(batch: ScriptSpec | None, partition: str, constraint: str = "") -> tuple[str, ...]:
    """Return the options for Slurm of a job: those that it keeps better than a plan of GPUs can."""
    options = [f"--partition={partition}"] if partition else []
    options += [f"--constraint={constraint}"] if constraint else []
    if batch is not None:
        options.append(f"--ntasks-per-node={batch.tasks_per_node}")
        options += [] if batch.cpus_per_task is None else [f"--cpus-per-task={batch.cpus_per_task}"]
        options += batch.options
    return tuple(options)


_OURS = ("SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_JOB_NAME")
"""Variables that Slurm would set otherwise: it does not know the array, nor who submitted a job."""


class RunHistory:
    """The jobs an engine ever started.

    Parameters
    ----------
    state
        The engine's folder, with a folder ``runs/HANDLE-ATTEMPT`` for each run.
    reports
        Progress of the jobs, which is forgotten with their records.
    """

    def __init__(self, state: Path, reports: Reports, now_s: Callable[[], float] = time.time) -> None:
        self._state, self._reports, self._now_s = state, reports, now_s
        self._attempts: dict[int, int] = {}
        self._marks: dict[int, str] = {}

    def add(self, spec: RunSpec) -> None:
        """Add a run."""
        self._attempts[spec.handle], self._marks[spec.handle] = spec.attempt, spec.mark

    def next_attempt(self, handle: int) -> int:
        """Return the number of the next run of a job, from 1."""
        return self._attempts.get(handle, 0) + 1

    def recorded_runs(self, running: Mapping[int, RunSpec]) -> list[RecordedRun]:
        """Return every job; those that are *running* with their nodes."""
        return [
            RecordedRun(handle, attempts, spec.nodes if spec else (), spec.gpus_per_node if spec else 0, mark)
            for handle, attempts in sorted(self._attempts.items())
            for spec, mark in ((running.get(handle), self._marks[handle]),)
        ]

    def not_running(self, running: Collection[int]) -> list[int]:
        """Return the jobs that are not among those *running*."""
        return sorted(self._attempts.keys() - set(running))

    def prune(self, handles: Collection[int], *, aside: bool) -> set[int]:
        """Delete the records of jobs, or move all their files *aside*; returns the jobs that had any.

        Raises ``EngineDownError`` if they cannot be moved; they are then kept.
        """
        gone = self._attempts.keys() & set(handles)
        for handle in gone:
            runs = [self._state / "runs" / f"{handle}-{k}" for k in range(1, self._attempts[handle] + 1)]
            apart = [self._state / USERS / path.name for path in runs]
            if aside:
                # the last run last: while its record is there, the next engine has the job, and moves the rest
                self._move(self._state / "jobs" / str(handle), *apart, *runs)
            else:
                for path in (*runs, *apart):
                    shutil.rmtree(path, ignore_errors=True)
            del self._attempts[handle], self._marks[handle]
            self._reports.forget(handle)
        return gone

    def _move(self, *paths: Path) -> None:
        there = self._state / "aside" / f"{self._now_s():.3f}"
        try:
            there.parent.mkdir(mode=0o700, exist_ok=True)  # records contain the environments of jobs
            there.mkdir(exist_ok=True)
            for path in paths:
                if path.exists():
                    path.rename(there / f"{path.parent.name}-{path.name}")
        except OSError as error:
            msg = f"records of an earlier job in {self._state} cannot be moved aside: {error}"
            raise EngineDownError(msg) from error


@dataclass(frozen=True)
class RunPlanner:
    """Makes the specs of an engine's runs."""

    cluster: Cluster
    reports: Reports
    history: RunHistory
    images: Images
    grace_s: float
    now_s: Callable[[], float]
    look_s: float | None = None  # how often a runner checks whether its run was given up; never if it is our child
    locked: bool = False  # whether a runner waits for the one before it, which may be on another machine
    in_slurm: bool = False  # whether Slurm sets its variables itself
    fence: tuple[str, Path] | None = None  # text and file of ``RunSpec``

    def spec(
        self, command: Start, slots: tuple[tuple[int, ...], ...], environment: Mapping[str, str] | None = None
    ) -> RunSpec:
        """Return the spec of the job's next run on these *slots*, with additions to its *environment*.

        Raises ``EngineError`` if its folder cannot be made.
        """
        gpus = len(command.nodes) * command.gpus_per_node
        work, places, variables = self.reports.work(command.handle, command.name, gpus)
        attempt = self.history.next_attempt(command.handle)
        if work.batch is not None:
            run, named = prepare_batch(work, command, places["own"], attempt)
            names = ",".join(self.cluster.names[n] for n in command.nodes)
            named |= {"SLURM_JOB_NODELIST": names, "SLURM_NODELIST": names, "SLURM_JOB_PARTITION": work.partition}
            named["SLURM_GPUS_PER_NODE"] = str(command.gpus_per_node)
            # inside of Slurm, its own variables are true
            work, variables = replace(work, command=run), {**({} if self.in_slurm else named), **variables}
            variables |= {name: value for name, value in named.items() if name.startswith(_OURS)}
        return RunSpec(
            handle=command.handle,
            attempt=attempt,
            name=command.name,
            nodes=command.nodes,
            gpus_per_node=command.gpus_per_node,
            slots=slots,
            started_s=self.now_s(),
            base_epochs=self.reports.of(command.handle, None)[1],
            command=self.images.command(work, places),
            folder=str(work.folder),
            environment={**variables, **(environment or {})},
            grace_s=self.grace_s,
            limit_s=work.time_limit_s,
            lock=f"{places['own']}/lock" if self.locked else None,
            look_s=self.look_s,
            node_names=tuple(self.cluster.names[n] for n in command.nodes),
            epochs=work.epochs,
            mark=work.mark,
            output_bytes=work.output_bytes,
            files_bytes=work.files_bytes,
            files_folder=str(places["own"]),
            reserve_bytes=work.reserve_bytes,
            user=work.user,
            cpus=None if work.cpus_per_gpu is None else work.cpus_per_gpu * command.gpus_per_node,
            memory_gib=None if work.memory_gib_per_gpu is None else work.memory_gib_per_gpu * command.gpus_per_node,
            apart=self.in_slurm and work.user is not None,
            options=(*batch_options(work.batch, work.partition, work.constraint), *work.options),
            fence=self.fence[0] if self.fence else "",
            fence_file=str(self.fence[1]) if self.fence else None,
            image=work.image,
            workload=work.workload,
        )
