"""What a controller does first: take up jobs where the one before it left them, as the store and the engine tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.engine import ClearingEngine, ForgetfulEngine, Found
from commonwatt.control.events import Event, EventKind
from commonwatt.control.ledger import Account
from commonwatt.engines.work import mark_of
from commonwatt.live.durable import Durable
from commonwatt.live.misfits import Misfits, stop_runs
from commonwatt.model.errors import EngineError, InputError, JobNeverFitsError
from commonwatt.store.records import IntentRow, JobRow, JobStatus, RequestKind
from commonwatt.store.ticks import Tick, TickStore

__all__ = ["Recovery"]

_Segments = Mapping[int, Mapping[str, int | None]]


@dataclass
class Recovery:
    """How a controller begins.

    Parameters
    ----------
    tick
        What is to be written down of it.
    dry
        Whether nothing may be commanded: what does not fit the configuration is then left alone.

    Attributes
    ----------
    misfits
        What does not fit.
    """

    store: TickStore
    durable: Durable
    controller: Controller
    now_s: Callable[[], float]
    tick: Tick
    dry: bool
    misfits: Misfits = field(init=False)
    told: dict[int, tuple[float, float]] = field(default_factory=dict)  # progress that is written down, by handle
    segments: dict[int, dict[str, int | None] | None] = field(default_factory=dict)  # written down, by handle
    _found: dict[int, Found] = field(default_factory=dict)
    _rows: list[JobRow] = field(default_factory=list)
    _placeless: set[int] = field(default_factory=set)  # ids of what runs where there is no place any more

    def __post_init__(self) -> None:
        self.misfits = Misfits(self.store, self.durable, self.now_s)

    def take_up(self, enter: Callable[[JobRow, bool], int]) -> list[JobRow]:
        """Enter the active jobs by *enter*, each with its account and where it runs; returns them.

        *enter* returns the handle, raises ``InputError`` or ``JobNeverFitsError`` if the job cannot run here, and is
        told whether its submission is news. Raises ``EngineError`` if the engine runs jobs the store does not know.
        """
        engine = self.durable.engine
        if isinstance(engine, ClearingEngine):
            placeless = engine.clear_out(dry=self.dry)
            self._placeless = set(placeless) if self.dry else set()
        found = self._found = {f.handle: f for f in self.durable.engine.found()}
        self._tell_strangers()
        rows = self._rows = self.store.active_jobs()
        self._stop_but({row.id for row in rows})
        segments = self.store.segments()
        fresh = {request.job: request.id for request in self.store.requests() if request.kind is RequestKind.SUBMIT}
        stops = {intent.job: intent for intent in self.store.open_intents() if intent.kind == "stop"}
        for row in rows:
            try:
                handle = enter(row, row.id in fresh)
            except (InputError, JobNeverFitsError) as error:
                self.misfits.add(row, error, found[row.id].attempts if row.id in found else 0)
                self.tick.requests += [fresh[row.id]] if row.id in fresh else []
                continue
            self._take_up(handle, row, segments, stops.get(row.id))
        if usage := self.store.settings().get("usage"):
            self.controller.resume_usage(usage[1], usage[0])
        self.segments = {h: None for j in segments if (h := self.durable.handle_of(j)) is not None}
        if not self.dry:
            self._stop_but(found.keys() - self.misfits.strange.keys())
        self._settle_intents()
        return rows

    def hear(self) -> None:
        """Ask the engine what became of what does not run any more."""
        self.durable.look()
        reported = {change.handle for change in self.durable.waiting_changes()}
        for row in self._rows:
            handle = self.durable.handle_of(row.id)
            if handle is None or handle in self.controller.book.nodes or handle in self.misfits.handles:
                continue
            if handle in self.controller.leaving:
                if handle not in reported and not self._runs(row.id):
                    self.durable.left(handle)
            elif row.status is JobStatus.RUNNING:
                if handle not in reported:
                    self.durable.lose(handle, "it was not running any more when the controller came back")
                self.controller.await_news(handle, row.gpus)
        self.misfits.settle(self.tick, dry=self.dry)

    def _runs(self, job: int) -> bool:
        return job in self._found and bool(self._found[job].nodes)

    def _tell_strangers(self) -> None:
        """Take jobs out of what was found that the store never heard of: it is older than the engine's state.

        Their records are put aside, as their numbers may be given again; what they drew counts as idle. Raises
        ``EngineError`` if they run, or the engine cannot do that.
        """
        found, engine = self._found, self.durable.engine
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
        if not strange:
            return
        if not isinstance(engine, ForgetfulEngine):
            msg = (
                f"the engine's records tell of jobs this store knows nothing of ({len(strange)}, the first is "
                f"{strange[0].handle}): move its state folder away, or use the store they belong to"
            )
            raise EngineError(msg)
        gone = {own.handle for own in strange}
        engine.forget(list(gone), aside=True)
        for handle in gone:
            del found[handle]
        self.durable.early = [  # what they drew is nobody's; their numbers may soon be another's
            replace(r, holders=tuple(h for h in r.holders if h.handle not in gone)) for r in engine.readings()
        ]

    def _stop_but(self, jobs: Set[int]) -> None:
        """Stop what runs of jobs that are over: all but *jobs*."""
        stop_runs(self.durable.engine, [f.handle for f in self._found.values() if f.nodes and f.handle not in jobs])

    def _take_up(self, handle: int, row: JobRow, segments: _Segments, stop: IntentRow | None) -> None:
        known, own = self.durable.jobs[handle], self._found.get(row.id)
        self.told[handle] = (row.done_epochs, row.kept_epochs)
        known.attempts = max(known.attempts, own.attempts if own else 0)
        if self._runs(row.id):
            known.settled = min(known.settled, known.attempts - 1)  # its end is yet to come
        self.controller.book.remember(handle, known.attempts, math.nan if row.began_s is None else row.began_s)
        segment = Account(**segments[row.id]) if row.id in segments else None  # type: ignore[arg-type]
        if segment is not None:
            self.controller.ledger.resume(handle, segment)
        if row.id in self._placeless:
            self._leave_alone(handle, row.gpus)
        elif not self._goes_on_leaving(handle, row, stop) and own is not None and own.nodes:
            self._adopt(handle, row, own, segment or Account())

    def _goes_on_leaving(self, handle: int, row: JobRow, stop: IntentRow | None) -> bool:
        """Whether a job waits already, and leaves, or has left, the nodes a controller before this one took it off.

        One that does not wait yet runs, but that it goes when it does counts for no interruption.
        """
        known, there = self.durable.jobs[handle], self._runs(row.id)
        if stop is None or stop.attempt != known.attempts or known.settled >= known.attempts:
            return False
        if row.status is not JobStatus.WAITING or not self.durable.leave_again(known, stop, there=there):
            self.durable.told[row.id] = stop
            return False
        at = {name: n for n, name in enumerate(self.durable.names)}
        nodes = self._found[row.id].nodes if there else tuple(at[n] for n in stop.nodes if n in at)
        self.controller.leaving[handle] = (nodes, len(stop.nodes) * stop.gpus_per_node)
        return True

    def _leave_alone(self, handle: int, gpus: int) -> None:
        self.misfits.handles.add(handle)
        self.controller.await_news(handle, gpus)

    def _adopt(self, handle: int, row: JobRow, own: Found, segment: Account) -> None:
        controller, known = self.controller, self.durable.jobs[handle]
        known.nodes, known.gpus_per_node = own.nodes, own.gpus_per_node
        if not controller.adopt(handle, own.nodes, own.gpus_per_node, segment):
            controller.ledger.resume(handle, segment)
            if self.dry:
                self._leave_alone(handle, len(own.nodes) * own.gpus_per_node)
                return
            stop_runs(self.durable.engine, [row.id])
            self.durable.lose(handle, "it ran in a way this configuration does not allow")
            return
        gpus, moved = len(own.nodes) * own.gpus_per_node, row.nodes != tuple(self.durable.names[n] for n in own.nodes)
        if row.status is not JobStatus.RUNNING or row.attempts != own.attempts:
            kind = EventKind.STARTED if own.attempts <= 1 else EventKind.RESUMED
            sentence = f"{row.name} was started just before the controller stopped, and still runs"
            controller.log.append(Event(self.now_s(), kind, handle, own.nodes, gpus, "found", sentence))
        elif moved or row.gpus_per_node != own.gpus_per_node:
            kind = EventKind.MIGRATED if moved else EventKind.RESIZED
            sentence = f"{row.name} runs as it did when the controller stopped, with {gpus} GPUs"
            controller.log.append(Event(self.now_s(), kind, handle, own.nodes, gpus, "found", sentence))
        elif row.reason == "never-fits":  # in a dry run, with another configuration
            self.tick.change(row.id, reason="found", sentence=f"{row.name} still runs")

    def _settle_intents(self) -> None:
        for intent in self.store.open_intents():
            if self.durable.awaits(intent):
                continue
            own = self._found.get(intent.job)
            attempts, runs = (own.attempts, bool(own.nodes)) if own else (0, False)
            done = attempts >= intent.attempt if intent.kind == "start" else not (runs and attempts == intent.attempt)
            self.tick.intents.append(replace(intent, outcome="done" if done else "void", cause="found after a restart"))
            handle, book = self.durable.handle_of(intent.job), self.controller.book
            if done and intent.kind == "start" and handle is not None and np.isnan(book.job("began_s")[handle]):
                book.remember(handle, int(book.job("starts")[handle]), intent.at_s)
                self.tick.change(intent.job, began_s=intent.at_s)
