"""One life of the controller: begun from what store and engine say, ended by the first error it does not know."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.engine import DrainingEngine, JobLeft, LiveEngine
from commonwatt.control.events import EventKind
from commonwatt.live.durable import Durable
from commonwatt.live.jobs import JobMaker, TimeFigure
from commonwatt.live.known import Known
from commonwatt.live.misfits import Misfits, fail
from commonwatt.live.observer import Observer
from commonwatt.live.profiler import VAIN, Profiler
from commonwatt.live.recorder import Recorder, known_of
from commonwatt.live.recovery import Recovery
from commonwatt.model.errors import EngineDownError, EngineError, InputError, JobNeverFitsError
from commonwatt.model.jobs import Job, JobTable
from commonwatt.model.live import ProfilingSpec
from commonwatt.store.records import EventRow, JobRow, JobStatus, RequestKind, RequestRow
from commonwatt.store.ticks import Tick, TickStore

__all__ = ["Session"]

log = logging.getLogger("commonwatt.session")

_LONGEST_PAUSE_S = 60.0
_MOST_ENDED = 10_000


class Session:
    """A controller, its engine and its store.

    Parameters
    ----------
    make
        Builds a controller over an engine.
    admit
        Tells an engine of simulated work of the jobs it will be asked to run.
    marks
        When each node was read last, and what its meter said, as it is to be written down.
    profiling
        How new jobs are measured, if they are.
    observer
        Watches jobs of others in a dry run.

    Raises
    ------
    StoreError, EngineError
        If it cannot begin: the store or the engine do not answer, or the engine runs jobs the store does not know.
    """

    def __init__(
        self, store: TickStore, engine: LiveEngine, maker: JobMaker, make: Callable[[Durable], Controller],
        now_s: Callable[[], float], retries: int, admit: Callable[[JobTable, int], None] = lambda *_: None,
        marks: Callable[[], dict[str, Any]] = dict, profiling: ProfilingSpec | None = None,
        observer: Observer | None = None,
    ) -> None:  # fmt: skip
        self.store, self.maker, self._now_s, self._admit, self._marks = store, maker, now_s, admit, marks
        self.durable = Durable(engine, store.intend, now_s, retries)
        self.controller = make(self.durable)
        self.durable.names = self.controller.cluster.names
        self.recorder = Recorder(self.controller, self.durable)
        vain = store.settings().get(VAIN)
        self.profiler = Profiler(self.controller, self.durable, store.profiles(), profiling, vain)
        self.mode, self._observer = "live", observer
        self.drained: list[str] = []
        self._misfits = Misfits(store, self.durable, now_s)
        self._kept_off: set[int] | None = None  # nodes the engine was told to keep everybody's new jobs away from
        self.entered: list[JobRow] = []  # since somebody last took note of them
        self._decided = False
        self.held: set[int] = set()
        self._pauses: dict[int, float] = {}  # until when a job that was refused is left alone, by handle
        self._at = {name: n for n, name in enumerate(self.controller.cluster.names)}

    # -- beginning

    def recover(self, mode: str, drained: Sequence[str]) -> tuple[list[JobRow], Tick]:
        """Take up where the store says an earlier controller was; returns active jobs, and what to write down."""
        tick = Tick()
        self._set_mode(mode, tick)
        self._set_drained(drained, tick)
        dry = mode == "dry-run"
        recovery = Recovery(self.store, self.durable, self.controller, self._now_s, tick, dry=dry)
        rows = recovery.take_up(lambda row, told: self._enter(row, tick, told=told))
        self.recorder.told |= recovery.told
        self.recorder.segments = recovery.segments
        self.profiler.resume(self._now_s())
        recovery.hear()
        self._misfits = recovery.misfits
        return rows, tick

    # -- going on

    def next_s(self) -> float | None:
        """When the next decision is due at the latest; the first is due at once."""
        if not self._decided:
            return -math.inf
        own = (self.controller.next_tick_s(more_to_come=True), self.profiler.next_s())
        times = [t for t in (*own, *self._pauses.values()) if t is not None]
        return min(times, default=None)

    def step(self, requests: Sequence[RequestRow], *, decide: bool) -> Tick:
        """Deal with *requests*, let the controller decide if wanted; returns what to write down."""
        tick = Tick()
        self._pause(self._now_s())
        cancelled: list[int] = []  # all at once: a job may take its time to stop
        for request in requests:
            self._deal_with(request, tick, cancelled)
            tick.requests.append(request.id)
        if cancelled:
            self.controller.cancel(cancelled, self._now_s())
        self._misfits.take_ends(tick)
        now_s, tick_s = self._now_s(), None
        self._keep_off(tick)
        self.controller.held_back, self.controller.paused = self.held | self._misfits.handles, set(self._pauses)
        if not self._spared() and (self.profiler.measure(tick, now_s) or decide):
            began = perf_counter()
            self.controller.weigh(self.store.weights())
            self.controller.tick(now_s)
            tick_s = perf_counter() - began
            self._decided = True
        if tick_s is None or self.recorder.due(now_s):
            self.controller.close()
        self.controller.charge()  # what was read since: the marks that are written tell of it
        if self.recorder.record(tick, now_s, tick_s):
            tick.settings["metered"] = self._marks()
        self.profiler.follow(tick, self.recorder.seen, now_s)
        tick.settings["usage"] = [now_s, self.controller.usage()]
        if self._observer is not None and self.mode == "dry-run":
            shut = self.controller.drained | self.controller.set_aside
            self._observer.look(tick, now_s, self.durable.nodes, self.controller.held_on(), shut)
        return tick

    def outgrown(self) -> bool:
        """Whether a new one would be better.

        This one remembers far more jobs that have ended than it has to do with, plans capacity by less than is known
        by now, or has left jobs alone in a dry run that is over.
        """
        capacity = self.controller.capacity
        if self._spared():
            return True
        if self.durable.unsettled():
            return False
        stale = capacity is not None and self._now_s() >= capacity.renew_s
        return stale or len(self.durable.jobs) > _MOST_ENDED + 2 * len(self.controller.book.active)

    def _spared(self) -> bool:
        """Whether a dry run that is over has left jobs alone: who begins anew deals with them, nobody else does."""
        return self.mode == "live" and bool(self._misfits)

    def finish(self) -> Tick:
        """Return what is left to write down before another session begins."""
        self.recorder.hurry()
        return self.step((), decide=False)

    def _pause(self, now_s: float) -> None:
        """Leave jobs that were interrupted or refused without having got on alone for a while, longer each time."""
        over = [handle for handle, until_s in self._pauses.items() if until_s <= now_s]
        for handle in over:
            del self._pauses[handle]
            self.controller.decide_anew()
        for change in self.durable.waiting_changes():
            if isinstance(change, JobLeft):
                continue
            known = self.durable.jobs[change.handle]
            failures = max(known.failures, known.refusals)
            if failures > 1:
                self._pauses[change.handle] = now_s + min(_LONGEST_PAUSE_S, 2.0 ** min(failures - 1, 32))

    def _deal_with(self, request: RequestRow, tick: Tick, cancelled: list[int]) -> None:
        handle = None if request.job is None else self.durable.handle_of(request.job)
        match request.kind:
            case RequestKind.SUBMIT if handle is None:
                for row in self.store.jobs_by_id([request.job or 0]):
                    if row.status is JobStatus.WAITING:
                        self._enter_new(row, tick)
            case RequestKind.CANCEL if request.job in self._misfits.strange:
                self._misfits.cancel(request.job, tick)
            case RequestKind.HOLD | RequestKind.RELEASE if request.job in self._misfits.strange:
                tick.change(request.job, held=request.kind is RequestKind.HOLD)
            case RequestKind.CANCEL if handle is not None:
                if handle in self._misfits.handles:
                    self._misfits.cancel(self.durable.jobs[handle].id, tick)
                cancelled.append(handle)
            case RequestKind.HOLD | RequestKind.RELEASE if handle is not None and handle in self.controller.book.active:
                held = request.kind is RequestKind.HOLD
                (self.held.add if held else self.held.discard)(handle)
                self.controller.decide_anew()
                tick.change(self.durable.jobs[handle].id, held=held)
            case RequestKind.DRAIN if request.node in self._at:
                self._set_drained([*self.drained, request.node], tick)
            case RequestKind.UNDRAIN:
                self._set_drained([name for name in self.drained if name != request.node], tick)
            case RequestKind.MODE if request.value in {"live", "dry-run"}:
                self._set_mode(request.value, tick)

    def _set_mode(self, mode: str, tick: Tick) -> None:
        self.mode = tick.settings["mode"] = mode
        self.controller.only_say(dry=mode == "dry-run")
        if mode == "dry-run":
            self.durable.call_off(None, "it had not begun when the dry run did, as its place was still in use")

    def _set_drained(self, names: Sequence[str], tick: Tick) -> None:
        self.drained = tick.settings["drained"] = sorted({name for name in names if name in self._at})
        self.controller.drained = {self._at[name] for name in self.drained}
        cause = "it had not begun when its node was drained, as its place was still in use"
        self.durable.call_off(self.controller.drained, cause)
        self.controller.decide_anew()

    def _keep_off(self, tick: Tick) -> None:
        """Have an engine with a scheduler of its own know what is drained; whether it may say no is for its people."""
        engine, drained = self.durable.engine, self.controller.drained
        if self.mode != "live" or drained == self._kept_off or not isinstance(engine, DrainingEngine):
            return
        try:
            engine.drain(drained)
        except EngineDownError:
            raise
        except EngineError as error:
            sentence = f"the engine may still begin jobs of others on drained nodes: {error}"
            log.warning("nodes are not drained for others", extra={"cause": str(error)})
            names = tuple(self.drained)
            tick.events.append(EventRow(0, self._now_s(), EventKind.NOT_DRAINED, None, names, 0, "refused", sentence))
        self._kept_off = set(drained)

    def _enter_new(self, row: JobRow, tick: Tick) -> None:
        """Give a new job to the controller; one that cannot run on this cluster has failed."""
        try:
            self._enter(row, tick, told=True)
        except (InputError, JobNeverFitsError) as error:
            fail(row, self._now_s(), "never-fits", f"{row.name} cannot run here: {error}", tick)

    def _enter(self, row: JobRow, tick: Tick, *, told: bool) -> int:
        """Give a job to the controller; raises ``InputError`` or ``JobNeverFitsError`` if it cannot run here."""
        known, figures = self._figures(row)
        job = self.maker.make(row, figures)
        handle = self._submit(job, known_of(row), told=told)
        self.profiler.enter(handle, row, known, figures)
        self.entered.append(row)
        if row.times is None:
            tick.change(row.id, times=[vars(figure) for figure in figures])
        if row.held:
            self.held.add(handle)
        return handle

    def _figures(self, row: JobRow) -> tuple[list[TimeFigure], list[TimeFigure]]:
        """Return what a job may get as declared, and with its times as they are known."""
        known = self.maker.check(row.file, anew=False)
        if row.times is None:
            return known, self.profiler.figures(row, known)
        kept = [TimeFigure(**figure) for figure in row.times]
        return known, [f for f in kept if self.maker.cluster.shapes(f.gpu_type, f.gpus)] or known

    def _submit(self, job: Job, known: Known, *, told: bool) -> int:
        table = JobTable.of([job])
        (handle,) = self.controller.submit(table, np.zeros(1, dtype=np.int64))
        if not told:
            for event in self.controller.log.take()[:-1]:
                self.controller.log.append(event)
        self._admit(table, known.id)
        entered = self.durable.enter(known)
        assert entered == handle, "the book and the engine count jobs alike"
        return handle
