"""One run of the controller: it begins from store and engine, and ends with the first unexpected error."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.engine import JobLeft, LiveEngine
from commonwatt.control.events import Requester
from commonwatt.control.scheduling import JobCondition, NodeCondition
from commonwatt.controlplane.health import FAULTS, HealthPoller
from commonwatt.controlplane.intent_log import WriteAheadEngine
from commonwatt.controlplane.jobs import FigureDocuments, JobMaker, TimeFigure, TrackedJob
from commonwatt.controlplane.observer import Observer
from commonwatt.controlplane.profiler import FAILED_PROBES, Profiler
from commonwatt.controlplane.quotas import Quotas
from commonwatt.controlplane.recorder import Recorder, tracked
from commonwatt.controlplane.recovery import Recovery
from commonwatt.controlplane.run_times import LearnedRunTimes
from commonwatt.controlplane.services import LiveServices, phi_in_force
from commonwatt.controlplane.start_conditions import StartConditions
from commonwatt.controlplane.unschedulable import NodeDrains, Unschedulable, fail
from commonwatt.controlplane.user_jobs import UserJobIntake
from commonwatt.model.errors import InputError, JobNeverFitsError
from commonwatt.model.job_file import Source
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.live import LiveSpec, ProfilingSpec
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import JobRow, JobStatus, RequestKind, RequestRow

__all__ = ["Reconciler"]

log = logging.getLogger("commonwatt.reconciler")

_LONGEST_BACKOFF_S = 60.0
_MOST_ENDED = 10_000


class Reconciler:
    """Brings a controller, its engine and its store in line, step by step.

    Parameters
    ----------
    make
        Builds a controller over an engine.
    admit
        Gives simulated work the jobs it will be asked to run.
    marks
        Returns how each node's meter was read last, to be written down.
    profiling
        How new jobs are measured; ``None``: they are not.
    observer
        Watches external jobs, and has the capacity plan count them.
    live
        Has the limits of tenants; ``None``: there are none.
    predicts
        Whether run times that nobody declares are learned from ended jobs.
    guard
        Raises where another controller may have taken over: called before the engine gets commands.
    advises
        Whether it stays in a dry run whatever is requested.
    intake
        Takes over jobs that users create in the engine.
    health
        Finds faults of GPUs, which drain nodes.
    not_ours
        Nodes on which others place jobs.

    Raises
    ------
    StoreError, EngineError
        If it cannot begin: the store or the engine does not answer, or the engine runs jobs the store does not have.
    """

    def __init__(
        self, store: ControllerStore, engine: LiveEngine, maker: JobMaker,
        make: Callable[[WriteAheadEngine], Controller],
        now_s: Callable[[], float], retries: int, admit: Callable[[JobArrays, int], None] = lambda *_: None,
        marks: Callable[[], dict[str, Any]] = dict, profiling: ProfilingSpec | None = None,
        observer: Observer | None = None, *, predicts: bool = False, live: LiveSpec | None = None,
        guard: Callable[[], None] = lambda: None, advises: bool = False, intake: UserJobIntake | None = None,
        health: HealthPoller | None = None, not_ours: Collection[int] = (),
    ) -> None:  # fmt: skip
        from commonwatt.control.fleet.controller import FleetController

        self.store, self.maker, self._now_s, self._admit, self._marks = store, maker, now_s, admit, marks
        self.engine = WriteAheadEngine(engine, store.intend, now_s, retries, guard=guard)
        self.controller = make(self.engine)
        self.engine.names = self.controller.cluster.names
        self.controller.registry.room = self.engine.room if self.engine.knows_room else None
        self.controller.log.follows_reasons = True
        self.controller.scheduling.set_nodes(NodeCondition.NOT_OURS, not_ours)
        self.recorder = Recorder(self.controller, self.engine)
        failed = store.settings().get(FAILED_PROBES)
        self._learned = LearnedRunTimes(store.ended_runs) if predicts else None
        self.profiler = Profiler(self.controller, self.engine, store.profiles(), profiling, failed, self._learned)
        self.recorder.told, self.recorder.nothing_known = self.profiler.told, self.profiler.nothing_known
        self.mode, self._observer, self._advises, self._intake = "live", observer, advises, intake
        self.drains = NodeDrains(self.controller, self.engine, now_s, health)
        self._unschedulable = Unschedulable(store, self.engine, self.controller.scheduling, now_s)
        self.on_row: Callable[[JobRow], None] = lambda _: None
        self._decided, self._again = False, False
        self._quotas = None if live is None else Quotas(live, store, self.controller)
        self.starts = StartConditions(store, self.controller)
        if self.controller.capacity is not None:
            self.controller.capacity.announced_jobs = self.starts
        self._backoff_s: dict[int, float] = {}  # by handle: when a job that was refused may be started again
        self._left_limits: dict[str, object] = {}  # what is written down of the policy's limits
        self._at = {name: n for n, name in enumerate(self.controller.cluster.names)}
        fairness = self.controller.policy.fairness
        self._phi = None if fairness is None else fairness.phi  # of the configuration
        self.services = LiveServices(self.controller) if isinstance(self.controller, FleetController) else None

    # -- beginning

    def recover(self, mode: str, drained: Sequence[str]) -> Tick:
        """Take over from an earlier controller; returns what to write down."""
        tick = Tick()
        if self._learned is not None:
            self._learned.refresh()
        self._set_mode(mode, tick)
        self.drains.resume(drained, self.store.settings().get(FAULTS), tick)
        if (fairness := self.controller.policy.fairness) is not None:
            phi = phi_in_force(fairness.phi, self.store.settings().get("fairness"))
            self.controller.policy = self.controller.policy.with_phi(phi)
        if self.services is not None:
            self.services.resume(self.store.settings().get("fleet") or {}, self.engine.shared_gpus())
            self.services.resume_phi(self.store.settings().get("phi"))
        dry = mode != "live"
        recovery = Recovery(self.store, self.engine, self.controller, self._now_s, tick, dry=dry)
        recovery.take_over(lambda row, new: self._register(row, tick, new=new), self.on_row)
        self.recorder.written |= recovery.progress
        self.recorder.segments = recovery.segments
        self.profiler.resume(self._now_s())
        recovery.take_reports()
        self._unschedulable = recovery.unschedulable
        return tick

    # -- going on

    def next_s(self) -> float | None:
        """When the next decision is due at the latest; the first is due at once."""
        if not self._decided or self._again:
            return -math.inf
        if self.services is not None and (seen := self.engine.serving()) is not None and self.services.differs(seen):
            return -math.inf
        period_s = None if self._quotas is None else self._quotas.next_s()
        own = (self.controller.next_tick_s(more_to_come=True), self.profiler.next_s(), period_s, self.starts.next_s())
        times = [t for t in (*own, *self._backoff_s.values()) if t is not None]
        return min(times, default=None)

    def take_in(self) -> bool:
        """Submit what users have created in the engine; returns whether there are new requests. Not in a dry run."""
        if self._intake is None or self.mode != "live":
            return False
        asked = self._intake.look(self._now_s())
        self._again = self.starts.await_admission(self._intake.awaiting, self.engine.handle_of) or self._again
        return asked

    def step(self, requests: Sequence[RequestRow], *, decide: bool) -> Tick:
        """Process *requests*, let the controller *decide*; returns what to write down."""
        tick = Tick()
        self._back_off(self._now_s())
        if self._learned is not None and any(request.kind is RequestKind.SUBMIT for request in requests):
            self._learned.refresh()
        cancelled: dict[int, Requester | None] = {}  # stopped together: a job may take its time to stop
        for request in requests:
            self._process(request, tick, cancelled)
            tick.requests.append(request.id)
        if cancelled:
            self.controller.cancel(cancelled, self._now_s())
        self._unschedulable.take_ends(tick)
        now_s, tick_s = self._now_s(), None
        if self._observer is not None:
            decide = self._observer.look(self.controller, self.mode, now_s) or decide
        if self.services is not None and (seen := self.engine.serving()) is not None:
            self.services.look(now_s, seen)
        self.drains.look(tick, dry=self.mode == "dry-run")
        if self.mode != "dry-run":
            self.drains.tell_engine(tick)
        if not self._must_restart() and (self.profiler.measure(tick, now_s) or decide):
            began = perf_counter()
            self.controller.set_weights(self.store.weights())
            self.starts.look(now_s)
            if self._quotas is not None:
                self._quotas.look(tick, now_s)
            self.controller.tick(now_s)
            # an end, or a start that was taken out of the decision, has made room, which one more decision gives away
            self._again = self._quotas is not None and self._quotas.look(tick, now_s)
            self._again = self.starts.moved() or self._again
            tick_s = perf_counter() - began
            self._decided = True
        if tick_s is None or self.recorder.due(now_s):
            self.controller.close()
        self.controller.charge()  # readings since then: the marks that are written down include them
        if self.recorder.record(tick, now_s, tick_s):
            tick.settings["metered"] = self._marks()
            if self.services is not None:  # with the ledger, as it has accounts
                tick.settings["fleet"] = self.services.state()
        self.profiler.track(tick, self.recorder.seen, now_s)
        tick.settings["usage"] = list(self.controller.usage())
        if self.controller.policy.by_service:
            tick.settings["service"] = self.controller.service.by_name()
        if self.controller.limits is not None and (limits := self.controller.limits.by_name()) != self._left_limits:
            tick.settings["limits"] = self._left_limits = limits
        if self._observer is not None:
            self._observer.report(self.controller, tick, now_s, places=self.mode == "dry-run")
        return tick

    def outgrown(self) -> bool:
        """Whether a new reconciler should begin.

        This one remembers far more ended jobs than active ones, plans capacity by a forecast that can be renewed, or
        has left jobs alone in a dry run that is over.
        """
        capacity = self.controller.capacity
        if self._must_restart():
            return True
        if self.engine.unsettled():
            return False
        stale = capacity is not None and self._now_s() >= capacity.renew_s
        return stale or len(self.engine.jobs) > _MOST_ENDED + 2 * len(self.controller.registry.active)

    def _must_restart(self) -> bool:
        """Whether jobs were left alone in a dry run that is over, or have other GPU types: a new one processes them."""
        renewed = self._intake is not None and self._intake.renewed
        return renewed or (self.mode == "live" and bool(self._unschedulable))

    def finish(self) -> Tick:
        """Return what is left to write down before another reconciler begins."""
        self.recorder.hurry()
        return self.step((), decide=False)

    def _back_off(self, now_s: float) -> None:
        """Let jobs wait that were interrupted or refused without progress in between, longer each time."""
        over = [handle for handle, until_s in self._backoff_s.items() if until_s <= now_s]
        for handle in over:
            del self._backoff_s[handle]
            self.controller.decide_anew()
        for change in self.engine.waiting_changes():
            if isinstance(change, JobLeft):
                continue
            job = self.engine.jobs[change.handle]
            failures = max(job.failures, job.refusals)
            if failures > 1:
                self._backoff_s[change.handle] = now_s + min(_LONGEST_BACKOFF_S, 2.0 ** min(failures - 1, 32))
        self.controller.scheduling.mark_only(self._backoff_s, JobCondition.BACKOFF)

    def _process(self, request: RequestRow, tick: Tick, cancelled: dict[int, Requester | None]) -> None:
        handle = None if request.job is None else self.engine.handle_of(request.job)
        requester = None if request.by is None else Requester(request.by)
        match request.kind:
            case RequestKind.SUBMIT if handle is None:
                for row in self.store.jobs_by_id([request.job or 0]):
                    if row.status is JobStatus.WAITING:
                        self._register_new(row, tick)
            case RequestKind.CANCEL if request.job in self._unschedulable.unregistered:
                self._unschedulable.cancel(request.job, requester, tick)
            case RequestKind.HOLD | RequestKind.RELEASE if request.job in self._unschedulable.unregistered:
                tick.change(request.job, held=request.kind is RequestKind.HOLD)
            case RequestKind.CANCEL if handle is not None:
                if handle in self.controller.scheduling.jobs(JobCondition.UNSCHEDULABLE):
                    self._unschedulable.cancel(self.engine.jobs[handle].id, requester, tick)
                cancelled.setdefault(handle, requester)
            case RequestKind.HOLD | RequestKind.RELEASE if handle in self.controller.registry.active:
                assert handle is not None
                on = request.kind is RequestKind.HOLD
                self.controller.scheduling.mark(handle, JobCondition.HELD, on=on)
                self.controller.decide_anew()
                tick.change(self.engine.jobs[handle].id, held=on)
            case RequestKind.DRAIN if request.node in self._at:
                self.drains.set([*self.drains.names, request.node], tick)
            case RequestKind.UNDRAIN:
                self.drains.set([name for name in self.drains.names if name != request.node], tick)
            case RequestKind.MODE if request.value in {"live", "power", "dry-run"} and not self._advises:
                self._set_mode(request.value, tick)
            case RequestKind.PHI if self.services is not None:
                tick.settings["phi"] = self.services.set_phi(float(request.value))
            case RequestKind.FAIRNESS if self._phi is not None:
                self.controller.policy = self.controller.policy.with_phi(min(1.0, max(0.0, float(request.value))))
                self.controller.decide_anew()
                tick.settings["fairness"] = {"phi": float(request.value), "instead_of": self._phi}

    def _set_mode(self, mode: str, tick: Tick) -> None:
        if mode == "power" and self.controller.capacity is None:  # the configuration has no plan any more
            log.warning("there is no capacity plan to carry out", extra={"mode": "dry-run, instead of power"})
            mode = "dry-run"
        self.mode = tick.settings["mode"] = mode
        self.controller.set_dry(dry=mode != "live", alone=mode == "power")
        if self._observer is not None:
            self._observer.begin(self.controller, mode)
        if mode != "live":
            self.engine.cancel_deferred(None, "its place was still in use when the dry run began")

    def _register_new(self, row: JobRow, tick: Tick) -> None:
        """Register a new job; one that cannot run on this cluster has failed."""
        try:
            self._register(row, tick, new=True)
        except (InputError, JobNeverFitsError) as error:
            fail(row, self._now_s(), "never-fits", f"{row.name} cannot run here: {error}", tick)

    def _register(self, row: JobRow, tick: Tick, *, new: bool) -> int:
        """Register a job; raises ``InputError`` or ``JobNeverFitsError`` if it cannot run here."""
        allowed, figures = self._figures(row)
        job = self.maker.make(row, figures)
        handle = self._submit(job, tracked(row), new=new)
        self.profiler.register(handle, row, allowed, figures)
        self.starts.add(handle, row, self._now_s())
        if self._quotas is not None:
            self._quotas.add(handle, row)
        self.on_row(row)
        if row.times is None:
            tick.change(row.id, times=FigureDocuments(figures))
        if row.held:
            self.controller.scheduling.mark(handle, JobCondition.HELD)
        return handle

    def _figures(self, row: JobRow) -> tuple[list[TimeFigure], list[TimeFigure]]:
        """Return the configurations of a job with the times declared, and with the best times there are."""
        declared = self.maker.check(row.file, anew=False)
        if row.times is None:
            return declared, self.profiler.figures(row, declared)
        kept = [TimeFigure(**figure) for figure in row.times]
        if row.file.time_limit_s is None:  # an earlier version called the site's default so
            kept = [replace(f, source=str(Source.UNKNOWN)) if f.source == Source.TIME_LIMIT else f for f in kept]
        cluster, where = self.maker.cluster, (row.file.partition, row.file.width, row.file.constraint)
        return declared, [f for f in kept if cluster.shapes(f.gpu_type, f.gpus, *where)] or declared

    def _submit(self, job: Job, state: TrackedJob, *, new: bool) -> int:
        table = JobArrays.of([job])
        (handle,) = self.controller.submit(table, np.zeros(1, dtype=np.int64))
        if not new:
            for event in self.controller.log.take()[:-1]:
                self.controller.log.append(event)
        self._admit(table, state.id)
        registered = self.engine.register(state)
        assert registered == handle, "the registry and the engine count jobs alike"
        return handle
