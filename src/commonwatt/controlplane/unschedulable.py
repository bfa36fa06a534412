"""Active jobs for which a changed configuration has no place: a dry run leaves them alone, else they have failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commonwatt.control.engine import JobEnded, JobInterrupted, LiveEngine, Outcome, Stop
from commonwatt.control.events import Requester, cancelled_by, completed, report_of
from commonwatt.control.scheduling import JobCondition, Scheduling
from commonwatt.controlplane.intent_log import WriteAheadEngine
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import EventRow, JobRow, JobStatus

__all__ = ["Unschedulable", "fail", "stop_runs"]

log = logging.getLogger("commonwatt.reconciler")

_OFF: dict[str, Any] = {
    "nodes": [],
    "gpu_type": None,
    "gpus_per_node": 0,
    "expected_start_s": None,
    "expected_end_s": None,
}


@dataclass
class Unschedulable:
    """Jobs that cannot run here, or not as they do.

    Attributes
    ----------
    scheduling
        Of the controller: has the jobs that it registered, and that run in a way it would not let them.
    unregistered
        The other jobs by id, each with the reason: the controller has no configuration for them.
    """

    store: ControllerStore
    engine: WriteAheadEngine
    scheduling: Scheduling
    now_s: Callable[[], float]
    unregistered: dict[int, tuple[JobRow, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.unregistered or self.scheduling.jobs(JobCondition.UNSCHEDULABLE))

    def add(self, row: JobRow, error: Exception, attempts: int) -> None:
        """Add a job that cannot be registered, and that the engine has started so often."""
        row = replace(row, attempts=max(row.attempts, attempts))
        self.unregistered[row.id] = row, f"{row.name} cannot run here: {error}"
        self.engine.unregistered[row.id] = None

    def settle(self, tick: Tick, *, dry: bool) -> None:
        """Write down how jobs ended that have; of the others, that they failed, or (in a *dry* run) why they wait."""
        self.take_ends(tick)
        for job_id, (row, sentence) in list(self.unregistered.items()):
            if dry:
                sentence = f"{sentence}; a dry run leaves it alone"
                tick.change(job_id, reason="never-fits", sentence=sentence)
            else:
                self._end(row, JobStatus.FAILED, self.now_s(), "never-fits", sentence, tick)

    def take_ends(self, tick: Tick) -> None:
        """Write down how jobs ended or were interrupted, as the engine has reported."""
        for job_id, (row, _) in list(self.unregistered.items()):
            change, before = self.engine.unregistered[job_id], row.attempts <= row.settled
            if isinstance(change, JobInterrupted) and not before:
                self._wait(row, change, tick)
            if not isinstance(change, JobEnded) or (change.outcome is not Outcome.COMPLETED and before):
                continue  # it still runs, or its end was processed before
            if change.outcome is Outcome.COMPLETED:
                tick.change(job_id, done_epochs=float(row.file.epochs), kept_epochs=float(row.file.epochs))
                self._end(row, JobStatus.COMPLETED, change.at_s, "completed", completed(row.name, change), tick)
            elif change.outcome is Outcome.CANCELLED:
                sentence = f"{row.name}: {change.cause}"
                self._end(row, JobStatus.CANCELLED, change.at_s, change.reason, sentence, tick)
            else:
                sentence = f"{row.name} failed: {change.cause or 'its command ended with an error'}"
                self._end(row, JobStatus.FAILED, change.at_s, change.reason or "failed", sentence, tick)

    def cancel(self, job_id: int, requester: Requester | None, tick: Tick) -> None:
        """Stop a job; one that is not registered has then been cancelled."""
        self.take_ends(tick)
        if job_id not in self.unregistered and self.engine.handle_of(job_id) is None:
            return  # it has ended by itself
        stop_runs(self.engine.inner, [job_id])
        if job_id in self.unregistered:
            row, _ = self.unregistered[job_id]
            self._end(row, JobStatus.CANCELLED, self.now_s(), *cancelled_by(requester), tick, requester)

    def _wait(self, row: JobRow, change: JobInterrupted, tick: Tick) -> None:
        """Write down that a job does not run any more, and waits."""
        event = report_of(change, row.name, (), len(row.nodes) * row.gpus_per_node)
        waits: dict[str, Any] = {"status": JobStatus.WAITING, "settled": row.attempts}
        tick.change(row.id, **waits, reason=event.reason, sentence=event.sentence, **_OFF)
        tick.events.append(
            EventRow(
                0, float(change.at_s), event.kind, row.id, row.nodes, event.gpus, event.reason, event.sentence,
                event.lost_s,
            )
        )  # fmt: skip
        self.unregistered[row.id] = replace(row, **waits, nodes=()), self.unregistered[row.id][1]

    def _end(
        self, row: JobRow, status: JobStatus, at_s: float, reason: str, sentence: str, tick: Tick,
        requester: Requester | None = None,
    ) -> None:  # fmt: skip
        del self.unregistered[row.id], self.engine.unregistered[row.id]
        fail(row, float(at_s), reason, sentence, tick, status=status, requester=requester)
        if (segment := self.store.segments().get(row.id)) is not None:  # it will not run again
            tick.charge(("job", row.id), segment)
            tick.segments[row.id] = None


def fail(
    row: JobRow, at_s: float, reason: str, sentence: str, tick: Tick, *, status: JobStatus = JobStatus.FAILED,
    requester: Requester | None = None,
) -> None:  # fmt: skip
    """Write down that a job has failed, or has ended in another *status*."""
    gpus = len(row.nodes) * row.gpus_per_node
    tick.change(row.id, status=status, ended_s=at_s, reason=reason[:128], sentence=sentence, **_OFF)
    nodes = tuple(row.nodes)
    tick.events.append(EventRow(0, at_s, status, row.id, nodes, gpus, reason[:128], sentence, requester=requester))


def stop_runs(engine: LiveEngine, job_ids: Sequence[int]) -> None:
    """Stop the runs of jobs; a run that cannot be stopped keeps its GPUs, and nothing else waits for it."""
    if engine.capabilities.deferred_stop:
        engine.request_stop(job_ids)
    for job_id in job_ids:
        try:
            engine.apply([Stop(job_id)])
        except EngineDownError:
            raise
        except EngineError as error:
            extra = {"job": job_id, "cause": str(error)}
            log.warning("a job that has ended, or has no place, cannot be stopped", extra=extra)
