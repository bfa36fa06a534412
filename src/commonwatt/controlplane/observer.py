"""Watches external jobs: what they have and want, what would be done with them, and how long they took."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.dry_run import equally_good
from commonwatt.control.engine import Capabilities, Change, Command, JobProgress, NodeView, Reading, Stopped
from commonwatt.control.events import Event, EventKind
from commonwatt.control.external_jobs import ExternalJob, demand_of, job_of
from commonwatt.control.job_registry import Rules
from commonwatt.control.ledger import Account
from commonwatt.control.policy import Policy
from commonwatt.control.scheduling import JobCondition
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import CommonwattError, EngineError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster
from commonwatt.model.pools import Pools
from commonwatt.model.units import DAY_S
from commonwatt.optimize import KeepGoing, always
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import EventRow

__all__ = ["SETTING", "Observer", "dry_run", "observed_jobs"]

log = logging.getLogger("commonwatt.observer")

SETTING = "observed"
"""Setting of the store with external jobs that have ended."""

_EVERY_S = 30.0
_MOST_TASKS = 100
_MOST, _KEEP_S = 5_000, 7 * DAY_S


@dataclass
class Observer:
    """Looks at external jobs now and then.

    Attributes
    ----------
    external_jobs
        Asks the cluster for them.
    ended
        Those that have ended, as the store has them, by id.
    default_limit_s
        Run time assumed for a job that declares none.
    live_too
        Whether they count in live mode, too: where others place jobs on some of the nodes.
    """

    external_jobs: Callable[[], Sequence[ExternalJob]]
    cluster: Cluster
    policy: Policy
    rules: Rules
    tariff: Tariff
    rng: np.random.Generator
    default_limit_s: float
    ended: dict[int, dict[str, Any]] = field(default_factory=dict)
    stopwatch: Callable[[], KeepGoing] = lambda: always
    live_too: bool = False
    _planned: dict[str, Event] = field(default_factory=dict)  # where each job would be started
    _next_s: float = -math.inf
    _jobs: list[ExternalJob] | None = None  # of the last look, until they are reported

    def begin(self, controller: Controller, mode: str) -> None:
        """Begin a *mode*, in which external jobs may count or not."""
        self._next_s = -math.inf
        controller.observe_external(None)
        if mode == "power" or (mode == "live" and self.live_too):
            controller.powers = False  # until it is known what they want

    def look(self, controller: Controller, mode: str, now_s: float) -> bool:
        """Tell *controller* what external jobs have and want, if they count and it is time; returns if that is new.

        Errors are logged: our own jobs do not depend on it.
        """
        _leave_to_others(controller, now_s)
        if now_s < self._next_s or (mode == "live" and not self.live_too):
            return False
        self._next_s = now_s + _EVERY_S
        capacity, before = controller.capacity, controller.external
        pools = Pools.of(CapacitySpec(), self.cluster) if capacity is None else capacity.pools
        try:
            jobs = list(self.external_jobs())
            demand = demand_of(jobs, self.cluster, pools)
        except CommonwattError as error:
            log.warning("external jobs cannot be observed", extra={"cause": str(error)})
            return False
        except Exception:
            log.exception("external jobs cannot be observed")
            return False
        self._jobs, controller.powers = jobs, mode != "dry-run"
        controller.observe_external(demand)
        return demand.labels != before.labels or not np.array_equal(demand.held_gpus, before.held_gpus)

    def report(self, controller: Controller, tick: Tick, now_s: float, *, places: bool) -> None:
        """Add to *tick* what is new since the last look: which jobs have ended, and would be started if it *places*.

        Errors are logged: our own jobs do not depend on it.
        """
        jobs, self._jobs = self._jobs, None
        if jobs is None:
            return
        try:
            if self._remember(jobs, now_s):
                tick.settings[SETTING] = list(self.ended.values())
            if places:
                closed = controller.scheduling.closed_nodes
                self._plan(jobs, tick, now_s, controller.engine.nodes(), controller.allocated_gpus(), closed)
        except CommonwattError as error:
            log.warning("external jobs cannot be observed", extra={"cause": str(error)})
        except Exception:
            log.exception("external jobs cannot be observed")

    def _plan(
        self, jobs: Sequence[ExternalJob], tick: Tick, now_s: float, view: NodeView, allocated_gpus: Ints,
        closed: Collection[int],
    ) -> None:  # fmt: skip
        external_gpus = self._allocated(jobs)
        usable = view.usable_gpus - allocated_gpus + external_gpus
        usable[list(closed)] = external_gpus[list(closed)]
        seen = NodeView(np.clip(usable, 0, self.cluster.gpus), view.wait_s, view.power_state)
        planned: dict[str, Event] = {}
        free = seen.usable_gpus - external_gpus
        for job, event in dry_run(
            jobs, cluster=self.cluster, view=seen, policy=self.policy,
            rules=self.rules, tariff=self.tariff, rng=self.rng, now_s=now_s, default_limit_s=self.default_limit_s,
            stopwatch=self.stopwatch(),
        ):  # fmt: skip
            before = self._planned.get(job.label)
            planned[job.label] = event
            if before is not None and equally_good(before, event, self.cluster.klass, free):
                planned[job.label] = before
            else:
                names = tuple(self.cluster.names[n] for n in event.nodes)
                sentence = f"job {job.label} of {job.user}, submitted to the cluster directly: {event.sentence}"
                tick.events.append(EventRow(0, now_s, event.kind, None, names, event.gpus, event.reason, sentence))
        self._planned = planned

    def _remember(self, jobs: Iterable[ExternalJob], now_s: float) -> bool:
        """Keep jobs that have run and ended; returns whether there are new ones."""
        fresh = {
            job.id: asdict(replace(job, gpu_type=own.requested_type or job.gpu_type, nodes=()))
            for job in jobs
            if job.state == "ended" and job.start_s is not None and job.end_s is not None
            and (own := job_of(job, self.cluster, job.end_s - job.start_s, job.submit_s)) is not None
        }  # fmt: skip
        if all(self.ended.get(number, {}).get("submit_s") == job["submit_s"] for number, job in fresh.items()):
            return False
        recent = sorted((self.ended | fresh).values(), key=lambda job: job["end_s"])[-_MOST:]
        self.ended = {job["id"]: job for job in recent if job["end_s"] > now_s - _KEEP_S}
        return True

    def _allocated(self, jobs: Iterable[ExternalJob]) -> Ints:
        gpus = np.zeros(len(self.cluster), dtype=np.int64)
        at = {name: n for n, name in enumerate(self.cluster.names)}
        for job in jobs:
            for name in job.nodes if job.state == "running" else ():
                if name in at:
                    gpus[at[name]] += job.most_on_a_node
        return gpus


def _leave_to_others(controller: Controller, now_s: float) -> None:
    """Keep our waiting jobs out of decisions while others place all jobs, and say so."""
    scheduling, waiting = controller.scheduling, set(controller.registry.waiting) if controller.alone else set[int]()
    before = set(scheduling.jobs(JobCondition.NOT_PLACED))
    if waiting == before:
        return
    for handle in sorted(waiting - before):
        name = controller.registry.names[handle]
        text = f"{name} waits: Slurm places all jobs now (mode power); it can start in mode live"
        controller.log.append(Event(now_s, EventKind.WAITS, handle, reason="mode-power", text=text))
    for handle in before - waiting:
        controller.explain_again(handle)
    scheduling.mark_only(waiting, JobCondition.NOT_PLACED)
    controller.decide_anew()


def observed_jobs(ended: Iterable[Mapping[str, Any]], cluster: Cluster, since_s: float) -> list[tuple[float, Job]]:
    """Return ended external jobs as a simulation takes them, with the times they took, and when they were submitted."""
    jobs = []
    for row in ended:
        external = ExternalJob(**{**row, "nodes": tuple(row["nodes"])})
        if external.start_s is None or external.end_s is None or external.submit_s <= since_s:
            continue
        run_s = external.end_s - external.start_s
        job = job_of(replace(external, state="ended"), cluster, run_s, external.submit_s)
        if job is not None:
            jobs.append((external.submit_s, job))
    return jobs


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
    usable, at = view.usable_gpus.copy(), {name: n for n, name in enumerate(cluster.names)}
    scheduled: list[ExternalJob] = []
    table: list[Job] = []
    for one in _few_of_arrays({one.label: one for one in jobs}.values()):
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


def _few_of_arrays(jobs: Iterable[ExternalJob]) -> Iterator[ExternalJob]:
    """Yield *jobs*, of the waiting tasks of an array the first alone: planning thousands would take long."""
    tasks: dict[int, int] = {}
    for one in jobs:
        if one.task is not None and one.state == "waiting":
            tasks[one.id] = tasks.get(one.id, 0) + 1
            if tasks[one.id] > _MOST_TASKS:
                continue
        yield one


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
