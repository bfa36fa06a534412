"""What a policy would do with jobs that run on the cluster without us: nothing is ever commanded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from commonwatt.control.book import Rules
from commonwatt.control.controller import Controller
from commonwatt.control.engine import Capabilities, Change, Command, NodeView, Progress, Reading, Stopped
from commonwatt.control.events import Event, EventKind
from commonwatt.control.ledger import Account
from commonwatt.control.policy import Policy
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import Job, JobTable
from commonwatt.model.nodes import Cluster
from commonwatt.placement.solvers import KeepGoing, always

__all__ = ["OtherJob", "advise", "job_of"]


@dataclass(frozen=True, slots=True)
class OtherJob:
    """A job somebody submitted past us. Times are seconds since 1970; unknown is ``None``."""

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
    task: int | None = None  # of a job array, while it waits: those share a number

    @property
    def label(self) -> str:
        """Its number, as people write it."""
        return str(self.id) if self.task is None else f"{self.id}_{self.task}"

    @property
    def most_on_a_node(self) -> int:
        """GPUs it has on each of its nodes, if they are spread evenly."""
        return -(-self.gpus // max(1, len(self.nodes)))


def job_of(other: OtherJob, cluster: Cluster, time_s: float, submit_s: float) -> Job | None:
    """Return *other* as it is scheduled: exactly its GPUs, for *time_s*; ``None`` if no node of *cluster* has them.

    Where it runs, or ran, tells its type of GPU, as far as it does not say.
    """
    at = {name: n for n, name in enumerate(cluster.names)}
    seen = {cluster.classes[cluster.klass[at[name]]].gpu_type for name in other.nodes if name in at}
    if other.nodes and (len(seen) != 1 or not at.keys() >= set(other.nodes)):
        return None  # it runs elsewhere, or across types
    asked = next(iter(seen), None) or _spelt(other.gpu_type, cluster)
    if other.gpu_type is not None and asked is None:
        return None
    types = [name for name in cluster.gpu_types if asked in (None, name) and cluster.shapes(name, other.gpus)]
    if not types or not time_s > 0:
        return None
    return Job(
        name=f"{other.label}-of-{other.user}", tenant=other.user, submit_s=submit_s, due_s=math.inf,
        tardiness_weight=0.0, times_s={name: {other.gpus: time_s} for name in types}, requested_gpus=other.gpus,
        requested_type=asked or "", time_limit_s=math.inf if other.limit_s is None else other.limit_s,
    )  # fmt: skip


def advise(
    others: Sequence[OtherJob], *, cluster: Cluster, view: NodeView, policy: Policy, rules: Rules, tariff: Tariff,
    rng: np.random.Generator, now_s: float, default_limit_s: float, stopwatch: KeepGoing = always,
) -> Iterator[tuple[OtherJob, Event]]:  # fmt: skip
    """Yield which of *others* that wait would be started now, and where; those that run are left where they are.

    Parameters
    ----------
    view
        GPUs of each node these jobs may have, those they hold included, and how it is with its power. Where they hold
        more than that, nobody gets any.
    default_limit_s
        Run time by which a job is planned that declares none.
    """
    usable, at = view.usable_gpus.copy(), {name: n for n, name in enumerate(cluster.names)}
    known: list[OtherJob] = []
    jobs: list[Job] = []
    for other in {other.label: other for other in others}.values():
        limit_s = default_limit_s if other.limit_s is None else other.limit_s
        job = None if other.state == "ended" else job_of(other, cluster, limit_s, min(other.submit_s, now_s))
        if job is not None:
            known.append(other)
            jobs.append(job)
        else:
            _take(usable, usable, other, at)
    if not jobs:
        return
    left = usable.copy()
    engine = _Watched(NodeView(usable, view.wait_s, view.power_state), len(jobs))
    controller = Controller(
        cluster=cluster, engine=engine, policy=policy, rules=rules, tariff=tariff, rng=rng, now_s=now_s,
        stopwatch=lambda: stopwatch,
    )  # fmt: skip
    controller.only_say(dry=True)
    handles = controller.submit(JobTable.of(jobs), np.arange(len(jobs)))
    for handle, other in zip(handles, known, strict=True):
        if other.state != "running":
            continue
        nodes = tuple(sorted(at[name] for name in other.nodes))
        each = other.gpus // len(nodes) if nodes else 0
        fits = each * len(nodes) == other.gpus and bool((left[list(nodes)] >= each).all())
        if fits and controller.adopt(handle, nodes, each, Account()):
            left[list(nodes)] -= each
            limit_s = default_limit_s if other.limit_s is None else other.limit_s
            begun_s = now_s if other.start_s is None else other.start_s
            engine.done[handle] = min(0.999, max(0.0, now_s - begun_s) / limit_s)
        else:
            controller.held_back.add(handle)
            _take(usable, left, other, at)
    controller.log.take()
    controller.tick(now_s)
    for event in controller.log.take():
        if event.kind is EventKind.WOULD_START:
            yield known[handles.index(event.handle)], event


def _take(usable: Ints, left: Ints, other: OtherJob, at: Mapping[str, int]) -> None:
    """What a job holds that runs in a way we would not run it is not to be had: of what is *left* of the *usable*."""
    if other.state == "running":
        for n in (at[name] for name in other.nodes if name in at):
            taken = min(other.most_on_a_node, int(left[n]))
            usable[n] -= taken
            if left is not usable:
                left[n] -= taken


class _Watched:
    """An ``Engine`` that only says what is there."""

    capabilities = Capabilities(preempt=False, gangs=True, energy=False)

    def __init__(self, view: NodeView, jobs: int) -> None:
        self._view = view
        self.done: Floats = np.zeros(jobs)  # parts of the jobs, by handle

    def nodes(self) -> NodeView:
        return self._view

    def progress(self, handles: Ints) -> Progress:
        return Progress(self.done[handles], np.zeros(len(handles)), np.zeros(len(handles)))

    def poll(self) -> Sequence[Change]:
        return ()

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        msg = f"jobs of others are not ours to command ({len(commands)} commands)"
        raise EngineError(msg)

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:  # noqa: ARG002
        return ()

    def power_w(self) -> float | None:
        return None


def _spelt(name: str | None, cluster: Cluster) -> str | None:
    return next((own for own in cluster.gpu_types if name is not None and own.casefold() == name.casefold()), None)
