"""One run of a job, as the engine handles it: its records on disk, its job in Slurm, and how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from commonwatt.control.engine import Change, JobEnded, JobInterrupted, JobLeft, Outcome
from commonwatt.engines.local.folder import End
from commonwatt.engines.recorded_engine import SchedulerRun
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.parsing import SlurmJob
from commonwatt.engines.slurm.settings import GONE_S, SlurmSettings

__all__ = [
    "SlurmRun",
    "await_end",
    "cancelled_by_others",
    "change_of",
    "comment_of",
    "kill_overdue",
    "note_cancel",
    "run_of",
]

_CANCELLED = "cancelled"
_BLINK_S = 0.05
_AGAIN_S = 1.0

_CAUSES = {
    "BOOT_FAIL": "a node of it did not boot",
    "CANCELLED": "it was cancelled in Slurm, not by commonwatt",
    "DEADLINE": "Slurm ended it at its deadline",
    "NODE_FAIL": "a node of it failed",
    "PREEMPTED": "Slurm gave its place to another job",
    "TIMEOUT": "Slurm ended it at the time limit of its partition",
}
_FAILURES = {"OUT_OF_MEMORY": (137, "it used more memory than Slurm gave it")}


def note_cancel(run: Path) -> None:
    """Write down, in the folder of a run, that we cancel it in Slurm."""
    with suppress(OSError):
        (run / _CANCELLED).touch(mode=0o600)


def comment_of(identity: str, handle: int, attempt: int) -> str:
    """Return the comment that identifies a job of ours in Slurm."""
    return f"commonwatt {identity} {handle} {attempt}"


def run_of(identity: str, comment: str) -> tuple[int, int] | None:
    """Return the handle and attempt of a job of ours; ``None`` for any other."""
    words = comment.split(" ")
    if len(words) != 4 or words[:2] != ["commonwatt", identity]:
        return None
    if not all(word.isascii() and word.isdigit() and len(word) <= 18 for word in words[2:]):
        return None
    return int(words[2]), int(words[3])


@dataclass(slots=True, eq=False)
class SlurmRun(SchedulerRun):
    """A run whose end was not reported yet.

    Attributes
    ----------
    number
        Of its job in Slurm, if this process submitted it.
    deferred
        Not submitted yet: its nodes are waking.
    stop_cause
        Why we cancelled it in Slurm, if we did.
    missing_s, missing_at_s
        Since when it is neither in Slurm, nor has a record of its end; the snapshot that showed it first.
    killed_s
        When we had Slurm kill it.
    seen_s
        When Slurm last said that it was on its nodes; by ``now_s``.
    sealed
        Whether its end is in our own record.
    """

    number: int | None = None
    deferred: bool = False
    stop_cause: str = ""
    missing_s: float | None = None
    missing_at_s: float = math.inf
    killed_s: float | None = None
    seen_s: float = -math.inf
    sealed: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """Its handle and attempt."""
        return self.spec.handle, self.spec.attempt

    @property
    def expected(self) -> bool:
        """Whether Slurm should have it: it was submitted, and has no record of its end."""
        return not self.deferred and self.folder.end() is None

    def job_number(self) -> int | None:
        """Return the number of its job in Slurm; an earlier process may have submitted it. ``None`` if unknown."""
        if self.number is not None:
            return self.number
        if (noted := self.folder.number()) is not None or self.folder.own is not None:
            return noted
        names = (path.stem.removeprefix("slurm-") for path in self.folder.path.glob("slurm-*.log"))  # as submitted
        return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)

    @property
    def killed(self) -> bool:
        """Whether we had Slurm kill it."""
        return self.killed_s is not None

    @property
    def stuck(self) -> bool:
        """Whether it was killed so long ago that nobody waits for it any more."""
        return self.killed_s is not None and time.monotonic() > self.killed_s + GONE_S

    def ended(self, job: SlurmJob | None, lag_s: float, seen_s: float = math.inf) -> End | None:
        """Return how the run ended, ``None`` if it has not; *job* is its job in Slurm at *seen_s*.

        It has ended once Slurm has taken back everything. The record of its runner says how. If there is none after
        *lag_s*, which the shared file system may need, Slurm says how, and the run is given up.

        The record of a runner that was another user's is believed only from when Slurm last had it on its nodes, and
        kept as it was then.
        """
        end = self._ended(job, lag_s, seen_s)
        if end is None:
            return None
        end = end.timely(self.spec, self.now_s())
        if self.folder.own is not None and not self.sealed:
            end = replace(end, at_s=max(end.at_s, self.seen_s))
            self.folder.finish(end)
            self.sealed = True
        return end

    def _ended(self, job: SlurmJob | None, lag_s: float, seen_s: float) -> End | None:
        if job is not None and job.over and self.number not in (None, job.id):
            job = None  # of another run, whose records were moved aside
        if self.deferred or (job is None and seen_s < self.waiting_s):  # it has only just been submitted
            return None
        if job is not None and not job.over:
            self.missing_s = None
            if job.allocated:
                self.seen_s = self.now_s()
            return None
        end = self.folder.end()
        if end is None:
            now_s = time.monotonic()
            if self.missing_s is None:
                self.missing_s, self.missing_at_s = now_s, seen_s
            if now_s - self.missing_s < lag_s or (job is None and seen_s <= self.missing_at_s < math.inf):
                return None  # what Slurm does not list is given up after a second look only
            return self.folder.give_up(_without_record(job, self.stop_cause, self.now_s()))
        if end.stopped or (self.killed and end.killed):
            return replace(end, stopped=True, cause=self.stop_cause or _stopped_by(job, end))
        if end.killed and job is not None and job.state in _CAUSES:  # by Slurm; its runner only saw the signal
            return replace(end, exit_code=None, cause=f"{_CAUSES[job.state]} ({job.state})")
        return end

    def note_cancel(self) -> None:
        """Write down, before it happens, that we cancel it in Slurm: an engine that comes later has to know."""
        note_cancel(self.folder.path)

    def cancelled_by_us(self) -> bool:
        """Whether we stopped it, or cancelled it in Slurm, as far as is known."""
        return bool(self.stop_cause) or self.asked_s is not None or (self.folder.path / _CANCELLED).exists()

    def misplaced(self, job: SlurmJob, start_s: float) -> bool:
        """Whether it has to be cancelled in Slurm's queue."""
        if job.state != "PENDING":
            self.waiting_s = time.monotonic()
        elif not self.stop_cause and self.folder.end() is not None:  # a restarted slurmctld forgot that it ran
            self.stop_cause = "Slurm lost track of it and requeued it"
            return True
        elif not self.stop_cause and time.monotonic() > self.waiting_s + start_s:
            self.stop_cause = f"Slurm did not start it within {start_s:g} s: {job.reason}"
            return True
        return False

    def prevented(self, cause: str) -> bool:
        """Make sure that the run never begins; returns whether that was possible, as it has not begun."""
        with self.folder.without_runner() as dead:
            if not dead:
                return False
            if self.folder.end() is None:
                self.folder.finish(End(None, stopped=False, at_s=self.now_s(), cause=cause))
        return True

    def just_ended(self, within_s: float) -> bool:
        """Whether its record says that it ended a moment ago, which Slurm will confirm soon."""
        return self.now_s() - within_s <= self.ended_s() < math.inf


def change_of(run: SlurmRun, change: Change) -> Change:
    """Return what the controller hears of the end of a run: of one it takes for gone, that it has left at last."""
    if run.detached and isinstance(change, JobInterrupted):
        return JobLeft(change.handle, change.at_s, change.lost_s)
    return change


def cancelled_by_others(run: SlurmRun, job: SlurmJob | None, change: Change) -> Change:
    """Return the *change* to report of a run that somebody else cancelled in Slurm; any other as it is."""
    if job is None or job.state != "CANCELLED" or not isinstance(change, JobInterrupted) or run.cancelled_by_us():
        return change
    cause = "it was cancelled in Slurm, not by commonwatt"
    return JobEnded(change.handle, change.at_s, Outcome.CANCELLED, cause, "cancelled-in-slurm")


def kill_overdue(
    runs: Iterable[SlurmRun], job_of: Callable[[RunSpec], SlurmJob | None], slurm: Slurm, settings: SlurmSettings
) -> None:
    """Have Slurm kill, all at once, runs that were asked to stop and are overdue, without waiting."""
    now_s = time.monotonic()
    asked = [run for run in runs if run.asked_s is not None and not run.killed]
    overdue = [run for run in asked if now_s > (run.asked_s or 0.0) + settings.kill_s]
    due = [(run, job) for run in overdue if (job := job_of(run.spec)) is not None and (job.allocated or job.completing)]
    if due:
        for run, _ in due:
            run.note_cancel()
        slurm.cancel([job.id for _, job in due])
    for run, _ in due:
        run.killed_s, run.stop_cause = now_s, run.stop_cause or "stopped"


def await_end(
    run: SlurmRun, slurm: Slurm, settings: SlurmSettings, job_of: Callable[[], SlurmJob | None]
) -> End | None:
    """Wait until a run that was asked to stop has ended and Slurm has its GPUs back; kill it if it is overdue.

    Returns ``None`` if Slurm still has it on its nodes although it ended or was killed: there may be a long epilog, or
    a process that cannot be killed. Its end is reported later. Raises ``EngineError`` if Slurm does not answer.
    """
    stopped = End(None, stopped=True, at_s=run.now_s(), cause="stopped")
    if run.deferred:
        return run.folder.give_up(stopped)
    asked_s = time.monotonic()
    kill_s = max(asked_s, (asked_s if run.asked_s is None else run.asked_s) + settings.kill_s)
    pause_s, at_work, rest_s = _BLINK_S, False, math.inf
    while (job := job_of()) is not None and not job.over:
        now_s = time.monotonic()
        at_work = at_work or job.allocated
        if job.completing or run.killed or now_s > kill_s + settings.patience_s:
            since_s = now_s if run.killed_s is None else run.killed_s
            rest_s = min(rest_s, since_s + (settings.patience_s if at_work and now_s < kill_s else GONE_S))
        if now_s > rest_s:
            run.detached = True
            return None
        if job.state == "PENDING" or (now_s > kill_s and not run.killed):
            run.note_cancel()
            slurm.cancel([job.id])
            run.killed_s, run.stop_cause = None if job.state == "PENDING" else now_s, run.stop_cause or "stopped"
        elif job.state == "RUNNING" and now_s > asked_s + _AGAIN_S:  # it was being launched and missed it
            slurm.terminate([job.id])
            asked_s = now_s
        time.sleep(pause_s)
        pause_s = min(_AGAIN_S, 1.5 * pause_s)
    over_s = time.monotonic()
    while run.folder.end() is None and run.folder.processes() and time.monotonic() < over_s + settings.lag_s:
        time.sleep(_BLINK_S)
    end = run.folder.give_up(stopped).timely(run.spec, run.now_s())
    return replace(end, stopped=True) if run.killed and end.killed else end


def _without_record(job: SlurmJob | None, why: str, now_s: float) -> End:
    if why:
        return End(None, stopped=False, at_s=now_s, cause=why)
    if job is None:
        return End(None, stopped=False, at_s=now_s, cause="it is not in Slurm, and left no record")
    if job.state == "COMPLETED":
        return End(0, stopped=False, at_s=now_s, cause="completed, by Slurm's account")
    if job.state in _FAILURES:
        code, cause = _FAILURES[job.state]
        return End(code, stopped=False, at_s=now_s, cause=f"{cause} ({job.state})")
    cause = _CAUSES.get(job.state, "its batch script ended without a record")
    return End(None, stopped=False, at_s=now_s, cause=f"{cause} ({job.state})")


def _stopped_by(job: SlurmJob | None, end: End) -> str:
    if job is not None and job.state in _CAUSES:
        return f"{_CAUSES[job.state]} ({job.state})"
    return f"its stop was requested by others: {end.cause}"
