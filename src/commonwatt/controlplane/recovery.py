"""How a controller begins: it takes over jobs from the store and the engine, as an earlier controller left them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.engine import RecordedRun
from commonwatt.control.events import Event, EventKind
from commonwatt.control.ledger import Account
from commonwatt.control.scheduling import Allocation, JobCondition
from commonwatt.controlplane.intent_log import WriteAheadEngine
from commonwatt.controlplane.unschedulable import Unschedulable, stop_runs
from commonwatt.engines.run_spec import mark_of
from commonwatt.model.errors import EngineError, InputError, JobNeverFitsError
from commonwatt.model.units import plural
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import IntentRow, JobRow, JobStatus, RequestKind

__all__ = ["Recovery"]

_AT_ONCE = 500
_NONE_YET = 0.0, 0.0  # one for all: most jobs wait
_Segments = Mapping[int, Mapping[str, int | None]]


@dataclass
class Recovery:
    """Takes over active jobs.

    Parameters
    ----------
    tick
        Takes what is to be written down.
    dry
        Whether nothing may be commanded: jobs that do not fit the configuration are left alone.

    Attributes
    ----------
    unschedulable
        Jobs that do not fit the configuration.
    progress
        Epochs done and kept as the store has them, by handle.
    segments
        Jobs with a segment in the store, by handle.
    """

    store: ControllerStore
    engine: WriteAheadEngine
    controller: Controller
    now_s: Callable[[], float]
    tick: Tick
    dry: bool
    unschedulable: Unschedulable = field(init=False)
    progress: dict[int, tuple[float, float]] = field(default_factory=dict)
    segments: dict[int, dict[str, int | None] | None] = field(default_factory=dict)
    _runs: dict[int, RecordedRun] = field(default_factory=dict)  # by id
    _taken: list[tuple[int, bool, int]] = field(default_factory=list)  # jobs: id, whether it runs, and its GPUs
    _unplaced: set[int] = field(default_factory=set)  # ids of jobs that run in a place the configuration lacks

    def __post_init__(self) -> None:
        self.unschedulable = Unschedulable(self.store, self.engine, self.controller.scheduling, self.now_s)

    def take_over(self, register: Callable[[JobRow, bool], int], unregistered: Callable[[JobRow], None]) -> None:
        """Register the active jobs, each with its account and its place, a few at a time.

        *register* gets a job and whether its submission is new. It returns the handle, and raises ``InputError`` or
        ``JobNeverFitsError`` if the job cannot run here, which *unregistered* is called with then. Raises
        ``EngineError`` if the engine runs jobs the store does not have.
        """
        unplaced = self.engine.inner.evict_unplaced(dry=self.dry)
        self._unplaced = set(unplaced) if self.dry else set()
        runs = self._runs = {run.handle: run for run in self.engine.inner.recorded_runs()}
        self._remove_foreign_runs()
        active = self.store.active_ids()
        self._stop_all_but(set(active))
        segments = self.store.segments()
        fresh = {request.job: request.id for request in self.store.requests() if request.kind is RequestKind.SUBMIT}
        stops = {intent.job: intent for intent in self.store.open_intents() if intent.kind == "stop"}
        each = (row for k in range(0, len(active), _AT_ONCE) for row in self.store.jobs_by_id(active[k : k + _AT_ONCE]))
        for row in each:
            self._taken.append((row.id, row.status is JobStatus.RUNNING, row.gpus))
            try:
                handle = register(row, row.id in fresh)
            except (InputError, JobNeverFitsError) as error:
                unregistered(row)
                self.unschedulable.add(row, error, runs[row.id].attempts if row.id in runs else 0)
                self.tick.requests += [fresh[row.id]] if row.id in fresh else []
                continue
            self._take_over(handle, row, segments, stops.get(row.id))
        if usage := self.store.settings().get("usage"):
            for name in usage[1]:
                self.controller.registry.tenant_at(name)
            self.controller.past_usage.resume(self.controller.registry.tenants, usage[1], usage[0])
        handles = {name: handle for handle, name in enumerate(self.controller.registry.names)}
        if service := self.store.settings().get("service"):
            self.controller.service.resume(service, handles)
        limits = self.store.settings().get("limits")
        if limits and self.controller.limits is not None:
            self.controller.limits.resume(limits, handles)
        self.segments = {h: None for j in segments if (h := self.engine.handle_of(j)) is not None}
        if not self.dry:
            self._stop_all_but(runs.keys() - self.unschedulable.unregistered.keys())
        self._settle_intents()

    def take_reports(self) -> None:
        """Ask the engine how the runs ended that are over; a run it has no report of was interrupted."""
        self.engine.look()
        reported = {change.handle for change in self.engine.waiting_changes()}
        unschedulable = self.controller.scheduling.jobs(JobCondition.UNSCHEDULABLE)
        for job_id, ran, gpus in self._taken:
            handle = self.engine.handle_of(job_id)
            if handle is None or handle in self.controller.registry.nodes or handle in unschedulable:
                continue
            if handle in self.controller.scheduling.terminating:
                if handle not in reported and not self._is_running(job_id):
                    self.engine.report_left(handle)
            elif ran:
                if handle not in reported:
                    self.engine.report_interrupted(handle, "it was not running any more when the controller came back")
                self.controller.await_end(handle, gpus)
        self.unschedulable.settle(self.tick, dry=self.dry)

    def _is_running(self, job_id: int) -> bool:
        return job_id in self._runs and bool(self._runs[job_id].nodes)

    def _remove_foreign_runs(self) -> None:
        """Remove runs of jobs that the store does not have: it is older than the engine's state.

        Their records are moved aside, as their numbers may be given again; their energy counts as idle. Raises
        ``EngineError`` if such a job runs, or the engine cannot move records.
        """
        runs, engine = self._runs, self.engine.inner
        submit_s = self.store.submit_times(list(runs))
        foreign = [
            run for run in runs.values()
            if run.handle not in submit_s or run.mark not in ("", mark_of(submit_s[run.handle]))
        ]  # fmt: skip
        if running := [str(run.handle) for run in foreign if run.nodes]:
            msg = (
                f"the engine runs jobs this store does not have ({', '.join(running[:10])}): it belongs to another "
                "store, or this one is older than the engine's state; stop these jobs, or use that store"
            )
            raise EngineError(msg)
        if not foreign:
            return
        if not engine.capabilities.prune:
            msg = (
                f"the engine has records of jobs this store does not have ({len(foreign)}, the first is "
                f"{foreign[0].handle}): move its state folder away, or use the store they belong to"
            )
            raise EngineError(msg)
        gone = {run.handle for run in foreign}
        engine.prune(list(gone), aside=True)
        for job_id in gone:
            del runs[job_id]
        self.engine.unread = [  # their numbers may soon be those of other jobs
            replace(r, holders=tuple(h for h in r.holders if h.handle not in gone)) for r in engine.readings()
        ]

    def _stop_all_but(self, job_ids: Set[int]) -> None:
        """Stop runs of jobs that have ended: all but *job_ids*."""
        over = [run.handle for run in self._runs.values() if run.nodes and run.handle not in job_ids]
        stop_runs(self.engine.inner, over)

    def _take_over(self, handle: int, row: JobRow, segments: _Segments, stop: IntentRow | None) -> None:
        job, run = self.engine.jobs[handle], self._runs.get(row.id)
        self.progress[handle] = (row.done_epochs, row.kept_epochs) if row.done_epochs or row.kept_epochs else _NONE_YET
        job.attempts = max(job.attempts, run.attempts if run else 0)
        if self._is_running(row.id):
            job.settled = min(job.settled, job.attempts - 1)  # its end is yet to come
        self.controller.registry.restore(handle, job.attempts, math.nan if row.began_s is None else row.began_s)
        segment = Account(**segments[row.id]) if row.id in segments else None  # type: ignore[arg-type]
        if segment is not None:
            self.controller.ledger.resume(handle, segment)
        if row.id in self._unplaced:
            self._leave_alone(handle, row.gpus)
        elif not self._still_terminating(handle, row, stop) and run is not None and run.nodes:
            self._adopt(handle, row, run, segment or Account())

    def _still_terminating(self, handle: int, row: JobRow, stop: IntentRow | None) -> bool:
        """Whether a waiting job is still leaving, or has left, the nodes an earlier controller took it off.

        A job that is not written down as waiting counts as running; that it stops is then no interruption.
        """
        job, running = self.engine.jobs[handle], self._is_running(row.id)
        if stop is None or stop.attempt != job.attempts or job.settled >= job.attempts:
            return False
        waits = row.status is JobStatus.WAITING
        if not waits or not self.engine.resume_termination(job, stop, running=running):
            self.engine.unconfirmed_stops[row.id] = stop
            return False
        at = {name: n for n, name in enumerate(self.engine.names)}
        nodes = self._runs[row.id].nodes if running else tuple(at[n] for n in stop.nodes if n in at)
        self.controller.scheduling.terminate(handle, Allocation(nodes, len(stop.nodes) * stop.gpus_per_node))
        return True

    def _leave_alone(self, handle: int, gpus: int) -> None:
        self.controller.scheduling.mark(handle, JobCondition.UNSCHEDULABLE)
        self.controller.await_end(handle, gpus)

    def _adopt(self, handle: int, row: JobRow, run: RecordedRun, segment: Account) -> None:
        controller, job = self.controller, self.engine.jobs[handle]
        job.nodes, job.gpus_per_node = run.nodes, run.gpus_per_node
        if not controller.adopt(handle, run.nodes, run.gpus_per_node, segment):
            controller.ledger.resume(handle, segment)
            if self.dry:
                self._leave_alone(handle, len(run.nodes) * run.gpus_per_node)
                return
            stop_runs(self.engine.inner, [row.id])
            self.engine.report_interrupted(handle, "it ran in a way this configuration does not allow")
            return
        gpus, moved = len(run.nodes) * run.gpus_per_node, row.nodes != tuple(self.engine.names[n] for n in run.nodes)
        if row.status is not JobStatus.RUNNING or row.attempts != run.attempts:
            kind = EventKind.STARTED if row.began_s is None else EventKind.RESUMED
            sentence = f"{row.name} was started just before the controller stopped, and still runs"
            controller.log.append(Event(self.now_s(), kind, handle, run.nodes, gpus, "found", sentence))
        elif moved or row.gpus_per_node != run.gpus_per_node:
            kind = EventKind.MIGRATED if moved else EventKind.RESIZED
            sentence = f"{row.name} runs as it did when the controller stopped, with {plural(gpus, 'GPU')}"
            controller.log.append(Event(self.now_s(), kind, handle, run.nodes, gpus, "found", sentence))
        elif row.reason == "never-fits":  # in a dry run, with another configuration
            self.tick.change(row.id, reason="found", sentence=f"{row.name} still runs")

    def _settle_intents(self) -> None:
        for intent in self.store.open_intents():
            if self.engine.pending(intent):
                continue
            run = self._runs.get(intent.job)
            attempts, runs = (run.attempts, bool(run.nodes)) if run else (0, False)
            done = attempts >= intent.attempt if intent.kind == "start" else not (runs and attempts == intent.attempt)
            self.tick.intents.append(replace(intent, outcome="done" if done else "void", cause="seen after a restart"))
            handle, registry = self.engine.handle_of(intent.job), self.controller.registry
            if done and intent.kind == "start" and handle is not None and np.isnan(registry.job("began_s")[handle]):
                registry.restore(handle, int(registry.job("starts")[handle]), intent.at_s)
                self.tick.change(intent.job, began_s=intent.at_s)
