"""From what happened in the controller to what is written down, in one ``Tick``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commonwatt.control.book import Status
from commonwatt.control.controller import Controller
from commonwatt.control.events import Event, EventKind
from commonwatt.control.ledger import Account
from commonwatt.live.durable import Durable
from commonwatt.live.known import Known
from commonwatt.store.records import EventRow, JobRow, JobStatus, SampleRow
from commonwatt.store.ticks import Tick

__all__ = ["Recorder", "known_of"]

_BEGINS = {EventKind.STARTED, EventKind.RESUMED, EventKind.RESIZED, EventKind.MIGRATED}
_ENDS = {
    EventKind.COMPLETED: JobStatus.COMPLETED,
    EventKind.FAILED: JobStatus.FAILED,
    EventKind.CANCELLED: JobStatus.CANCELLED,
}
_STAYS = {EventKind.SUBMITTED, EventKind.WAITS}
_ACCOUNTS_S, _FOR_EACH_S, _PROGRESS_S = 4.5, 0.01, 60.0
"""How often accounts, later the more jobs run, and epochs that are in no snapshot yet, of jobs that just go on are
written down: with 1,000 of them it takes 0.1 s, in which nobody else can write. Energy is metered from where it was
last written down, and those who look are told of all progress, so nothing is lost in between."""
_OFF: dict[str, Any] = {"nodes": [], "gpu_type": None, "gpus_per_node": 0, "expected_end_s": None}


@dataclass
class Recorder:
    """Takes out of a controller what is to be kept, and leaves it with what it needs.

    Attributes
    ----------
    segments
        Accounts of running jobs since they began as they are written, by handle; ``None``: some other way.
    seen
        Epochs done by running jobs, by handle, and when that was told; ``None``: as of now.
    told
        Epochs done and kept of active jobs as they are written, by handle.
    """

    controller: Controller
    durable: Durable
    segments: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    seen: dict[int, tuple[float, float | None]] = field(default_factory=dict)
    told: dict[int, tuple[float, float]] = field(default_factory=dict)
    _accounts_s: float = -math.inf
    _progress_s: float = -math.inf

    def due(self, now_s: float) -> bool:
        """Whether accounts are to be written down again."""
        return now_s >= self._accounts_s + _ACCOUNTS_S + _FOR_EACH_S * len(self.segments)

    def hurry(self) -> None:
        """Write down everything the next time."""
        self._accounts_s = self._progress_s = -math.inf

    def record(self, tick: Tick, now_s: float, tick_s: float | None) -> bool:
        """Add to *tick* all that happened since the last time; *tick_s* is how long deciding took, if it was done.

        Returns whether accounts are among it, and with them how far meters were read.
        """
        happened = self.controller.log.take()
        for event in happened:
            self._event(tick, event)
        tick.events += self.durable.powers.take(self.durable.names)
        touched = self._touched(tick)
        accounts = touched or self.due(now_s) or any(event.kind not in _STAYS for event in happened)
        self._progress(tick, now_s)
        if accounts:
            self._accounts_s = now_s
            self._ledger(tick)
        tick.intents += self.durable.take_intents()
        samples, self.controller.samples = self.controller.samples, []
        if samples and tick_s is not None:
            last = samples[-1]
            tick.sample = SampleRow(
                now_s, last.busy_gpus, last.power_w, last.running, last.waiting, last.on_gpus, last.wanted_gpus, tick_s
            )
        return accounts

    def _event(self, tick: Tick, event: Event) -> None:
        book, sentence = self.controller.book, event.sentence
        names = tuple(book.cluster.names[n] for n in event.nodes)
        if event.handle < 0:
            tick.events.append(EventRow(0, event.time_s, event.kind, None, names, 0, event.reason, sentence))
            return
        known = self.durable.jobs[event.handle]
        if event.kind is EventKind.FAILED and not sentence:
            sentence = f"{known.name} failed: {known.cause}"
        tick.events.append(
            EventRow(0, event.time_s, event.kind, known.id, names, event.gpus, event.reason[:128], sentence)
        )
        state = {"attempts": known.attempts, "settled": known.settled, "failures": known.failures}
        if event.kind in _BEGINS:
            row = int(book.job("row")[event.handle])
            gpu_type = book.cluster.classes[book.cluster.klass[event.nodes[0]]].gpu_type
            per_node = int(event.gpus // len(event.nodes))
            tick.change(
                known.id, status=JobStatus.RUNNING, nodes=list(names), gpu_type=gpu_type, gpus_per_node=per_node,
                started_s=event.time_s, began_s=_time(book.job("began_s")[event.handle]), reason=event.reason,
                sentence=sentence, expected_start_s=event.time_s,
                expected_end_s=None if row < 0 else event.time_s + self._left_s(event.handle, row), **state,
            )  # fmt: skip
        elif event.kind in _ENDS:
            done = self._done_at_the_end(event.handle)
            reason = event.reason or str(event.kind)
            tick.change(
                known.id, status=_ENDS[event.kind], ended_s=event.time_s, reason=reason[:128],
                sentence=sentence or f"{known.name} is {event.kind}", expected_start_s=None, **_OFF, **state, **done,
            )  # fmt: skip
        elif event.kind in {EventKind.PREEMPTED, EventKind.INTERRUPTED, EventKind.NOT_STARTED}:
            self.told.pop(event.handle, None)
            progress = self.durable.progress(np.array([event.handle]))
            known.kept_epochs = float(progress.kept_epochs[0])
            tick.change(
                known.id, status=JobStatus.WAITING, reason=event.reason[:128], sentence=sentence,
                done_epochs=float(progress.done_epochs[0]), kept_epochs=known.kept_epochs, expected_start_s=None,
                **_OFF, **state,
            )  # fmt: skip
        elif event.kind is EventKind.WOULD_START:
            tick.change(known.id, reason=str(event.kind), sentence=f"in a dry run; else it would start: {sentence}")
        elif event.kind is EventKind.WAITS:
            tick.change(known.id, reason=event.reason, sentence=sentence, **state)

    def _touched(self, tick: Tick) -> bool:
        """Write down of jobs that left their nodes, or came there, later than was ordered, how they stand."""
        touched, self.durable.touched = self.durable.touched, set()
        for handle in sorted(touched):
            known = self.durable.jobs[handle]
            if handle in self.controller.book.active:
                progress = self.durable.progress(np.array([handle]))
                kept = float(progress.kept_epochs[0])
                if kept > known.kept_epochs:
                    known.kept_epochs, known.failures = kept, 0
                tick.change(known.id, done_epochs=float(progress.done_epochs[0]), kept_epochs=kept)
            tick.change(known.id, attempts=known.attempts, settled=known.settled, failures=known.failures)
        return bool(touched)

    def _done_at_the_end(self, handle: int) -> dict[str, float]:
        """Epochs a job has done that is over, as far as that is more than was written down."""
        told, book = self.told.pop(handle, (0.0, 0.0))[0], self.controller.book
        if Status(int(book.job("status")[handle])) is Status.COMPLETED:
            epochs = float(book.job("epochs")[handle])
            return {"done_epochs": epochs, "kept_epochs": epochs}
        now = float(self.durable.progress(np.array([handle])).done_epochs[0])
        done = max(now, self.seen.get(handle, (0.0, None))[0])
        return {"done_epochs": done} if done > told else {}

    def _left_s(self, handle: int, row: int) -> float:
        """Time a job has left in configuration *row* of the book from its last snapshot."""
        book = self.controller.book
        kept = self.durable.jobs[handle].kept_epochs / book.job("epochs")[handle]
        return float(book.row("time_s")[row] * (1.0 - min(1.0, kept)))

    def _progress(self, tick: Tick, now_s: float) -> None:
        handles = np.array(sorted(self.controller.book.nodes), dtype=np.int64)
        self.seen = {}
        if not len(handles):
            return
        every = now_s >= self._progress_s + _PROGRESS_S
        self._progress_s = now_s if every else self._progress_s
        progress = self.durable.progress(handles)
        told_s = np.full(len(handles), np.nan) if progress.told_s is None else progress.told_s
        figures = (progress.done_epochs.tolist(), progress.kept_epochs.tolist(), told_s.tolist())
        for handle, done, kept, at_s in zip(handles.tolist(), *figures, strict=True):
            known = self.durable.jobs[handle]
            self.seen[handle] = (done, None if math.isnan(at_s) else at_s)
            tick.progress[known.id] = done
            safer = kept > known.kept_epochs
            if safer or (every and self.told.get(handle) != (done, kept)):
                self.told[handle] = (done, kept)
                if safer:
                    known.kept_epochs, known.failures, known.refusals = kept, 0, 0
                tick.change(known.id, done_epochs=done, kept_epochs=kept, failures=known.failures)

    def _ledger(self, tick: Tick) -> None:
        rows, segments = self.controller.ledger.take()
        for (name, handle), account in rows.items():
            own = self._id(handle) if name == "job" else 0
            _put(tick, name, own, account)
        for handle in self.segments.keys() - segments.keys():
            tick.segments[self._id(handle)] = None
        now = {handle: vars(segment).copy() for handle, segment in segments.items()}
        for handle, values in now.items():
            if self.segments.get(handle) != values:
                tick.segments[self._id(handle)] = values
        self.segments = dict(now)

    def _id(self, handle: int) -> int:
        return -handle if handle < 0 else self.durable.jobs[handle].id


def known_of(row: JobRow) -> Known:
    """Return what the store knows of a job beyond what the controller does."""
    return Known(row.id, row.name, row.attempts, row.settled, row.failures, row.kept_epochs)


def _put(tick: Tick, name: str, job: int, account: Account) -> None:
    values = vars(account).copy()
    if any(value != 0 for value in values.values()):
        tick.charge((name, job), values)


def _time(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
