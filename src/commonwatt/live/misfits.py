"""Active jobs a changed configuration has no place for: in a dry run they are left alone, else they have failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, PatientEngine, RecoverableEngine, Stop
from commonwatt.control.events import told
from commonwatt.live.durable import Durable
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.store.records import EventRow, JobRow, JobStatus
from commonwatt.store.ticks import Tick, TickStore

__all__ = ["Misfits", "fail", "stop_runs"]

log = logging.getLogger("commonwatt.session")

_OFF: dict[str, Any] = {
    "nodes": [],
    "gpu_type": None,
    "gpus_per_node": 0,
    "expected_start_s": None,
    "expected_end_s": None,
}


@dataclass
class Misfits:
    """Jobs that cannot run here, or not as they do.

    Attributes
    ----------
    strange
        Jobs the controller does not know, as it could not place them, by id, with why.
    handles
        Those it knows, which run in a way it would not let them.
    """

    store: TickStore
    durable: Durable
    now_s: Callable[[], float]
    strange: dict[int, tuple[JobRow, str]] = field(default_factory=dict)
    handles: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.strange or self.handles)

    def add(self, row: JobRow, error: Exception, attempts: int) -> None:
        """Take note of a job that cannot be placed, and of which the engine knows so many runs."""
        row = replace(row, attempts=max(row.attempts, attempts))
        self.strange[row.id] = row, f"{row.name} cannot run here: {error}"
        self.durable.outside[row.id] = None

    def settle(self, tick: Tick, *, dry: bool) -> None:
        """Write down how those ended that have; the others are told of in a *dry* run, and have failed else."""
        self.take_ends(tick)
        for job, (row, sentence) in list(self.strange.items()):
            if dry:
                sentence = f"{sentence}; nothing is done about it in a dry run"
                tick.change(job, reason="never-fits", sentence=sentence)
            else:
                self._end(row, JobStatus.FAILED, self.now_s(), "never-fits", sentence, tick)

    def take_ends(self, tick: Tick) -> None:
        """Write down how jobs ended of which the engine says so, or does by now."""
        for job, (row, _) in list(self.strange.items()):
            change, before = self.durable.outside[job], row.attempts <= row.settled
            if isinstance(change, JobInterrupted) and not before:
                self._wait(row, change, tick)
            if not isinstance(change, JobEnded) or (change.outcome is Outcome.FAILED and before):
                continue  # it runs still, or that was taken account of before
            if change.outcome is Outcome.COMPLETED:
                tick.change(job, done_epochs=float(row.file.epochs), kept_epochs=float(row.file.epochs))
                self._end(row, JobStatus.COMPLETED, change.at_s, "completed", f"{row.name} is completed", tick)
            else:
                sentence = f"{row.name} failed: {_cause(change)}"
                self._end(row, JobStatus.FAILED, change.at_s, change.reason or "failed", sentence, tick)

    def cancel(self, job: int, tick: Tick) -> None:
        """Stop a job, by its id, and write down that it was cancelled, if it is one that only we know."""
        self.take_ends(tick)
        if job not in self.strange and self.durable.handle_of(job) is None:
            return  # it has ended by itself
        stop_runs(self.durable.engine, [job])
        if job in self.strange:
            row, _ = self.strange[job]
            self._end(row, JobStatus.CANCELLED, self.now_s(), "cancelled", "cancelled by its owner", tick)

    def _wait(self, row: JobRow, change: JobInterrupted, tick: Tick) -> None:
        """Write down that a job does not run any more, and would begin again if it could."""
        event = told(change, row.name, (), len(row.nodes) * row.gpus_per_node)
        waits: dict[str, Any] = {"status": JobStatus.WAITING, "settled": row.attempts}
        tick.change(row.id, **waits, reason=event.reason, sentence=event.sentence, **_OFF)
        tick.events.append(
            EventRow(0, float(change.at_s), event.kind, row.id, row.nodes, event.gpus, event.reason, event.sentence)
        )
        self.strange[row.id] = replace(row, **waits, nodes=()), self.strange[row.id][1]

    def _end(self, row: JobRow, status: JobStatus, at_s: float, reason: str, sentence: str, tick: Tick) -> None:
        del self.strange[row.id], self.durable.outside[row.id]
        fail(row, float(at_s), reason, sentence, tick, status=status)
        if (segment := self.store.segments().get(row.id)) is not None:  # it will not run again
            tick.charge(("job", row.id), segment)
            tick.segments[row.id] = None


def fail(
    row: JobRow, at_s: float, reason: str, sentence: str, tick: Tick, *, status: JobStatus = JobStatus.FAILED
) -> None:
    """Write down that a job has failed, or ended otherwise."""
    gpus = len(row.nodes) * row.gpus_per_node
    tick.change(row.id, status=status, ended_s=at_s, reason=reason[:128], sentence=sentence, **_OFF)
    tick.events.append(EventRow(0, at_s, status, row.id, tuple(row.nodes), gpus, reason[:128], sentence))


def stop_runs(engine: RecoverableEngine, jobs: Sequence[int]) -> None:
    """Stop what runs of *jobs* by their ids; what cannot be stopped keeps its GPUs, and holds nobody else up."""
    if isinstance(engine, PatientEngine):
        engine.tell(jobs)
    for job in jobs:
        try:
            engine.apply([Stop(job)])
        except EngineDownError:
            raise
        except EngineError as error:
            log.warning("a job that is over, or has no place, goes on", extra={"job": job, "cause": str(error)})


def _cause(change: JobEnded) -> str:
    return change.cause or "its command ended with an error"
