"""What a policy would do with jobs submitted to the cluster directly, not to us; it commands nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from commonwatt.control.engine import Capabilities, Change, Command, JobProgress, NodeView, Reading, Stopped
from commonwatt.control.events import Event, EventKind
from commonwatt.control.job_registry import Rules
from commonwatt.control.ledger import Account
from commonwatt.control.scheduling import JobCondition
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster
from commonwatt.optimize import KeepGoing, always

if TYPE_CHECKING:
    from commonwatt.control.policy import Policy

__all__ = ["ExternalJob", "dry_run", "job_of"]


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

    @property
    def label(self) -> str:
        """Its name, or its number as Slurm shows it."""
        return self.name or (str(self.id) if self.task is None else f"{self.id}_{self.task}")

    @property
    def most_on_a_node(self) -> int:
        """GPUs it has on each of its nodes, if they are spread evenly."""
        return -(-self.gpus // max(1, len(self.nodes)))


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
    types = [name for name in cluster.gpu_types if asked in (None, name) and cluster.shapes(name, external.gpus)]
    if not types or not time_s > 0:
        return None
    return Job(
        name=f"{external.label}-of-{external.user}", tenant=external.user, submit_s=submit_s, due_s=math.inf,
        tardiness_weight=0.0, times_s={name: {external.gpus: time_s} for name in types}, requested_gpus=external.gpus,
        requested_type=asked or "", time_limit_s=math.inf if external.limit_s is None else external.limit_s,
    )  # fmt: skip


def dry_run(
    jobs: Sequence[ExternalJob], *, cluster: Cluster, view: NodeView, policy: Policy, rules: Rules, tariff: Tariff,
    rng: np.random.Generator, now_s: float, default_limit_s: float, stopwatch: KeepGoing = always,
) -> Iterator[tuple[ExternalJob, Event]]:  # fmt: skip
    """Yield which waiting jobs would be started now, and where; running jobs stay where they are.

    Parameters
    ----------
    view
        GPUs of each node these jobs may have, those they have included, and its power state. On a node where they have
        more than that, none is free.
    default_limit_s
        Run time assumed for a job that declares none.
    """
    from commonwatt.control.controller import Controller  # with all solvers: who only counts jobs need not wait for it

    usable, at = view.usable_gpus.copy(), {name: n for n, name in enumerate(cluster.names)}
    scheduled: list[ExternalJob] = []
    table: list[Job] = []
    for one in {one.label: one for one in jobs}.values():
        limit_s = default_limit_s if one.limit_s is None else one.limit_s
        job = None if one.state == "ended" else job_of(one, cluster, limit_s, min(one.submit_s, now_s))
        if job is not None:
            scheduled.append(one)
            table.append(job)
        else:
            _take(usable, usable, one, at)
    if not table:
        return
    left = usable.copy()
    engine = _ReadOnlyEngine(NodeView(usable, view.wait_s, view.power_state), len(table))
    controller = Controller(
        cluster=cluster, engine=engine, policy=policy, rules=rules, tariff=tariff, rng=rng, now_s=now_s,
        stopwatch=lambda: stopwatch,
    )  # fmt: skip
    controller.set_dry(dry=True)
    handles = controller.submit(JobArrays.of(table), np.arange(len(table)))
    for handle, one in zip(handles, scheduled, strict=True):
        if one.state != "running":
            continue
        nodes = tuple(sorted(at[name] for name in one.nodes))
        each = one.gpus // len(nodes) if nodes else 0
        fits = each * len(nodes) == one.gpus and bool((left[list(nodes)] >= each).all())
        if fits and controller.adopt(handle, nodes, each, Account()):
            left[list(nodes)] -= each
            limit_s = default_limit_s if one.limit_s is None else one.limit_s
            begun_s = now_s if one.start_s is None else one.start_s
            engine.done[handle] = min(0.999, max(0.0, now_s - begun_s) / limit_s)
        else:
            controller.scheduling.mark(handle, JobCondition.UNSCHEDULABLE)
            _take(usable, left, one, at)
    controller.log.take()
    controller.tick(now_s)
    for event in controller.log.take():
        if event.kind is EventKind.WOULD_START:
            yield scheduled[handles.index(event.handle)], event


def _take(usable: Ints, left: Ints, job: ExternalJob, at: Mapping[str, int]) -> None:
    """Take the GPUs of a running job that we cannot place out of those *usable*, and of those *left* of them."""
    if job.state == "running":
        for n in (at[name] for name in job.nodes if name in at):
            taken = min(job.most_on_a_node, int(left[n]))
            usable[n] -= taken
            if left is not usable:
                left[n] -= taken


class _ReadOnlyEngine:
    """An ``Engine`` that takes no commands."""

    capabilities = Capabilities(preempt=False, gangs=True, energy=False)

    def __init__(self, view: NodeView, jobs: int) -> None:
        self._view = view
        self.done: Floats = np.zeros(jobs)  # parts of the jobs that are done, by handle

    def nodes(self) -> NodeView:
        return self._view

    def progress(self, handles: Ints) -> JobProgress:
        return JobProgress(self.done[handles], np.zeros(len(handles)), np.zeros(len(handles)))

    def poll(self) -> Sequence[Change]:
        return ()

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        msg = f"jobs submitted to the cluster directly take no commands ({len(commands)} were given)"
        raise EngineError(msg)

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:  # noqa: ARG002
        return ()

    def power_w(self) -> float | None:
        return None


def _spelt(name: str | None, cluster: Cluster) -> str | None:
    return next((own for own in cluster.gpu_types if name is not None and own.casefold() == name.casefold()), None)
