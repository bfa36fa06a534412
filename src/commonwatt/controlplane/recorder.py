"""Collects what happened in the controller into one ``Tick``, to be written down."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.events import Event, EventKind
from commonwatt.control.job_registry import Status
from commonwatt.control.ledger import Account
from commonwatt.controlplane.intent_log import UNREGISTERED, WriteAheadEngine
from commonwatt.controlplane.jobs import TrackedJob
from commonwatt.model.explanation import PlacementExplanation
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import EventRow, JobRow, JobStatus, SampleRow

__all__ = ["Recorder", "tracked"]

_BEGINS = {EventKind.STARTED, EventKind.RESUMED, EventKind.RESIZED, EventKind.MIGRATED}
_ENDS = {
    EventKind.COMPLETED: JobStatus.COMPLETED,
    EventKind.FAILED: JobStatus.FAILED,
    EventKind.CANCELLED: JobStatus.CANCELLED,
}
_STAYS = {EventKind.SUBMITTED, EventKind.WAITS}
_ACCOUNTS_S, _FOR_EACH_S, _PROGRESS_S = 4.5, 0.01, 60.0
"""How often the accounts of running jobs (less often the more there are), and epochs that are in no checkpoint yet, are
written down: for 1,000 jobs that takes 0.1 s, in which nobody else can write. Nothing is lost in between: energy is
metered from where it was last written down, and the API shows all progress."""
_OFF: dict[str, Any] = {"nodes": [], "gpu_type": None, "gpus_per_node": 0, "expected_end_s": None}


@dataclass
class Recorder:
    """Takes events, accounts and progress out of a controller.

    Attributes
    ----------
    told
        Completes why a job, by handle, runs or waits, by what is known of run times.
    nothing_known
        Whether nothing is known of the run time of a job, by handle: its end is not either.
    segments
        Accounts of running jobs since they were started, as written down, by handle; ``None``: not the same.
    seen
        Epochs done by running jobs, by handle, and when they were reported; ``None``: as of now.
    written
        Epochs done and kept of active jobs, as written down, by handle.
    """

    controller: Controller
    engine: WriteAheadEngine
    told: Callable[[int, PlacementExplanation], PlacementExplanation] = field(default=lambda _, why: why)
    nothing_known: Callable[[int], bool] = field(default=lambda _: False)
    segments: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    seen: dict[int, tuple[float, float | None]] = field(default_factory=dict)
    written: dict[int, tuple[float, float]] = field(default_factory=dict)
    _accounts_s: float = -math.inf
    _progress_s: float = -math.inf

    def due(self, now_s: float) -> bool:
        """Whether it is time to write accounts down again."""
        return now_s >= self._accounts_s + _ACCOUNTS_S + _FOR_EACH_S * len(self.segments)

    def hurry(self) -> None:
        """Let the next record have everything."""
        self._accounts_s = self._progress_s = -math.inf

    def record(self, tick: Tick, now_s: float, tick_s: float | None) -> bool:
        """Add to *tick* what happened since the last record; *tick_s* is how long the decision took, if there was one.

        Returns whether accounts are among it, which tell how far meters were read.
        """
        happened = self.controller.log.take()
        for event in happened:
            self._event(tick, event)
        tick.events += self.engine.power_commands.take(self.engine.names)
        touched = self._touched(tick)
        accounts = touched or self.due(now_s) or any(event.kind not in _STAYS for event in happened)
        self._progress(tick, now_s)
        if accounts:
            self._accounts_s = now_s
            self._ledger(tick)
        tick.intents += self.engine.take_intents()
        samples, self.controller.samples = self.controller.samples, []
        if samples and tick_s is not None:
            last = samples[-1]
            tick.sample = SampleRow(
                now_s, last.busy_gpus, last.power_w, last.running, last.waiting, last.on_gpus, last.wanted_gpus, tick_s,
                last.wanted_by_pool,
            )  # fmt: skip
        return accounts

    def _event(self, tick: Tick, event: Event) -> None:
        if event.why is not None:
            event = replace(event, why=self.told(event.handle, event.why))
        registry, sentence = self.controller.registry, event.sentence
        names = tuple(registry.cluster.names[n] for n in event.nodes)
        if event.handle < 0:
            tick.events.append(EventRow(0, event.time_s, event.kind, None, names, 0, event.reason, sentence))
            return
        job = self.engine.jobs[event.handle]
        if event.kind is EventKind.FAILED and not sentence:
            sentence = f"{job.name} failed: {job.cause}"
        reason = event.reason[:128]
        if event.again:
            tick.change(job.id, reason=reason, **_why(event))
            return
        tick.events.append(
            EventRow(
                0, event.time_s, event.kind, job.id, names, event.gpus, reason, sentence, event.lost_s,
                event.requester,
            )
        )  # fmt: skip
        state = {"attempts": job.attempts, "settled": job.settled, "failures": job.failures}
        if event.kind in _BEGINS:
            row = int(registry.job("row")[event.handle])
            gpu_type = registry.cluster.classes[registry.cluster.klass[event.nodes[0]]].gpu_type
            per_node = int(event.gpus // len(event.nodes))
            tick.change(
                job.id, status=JobStatus.RUNNING, nodes=list(names), gpu_type=gpu_type, gpus_per_node=per_node,
                started_s=event.time_s, began_s=_time(registry.job("began_s")[event.handle]), reason=event.reason,
                **_why(event), expected_start_s=event.time_s,
                expected_end_s=None if row < 0 else self._end_s(event.time_s, event.handle, row), **state,
            )  # fmt: skip
        elif event.kind in _ENDS:
            done = self._done_at_the_end(event.handle)
            tick.change(
                job.id, status=_ENDS[event.kind], ended_s=event.time_s, reason=reason or str(event.kind),
                sentence=sentence or f"{job.name} {event.kind}", expected_start_s=None, **_OFF, **state, **done,
            )  # fmt: skip
        elif event.kind in {EventKind.PREEMPTED, EventKind.INTERRUPTED, EventKind.NOT_STARTED}:
            self.written.pop(event.handle, None)
            progress = self.engine.progress(np.array([event.handle]))
            job.kept_epochs = float(progress.kept_epochs[0])
            tick.change(
                job.id, status=JobStatus.WAITING, reason=reason, **_why(event),
                done_epochs=float(progress.done_epochs[0]), kept_epochs=job.kept_epochs, expected_start_s=None,
                began_s=_time(registry.job("began_s")[event.handle]), **_OFF, **state,
            )  # fmt: skip
        elif event.kind is EventKind.WOULD_START:
            tick.change(job.id, reason=str(event.kind), **_why(event))
        elif event.kind is EventKind.WAITS:
            tick.change(job.id, reason=event.reason, **_why(event), **state)

    def _touched(self, tick: Tick) -> bool:
        """Write down the state of jobs that came to their nodes, or left them, later than was ordered."""
        touched, self.engine.touched = self.engine.touched, set()
        for handle in sorted(touched):
            job = self.engine.jobs[handle]
            if handle in self.controller.registry.active:
                progress = self.engine.progress(np.array([handle]))
                kept = float(progress.kept_epochs[0])
                if kept > job.kept_epochs:
                    job.kept_epochs, job.failures = kept, 0
                began_s = _time(self.controller.registry.job("began_s")[handle])
                tick.change(job.id, done_epochs=float(progress.done_epochs[0]), kept_epochs=kept, began_s=began_s)
            tick.change(job.id, attempts=job.attempts, settled=job.settled, failures=job.failures)
        return bool(touched)

    def _done_at_the_end(self, handle: int) -> dict[str, float]:
        """Epochs done by a job that has ended, where that is more than was written down."""
        written, registry = self.written.pop(handle, (0.0, 0.0))[0], self.controller.registry
        if Status(int(registry.job("status")[handle])) is Status.COMPLETED:
            epochs = float(registry.job("epochs")[handle])
            return {"done_epochs": epochs, "kept_epochs": epochs}
        now = float(self.engine.progress(np.array([handle])).done_epochs[0])
        done = max(now, self.seen.get(handle, (0.0, None))[0])
        return {"done_epochs": done} if done > written else {}

    def _end_s(self, begin_s: float, handle: int, row: int) -> float | None:
        """When a job ends that begins in configuration *row* from its last checkpoint; ``None``: unknown."""
        if self.nothing_known(handle):
            return None
        registry = self.controller.registry
        kept = self.engine.jobs[handle].kept_epochs / registry.job("epochs")[handle]
        return begin_s + float(registry.row("time_s")[row] * (1.0 - min(1.0, kept)))

    def _progress(self, tick: Tick, now_s: float) -> None:
        handles = np.array(sorted(self.controller.registry.nodes), dtype=np.int64)
        self.seen = {}
        if not len(handles):
            return
        every = now_s >= self._progress_s + _PROGRESS_S
        self._progress_s = now_s if every else self._progress_s
        progress = self.engine.progress(handles)
        reported_s = np.full(len(handles), np.nan) if progress.reported_s is None else progress.reported_s
        figures = (progress.done_epochs.tolist(), progress.kept_epochs.tolist(), reported_s.tolist())
        for handle, done, kept, at_s in zip(handles.tolist(), *figures, strict=True):
            job = self.engine.jobs[handle]
            self.seen[handle] = (done, None if math.isnan(at_s) else at_s)
            tick.progress[job.id] = done
            safer = kept > job.kept_epochs
            if safer or (every and self.written.get(handle) != (done, kept)):
                self.written[handle] = (done, kept)
                if safer:
                    job.kept_epochs, job.failures, job.refusals = kept, 0, 0
                tick.change(job.id, done_epochs=done, kept_epochs=kept, failures=job.failures)

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
        return -handle - UNREGISTERED if handle < 0 else self.engine.jobs[handle].id


def _why(event: Event) -> dict[str, Any]:
    """Return the columns that say why: facts, of which a sentence is made on demand, or the sentence."""
    if event.why is None:
        return {"sentence": event.sentence}
    lost = {} if event.lost_s is None else {"lost_s": event.lost_s}
    return {"sentence": None, "facts": event.why.facts() | lost}


def tracked(row: JobRow) -> TrackedJob:
    """Return the state of a job beside the controller's, as the store has it."""
    return TrackedJob(row.id, row.name, row.attempts, row.settled, row.failures, row.kept_epochs)


def _put(tick: Tick, name: str, job: int, account: Account) -> None:
    values = vars(account).copy()
    if any(value != 0 for value in values.values()):
        tick.charge((name, job), values)


def _time(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
