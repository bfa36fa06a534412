"""Batch scripts of jobs: where they are written, how they are run, and the variables they get, as by ``sbatch``."""

from __future__ import annotations

import getpass
import os
import pwd
import re
import socket
from contextlib import suppress
from pathlib import Path

from commonwatt.control.engine import Start
from commonwatt.engines.run_spec import JobWork
from commonwatt.model.errors import EngineDownError
from commonwatt.model.job_file import ScriptSpec

__all__ = ["batch_options", "file_named", "prepare_batch"]

_SCRIPT = "script"
_REDIRECT = """
if [ -n "$1" ]; then
    [ -n "$3" ] || : >"$1" || exit
    echo "[commonwatt: output goes to $1]"
    exec >>"$1" 2>&1 || exit
fi
if [ -n "$2" ] && [ "$2" != "$1" ]; then
    [ -n "$3" ] || : >"$2" || exit
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

    def value(found: re.Match[str]) -> str:
        text = values[found[2]]
        return text.zfill(min(10, int(found[1]))) if found[1] and text.isdigit() else text

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
    found = {
        "SLURM_SUBMIT_DIR": batch.submit_folder, "SLURM_SUBMIT_HOST": socket.gethostname(), "SLURM_JOB_NAME": name,
        "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NNODES": str(nodes), "SLURM_NTASKS": str(tasks),
        "SLURM_GPUS_ON_NODE": str(command.gpus_per_node), "SLURM_JOB_ID": str(command.handle),
        "SLURM_JOBID": str(command.handle),
    }  # fmt: skip
    if batch.cpus_per_task is not None:
        found["SLURM_CPUS_PER_TASK"] = str(batch.cpus_per_task)
    if batch.array is not None:
        first, index, count, least, largest = batch.array
        found |= {
            "SLURM_ARRAY_JOB_ID": str(first or command.handle), "SLURM_ARRAY_TASK_ID": str(index),
            "SLURM_ARRAY_TASK_COUNT": str(count), "SLURM_ARRAY_TASK_MIN": str(least),
            "SLURM_ARRAY_TASK_MAX": str(largest),
        }  # fmt: skip
    return found


def batch_options(batch: ScriptSpec | None, partition: str) -> tuple[str, ...]:
    """Return the options for Slurm of a job: those that it keeps better than a plan of GPUs can."""
    found = [f"--partition={partition}"] if partition else []
    if batch is not None:
        found.append(f"--ntasks-per-node={batch.tasks_per_node}")
        found += [] if batch.cpus_per_task is None else [f"--cpus-per-task={batch.cpus_per_task}"]
        found += batch.options
    return tuple(found)
