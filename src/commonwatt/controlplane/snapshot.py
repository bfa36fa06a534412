"""The cluster as of the controller's last look, for its readers: API, dashboard, metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from commonwatt.control.capacity import PoolNow, PowerNow
from commonwatt.control.engine import NodeView
from commonwatt.control.events import EventKind, lost_work
from commonwatt.control.scheduling import JobCondition
from commonwatt.control.usage import TenantShare
from commonwatt.controlplane.health import HealthNow
from commonwatt.controlplane.start_conditions import LONGEST, UNFORESEEN, Waiting, expected_times
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.explanation import PlacementExplanation, Reason
from commonwatt.store.columns import cleaned_column
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import ACTIVE, JobRow, JobStatus, Packed, Part, SampleRow, packed, with_changes

if TYPE_CHECKING:  # who only reads snapshots loads no controller
    from commonwatt.controlplane.reconciler import Reconciler
    from commonwatt.controlplane.services import SnapshotService

__all__ = ["Snapshot", "SnapshotBuilder", "SnapshotJob", "SnapshotNode", "why_of"]


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A node now."""

    name: str
    gpu_type: str
    gpus: int
    usable_gpus: int
    allocated_gpus: int
    state: str  # on, waking, asleep, down
    drained: bool
    jobs: tuple[int, ...]
    power_w: float | None  # as it is measured, or as the configuration declares it for what runs there
    cause: str = ""  # why it is down, or a fault drained it, where that is known
    drain_reason: str = ""  # why it is drained; empty: it is not


@dataclass(frozen=True, slots=True)
class SnapshotJob:
    """An active job now."""

    id: int
    name: str
    tenant: str
    submit_s: float
    epochs: int
    status: str
    held: bool
    nodes: tuple[str, ...]
    gpus: int
    done_epochs: float
    kept_epochs: float
    reason: str | None
    sentence: str | None
    expected_start_s: float | None
    expected_end_s: float | None
    started_s: float | None = None  # of its present or last run
    due_s: float | None = None
    facts: Mapping[str, Any] | None = None
    _why: tuple[str | None, str | None] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def why(self) -> tuple[str | None, str | None]:
        """Its reason and sentence, made when they are asked for first: most are not, and some often."""
        if (why := self._why) is None:
            why = why_of(self)
            object.__setattr__(self, "_why", why)
        return why

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle values only."""
        return SnapshotJob, _values(self)

    @classmethod
    def of(cls, row: JobRow) -> SnapshotJob:
        """Return a job as the store has it."""
        return cls(*_of_row(row))


_NAMES = tuple(column.name for column in fields(SnapshotJob) if column.init)
_values, _of_row = attrgetter(*_NAMES), attrgetter(*("file.epochs" if name == "epochs" else name for name in _NAMES))


def why_of(job: SnapshotJob | JobRow) -> tuple[str | None, str | None]:
    """Return the reason of a job and its sentence, which is made of the facts as of now."""
    if job.held and job.status == "waiting":
        return "held", "it is held until it is released"
    if job.facts is None:
        return job.reason, job.sentence
    facts = dict(job.facts)
    lost_s = facts.pop("lost_s", None)
    why = PlacementExplanation.of(facts)
    if job.due_s is not None and job.expected_end_s is not None:
        why = replace(why, spare_s=job.due_s - job.expected_end_s)
    if why.unknown and job.expected_end_s is not None:  # it has become known since
        why = replace(why, unknown=False, reason=why.reason if why.waits else Reason.KEPT)
    if job.reason == EventKind.WOULD_START:
        return job.reason, f"in mode live it would start: {why.planned_sentence}"
    return job.reason, why.sentence if lost_s is None else f"{why.sentence}; {lost_work(lost_s)}"


@dataclass(frozen=True)
class Snapshot:
    """The cluster and its jobs at one moment. Times are seconds since 1970.

    ``rows`` are active jobs as the last tick left them in the store: reading them here is faster than there.
    ``by_tenant`` counts them by tenant and status.
    """

    time_s: float
    mode: str  # live, dry-run
    engine: str
    healthy: bool = False
    trouble: str | None = None
    nodes: tuple[SnapshotNode, ...] = ()
    jobs: Mapping[int, SnapshotJob] = field(default_factory=dict)
    rows: Mapping[int, JobRow] = field(default_factory=dict)
    by_tenant: Mapping[tuple[str, str], int] = field(default_factory=dict)
    power_w: float | None = None
    busy_gpus: int = 0
    total_gpus: int = 0
    running: int = 0
    waiting: int = 0
    tick_s: float = 0.0
    ticks: int = 0
    decided_s: float | None = None
    engine_errors: int = 0
    store_errors: int = 0
    saved: Mapping[str, float | str | None] | None = None
    pools: tuple[PoolNow, ...] = ()  # of the capacity plan, at the last one; empty: there is none
    power: PowerNow | None = None  # the power budget of the capacity plan; None: there is none
    role: str = "active"  # standby: another controller is
    services: tuple[SnapshotService, ...] = ()
    health: HealthNow | None = None  # None: GPU health is not watched
    shares: tuple[TenantShare, ...] = ()  # of tenants; empty: nothing is guaranteed, or no job asks for anything


_COLUMNS = tuple(name for name in _NAMES if name not in {"id", "name", "tenant", "submit_s", "epochs", "gpus", "due_s"})

_FEW = 500
_PAUSE_S, _FOR_EACH_S = 5.0, 5e-4
"""Between updates of start estimates, and of progress, where there are more than a few jobs; longer the more jobs."""


class SnapshotBuilder:
    """Builds snapshots of a reconciler, kept up to date by what each tick writes down."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler, reconciler.on_row = reconciler, self._add
        self._jobs, self._rows = dict[int, SnapshotJob](), dict[int, Part]()
        self._made, self._by_tenant = dict[int, tuple[Part, JobRow]](), Counter[tuple[str, str]]()
        self._estimated_s, self._progress_s, self._progress = -math.inf, -math.inf, dict[int, float]()
        self._estimated: tuple[Set[int], Set[int]] = set(), set()  # jobs that waited; those with an estimate
        self._cached: tuple[object, tuple[SnapshotNode, ...]] = (None, ())  # nodes, and what they were made of

    def _add(self, row: JobRow) -> None:
        if row.id not in self._jobs:
            self._by_tenant[row.tenant, str(row.status)] += 1
            self._jobs[row.id] = SnapshotJob.of(row)
        self._rows[row.id] = packed(row)

    def apply(self, tick: Tick) -> None:
        """Apply the changes of *tick*."""
        for job_id, written in tick.jobs.items():
            if job_id not in self._jobs:
                continue
            columns = {name: cleaned_column(name, value) for name, value in written.items()}
            changed = {name: columns[name] for name in _COLUMNS if name in columns}
            if "nodes" in changed:
                changed["nodes"] = tuple(changed["nodes"])
                changed["gpus"] = len(changed["nodes"]) * columns["gpus_per_node"] if "gpus_per_node" in columns else 0
            on_hold = changed.get("held") and self._jobs[job_id].status == JobStatus.WAITING
            if on_hold or changed.get("status") == JobStatus.WAITING:
                changed |= {"expected_start_s": None, "expected_end_s": None}  # until they are estimated again
            job = replace(self._jobs[job_id], **changed)
            if "status" in changed:
                self._by_tenant[job.tenant, str(self._jobs[job_id].status)] -= 1
                self._by_tenant[job.tenant, str(job.status)] += job.status in ACTIVE
            if job.status in ACTIVE:
                self._jobs[job_id], self._rows[job_id] = job, with_changes(self._rows[job_id], columns)
            else:
                del self._jobs[job_id], self._rows[job_id]
        self._progress = tick.progress

    def snapshot(self, last: Snapshot, now_s: float, sample: SampleRow | None) -> Snapshot:
        """Return the snapshot as of *now_s*."""
        reconciler = self._reconciler
        pause_s = _PAUSE_S + _FOR_EACH_S * len(self._jobs)
        if sample is not None and (len(self._jobs) < _FEW or now_s >= self._estimated_s + pause_s):
            self._estimated_s = now_s
            self._estimate_starts(now_s)
        if len(self._progress) < _FEW or now_s >= self._progress_s + pause_s:
            self._progress_s = now_s
            self._update_progress()
        capacity, nodes = reconciler.controller.capacity, self._nodes()
        running = sum(number for (_, status), number in self._by_tenant.items() if status == JobStatus.RUNNING)
        return replace(
            last, time_s=now_s, mode=reconciler.mode, nodes=nodes, jobs=dict(self._jobs),
            rows=Packed(self._rows.copy(), self._made), by_tenant=dict(self._by_tenant),
            power_w=reconciler.controller.engine.power_w(),
            busy_gpus=sum(node.allocated_gpus for node in nodes), total_gpus=reconciler.controller.cluster.total_gpus,
            running=running, waiting=len(self._jobs) - running,
            tick_s=last.tick_s if sample is None else sample.tick_s, ticks=last.ticks + (sample is not None),
            decided_s=last.decided_s if sample is None else now_s,
            services=() if reconciler.services is None else reconciler.services.snapshot(),
            shares=reconciler.controller.shares(), health=reconciler.drains.health,
            pools=() if capacity is None else capacity.pools_now,
            power=None if capacity is None else capacity.power_now,
        )  # fmt: skip

    def _update_progress(self) -> None:
        """Update the epochs of running jobs."""
        for job_id, done_epochs in self._progress.items():
            job = self._jobs.get(job_id)
            if job is not None and job.status == "running" and job.done_epochs != done_epochs:
                self._jobs[job_id] = replace(job, done_epochs=done_epochs)

    def _nodes(self) -> tuple[SnapshotNode, ...]:
        """Return the nodes; the same objects if nothing about them has changed."""
        reconciler = self._reconciler
        registry, view = reconciler.controller.registry, reconciler.engine.nodes()
        rows = registry.job("row")[np.fromiter(registry.nodes, dtype=np.int64)]
        measured_w = reconciler.engine.inner.measured_w()
        figures = (
            rows, registry.row("gpu_w")[rows], view.power_state, view.usable_gpus, view.wait_s, *self._shared(),
            *(() if measured_w is None else (measured_w,)),
        )  # fmt: skip
        own = dict(registry.nodes), reconciler.drains.state, reconciler.engine.power_commands.unwoken
        seen = (*own, _up(view).tolist(), *(column.tobytes() for column in figures))
        if seen != self._cached[0]:
            self._cached = (seen, self._make_nodes(view))
        return self._cached[1]

    def _shared(self) -> tuple[Ints, Floats]:
        """Return the shared GPUs of each node, and their power. Shapes [N]."""
        nodes = len(self._reconciler.controller.cluster)
        if self._reconciler.services is None:
            return np.zeros(nodes, dtype=np.int64), np.zeros(nodes)
        return self._reconciler.services.on_nodes()

    def _make_nodes(self, view: NodeView) -> tuple[SnapshotNode, ...]:
        reconciler = self._reconciler
        cluster, registry = reconciler.controller.cluster, reconciler.controller.registry
        jobs: list[list[int]] = [[] for _ in cluster.names]
        allocated, busy_w = self._shared()
        for handle, nodes in registry.nodes.items():
            row = int(registry.job("row")[handle])
            each = int(registry.row("per_node")[row])
            for n in nodes:
                jobs[n].append(reconciler.engine.jobs[handle].id)
                allocated[n] += each
                busy_w[n] += each * float(registry.row("gpu_w")[row])
        drains, up, causes = reconciler.drains, _up(view), reconciler.engine.power_commands.unwoken
        made, measured_w = [], reconciler.engine.inner.measured_w()
        for n, name in enumerate(cluster.names):
            kind, state = cluster.classes[cluster.klass[n]], int(view.power_state[n])
            where = "asleep" if state >= 0 else "waking" if view.wait_s[n] > 0 else "on" if up[n] else "down"
            reason, fault = drains.why(name)
            declared_w = kind.states[state].power_w if state >= 0 else kind.idle_w + float(busy_w[n])
            power_w = declared_w if measured_w is None else float(measured_w[n])
            made.append(
                SnapshotNode(
                    name, kind.gpu_type, kind.gpus, int(view.usable_gpus[n]), int(allocated[n]), where, bool(reason),
                    tuple(jobs[n]), None if where == "down" else power_w, causes.get(n) or fault, reason,
                )
            )  # fmt: skip
        return tuple(made)

    def _estimate_starts(self, now_s: float) -> None:
        """Estimate when waiting jobs start and end."""
        reconciler = self._reconciler
        controller, registry = reconciler.controller, reconciler.controller.registry
        free = [0] * len(controller.cluster.classes)
        view = reconciler.engine.nodes()
        closed = controller.scheduling.closed_nodes
        profiling = controller.scheduling.jobs(JobCondition.PROFILING)
        for n, klass in enumerate(controller.cluster.klass.tolist()):
            free[klass] += 0 if n in closed else int(view.usable_gpus[n])
        ends = []
        for handle, nodes in registry.nodes.items():
            if handle in profiling:
                continue
            row = int(registry.job("row")[handle])
            open_nodes = sum(n not in closed for n in nodes)  # GPUs released on the others stay unused
            klass, gpus = int(registry.row("klass")[row]), open_nodes * int(registry.row("per_node")[row])
            free[klass] -= gpus
            job = self._jobs.get(reconciler.engine.jobs[handle].id)
            over_s = math.inf if reconciler.profiler.nothing_known(handle) else now_s
            ends.append((over_s if job is None or job.expected_end_s is None else job.expected_end_s, klass, gpus))
        expected = expected_times(now_s, [max(0, f) for f in free], ends, self._waiting())
        waiting = registry.active - registry.nodes.keys()
        asked = (expected.keys() | self._estimated[1] | (waiting - self._estimated[0])) & waiting  # others have none
        self._estimated = waiting, expected.keys()
        for handle in asked:
            job = self._jobs.get(reconciler.engine.jobs[handle].id)
            begin_s, end_s = (t if t < math.inf else None for t in expected.get(handle, (math.inf, math.inf)))
            if job is not None and (job.expected_start_s, job.expected_end_s) != (begin_s, end_s):
                self._jobs[job.id] = replace(job, expected_start_s=begin_s, expected_end_s=end_s)

    def _waiting(self) -> list[Waiting]:
        """Waiting jobs whose start is estimated: the most pressing, by due date less shortest run time."""
        registry, profiler = self._reconciler.controller.registry, self._reconciler.profiler
        (foreseen, begins_s), jobs = self._reconciler.starts.foreseen(), self._reconciler.engine.jobs
        known = ((h, self._jobs.get(jobs[h].id)) for h in sorted(foreseen) if not jobs[h].refusals)
        handles = np.array([h for h, job in known if job and job.reason not in UNFORESEEN], dtype=np.int64)
        if not len(handles):
            return []
        shortest_s = np.minimum.reduceat(registry.row("time_s"), registry.job("first"))[handles] * self._left(handles)
        pressure = registry.job("due_s")[handles] - shortest_s
        order = np.lexsort((handles, pressure))[:LONGEST]
        handles, pressure = handles[order], pressure[order]
        count = registry.job("count")[handles]
        starts = np.cumsum(count) - count
        rows = np.arange(int(count.sum())) + np.repeat(registry.job("first")[handles] - starts, count)
        gpus = registry.row("width")[rows] * registry.row("per_node")[rows]
        times_s = registry.row("time_s")[rows] * np.repeat(self._left(handles), count)
        times_s[np.repeat([profiler.nothing_known(handle) for handle in handles.tolist()], count)] = math.inf
        ways = list(zip(registry.row("klass")[rows].tolist(), gpus.tolist(), times_s.tolist(), strict=True))
        return [
            Waiting(handle, press, ways[start : start + number], begins_s.get(handle, -math.inf))
            for handle, press, start, number in zip(
                handles.tolist(), pressure.tolist(), starts.tolist(), count.tolist(), strict=True
            )
        ]

    def _left(self, handles: Ints) -> Floats:
        """Part of each job's epochs that is left to do. Shape [J]."""
        jobs = self._reconciler.engine.jobs
        kept = np.array([jobs[handle].kept_epochs for handle in handles.tolist()])
        return 1.0 - np.minimum(1.0, kept / self._reconciler.controller.registry.job("epochs")[handles])


def _up(view: NodeView) -> Bools:
    """Which nodes are not down. Shape [N]."""
    return view.usable_gpus > 0 if view.up is None else view.up
