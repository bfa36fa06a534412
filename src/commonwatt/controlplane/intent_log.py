"""The write-ahead engine: stands between the controller and an engine, and writes commands down before giving them.

The controller counts jobs from 0 each time it begins; the engine and the store name them by their ids in the store. A
command is an *intent* in the store before the engine gets it. After a crash the store tells what may have been carried
out, and the engine, which records each job's attempts, what was.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from commonwatt.control.engine import (
    Capabilities,
    Change,
    Command,
    JobEnded,
    JobInterrupted,
    JobLeft,
    JobProgress,
    LiveEngine,
    NodeRoom,
    NodeView,
    Outcome,
    Reading,
    SetPower,
    Start,
    Stop,
    Stopped,
)
from commonwatt.control.fleet.interface import DeviceShares, ServingEngine, ServingState, SharedChange, SharingEngine
from commonwatt.controlplane.capacity import PowerCommands
from commonwatt.controlplane.jobs import TrackedJob
from commonwatt.controlplane.pending_commands import DeferredStart, Terminating
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.store.records import IntentRow

__all__ = ["UNREGISTERED", "WriteAheadEngine"]

log = logging.getLogger("commonwatt.reconciler")

UNREGISTERED = 1 << 40
"""Jobs that the controller does not have (any more) are this much below 0, less their id: shared GPUs are above."""
_CONFIRMED_S = 60.0
"""A job that runs so long after we began, or as long as a stop may take, missed an earlier request to stop."""


@dataclass
class WriteAheadEngine:
    """An ``Engine`` for the controller, over a live one.

    Parameters
    ----------
    inner
        The live engine.
    intend
        Writes commands down; they are given only once it returns.
    now_s
        The time.
    retries
        Interruptions without progress in between after which a job is given up; starts that failed do not count.
    names
        Of the nodes.
    guard
        Raises where another controller may have taken over: called before the engine gets commands.

    Attributes
    ----------
    jobs
        By handle.
    may_restart
        Whether a job that ended with an error may be started again.
    on_reading
        Gets every reading.
    intents
        Intents whose outcome has become known since they were taken last.
    touched
        Handles of jobs that came to their nodes, or left them, later than was ordered.
    unread
        Readings that were taken out of the engine before the controller asked for any.
    unconfirmed_stops
        By id: running jobs that an earlier controller may have stopped.
    unregistered
        By id: the last change of active jobs that the controller could not register.
    """

    inner: LiveEngine
    intend: Callable[[Sequence[IntentRow]], None]
    now_s: Callable[[], float]
    retries: int
    names: Sequence[str] = ()
    guard: Callable[[], None] = lambda: None
    jobs: list[TrackedJob] = field(default_factory=list)
    may_restart: Callable[[int], bool] = lambda _: False
    on_reading: Callable[[Reading], None] = lambda _: None
    intents: list[IntentRow] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    unread: list[Reading] = field(default_factory=list)
    unconfirmed_stops: dict[int, IntentRow] = field(default_factory=dict)
    unregistered: dict[int, Change | None] = field(default_factory=dict)
    capabilities: Capabilities = field(init=False)
    power_commands: PowerCommands = field(init=False)
    _handles: dict[int, int] = field(default_factory=dict)  # by id
    _ids: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # by handle, of the first jobs
    _changes: list[Change] = field(default_factory=list)
    _begun_s: float = field(init=False)
    _terminating: Terminating = field(init=False)

    def __post_init__(self) -> None:
        self._begun_s = self.now_s()
        self.capabilities = self.inner.capabilities
        self._terminating = Terminating(self.inner)
        self.power_commands = PowerCommands(self.inner, self.now_s)

    def register(self, job: TrackedJob) -> int:
        """Register a job; its handle is the next the controller gives."""
        self._handles[job.id] = len(self.jobs)
        self.jobs.append(job)
        return len(self.jobs) - 1

    def handle_of(self, job_id: int) -> int | None:
        """Return the handle of a job; ``None`` for one that was not registered."""
        return self._handles.get(job_id)

    # -- the Engine interface

    def nodes(self) -> NodeView:
        """State of the nodes; those that did not wake are down for a while."""
        return self.power_commands.offered(self.inner.nodes())

    def progress(self, handles: Ints) -> JobProgress:
        """Progress of jobs."""
        if len(self._ids) < len(self.jobs):
            self._ids = np.array([job.id for job in self.jobs], dtype=np.int64)
        return self.inner.progress(self._ids[handles])

    @property
    def knows_room(self) -> bool:
        """Whether the engine may know of anything beside GPUs."""
        return getattr(self.inner.room, "__func__", None) is not LiveEngine.room

    def room(self, handles: Ints, gpus_per_node: Ints) -> NodeRoom | None:
        """What nodes have beside GPUs, and what jobs take of it with so many GPUs on each of their nodes."""
        named = (
            (self.jobs[handle], gpus) for handle, gpus in zip(handles.tolist(), gpus_per_node.tolist(), strict=True)
        )
        return self.inner.room([(job.id, f"{job.id}-{job.name}", gpus) for job, gpus in named])

    def power_w(self) -> float | None:
        """Power of the whole cluster now."""
        return self.inner.power_w()

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings; the handle of a holder that the controller does not have (any more) is below ``-UNREGISTERED``."""
        readings = [
            replace(r, holders=tuple(replace(h, handle=self._handle(h.handle)) for h in r.holders)) if r.holders else r
            for r in (*self.unread, *self.inner.readings(up_to_now=up_to_now))
        ]
        self.unread = []
        for reading in readings:
            self.on_reading(reading)
        return readings

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll."""
        self.look()
        changes, self._changes = self._changes, []
        return changes

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Write *commands* down, then give them.

        A start the engine refuses becomes an interruption at the next ``poll``; a refused power command is only logged.
        Raises ``EngineError`` for a stop it refuses, ``EngineDownError`` if it does not answer, and ``StoreError`` if
        the commands could not be written down: none was given then.
        """
        stops = [c for c in commands if isinstance(c, Stop)]
        starts = [c for c in commands if isinstance(c, Start)]
        at_s = self.now_s()
        intents = [self._intent("stop", c.handle, 0, *self._place(c.handle), at_s) for c in stops]
        intents += [self._intent("start", c.handle, 1, c.nodes, c.gpus_per_node, at_s) for c in starts]
        self.intend(intents)
        self.guard()
        receipts = self._stop(stops, intents[: len(stops)])
        self._start(starts, intents[len(stops) :])
        self.power_commands.give([c for c in commands if isinstance(c, SetPower)])
        return receipts

    # -- shared GPUs, as of ``SharingEngine``: the engine writes down itself what is to run there

    def open_gpu(self, gpu: int, node: int) -> float:
        """Share a free GPU of *node*."""
        self.guard()
        return self._sharing.open_gpu(gpu, node)

    def close_gpu(self, gpu: int) -> None:
        """Give a shared GPU back."""
        self.guard()
        self._sharing.close_gpu(gpu)

    def share_gpu(self, gpu: int, power_w: float, speeds: Mapping[int, float], shares: DeviceShares) -> None:
        """Set what a shared GPU does."""
        self.guard()
        self._sharing.share_gpu(gpu, power_w, speeds, shares)

    def start_fraction(self, job: int, gpu: int, work_gpu_s: float, from_s: float) -> None:
        """Put a fractional job on a shared GPU."""
        self._sharing.start_fraction(job, gpu, work_gpu_s, from_s)

    def stop_fraction(self, job: int) -> float:
        """Take a fractional job off its GPU."""
        return self._sharing.stop_fraction(job)

    def poll_shared(self) -> Sequence[SharedChange]:
        """What changed on shared GPUs since the last poll."""
        return self._sharing.poll_shared()

    def busy(self, gpu: int) -> Mapping[int, float] | None:
        """Return the part of a shared GPU's time that each service has had of late."""
        return self._sharing.busy(gpu)

    def serves(self, gpu: int, service: int) -> bool:
        """Whether a service really is served on a shared GPU by now."""
        return self._sharing.serves(gpu, service)

    def resting(self) -> Collection[int]:
        """Return the nodes where what serves has failed lately."""
        return self._sharing.resting()

    def shared_gpus(self) -> Mapping[int, tuple[int, float]]:
        """Return the node of each shared GPU, and since when it is shared."""
        return self._sharing.shared_gpus()

    def serving(self) -> ServingState | None:
        """Return what was served; ``None``: the engine does not serve."""
        return cast(ServingEngine, self.inner).serving() if self._serves else None

    @property
    def _serves(self) -> bool:
        return self.capabilities.measures_shared

    @property
    def _sharing(self) -> SharingEngine:
        return cast(SharingEngine, self.inner)

    def _handle(self, engines: int) -> int:
        """Return the controller's handle for the *engine's*: an id, or, below 0, a shared GPU's, which both have."""
        return engines if engines < 0 else self._handles.get(engines, -UNREGISTERED - engines)

    # -- beside it

    def look(self) -> bool:
        """Ask the engine what changed, and keep it for the next ``poll``; returns whether there is anything.

        Deferred starts are given if there is room for them now.
        """
        self.guard()
        changes = self.inner.poll()
        self.power_commands.look()  # why nodes did not wake is why jobs did not start there
        self._absorb(changes)
        confirmed_s = self._begun_s + max(_CONFIRMED_S, self.capabilities.stop_s)
        if self.unconfirmed_stops and self.now_s() > confirmed_s:
            ran_on = self.unconfirmed_stops.values()
            self.intents += [replace(stop, outcome="void", cause="the job went on") for stop in ran_on]
            self.unconfirmed_stops.clear()
        for stopped in self._terminating.stop_overdue():
            self._off_nodes(self.jobs[self._handles[stopped.handle]], self.now_s(), stopped.lost_s)
        while start := self._terminating.take_ready():
            self._give([start])
            self.touched.add(start.handle)
        news = bool(self._changes) or self.power_commands.has_news()
        return news or (self._serves and cast(ServingEngine, self.inner).has_shared_news())

    def waiting_changes(self) -> Sequence[Change]:
        """What the next ``poll`` will return."""
        return tuple(self._changes)

    def take_intents(self) -> list[IntentRow]:
        """Return intents whose outcome has become known."""
        taken, self.intents = self.intents, []
        return taken

    def pending(self, intent: IntentRow) -> bool:
        """Whether the outcome of *intent* is still open."""
        return self.unconfirmed_stops.get(intent.job) == intent or self._terminating.pending(intent)

    def unsettled(self) -> bool:
        """Whether anything that was ordered has yet to happen."""
        return bool(self._terminating)

    def resume_termination(self, job: TrackedJob, stop: IntentRow, *, running: bool) -> bool:
        """Continue to wait for a job that an earlier controller stopped; returns whether that is possible.

        If it is not *running* any more, the engine is about to report how it left.
        """
        if running:
            return self._terminating.resume(stop)
        self._terminating.track(job.id, stop)
        return True

    def report_left(self, handle: int) -> None:
        """Have the next ``poll`` report that a job, of which the engine has no run (any more), has left its nodes."""
        self._off_nodes(self.jobs[handle], self.now_s(), 0.0)

    def report_interrupted(self, handle: int, cause: str) -> None:
        """Have the next ``poll`` report that a job, of which the engine has no run (any more), was interrupted."""
        self._settle(self.jobs[handle])
        self._changes.append(JobInterrupted(handle, self.now_s(), 0.0, cause))

    def cancel_deferred(self, nodes: Collection[int] | None, cause: str) -> None:
        """Cancel deferred starts on any of *nodes*; all of them if not given, and forget which nodes are to wake."""
        if nodes is None:
            self.power_commands.forget_orders()
        for start in self._terminating.deferred():
            if nodes is None or not set(nodes).isdisjoint(start.command.nodes):
                self._terminating.withdraw(start.command.handle)
                self.intents.append(replace(start.intent, outcome="void", cause=cause))
                self._changes.append(JobInterrupted(start.handle, self.now_s(), 0.0, cause, begun=False))

    # -- changes

    def _absorb(self, changes: Collection[Change]) -> None:
        for change in changes:
            handle = self._handles.get(change.handle)
            if handle is None:
                if change.handle in self.unregistered and not isinstance(change, JobLeft):
                    self.unregistered[change.handle] = change
                continue
            job = self.jobs[handle]
            if isinstance(change, JobLeft):
                self._off_nodes(job, change.at_s, change.lost_s, begun=change.begun)
                continue
            if isinstance(change, JobEnded) and change.outcome is Outcome.CANCELLED and self._stopping(job.id):
                change = JobInterrupted(change.handle, change.at_s, 0.0, change.cause)  # by us, before a crash
            before = job.attempts <= job.settled  # an earlier controller processed this end, or stopped the job
            if isinstance(change, JobInterrupted):
                if before:
                    continue
                if job.id in self._terminating:
                    self._off_nodes(job, change.at_s, change.lost_s, begun=change.begun)
                    continue
                unwoken = {} if change.begun else self.power_commands.unwoken
                cause = next((unwoken[n] for n in job.nodes if n in unwoken), change.cause)
                self._changes.append(self._interrupted(job, replace(change, handle=handle, cause=cause)))
            elif change.outcome is not Outcome.COMPLETED and before and not change.waited:
                continue
            elif change.outcome is Outcome.FAILED and not change.reason and self.may_restart(handle):
                cause = "it ended with an error while it was measured"
                self._changes.append(JobInterrupted(handle, change.at_s, 0.0, cause))
            else:
                if change.outcome is Outcome.FAILED:
                    job.cause = job.cause or change.cause or "its command ended with an error"
                self._changes.append(replace(change, handle=handle))
                if start := self._terminating.withdraw(job.id):
                    self.intents.append(replace(start.intent, outcome="void", cause="the job had already ended"))
            self._settle(job)

    def _stopping(self, job_id: int) -> bool:
        """Whether a stop was requested whose outcome is not known yet."""
        return job_id in self._terminating or job_id in self.unconfirmed_stops

    def _settle(self, job: TrackedJob) -> None:
        job.settled = job.attempts
        for intent in (self._terminating.finished(job.id), self.unconfirmed_stops.pop(job.id, None)):
            if intent is not None:
                self.intents.append(replace(intent, outcome="done"))

    def _off_nodes(self, job: TrackedJob, at_s: float, lost_s: float, *, begun: bool = True) -> None:
        self._settle(job)
        handle = self._handles[job.id]
        self.touched.add(handle)
        self._changes.append(JobLeft(handle, at_s, lost_s, begun))

    def _interrupted(self, job: TrackedJob, change: JobInterrupted) -> Change:
        """Count an interruption; a job with one too many without progress in between has failed.

        A start that failed only makes the job wait for a while: the engine, or others, are in its way.
        """
        if not change.begun:
            job.refusals += 1
            return change
        job.refusals = 0
        if job.id in self.unconfirmed_stops:
            return replace(change, cause="a stop had been requested")
        if not change.blamed:
            return change
        kept = float(self.inner.progress(np.array([job.id])).kept_epochs[0])
        job.failures = 1 if kept > job.kept_epochs else job.failures + 1
        job.kept_epochs = max(kept, job.kept_epochs)
        if job.failures <= self.retries:
            return change
        job.cause = f"given up after {job.failures} interruptions without progress; the last: {change.cause}"
        return JobEnded(change.handle, change.at_s, Outcome.FAILED, reason="interrupted")

    # -- stops

    def _stop(self, stops: list[Stop], intents: list[IntentRow]) -> list[Stopped]:
        answers: dict[int, Stopped] = {}
        open_ = {intent.job: intent for intent in intents}
        for command in stops:
            job_id = self.jobs[command.handle].id
            if start := self._terminating.withdraw(job_id):
                self.intents.append(replace(start.intent, outcome="void", cause="withdrawn"))
                self.intents.append(replace(open_.pop(job_id), outcome="done"))
                answers[command.handle] = Stopped(command.handle, 0.0, job_id in self._terminating, begun=False)
        self._skip_ended(open_, answers)
        for job_id in self._terminating.request_stop(open_, self._absorb):
            handle = self._handles[job_id]
            lost_s, begun = self._take_left(handle)
            answers[handle] = Stopped(handle, lost_s, job_id in self._terminating, begun)
            del open_[job_id]
        self._skip_ended(open_, answers)
        if open_:
            self._stop_by_command(open_, answers)
        return [answers[command.handle] for command in stops]

    def _skip_ended(self, stops: dict[int, IntentRow], answers: dict[int, Stopped]) -> None:
        """Remove from *stops* the jobs that have ended already; the controller learns of those ends at its next poll.

        An interruption is not reported to it: the job is stopped anyway.
        """
        over = {change.handle: change for change in self._changes if isinstance(change, JobEnded | JobInterrupted)}
        for job_id in [job_id for job_id in stops if self._handles[job_id] in over]:
            handle = self._handles[job_id]
            change = over[handle]
            answers[handle] = Stopped(handle, 0.0)
            if isinstance(change, JobInterrupted):
                self._changes.remove(change)
                answers[handle] = Stopped(handle, change.lost_s, begun=change.begun)
            self.intents.append(replace(stops.pop(job_id), outcome="done"))

    def _take_left(self, handle: int) -> tuple[float, bool]:
        """Take out of the changes that a job has left its nodes, if it has; what it lost, and if it had begun."""
        for change in self._changes:
            if isinstance(change, JobLeft) and change.handle == handle:
                self._changes.remove(change)
                self.touched.discard(handle)
                return change.lost_s, change.begun
        return 0.0, True

    def _stop_by_command(self, stops: dict[int, IntentRow], answers: dict[int, Stopped]) -> None:
        stopped = {job_id: self._stop_one(job_id) for job_id in stops}
        going = {job_id for job_id, answer in stopped.items() if answer.later}
        for job_id in going:  # by the next look it may have left
            self._terminating.track(job_id, stops[job_id])
        # A job that had just ended by itself reports that next: now, or it would be taken for the end of its next run.
        for change in self.inner.poll():
            if isinstance(change, JobInterrupted) and change.handle in stopped.keys() - going:
                stopped[change.handle] = Stopped(change.handle, change.lost_s, begun=change.begun)
            else:
                self._absorb([change])
        for job_id, answer in stopped.items():
            handle = self._handles[job_id]
            answers[handle] = replace(answer, handle=handle)
            if job_id not in going:
                self._settle(self.jobs[handle])
                self.intents.append(replace(stops[job_id], outcome="done"))

    def _stop_one(self, job_id: int) -> Stopped:
        """Stop a job by command; a job that survives being killed is terminating for as long as it takes."""
        try:
            (stopped,) = self.inner.apply([Stop(job_id)])
        except EngineDownError:
            raise
        except EngineError as error:
            if not any(run.handle == job_id and run.nodes for run in self.inner.recorded_runs()):
                raise
            cause = {"job": job_id, "cause": str(error)}
            log.warning("a job does not stop, and keeps its GPUs until it does", extra=cause)
            return Stopped(job_id, 0.0, later=True)
        return stopped

    # -- starts

    def _start(self, commands: Sequence[Start], intents: Sequence[IntentRow]) -> None:
        ended = {change.handle for change in self._changes if isinstance(change, JobEnded)}
        due = []
        for command, intent in zip(commands, intents, strict=True):
            job = self.jobs[command.handle]
            by_id = Start(job.id, f"{job.id}-{job.name}", command.nodes, command.gpus_per_node)
            start = DeferredStart(command.handle, by_id, intent)
            if command.handle in ended:
                self.intents.append(replace(intent, outcome="void", cause="the job had already ended"))
            elif not self._terminating:
                due.append(start)
            elif not self._terminating.defer(start):  # it is in the room that the next one is checked for
                self._give([start])
        self._give(due)

    def _give(self, starts: Sequence[DeferredStart]) -> None:
        """Have *starts* executed; raises ``EngineDownError`` when all that have an answer are accounted for."""
        down: EngineDownError | None = None
        errors = self.inner.start_all([start.command for start in starts], self.guard)
        for start, error in zip(starts, errors, strict=False):
            job = self.jobs[start.handle]
            if isinstance(error, EngineDownError):
                down = down or error
            elif error is not None:
                self.intents.append(replace(start.intent, outcome="failed", cause=str(error)))
                job.attempts = job.settled = max(job.attempts, self.inner.attempts(job.id))
                self.touched.add(start.handle)
                change = JobInterrupted(start.handle, self.now_s(), 0.0, str(error), begun=False)
                self._changes.append(self._interrupted(job, change))
            else:
                job.attempts += 1
                job.nodes, job.gpus_per_node = start.command.nodes, start.command.gpus_per_node
                self.intents.append(replace(start.intent, outcome="done"))
        if down is not None:
            raise down

    def _place(self, handle: int) -> tuple[tuple[int, ...], int]:
        """Nodes a job is on, and GPUs it has on each."""
        job = self.jobs[handle]
        return job.nodes, job.gpus_per_node

    def _intent(
        self, kind: str, handle: int, more: int, nodes: tuple[int, ...], gpus_per_node: int, at_s: float
    ) -> IntentRow:
        job = self.jobs[handle]
        attempt = job.attempts + more
        key = f"{kind}-{job.id}-{attempt}-{secrets.token_hex(6)}"
        names = tuple(self.names[n] for n in nodes)
        return IntentRow(key, kind, job.id, attempt, names, gpus_per_node, at_s)
