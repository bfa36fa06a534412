"""One life of the controller: begun from what store and engine say, ended by the first error it does not know."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.engine import DrainingEngine, ForgetfulEngine, Found, JobLeft, LiveEngine, PatientEngine, Stop
from commonwatt.control.events import Event, EventKind
from commonwatt.control.ledger import Account
from commonwatt.engines.work import mark_of
from commonwatt.live.durable import Durable, Known
from commonwatt.live.jobs import JobMaker, TimeFigure
from commonwatt.live.observer import Observer
from commonwatt.live.profiler import VAIN, Profiler
from commonwatt.live.recorder import Recorder, known_of
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
        engine = self.durable.engine
        found = {f.handle: f for f in engine.found()}
        self._tell_strangers(found)
        rows = self.store.active_jobs()
        self._stop({row.id for row in rows}, found)
        segments = self.store.segments()
        fresh = {request.job: request.id for request in self.store.requests() if request.kind is RequestKind.SUBMIT}
        stops = {intent.job: intent for intent in self.store.open_intents() if intent.kind == "stop"}
        for row in rows:
            handle = self._enter(row, tick, told=row.id in fresh)
            if handle is None:
                tick.requests += [fresh[row.id]] if row.id in fresh else []
                self._close_account(row.id, segments, tick)
                continue
            known = self.durable.jobs[handle]
            self.recorder.told[handle] = (row.done_epochs, row.kept_epochs)
            own = found.get(row.id)
            known.attempts = max(known.attempts, own.attempts if own else 0)
            if own is not None and own.nodes:
                known.settled = min(known.settled, known.attempts - 1)  # it runs: its end is yet to come
            began_s = math.nan if row.began_s is None else row.began_s
            self.controller.book.remember(handle, known.attempts, began_s)
            segment = Account(**segments[row.id]) if row.id in segments else None  # type: ignore[arg-type]
            if segment is not None:
                self.controller.ledger.resume(handle, segment)
            if self._goes_on_leaving(handle, row, own, stops.get(row.id)):
                continue
            if own is not None and own.nodes:
                self._adopt(handle, row, own, segment or Account())
        if usage := self.store.settings().get("usage"):
            self.controller.resume_usage(usage[1], usage[0])
        self.recorder.segments = {h: None for j in segments if (h := self.durable.handle_of(j)) is not None}
        unfit = {row.id for row in rows if self.durable.handle_of(row.id) is None}
        self._stop({handle for handle in found if handle not in unfit}, found)
        self._settle_intents(tick, found)
        self.profiler.resume(self._now_s())
        self.durable.look()
        reported = {change.handle for change in self.durable.waiting_changes()}
        for row in rows:
            handle = self.durable.handle_of(row.id)
            if handle is None or handle in self.controller.book.nodes:
                continue
            if handle in self.controller.leaving:
                if handle not in reported and not (row.id in found and found[row.id].nodes):
                    self.durable.left(handle)
                continue
            if row.status is not JobStatus.RUNNING:
                continue
            if handle not in reported:
                self.durable.lose(handle, "it was not running any more when the controller came back")
            self.controller.await_news(handle, row.gpus)
        return rows, tick

    def _tell_strangers(self, found: dict[int, Found]) -> None:
        """Take jobs out of *found* that the store never heard of: it is older than the engine's state.

        Their records are put aside, as their numbers may be given again; what they drew counts as idle. Raises
        ``EngineError`` if they run, or the engine cannot do that.
        """
        submit_s = self.store.submit_times(list(found))
        strange = [
            f for f in found.values() if f.handle not in submit_s or f.mark not in ("", mark_of(submit_s[f.handle]))
        ]
        if running := [str(f.handle) for f in strange if f.nodes]:
            msg = (
                f"the engine runs jobs this store knows nothing of ({', '.join(running[:10])}): it belongs to another "
                "store, or this one is older than the engine's state; stop these jobs, or use that store"
            )
            raise EngineError(msg)
        engine = self.durable.engine
        if strange and not isinstance(engine, ForgetfulEngine):
            msg = (
                f"the engine's records tell of jobs this store knows nothing of ({len(strange)}, the first is "
                f"{strange[0].handle}): move its state folder away, or use the store they belong to"
            )
            raise EngineError(msg)
        if strange and isinstance(engine, ForgetfulEngine):
            engine.forget([f.handle for f in strange], aside=True)
        gone = {own.handle for own in strange}
        for handle in gone:
            del found[handle]
        if gone:  # what they drew is nobody's; their numbers may soon be another's
            self.durable.early = [
                replace(r, holders=tuple(h for h in r.holders if h.handle not in gone)) for r in engine.readings()
            ]

    def _stop(self, but: set[int], found: dict[int, Found]) -> None:
        """Stop what runs of jobs that have ended: all *but* these."""
        self._stop_runs([f.handle for f in found.values() if f.nodes and f.handle not in but])

    def _stop_runs(self, jobs: Sequence[int]) -> None:
        """Stop what runs of *jobs* by their ids; what cannot be stopped keeps its GPUs, and holds nobody else up."""
        engine = self.durable.engine
        if isinstance(engine, PatientEngine):
            engine.tell(jobs)
        for job in jobs:
            try:
                engine.apply([Stop(job)])
            except EngineDownError:
                raise
            except EngineError as error:
                log.warning("a job that is over, or has no place, goes on", extra={"job": job, "cause": str(error)})

    def _close_account(self, job: int, segments: Mapping[int, Mapping[str, int | None]], tick: Tick) -> None:
        """Charge a job that will not run again for its last run."""
        if job in segments:
            tick.ledger["job", job] = segments[job]
            tick.segments[job] = None

    def _goes_on_leaving(self, handle: int, row: JobRow, own: Found | None, stop: IntentRow | None) -> bool:
        """Whether a job waits already, and leaves, or has left, the nodes a controller before this one took it off.

        One that does not wait yet runs, but that it goes when it does counts for no interruption.
        """
        known = self.durable.jobs[handle]
        if stop is None or stop.attempt != known.attempts or known.settled >= known.attempts:
            return False
        there = own is not None and bool(own.nodes)
        if row.status is not JobStatus.WAITING or not self.durable.leave_again(known, stop, there=there):
            self.durable.told[row.id] = stop
            return False
        nodes = own.nodes if own is not None and there else tuple(self._at[n] for n in stop.nodes if n in self._at)
        self.controller.leaving[handle] = (nodes, len(stop.nodes) * stop.gpus_per_node)
        return True

    def _adopt(self, handle: int, row: JobRow, own: Found, segment: Account) -> None:
        controller = self.controller
        known = self.durable.jobs[handle]
        known.nodes, known.gpus_per_node = own.nodes, own.gpus_per_node
        if not controller.adopt(handle, own.nodes, own.gpus_per_node, segment):
            controller.ledger.resume(handle, segment)
            self._stop_runs([row.id])
            self.durable.lose(handle, "it ran in a way this configuration does not allow")
            return
        if row.status is not JobStatus.RUNNING or row.attempts != own.attempts:
            kind = EventKind.STARTED if own.attempts <= 1 else EventKind.RESUMED
            sentence = f"{row.name} was started just before the controller stopped, and still runs"
            gpus = len(own.nodes) * own.gpus_per_node
            controller.log.append(Event(self._now_s(), kind, handle, own.nodes, gpus, "found", sentence))

    def _settle_intents(self, tick: Tick, found: dict[int, Found]) -> None:
        for intent in self.store.open_intents():
            if self.durable.awaits(intent):
                continue
            own = found.get(intent.job)
            attempts, runs = (own.attempts, bool(own.nodes)) if own else (0, False)
            done = attempts >= intent.attempt if intent.kind == "start" else not (runs and attempts == intent.attempt)
            tick.intents.append(replace(intent, outcome="done" if done else "void", cause="found after a restart"))
            handle = self.durable.handle_of(intent.job)
            book = self.controller.book
            if done and intent.kind == "start" and handle is not None and np.isnan(book.job("began_s")[handle]):
                book.remember(handle, int(book.job("starts")[handle]), intent.at_s)
                tick.change(intent.job, began_s=intent.at_s)

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
        now_s, tick_s = self._now_s(), None
        self._keep_off(tick)
        self.controller.held_back = self.held | set(self._pauses)
        if self.profiler.measure(tick, now_s) or decide:
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

        This one remembers far more jobs that have ended than it has to do with, or plans capacity by less than is known
        by now.
        """
        capacity = self.controller.capacity
        if self.durable.unsettled():
            return False
        stale = capacity is not None and self._now_s() >= capacity.renew_s
        return stale or len(self.durable.jobs) > _MOST_ENDED + 2 * len(self.controller.book.active)

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
                        self._enter(row, tick, told=True)
            case RequestKind.CANCEL if handle is not None:
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

    def _enter(self, row: JobRow, tick: Tick, *, told: bool) -> int | None:
        """Give a job to the controller; one that cannot run on this cluster is reported failed."""
        try:
            known, figures = self._figures(row)
            job = self.maker.make(row, figures)
            handle = self._submit(job, known_of(row), told=told)
            self.profiler.enter(handle, row, known, figures)
        except (InputError, JobNeverFitsError) as error:
            sentence = f"{row.name} cannot run here: {error}"
            now_s = self._now_s()
            tick.change(
                row.id, status=JobStatus.FAILED, ended_s=now_s, reason="never-fits", sentence=sentence, nodes=[]
            )
            tick.events.append(EventRow(0, now_s, EventKind.FAILED, row.id, (), 0, "never-fits", sentence))
            return None
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
