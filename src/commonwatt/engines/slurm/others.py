"""Jobs that others submitted to the same Slurm: what they ask for, what they hold, how long they took."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Literal

from commonwatt.control.others import OtherJob
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.sight import look

__all__ = ["FIELDS", "others", "others_of_text"]

FIELDS = (
    "JobID:|,UserName:|,State:|,SubmitTime:|,StartTime:|,EndTime:|,TimeLimit:|,tres-alloc:|,tres-per-node:|,"
    "tres-per-job:|,NumNodes:|,NodeList:|,Reason:|"
)
"""``squeue --Format``: nothing in it is text that a user may choose."""

_RUNS = {"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"}
_RAN = {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "NODE_FAIL", "PREEMPTED", "DEADLINE"}
_NOT_YET = {"BeginTime", "Dependency", "DependencyNeverSatisfied", "JobArrayTaskLimit", "JobHeldAdmin", "JobHeldUser"}
_ALLOCATED = re.compile(r"(?:^|,)gres/gpu=(\d+)(?=$|,)")
_ASKED = re.compile(r"(?:^|,)gres[:/]gpu(?::([^:=,()]+))?[:=](\d+)(?=$|[,(])")
_CLOCK = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
_FOR_EVER_S = 365 * 86400.0


def others(slurm: Slurm, identity: str) -> list[OtherJob]:
    """Ask Slurm for the jobs that do not carry our *identity*; raises ``EngineError`` if it does not answer."""
    own = {job.id for job in look(slurm, identity).jobs.values()}
    text = slurm.run("squeue", "--states=all", "--noheader", f"--Format={FIELDS}")
    return others_of_text(text, own, lambda names: slurm.run("scontrol", "show", "hostnames", names).split())


def others_of_text(text: str, own: Collection[int], expand: Callable[[str], list[str]]) -> list[OtherJob]:
    """Read what ``squeue`` says; left out are our *own*, those without GPUs, and those that are not to begin yet.

    *expand* tells the names that a list such as ``n-[1-3]`` stands for.
    """
    found = []
    for line in text.splitlines():
        row = [part.strip() for part in line.split("|")]
        if len(row) < 13 or not row[0].isdigit() or int(row[0]) in own:
            continue
        state = _state(row[2], row[12])
        submit_s, start_s, end_s = (_moment(part) for part in row[3:6])
        gpus, gpu_type = _gpus(row[7], row[8], row[9], int(row[10]) if row[10].isdigit() else 1)
        if state is None or not gpus or submit_s is None:
            continue
        nodes = tuple(expand(row[11]) if "[" in row[11] else row[11].split(",") if row[11] else ())
        found.append(
            OtherJob(
                id=int(row[0]), user=row[1], state=state, submit_s=submit_s,
                start_s=None if state == "waiting" else start_s, end_s=end_s if state == "ended" else None,
                limit_s=_limit(row[6]), gpus=gpus, gpu_type=gpu_type, nodes=nodes,
            )
        )  # fmt: skip
    return found


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


def _gpus(allocated: str, per_node: str, per_job: str, nodes: int) -> tuple[int, str | None]:
    """Return how many GPUs a job asks for, and of which type, if it says so."""
    asked = [(each, nodes) for each in _ASKED.findall(per_node)] + [(each, 1) for each in _ASKED.findall(per_job)]
    gpu_type = next((name for (name, _), _ in asked if name), None)
    if counted := _ALLOCATED.search(allocated):
        return int(counted[1]), gpu_type
    return sum(int(number) * times for (_, number), times in asked), gpu_type
