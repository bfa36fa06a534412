"""Between the controller and an engine: lasting job ids, commands written down first, refusals turned into changes.

The controller counts jobs from 0 each time it begins; the engine and the store know them by the ids of the store. A
command is an *intent* in the store before the engine hears of it, so that after a crash it is known what may have been
carried out, and the engine, which remembers each job's attempts, tells what was.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.control.engine import (
    Capabilities,
    Change,
    Command,
    JobEnded,
    JobInterrupted,
    JobLeft,
    NodeView,
    Outcome,
    Progress,
    Reading,
    RecoverableEngine,
    SetPower,
    Start,
    Stop,
    Stopped,
)
from commonwatt.live.known import Known
from commonwatt.live.leaving import Late, Leaving
from commonwatt.live.powers import Powers
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.store.records import IntentRow

__all__ = ["Durable"]

log = logging.getLogger("commonwatt.session")

_HEARD_S = 60.0
"""A job that runs so long, or as long as the engine takes to stop one, after we began was not told to stop before."""


@dataclass
class Durable:
    """An ``Engine`` for the controller, over one that remembers.

    Parameters
    ----------
    engine
        The engine below.
    intend
        Writes commands down; they are given only once it returns.
    now_s
        The time.
    retries
        Interruptions without progress in between after which a job is given up; starts that came to nothing are none.
    names
        Of the nodes.
    """

    engine: RecoverableEngine
    intend: Callable[[Sequence[IntentRow]], None]
    now_s: Callable[[], float]
    retries: int
    names: Sequence[str] = ()
    jobs: list[Known] = field(default_factory=list)  # by handle
    pardon: Callable[[int], bool] = lambda _: False  # whether a job that ended with an error may be started again
    metered: Callable[[Reading], None] = lambda _: None  # hears of every reading
    intents: list[IntentRow] = field(default_factory=list)  # with their outcome, since they were last taken
    touched: set[int] = field(default_factory=set)  # handles that came or went later than they were ordered to
    early: list[Reading] = field(default_factory=list)  # that were taken out of the engine before anybody asked
    told: dict[int, IntentRow] = field(default_factory=dict)  # by id: what runs though it was told to stop before us
    outside: dict[int, Change | None] = field(default_factory=dict)  # by id: what became of jobs that were not entered
    _handles: dict[int, int] = field(default_factory=dict)  # by id
    _ids: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # by handle, of the first jobs
    _changes: list[Change] = field(default_factory=list)
    _begun_s: float = field(init=False)
    _leaving: Leaving = field(init=False)
    powers: Powers = field(init=False)

    def __post_init__(self) -> None:
        self._begun_s = self.now_s()
        self._leaving = Leaving(self.engine)
        self.powers = Powers(self.engine, self.now_s)

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return self.engine.capabilities

    def enter(self, known: Known) -> int:
        """Take in a job; its handle is the next the controller gives."""
        self._handles[known.id] = len(self.jobs)
        self.jobs.append(known)
        return len(self.jobs) - 1

    def handle_of(self, job: int) -> int | None:
        """Return the handle of a job of the store; ``None`` for one that was not taken in."""
        return self._handles.get(job)

    def nodes(self) -> NodeView:
        """State of the nodes."""
        return self.engine.nodes()

    def progress(self, handles: Ints) -> Progress:
        """Progress of jobs."""
        if len(self._ids) < len(self.jobs):
            self._ids = np.array([known.id for known in self.jobs], dtype=np.int64)
        return self.engine.progress(self._ids[handles])

    def power_w(self) -> float | None:
        """Power of the whole cluster now."""
        return self.engine.power_w()

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings; a holder the controller does not know (any more) has its id, negative, for a handle."""
        readings = [
            replace(r, holders=tuple(replace(h, handle=self._handles.get(h.handle, -h.handle)) for h in r.holders))
            if r.holders
            else r
            for r in (*self.early, *self.engine.readings(up_to_now=up_to_now))
        ]
        self.early = []
        for reading in readings:
            self.metered(reading)
        return readings

    def look(self) -> bool:
        """Ask the engine what changed, and keep it for the next ``poll``; whether there is anything.

        What was put off until others had left begins now, if they have.
        """
        self._absorb(self.engine.poll())
        if self.told and self.now_s() > self._begun_s + max(_HEARD_S, getattr(self.engine, "stop_s", 0.0)):
            self.intents += [replace(stop, outcome="void", cause="it went on") for stop in self.told.values()]
            self.told.clear()
        for stopped in self._leaving.overdue():
            self._gone(self.jobs[self._handles[stopped.handle]], self.now_s(), stopped.lost_s)
        while late := self._leaving.ready():
            self._give(late)
            self.touched.add(late.handle)
        return bool(self._changes)

    def leave_again(self, known: Known, stop: IntentRow, *, there: bool) -> bool:
        """Go on waiting for a job to leave that a controller before this one stopped; whether it can be waited for.

        If it is not *there* any more, the engine is about to tell how it left.
        """
        if there:
            return self._leaving.again(stop)
        self._leaving.keep(known.id, stop)
        return True

    def left(self, handle: int) -> None:
        """Have the next ``poll`` say that a job has left of which the engine knows nothing any more."""
        self._gone(self.jobs[handle], self.now_s(), 0.0)

    def awaits(self, intent: IntentRow) -> bool:
        """Whether it is still to be seen what comes of *intent*."""
        return self.told.get(intent.job) == intent or self._leaving.awaits(intent)

    def unsettled(self) -> bool:
        """Whether something that was ordered has yet to happen."""
        return bool(self._leaving)

    def _absorb(self, changes: Collection[Change]) -> None:
        for change in changes:
            handle = self._handles.get(change.handle)
            if handle is None:
                if change.handle in self.outside and not isinstance(change, JobLeft):
                    self.outside[change.handle] = change
                continue
            known = self.jobs[handle]
            if isinstance(change, JobLeft):
                self._gone(known, change.at_s, change.lost_s)
                continue
            before = known.attempts <= known.settled  # a controller before this one took account of it, or stopped it
            if isinstance(change, JobInterrupted):
                if before:
                    continue
                if known.id in self._leaving:
                    self._gone(known, change.at_s, change.lost_s)
                    continue
                self._changes.append(self._interrupted(known, replace(change, handle=handle)))
            elif change.outcome is Outcome.FAILED and before:
                continue
            elif change.outcome is Outcome.FAILED and change.reason != "time-limit" and self.pardon(handle):
                cause = "it ended with an error while it was measured"
                self._changes.append(JobInterrupted(handle, change.at_s, 0.0, cause))
            else:
                if change.outcome is Outcome.FAILED:
                    known.cause = known.cause or change.cause or "its command ended with an error"
                self._changes.append(replace(change, handle=handle))
                if late := self._leaving.take_back(known.id):
                    self.intents.append(replace(late.intent, outcome="void", cause="it had ended by itself"))
            self._settle(known)

    def _settle(self, known: Known) -> None:
        known.settled = known.attempts
        for intent in (self._leaving.gone(known.id), self.told.pop(known.id, None)):
            if intent is not None:
                self.intents.append(replace(intent, outcome="done"))

    def _gone(self, known: Known, at_s: float, lost_s: float) -> None:
        self._settle(known)
        handle = self._handles[known.id]
        self.touched.add(handle)
        self._changes.append(JobLeft(handle, at_s, lost_s))

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll."""
        self.look()
        changes, self._changes = self._changes, []
        return changes

    def waiting_changes(self) -> Sequence[Change]:
        """What the next ``poll`` will say."""
        return tuple(self._changes)

    def lose(self, handle: int, cause: str) -> None:
        """Have the next ``poll`` say that a job was interrupted, of which the engine knows nothing any more."""
        self._settle(self.jobs[handle])
        self._changes.append(JobInterrupted(handle, self.now_s(), 0.0, cause))

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Write *commands* down, then give them.

        A start the engine refuses becomes an interruption at the next ``poll``, a refused power command is only told;
        ``EngineError`` is raised for a stop it refuses, ``EngineDownError`` if it does not answer, ``StoreError`` if
        they could not be written down: none was given then.
        """
        stops = [c for c in commands if isinstance(c, Stop)]
        starts = [c for c in commands if isinstance(c, Start)]
        powers = [c for c in commands if isinstance(c, SetPower)]
        at_s = self.now_s()
        intents = [self._intent("stop", c.handle, 0, *self._place(c.handle), at_s) for c in stops]
        intents += [self._intent("start", c.handle, 1, c.nodes, c.gpus_per_node, at_s) for c in starts]
        self.intend(intents)
        receipts = self._stop(stops, intents[: len(stops)])
        for command, intent in zip(starts, intents[len(stops) :], strict=True):
            self._start(command, intent)
        self.powers.give(powers)
        return receipts

    def take_intents(self) -> list[IntentRow]:
        """Return intents whose outcome has become known."""
        taken, self.intents = self.intents, []
        return taken

    def _stop(self, stops: list[Stop], intents: list[IntentRow]) -> list[Stopped]:
        answers: dict[int, Stopped] = {}
        open_ = {intent.job: intent for intent in intents}
        for command in stops:
            job = self.jobs[command.handle].id
            if late := self._leaving.take_back(job):
                self.intents.append(replace(late.intent, outcome="void", cause="taken back"))
                self.intents.append(replace(open_.pop(job), outcome="done"))
                answers[command.handle] = Stopped(command.handle, 0.0, later=job in self._leaving)
        self._spare(open_, answers)
        told = self._leaving.tell(open_, self._absorb)
        for job in told:
            handle = self._handles[job]
            answers[handle] = Stopped(handle, self._told_lost_s(handle), later=job in self._leaving)
            del open_[job]
        self._spare(open_, answers)
        if open_:
            stopped = {job: self._stop_one(job) for job in open_}
            going = {job for job, answer in stopped.items() if answer.later}
            for job in going:  # by the next look they may have left
                self._leaving.keep(job, open_[job])
            # One that had just ended by itself tells that next: now, or it would be taken for the end of its next run.
            for change in self.engine.poll():
                if isinstance(change, JobInterrupted) and change.handle in stopped.keys() - going:
                    stopped[change.handle] = Stopped(change.handle, change.lost_s)
                else:
                    self._absorb([change])
            for job, answer in stopped.items():
                answers[self._handles[job]] = replace(answer, handle=self._handles[job])
                if job not in going:
                    self._settle(self.jobs[self._handles[job]])
                    self.intents.append(replace(open_[job], outcome="done"))
        return [answers[command.handle] for command in stops]

    def _spare(self, stops: dict[int, IntentRow], answers: dict[int, Stopped]) -> None:
        """Take out of *stops* the jobs that were over before they could be told; the controller has yet to hear of it.

        Of an interruption it does not hear any more: it has the job stopped.
        """
        over = {change.handle: change for change in self._changes if isinstance(change, JobEnded | JobInterrupted)}
        for job in [job for job in stops if self._handles[job] in over]:
            handle = self._handles[job]
            change = over[handle]
            answers[handle] = Stopped(handle, 0.0)
            if isinstance(change, JobInterrupted):
                self._changes.remove(change)
                answers[handle] = Stopped(handle, change.lost_s)
            self.intents.append(replace(stops.pop(job), outcome="done"))

    def _stop_one(self, job: int) -> Stopped:
        """Stop a job by command; one that does not go, even killed, is on its way off for as long as it takes."""
        try:
            (stopped,) = self.engine.apply([Stop(job)])
        except EngineDownError:
            raise
        except EngineError as error:
            if not any(found.handle == job and found.nodes for found in self.engine.found()):
                raise
            log.warning(
                "a job does not stop, and keeps its GPUs until it does", extra={"job": job, "cause": str(error)}
            )
            return Stopped(job, 0.0, later=True)
        return stopped

    def call_off(self, nodes: Collection[int] | None, cause: str) -> None:
        """Take back starts that were put off, of jobs that are to run on some of *nodes*; of all if not given."""
        for late in self._leaving.late():
            if nodes is None or not set(nodes).isdisjoint(late.command.nodes):
                self._leaving.take_back(late.command.handle)
                self.intents.append(replace(late.intent, outcome="void", cause=cause))
                self._changes.append(JobInterrupted(late.handle, self.now_s(), 0.0, cause, begun=False))

    def _told_lost_s(self, handle: int) -> float:
        """Take out of the changes how a job left that was told to and is gone already; what it lost."""
        for change in self._changes:
            if isinstance(change, JobLeft) and change.handle == handle:
                self._changes.remove(change)
                self.touched.discard(handle)
                return change.lost_s
        return 0.0

    def _start(self, command: Start, intent: IntentRow) -> None:
        known = self.jobs[command.handle]
        start = Start(known.id, f"{known.id}-{known.name}", command.nodes, command.gpus_per_node)
        late = Late(command.handle, start, intent)
        if any(isinstance(change, JobEnded) and change.handle == command.handle for change in self._changes):
            self.intents.append(replace(intent, outcome="void", cause="it had ended by itself"))
            return
        if not self._leaving.put_off(late):
            self._give(late)

    def _give(self, late: Late) -> None:
        known = self.jobs[late.handle]
        try:
            self.engine.apply([late.command])
        except EngineDownError:
            raise
        except EngineError as error:
            self.intents.append(replace(late.intent, outcome="failed", cause=str(error)))
            known.attempts = known.settled = max(known.attempts, self.engine.attempts(known.id))
            self.touched.add(late.handle)
            change = JobInterrupted(late.handle, self.now_s(), 0.0, str(error), begun=False)
            self._changes.append(self._interrupted(known, change))
            return
        known.attempts += 1
        known.nodes, known.gpus_per_node = late.command.nodes, late.command.gpus_per_node
        self.intents.append(replace(late.intent, outcome="done"))

    def _interrupted(self, known: Known, change: JobInterrupted) -> Change:
        """Count an interruption; one too many without progress in between is the end of the job.

        One that had not even begun is only left alone for a while: the engine, or others, are in its way.
        """
        if not change.begun:
            known.refusals += 1
            return change
        known.refusals = 0
        if known.id in self.told:
            return replace(change, cause="it had been told to stop")
        kept = float(self.engine.progress(np.array([known.id])).kept_epochs[0])
        known.failures = 1 if kept > known.kept_epochs else known.failures + 1
        known.kept_epochs = max(kept, known.kept_epochs)
        if known.failures <= self.retries:
            return change
        known.cause = f"given up after {known.failures} interruptions without progress; the last: {change.cause}"
        return JobEnded(change.handle, change.at_s, Outcome.FAILED, reason="interrupted")

    def _place(self, handle: int) -> tuple[tuple[int, ...], int]:
        """Nodes a job is on, and GPUs it has on each."""
        known = self.jobs[handle]
        return known.nodes, known.gpus_per_node

    def _intent(
        self, kind: str, handle: int, more: int, nodes: tuple[int, ...], gpus_per_node: int, at_s: float
    ) -> IntentRow:
        known = self.jobs[handle]
        attempt = known.attempts + more
        key = f"{kind}-{known.id}-{attempt}-{secrets.token_hex(6)}"
        names = tuple(self.names[n] for n in nodes)
        return IntentRow(key, kind, known.id, attempt, names, gpus_per_node, at_s)
