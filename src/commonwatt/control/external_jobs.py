"""Jobs submitted to the cluster directly, not to us, and what they have and want."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from commonwatt.control.engine import NodeView
from commonwatt.model.arrays import Bools, Ints
from commonwatt.model.jobs import Job
from commonwatt.model.nodes import Cluster
from commonwatt.model.pools import Pools

__all__ = ["ExternalDemand", "ExternalJob", "demand_of", "job_of"]


@dataclass(frozen=True, slots=True)
class ExternalJob:
    """A job submitted to the cluster directly. Times are seconds since 1970; unknown is ``None``."""

    id: int
    user: str
    state: Literal["waiting", "running", "ended"]
    submit_s: float
    start_s: float | None
    end_s: float | None
    limit_s: float | None
    gpus: int  # over all its nodes
    gpu_type: str | None
    nodes: tuple[str, ...]  # it runs on, or ran on
    task: int | None = None  # of a job array, whose waiting tasks share a number
    name: str = ""  # under which its cluster knows it, if not by its number
    partition: str = ""  # it may run in, several with commas between them
    limited: bool = False  # waits for a limit of its owner or its partition, not for nodes
    array: str = ""  # and task, of a task that runs: it has a number of its own then

    @property
    def label(self) -> str:
        """Its name, or its number as Slurm shows it."""
        return self.name or (str(self.id) if self.task is None else f"{self.id}_{self.task}")

    @property
    def key(self) -> str:
        """What it is known by from when it is submitted until it ends."""
        return self.array or self.label

    @property
    def most_on_a_node(self) -> int:
        """GPUs it has on each of its nodes, if they are spread evenly."""
        return -(-self.gpus // max(1, len(self.nodes)))


@dataclass(frozen=True)
class ExternalDemand:
    """What external jobs have of a cluster, and want.

    Attributes
    ----------
    labels
        Of the jobs that run or wait for nodes, with the pool and the GPUs of each.
    running, waiting
        How many they are.
    held_gpus
        GPUs they have of each node. Shape [N].
    running_gpus, waiting_gpus
        GPUs they have, and those they wait for, in each pool. Shape [P].
    uses
        Whether jobs of a pool have GPUs of a node. Shape [P, N].
    """

    labels: Mapping[str, tuple[int, int]]
    running: int
    waiting: int
    held_gpus: Ints
    running_gpus: Ints
    waiting_gpus: Ints
    uses: Bools

    @classmethod
    def none(cls, nodes: int, pools: int = 1) -> ExternalDemand:
        """Return what no jobs have of so many *nodes* and *pools*."""
        zeros = np.zeros(pools, dtype=np.int64)
        return cls({}, 0, 0, np.zeros(nodes, dtype=np.int64), zeros, zeros, np.zeros((pools, nodes), dtype=bool))

    @property
    def wanted_gpus(self) -> Ints:
        """GPUs they have or wait for, in each pool. Shape [P]."""
        return self.running_gpus + self.waiting_gpus

    def held_in(self, view: NodeView, most_gpus: Ints) -> NodeView:
        """Return *view* with the GPUs they have of each node, *most_gpus* (shape [N]) at most."""
        if not self.running:
            return view
        return replace(view, usable_gpus=np.minimum(view.usable_gpus + self.held_gpus, most_gpus))

    def came(self, before: ExternalDemand) -> list[tuple[int, int]]:
        """Return pool and GPUs of the jobs that were not there *before*."""
        return [job for label, job in self.labels.items() if label not in before.labels]


def demand_of(jobs: Iterable[ExternalJob], cluster: Cluster, pools: Pools) -> ExternalDemand:
    """Return what *jobs* have and want of *cluster*; those that only wait for a limit want nothing."""
    at, size = {name: n for n, name in enumerate(cluster.names)}, len(pools)
    labels: dict[str, tuple[int, int]] = {}
    held, uses = np.zeros(len(cluster), dtype=np.int64), np.zeros((size, len(cluster)), dtype=bool)
    running_gpus, waiting_gpus = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    running = 0
    for one in {one.key: one for one in jobs}.values():
        if one.state == "running" and (nodes := [at[name] for name in one.nodes if name in at]):
            gpus, klass = one.most_on_a_node * len(nodes), int(cluster.klass[nodes[0]])
            pool = pools.of_job(one.partition, klass, gpus)
            pool = pools.running(pool, klass, whole=gpus >= cluster.gpus[nodes].sum())
            np.add.at(held, nodes, one.most_on_a_node)
            running_gpus[pool] += gpus
            uses[pool, nodes] = True
            running += 1
        elif one.state == "waiting" and not one.limited and (suits := _classes_for(one, cluster)):
            gpus, pool = one.gpus, pools.of_job(one.partition, suits[0], one.gpus)
            waiting_gpus[pool] += gpus
        else:
            continue
        labels[one.key] = pool, gpus
    return ExternalDemand(
        labels, running, len(labels) - running, np.minimum(held, cluster.gpus), running_gpus, waiting_gpus, uses
    )


def _classes_for(job: ExternalJob, cluster: Cluster) -> list[int]:
    """Return the classes of nodes that a waiting job may run on, if all of them together have its GPUs."""
    asked = _spelt(job.gpu_type, cluster)
    if job.gpu_type is not None and asked is None:
        return []
    suits = [
        k for k, kind in enumerate(cluster.classes) if asked in (None, kind.gpu_type) and kind.admits(job.partition)
    ]
    return suits if cluster.gpus[np.isin(cluster.klass, suits)].sum() >= job.gpus else []


def job_of(external: ExternalJob, cluster: Cluster, time_s: float, submit_s: float) -> Job | None:
    """Return *external* as it is scheduled: exactly its GPUs, for *time_s*; ``None`` if no node of *cluster* has them.

    If it names no type of GPU, that of the nodes it runs or ran on counts.
    """
    at = {name: n for n, name in enumerate(cluster.names)}
    seen = {cluster.classes[cluster.klass[at[name]]].gpu_type for name in external.nodes if name in at}
    if external.nodes and (len(seen) != 1 or not at.keys() >= set(external.nodes)):
        return None  # it runs elsewhere, or across types
    asked = next(iter(seen), None) or _spelt(external.gpu_type, cluster)
    if external.gpu_type is not None and asked is None:
        return None
    partition = "" if external.nodes else external.partition
    fits = [name for name in cluster.gpu_types if cluster.shapes(name, external.gpus, partition)]
    types = [name for name in fits if asked in (None, name)]
    if not types or not time_s > 0:
        return None
    return Job(
        name=f"{external.label}-of-{external.user}", tenant=external.user, submit_s=submit_s, due_s=math.inf,
        tardiness_weight=0.0, times_s={name: {external.gpus: time_s} for name in types}, requested_gpus=external.gpus,
        requested_type=asked or "", time_limit_s=math.inf if external.limit_s is None else external.limit_s,
        partition=partition,
    )  # fmt: skip


def _spelt(name: str | None, cluster: Cluster) -> str | None:
    """Return the GPU type that Slurm or Kubernetes calls *name*: as we spell it, or the only one it contains."""
    if name is None:
        return None
    folded = name.casefold()
    alike = [own for own in cluster.gpu_types if own.casefold() == folded]
    contained = [own for own in cluster.gpu_types if own.casefold() in re.split(r"[^a-z0-9]+", folded)]
    return alike[0] if alike else contained[0] if len(contained) == 1 else None
