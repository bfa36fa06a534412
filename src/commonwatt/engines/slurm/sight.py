"""The Slurm cluster as it was seen at one moment, and what that means for our nodes."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commonwatt.engines.local.folder import RunOrder
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.reading import SlurmJob, SlurmNode
from commonwatt.engines.slurm.run import run_of

__all__ = ["Held", "Sight", "look", "own_jobs"]


@dataclass(frozen=True)
class Held:
    """What our own jobs hold of a node."""

    gpus: int = 0
    cpus: int = 0
    leaving: int = 0  # GPUs of those that Slurm is at taking off it


@dataclass(frozen=True)
class Sight:
    """Nodes by name and our jobs by handle and attempt, at one moment of the monotonic clock.

    Of a run that is in Slurm several times, as a number may be given again after records were put aside, the last
    counts that is not over; *doubled* are the numbers of others that are not.
    """

    at_s: float
    nodes: Mapping[str, SlurmNode]
    jobs: Mapping[tuple[int, int], SlurmJob]
    doubled: tuple[int, ...] = ()

    def job_of(self, order: RunOrder) -> SlurmJob | None:
        """Return the job of a run of ours."""
        return self.jobs.get((order.handle, order.attempt))

    def held_by(self, orders: Iterable[RunOrder]) -> Held:
        """Return what runs of ours hold of a node that each of them is on."""
        seen = [(order, job) for order in orders if (job := self.job_of(order)) is not None]
        jobs = [(order, job) for order, job in seen if job.holds]
        gpus = sum(order.gpus_per_node for order, _ in jobs)
        leaving = sum(order.gpus_per_node for order, job in seen if job.leaving)
        return Held(gpus, sum(job.cpus // len(order.nodes) for order, job in jobs), leaving)

    def usable(self, name: str, gpu_type: str, gpus: int, held: Held, cpus_per_gpu: int, before: int | None) -> int:
        """GPUs of a node, declared with *gpus*, that our jobs may have: all but those of others.

        A node that is drained, or that Slurm has not heard of for a moment, keeps what it runs; right after a restart
        of Slurm's controller, when it has heard of none yet, it counts as *before*. What our own jobs have that are
        leaving it is among what they may have; of a node that only jobs of others are leaving, nobody knows how much.
        """
        node = self.nodes.get(name)
        if node is None:
            return 0
        if "unknown" in node.states and before is not None and not node.out:
            return before
        kept = held.gpus + held.leaving
        if node.out or node.silent or ("idle" in node.states and node.completing and not kept):
            return kept
        idle = "idle" in node.states and not node.used_cpus  # its GPU count lags, after a restart of the controller
        of_others = 0 if idle else max(0, node.count(node.used_gpus, gpu_type) - held.gpus)
        left = min(gpus, node.count(node.gpus, gpu_type)) - of_others
        if cpus_per_gpu:
            left = min(left, (node.cpus - max(0, node.used_cpus - held.cpus)) // cpus_per_gpu)
        return max(0, left)


def own_jobs(slurm: Slurm, identity: str) -> list[tuple[tuple[int, int], SlurmJob]]:
    """Ask Slurm for all jobs of ours, each with its handle and attempt."""
    found = ((run_of(identity, job.comment), job) for job in slurm.jobs(_user()))
    return [(run, job) for run, job in found if run is not None]


def look(slurm: Slurm, identity: str) -> Sight:
    """Ask Slurm for its nodes and for our jobs; raises ``EngineError`` if it does not answer.

    Nodes first: a job that begins in between is then not taken for somebody else's. Ours is what carries our identity
    and runs as our user; if Slurm knows a run twice, the one that is not over counts.
    """
    at_s = time.monotonic()
    slurm.ping()
    nodes = {node.name: node for node in slurm.nodes()}
    jobs: dict[tuple[int, int], SlurmJob] = {}
    doubled = []
    for run, job in sorted(own_jobs(slurm, identity), key=lambda found: (not found[1].over, found[1].id)):
        if run in jobs and not jobs[run].over:
            doubled.append(jobs[run].id)
        jobs[run] = job
    return Sight(at_s, nodes, jobs, tuple(doubled))


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
