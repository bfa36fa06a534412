"""The Slurm cluster at one moment, and the GPUs our jobs may have there."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.parsing import SlurmJob, SlurmNode
from commonwatt.engines.slurm.run import SlurmRun, run_of
from commonwatt.model.errors import EngineDownError

__all__ = ["NodeUse", "SlurmSnapshot", "look", "own_jobs"]


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


def own_jobs(slurm: Slurm, identity: str, *, plain: bool = False) -> list[tuple[tuple[int, int], SlurmJob]]:
    """Ask Slurm for all our jobs, each with its handle and attempt."""
    tagged = ((run_of(identity, job.comment), job) for job in slurm.jobs(_user(), plain=plain))
    return [(run, job) for run, job in tagged if run is not None]


def look(
    slurm: Slurm, identity: str, before: SlurmSnapshot | None = None, runs: Iterable[SlurmRun] = ()
) -> SlurmSnapshot:
    """Ask Slurm for its nodes and for our jobs; raises ``EngineError`` if it does not answer.

    Nodes first: a job that starts in between is then not counted as an external one. Our jobs carry our identity and
    run as our user; if Slurm has a run twice, the one that is not over counts.

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
            msg = f"sinfo: none of {len(before.nodes)} nodes is there any more, which is not believed"
            raise EngineDownError(msg)
    found = own_jobs(slurm, identity)
    there = {run for run, _ in found}
    if missing := [run for run in runs if run.key not in there and run.expected]:
        again = own_jobs(slurm, identity, plain=True)
        found += [(run, job) for run, job in again if run not in there]
        there |= {run for run, _ in again}
        _confirm(slurm, [run for run in missing if run.key not in there])
    jobs: dict[tuple[int, int], SlurmJob] = {}
    doubled = []
    for key, job in sorted(found, key=lambda tagged: (not tagged[1].over, tagged[1].id)):
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
